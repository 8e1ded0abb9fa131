"""The steps that are written out for witnesses, against the scoring itself."""

from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.steps import PlainSteps, WitnessSteps, witness_steps
from fedkad.detect.witnesses import WitnessScoring
from fedkad.koopman.scaling import CLIP
from tests.fixtures.draws import draws

Array = NDArray[np.float64]

CHANNELS, WINDOW = 8, 6


def plant(rows: int, seed: int) -> Array:
    """Three channels that go together, one of its own, one with rare spikes, an input, a switch, one that rests."""
    generator, t = np.random.default_rng(seed), np.arange(float(rows))
    load = np.sin(t / 40.0) + 0.4 * np.sin(t / 7.0)
    spikes = np.where(np.arange(rows) % 97 == 5, 30.0, 0.0)
    columns = [load, 2.0 * load, -load, np.cos(t / 11.0), spikes, np.sign(np.sin(t / 90.0)), t // 50 % 2, 0.0 * t + 3.0]
    noise = 0.05 * generator.normal(size=(rows, CHANNELS))
    noise[:, 5:] = 0.0
    return np.stack(columns, axis=1) + noise


@cache
def fitted(channels: int) -> KoopmanDetector:
    """With five channels nothing but plain ones, with all of them an input and switches as well."""
    inputs = (5,) if channels > 5 else ()
    detector = KoopmanDetector(window=WINDOW, rank=6, observables=12, private=2, inputs=inputs)
    return detector.fit(plant(4000, 0)[:, :channels])


def scoring_of(detector: KoopmanDetector) -> WitnessScoring:
    scoring = detector.model_.scoring
    assert isinstance(scoring, WitnessScoring)
    return scoring


def by_both(detector: KoopmanDetector, rows: Array) -> tuple[Array, Array]:
    """The parts of all scores by the written-out steps, and by the scoring."""
    scoring, values = scoring_of(detector), detector.scaling_.standardise(rows)
    ours, theirs = witness_steps(scoring), PlainSteps(scoring)
    assert isinstance(ours, WitnessSteps)
    windows = detector.lifting_.windows(np.nan_to_num(np.clip(values, -CLIP, CLIP)))
    for each in (ours, theirs):
        each.skip(windows[0], values[WINDOW - 1])
    found = []
    for window, sample in zip(windows[1:], values[WINDOW:], strict=True):
        is_plain = bool((np.abs(sample) <= CLIP).all())
        found.append([each.score(window, sample, is_plain=is_plain) for each in (ours, theirs)])
    both = np.array(found)
    return both[:, 0], both[:, 1]


@st.composite
def recordings(draw: st.DrawFn) -> tuple[KoopmanDetector, Array]:
    """Another day, with cells that are a little or far off, between the two states of a switch, or missing."""
    detector = fitted(draw(st.sampled_from([5, CHANNELS])))
    rows = plant(60, draw(st.integers(1, 50)))[:, : detector.n_features_in_]
    for _ in range(draw(st.integers(0, 5))):
        at, length = draw(st.integers(0, 59)), draw(st.sampled_from([1, 1, 2, 20]))
        where = slice(at, at + length), draw(st.integers(0, detector.n_features_in_ - 1))
        off = draw(st.sampled_from([1e-9, 0.01, 0.3, -1.0, 4.0, 1e3, 1e200, np.nan]))
        rows[where] += off
    return detector, rows


@draws(80, derandomize=True)
@given(recordings())
def test_steps_find_what_the_scoring_finds(case: tuple[KoopmanDetector, Array]) -> None:
    ours, theirs = by_both(*case)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_horizons_tolerances_and_confirmed_stretches_are_left_to_the_scoring() -> None:
    detector, train = fitted(5), plant(4000, 0)[:, :5]
    farther = KoopmanDetector(window=WINDOW, rank=6, observables=12, horizon=2).fit(train)
    scoring = scoring_of(detector)
    confirmed = replace(scoring, bounds=scoring.bounds._replace(discounts=np.ones(1)))
    for each in (scoring_of(farther), scoring.with_tolerance(np.zeros(5)), confirmed):
        assert isinstance(witness_steps(each), PlainSteps)
