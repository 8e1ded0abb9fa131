"""The steps that are written out for witnesses, against the scoring itself."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.steps import PlainSteps, WitnessSteps, steps
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


def by_both(detector: KoopmanDetector, rows: Array) -> tuple[Array, Array]:
    """The parts of all scores by the written-out steps, and by the scoring."""
    scoring, values = detector.model_.scoring, detector.scaling_.standardise(rows)
    ours, theirs = steps(scoring), PlainSteps(scoring)
    assert isinstance(ours, WitnessSteps)
    windows = detector.lifting_.windows(np.nan_to_num(np.clip(values, -CLIP, CLIP)))
    for each in (ours, theirs):
        each.see(windows[0], values[WINDOW - 1])
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


@pytest.mark.parametrize("channels", [5, CHANNELS])
def test_few_things_outside_are_told_from_many(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    detector, taken = fitted(channels), {"few": 0, "many": 0}
    few, many = WitnessSteps._few_outside, WitnessScoring.of_deviations

    def count_few(self: WitnessSteps, *given: Any) -> Any:
        taken["few"] += 1
        return few(self, *given)

    def count_many(self: WitnessScoring, *given: Any) -> Any:
        taken["many"] += 1
        return many(self, *given)

    rows = plant(200, 3)[:, :channels]
    rows[100, 3] += 1.0  # one channel jumps
    rows[150:160, :5] += [9.0, -9.0, 9.0, 9.0, 90.0]  # all do, and ties break
    monkeypatch.setattr(WitnessSteps, "_few_outside", count_few)
    ours = np.array([step.score for step in map(detector.stream().update, rows)])
    monkeypatch.setattr(WitnessScoring, "of_deviations", count_many)
    again = np.array([step.score for step in map(detector.stream().update, rows)])
    np.testing.assert_array_equal(ours, again)
    assert taken["few"] > 10
    assert taken["many"] > 5
    assert taken["few"] / 2 + taken["many"] < len(rows) - 50  # most moments are calm


def test_horizons_tolerances_and_confirmed_stretches_are_left_to_the_scoring() -> None:
    detector, train = fitted(5), plant(4000, 0)[:, :5]
    farther = KoopmanDetector(window=WINDOW, rank=6, observables=12, horizon=2).fit(train)
    scoring = detector.model_.scoring
    assert isinstance(scoring, WitnessScoring)
    for each in (farther.model_.scoring, replace(scoring, tolerance=np.zeros(5))):
        assert isinstance(steps(each), PlainSteps)
