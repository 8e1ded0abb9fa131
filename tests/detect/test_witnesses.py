"""Motion, fit and place against a naive implementation of their formulas, and what they are there for."""

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.dynamics import ANCHOR, Dynamics
from fedkad.detect.explanations import OutOfPlace
from fedkad.detect.features import PROBABILITIES
from fedkad.detect.ranges import Bounds, KnownRanges, absurd_in_training
from fedkad.detect.scoring import ScoredWindow, features_of, score_series, split_terms
from fedkad.detect.series import Series
from fedkad.detect.stream import Reading
from fedkad.detect.witnesses import WitnessScoring
from fedkad.koopman.scaling import CLIP
from fedkad.koopman.snapshots import stretches
from fedkad.simulate import CHANNELS, simulate_fleet
from tests.fixtures import naive
from tests.fixtures.draws import draws

Array = NDArray[np.float64]

NAMES = ("flow", "pressure", "pump", "load")
PUMP, LOAD = 2, 3
SMALL: dict[str, Any] = {"window": 6, "rank": 4, "observables": 5, "validation": 0.2, "private": 0}


def machine(length: int, seed: int = 0) -> Array:
    """Two channels that follow a load, a switch that pushes one of them, and the load, which nobody can predict."""
    generator, length = np.random.default_rng(seed), length + 50
    steps = generator.integers(2, 9, length)
    load = np.repeat(generator.integers(1, 5, length).astype(float), steps)[:length]
    pump = np.repeat(np.arange(length) % 2, generator.integers(3, 12, length))[:length].astype(float)
    flow, pressure = np.zeros(length), np.zeros(length)
    for t in range(1, length):
        flow[t] = 0.8 * flow[t - 1] + 0.2 * load[t - 1]
        pressure[t] = 0.6 * pressure[t - 1] + 0.5 * flow[t - 1] - 0.4 * pump[t - 1]
    noise = 0.05 * generator.normal(size=(2, length))
    return np.stack([flow + noise[0], 10.0 * (pressure + noise[1]), pump, load], axis=1)[50:]


@cache
def fitted(*, inputs: bool = True, rows: int = 900, **changes: Any) -> KoopmanDetector:
    detector = KoopmanDetector(inputs=["load"] if inputs else [], **{**SMALL, **changes})
    return detector.fit(Series(machine(rows), NAMES))


def scoring_of(detector: KoopmanDetector) -> WitnessScoring:
    scoring = detector.model_.scoring
    assert isinstance(scoring, WitnessScoring)
    return scoring


def disturbed(length: int = 160, seed: int = 7) -> Array:
    """A series that visits every branch of the score: far residuals, values outside, a stuck channel, a third value."""
    series = machine(length, seed)
    series[40, 0] += 0.6
    series[55:60, 1] += 300.0
    series[70:85, 0] = series[70, 0]
    series[95, PUMP] = 0.4
    series[110:125, LOAD] = 9.0
    return series


# -- the naive implementation -------------------------------------------------------------------------------------


class Terms(NamedTuple):
    """What each channel adds to the parts of one entry."""

    motion: Array
    fit: Array
    outside: Array
    dwell: Array


def residuals_at(model: naive.Model, scaled: Array, t: int) -> tuple[Array, Array]:
    """Residuals `(H, n)` of the samples up to t, and `(W, n)` of the window that was predicted for t."""
    (n, width), horizon = (model.lifting.channels, model.lifting.window), model.horizon
    state = naive.lift(scaled[t - horizon - width + 1 : t - horizon + 1], model.lifting)
    steps = []
    for h in range(1, horizon + 1):
        said = model.subspace @ np.linalg.matrix_power(model.operator, h) @ model.subspace.T @ state
        window = said[: n * width].reshape(width, n)
        steps.append(scaled[t - horizon + h] - window[-1])
    return np.array(steps), scaled[t - width + 1 : t + 1] - window


def far(value: float, low: float, high: float) -> float:
    return max(low - value, value - high, 0.0)


def terms_at(scoring: WitnessScoring, model: naive.Model, values: Array, t: int) -> Terms:
    """The terms of entry t of a complete series: `values` are scaled, and clipped for the model."""
    clipped = np.clip(values, -10.0, 10.0)
    residuals, missed = residuals_at(model, clipped, t)
    window = clipped[t - model.lifting.window + 1 : t + 1]
    n, judged = values.shape[1], int(scoring.judged.sum())
    motion, fit, outside, dwell, broken = (np.zeros(n) for _ in range(5))
    low, high, unit, switch = scoring.bounds[:4]
    for c in range(n):
        nothing = 0.0 if scoring.tolerance is None else scoring.tolerance[c]
        if scoring.judged[c]:
            for h, step in enumerate(residuals):
                e = abs(step[c] - scoring.centre[h, c]) / scoring.spread[h, c]
                if e * scoring.spread[h, c] > nothing:
                    motion[c] += (e**2 if e <= 3.0 else 6.0 * e - 9.0) / (judged * len(residuals))
            fit[c] = sum(r**2 for r in missed[:, c] if abs(r) > nothing) / (judged * len(window))
        value, moved = values[t, c], abs(residuals[-1, c] - scoring.centre[-1, c])
        jump = max(moved - scoring.jump[c], 0.0) if moved > nothing else 0.0
        away = far(value, low[0, c], high[0, c])
        if switch[c]:
            away = min(abs(value - low[0, c]), abs(value - high[0, c]))
            away = 0.0 if away <= 1e-6 else away
        away = away if away > nothing else 0.0
        outside[c] = 5.0 * min(max(away, jump) / unit[c], 5.0)
        mean, deviation = window[:, c].mean(), window[:, c].std()
        level, spread = (far(x, low[k, c], high[k, c]) for k, x in ((1, mean), (2, math.log(deviation + 0.05))))
        if far(deviation, *(max(math.exp(b[2, c]) - 0.05, 0.0) for b in (low, high))) <= nothing:
            spread = 0.0
        dwell[c] = math.hypot(level if level > nothing else 0.0, spread)
        if scoring.judged[c]:
            said = sum(scoring.bounds.ties[c, k] * window[:, k].mean() for k in range(n)) - scoring.bounds.offset[c]
            apart = far(said, low[3, c], high[3, c])
            broken[c] = (apart if apart > nothing else 0.0) / scoring.bounds.tightness[c]
    if broken.any():  # each counts up to one range; who explains all departures best is to blame
        departed = np.array([scoring.bounds.ties[c] @ window.mean(axis=0) - scoring.bounds.offset[c] for c in range(n)])
        departed = np.where(scoring.judged, departed / scoring.bounds.tightness, 0.0)
        blame = np.zeros(n)
        for k in range(n):
            effect = np.where(scoring.judged, scoring.bounds.ties[:, k] / scoring.bounds.tightness, 0.0)
            left = departed - effect * (effect @ departed) / (effect @ effect) if effect.any() else departed
            blame[k] = departed @ departed - left @ left
        dwell += 5.0 * sum(min(each, 1.0) for each in broken) * blame / sum(blame)
    return Terms(motion, fit, outside / scoring.bounds.wander, dwell / scoring.bounds.wander)


class NaiveScores(NamedTuple):
    """Of a complete series, NaN before the first score."""

    witnesses: Array  # (time, 3)
    shares: Array  # (time, n)
    offline: Array

    @property
    def causal(self) -> Array:
        return np.asarray(self.witnesses.sum(axis=1))


def naive_scores(detector: KoopmanDetector, series: Array) -> NaiveScores:
    scoring, model = scoring_of(detector), naive_model(detector)
    values = (series - detector.scaling_.mean) / detector.scaling_.scale
    lead = detector.window + detector.horizon - 1
    terms = {t: terms_at(scoring, model, values, t) for t in range(lead, len(values))}
    witnesses, shares = np.full((len(values), 3), np.nan), np.full(values.shape, np.nan)
    offline, half, last = np.full(len(values), np.nan), detector.window // 2, len(values) - 1
    for t in terms:
        recent = [terms[s] for s in range(t - detector.smoothing + 1, t + 1) if s in terms]
        motion, fit, outside, dwell = (np.mean([found[k] for found in recent], axis=0) for k in range(4))
        shares[t] = 0.0
        for k, channels in enumerate((motion, fit, outside + dwell)):
            witnesses[t, k] = voice = weighted_root(scoring, k, channels.sum())
            shares[t] += voice * channels / channels.sum() if channels.sum() > 0.0 else 0.0
        near = [s for s in range(t - half, t + half + 1) if s in terms]
        # Fit, level and spread tell of a whole window and belong to its middle.
        later = [min(s + half, last) for s in near]
        sums = [np.mean([terms[s][k].sum() for s in when]) for k, when in enumerate((near, later, near, later))]
        offline[t] = sum(
            weighted_root(scoring, k, part) for k, part in enumerate((sums[0], sums[1], sums[2] + sums[3]))
        )
    return NaiveScores(witnesses, shares, offline)


def weighted_root(scoring: WitnessScoring, witness: int, part: float) -> float:
    return (1.0, 1.0, 0.5)[witness] * math.sqrt(part / scoring.units[witness])


def naive_model(detector: KoopmanDetector) -> naive.Model:
    return naive.Model(detector.lifting_, detector.subspace_, detector.operator_, detector.horizon)


CASES: list[dict[str, Any]] = [
    {},
    {"horizon": 2},
    {"private": 2},
    {"horizon": 2, "private": 2, "smoothing": 1},
    {"inputs": False, "smoothing": 3, "window": 5},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_scores_and_causes_are_the_naive_ones(changes: dict[str, Any]) -> None:
    detector, series = fitted(**changes), disturbed()
    scoring = scoring_of(detector)
    assert scoring.bounds.switch.tolist() == [False, False, True, False]
    assert scoring.judged.tolist() == [True, True, False, not changes.get("inputs", True)]
    expected = naive_scores(detector, series)
    np.testing.assert_allclose(detector.witnesses(series), expected.witnesses, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(detector.decision_function(series), expected.causal, rtol=1e-6)
    np.testing.assert_allclose(detector.score_series(series), expected.offline, rtol=1e-6)
    np.testing.assert_allclose(detector.explain(series), expected.shares, rtol=1e-5, atol=1e-6)
    total = detector.explain(series).sum(axis=1)
    np.testing.assert_allclose(total, detector.decision_function(series), rtol=1e-12)
    scored = expected.witnesses[detector.window + detector.horizon :]
    assert (scored[:, 2] == 0.0).any(), "some entries must lie where the device has been"
    assert (scored[:, 2] > 1.0).any()


TOLERANCE = np.array([0.3, 0.0, 0.2, 1.0])


def tolerant(detector: KoopmanDetector, tolerance: Array) -> KoopmanDetector:
    scoring = replace(scoring_of(detector), tolerance=tolerance)
    return KoopmanDetector.of(replace(detector.model_, scoring=scoring), detector.memory_)


@pytest.mark.parametrize("changes", [CASES[0], CASES[3], CASES[4]], ids=str)
def test_what_is_within_the_tolerance_adds_nothing(changes: dict[str, Any]) -> None:
    strict = fitted(**changes)
    detector, series = tolerant(strict, TOLERANCE), disturbed()
    expected = naive_scores(detector, series)
    np.testing.assert_allclose(detector.witnesses(series), expected.witnesses, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(detector.score_series(series), expected.offline, rtol=1e-6)
    np.testing.assert_allclose(detector.explain(series), expected.shares, rtol=1e-5, atol=1e-6)
    stream = detector.stream()
    streamed = [stream.update(sample).score for sample in series]
    np.testing.assert_allclose(streamed, detector.decision_function(series), rtol=1e-9)
    before, after = strict.witnesses(series), detector.witnesses(series)
    assert np.nanmax(after - before) <= 1e-6
    assert (np.nanmin(after - before, axis=0) < -0.1).all(), "each witness must have something to leave out"
    # With a channel missing, the parts are computed in another way.
    holed = with_holes(series, [Hole(30, 1, None), Hole(130, 20, 0)])
    again = detector.stream()
    np.testing.assert_allclose([again.update(row).score for row in holed], detector.decision_function(holed), rtol=1e-6)


def test_a_channel_whose_tolerance_is_never_reached_is_as_if_it_were_normal() -> None:
    wide = tolerant(fitted(), np.array([0.0, 1e9, 0.0, 0.0]))
    series = machine(160, 7)
    series[60:, 1] += 1e5  # far more than five ranges, of a channel that the others do not follow
    assert fitted().predict(series)[60:].all()
    assert (wide.explain(series)[20:, 1] == 0.0).all()
    stream = wide.stream()
    told = [stream.update(sample).explanation for sample in series][20:]
    assert all(each is not None and each.channel != "pressure" for each in told)


def test_private_directions_are_the_leading_ones_of_what_the_shared_ones_leave() -> None:
    alone, both = fitted(), fitted(private=2)
    shared, own = both.subspace_[:, :4], both.subspace_[:, 4:]
    assert np.array_equal(shared, alone.subspace_)
    np.testing.assert_allclose(both.subspace_.T @ both.subspace_, np.eye(6), atol=1e-10)
    x, _ = naive.snapshots(both.scaling_.transform(machine(900)), both.lifting_)
    left = x - shared @ shared.T @ x
    explained = np.linalg.svd(left, compute_uv=False)[:2] ** 2
    assert np.linalg.norm(own.T @ left) ** 2 == pytest.approx(explained.sum(), rel=1e-8)


# -- what is learned ----------------------------------------------------------------------------------------------


def window_features(scaled: Array, window: int) -> tuple[Array, Array]:
    """Mean, and logarithm of the standard deviation, of every full window of clipped values."""
    clipped = np.clip(scaled, -10.0, 10.0)
    windows = [clipped[t - window + 1 : t + 1] for t in range(window - 1, len(clipped))]
    spreads = [np.log(part.std(axis=0) + 0.05) for part in windows]
    return np.array([part.mean(axis=0) for part in windows]), np.array(spreads)


def departures_of(bounds: Bounds, levels: Array) -> Array:
    return np.array([bounds.ties @ level - bounds.offset for level in levels])


def naive_bounds(values: Array, levels: Array, spreads: Array, departures: Array) -> tuple[Array, Array, Array, Array]:
    """The 0.2 and 99.8 % quantiles of all features, the range of the values without their outermost, and tightness."""
    features = (values, levels, spreads, departures)
    low, high = (np.array([np.quantile(f, q, axis=0) for f in features]) for q in (0.002, 0.998))
    first, last = np.quantile(departures, [0.01, 0.99], axis=0)
    unit = np.quantile(values, 0.9995, axis=0) - np.quantile(values, 0.0005, axis=0)
    return low, high, unit, np.maximum(last - first, 0.1)


@pytest.mark.parametrize("horizon", [1, 2])
def test_bounds_and_residuals_are_those_of_all_training_rows(horizon: int) -> None:
    detector, train = fitted(horizon=horizon), machine(900)
    scoring = scoring_of(detector)
    np.testing.assert_allclose(detector.scaling_.mean, train.mean(axis=0))
    np.testing.assert_allclose(detector.scaling_.scale, train.std(axis=0))
    scaled = (train - train.mean(axis=0)) / train.std(axis=0)
    np.testing.assert_allclose(detector.memory_.held_out.rows, scaled, atol=1e-12)
    levels, spreads = window_features(scaled, 6)
    departures = departures_of(scoring.bounds, levels)
    low, high, unit, tightness = naive_bounds(scaled, levels, spreads, departures)
    low[0, PUMP], high[0, PUMP] = scaled[:, PUMP].min(), scaled[:, PUMP].max()
    np.testing.assert_allclose(scoring.bounds.low, low, atol=1e-9)
    np.testing.assert_allclose(scoring.bounds.high, high, atol=1e-9)
    np.testing.assert_allclose(scoring.bounds.unit, unit, atol=1e-9)
    np.testing.assert_allclose(scoring.bounds.tightness, tightness, atol=1e-9)
    for k, feature in enumerate((scaled, levels, spreads, departures)):
        expected = np.stack([feature.min(axis=0), feature.max(axis=0)], axis=1)
        np.testing.assert_allclose(scoring.bounds.ranges[k], expected, atol=1e-9)
    found = np.array(list(naive.newest_residuals(naive_model(detector), np.clip(scaled, -10.0, 10.0)).values()))
    # Farther ahead than one step, the moments come from sums over slightly other pairs.
    near = 1e-8 if horizon == 1 else 0.02
    np.testing.assert_allclose(scoring.centre, found.mean(axis=0), rtol=near, atol=near)
    np.testing.assert_allclose(scoring.spread, np.maximum(found.std(axis=0), 0.1), rtol=near)


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
@pytest.mark.parametrize(("rows", "horizon"), [(300, 1), (300, 2), (620, 1)])
def test_normal_scores_are_judged_by_what_the_other_blocks_show(rows: int, horizon: int) -> None:
    detector, train = fitted(rows=rows, horizon=horizon, smoothing=2), machine(rows)
    assert detector.model_.few_rows is (rows == 300)
    scoring, lead = scoring_of(detector), 6 + horizon - 1
    scaled = (train - detector.scaling_.mean) / detector.scaling_.scale
    states = naive.lifted_states(np.clip(scaled, -10.0, 10.0), detector.lifting_)
    levels, spreads = window_features(scaled, 6)
    residuals = []
    judged: dict[int, Terms] = {}
    for block in np.array_split(np.arange(lead, rows), 5):
        kept = [t for t in states if t - 1 in states and not block[0] <= t <= block[-1]]
        x, y = np.array([states[t - 1] for t in kept]).T, np.array([states[t] for t in kept]).T
        gram = detector.subspace_.T @ x @ x.T @ detector.subspace_
        operator = naive.best_operator(x, y, detector.subspace_, 1e-2 * float(np.trace(gram)) / len(gram), always=True)
        operator *= min(1.0, 0.995 / max(abs(np.linalg.eigvals(operator))))
        model = naive.Model(detector.lifting_, detector.subspace_, operator, horizon)
        ends = np.arange(5, rows)
        elsewhere = (ends < block[0]) | (ends > block[-1] + 6)
        departures = departures_of(scoring.bounds, levels[elsewhere])
        features = (scaled[5:][elsewhere], levels[elsewhere], spreads[elsewhere], departures)
        low, high, unit, tightness = naive_bounds(*features)
        low[0, PUMP], high[0, PUMP] = scaled[:, PUMP].min(), scaled[:, PUMP].max()
        bounds = scoring.bounds._replace(low=low, high=high, unit=unit, tightness=tightness)
        judge = WitnessScoring(
            scoring.dynamics, scoring.centre, scoring.spread, scoring.judged, bounds, scoring.jump, scoring.units
        )
        for t in block.tolist():
            residuals.append(residuals_at(model, np.clip(scaled, -10.0, 10.0), t)[0])
            judged[t] = terms_at(judge, model, scaled, t)
    if rows == 300:  # an operator fits few rows too well to know its own residuals
        np.testing.assert_allclose(scoring.centre, np.mean(residuals, axis=0), atol=1e-6)
        np.testing.assert_allclose(scoring.spread, np.maximum(np.std(residuals, axis=0), 0.1), rtol=1e-5)
    jump = np.quantile(np.abs(np.array(residuals)[:, -1] - scoring.centre[-1]), 0.999, axis=0)
    np.testing.assert_allclose(scoring.jump[scoring.judged], jump[scoring.judged], rtol=1e-5)
    assert (scoring.jump[~scoring.judged] > 1e100).all()  # what is not judged by prediction cannot jump
    parts = np.full((rows, 3), np.nan)
    for t, (motion, fit, outside, dwell) in judged.items():
        parts[t] = motion.sum(), fit.sum(), outside.sum() + dwell.sum()
    smooth = np.stack([naive.smooth(part, back=1) for part in parts.T], axis=1)
    usual = np.maximum(np.nanquantile(smooth[:, :2], 0.99, axis=0), [1.0, 0.1])
    np.testing.assert_allclose(scoring.units[:2], usual, rtol=1e-5)
    expected = np.sqrt(smooth / scoring.units) @ [1.0, 1.0, 0.5]
    # Calibration is in single precision: a jump may be outside by 1e-6, and place counts by its root.
    np.testing.assert_allclose(detector.model_.normal_scores, expected, rtol=1e-5, atol=2e-3)


def test_the_unit_of_place_is_how_far_each_channel_went_from_what_came_before() -> None:
    train = machine(2000)
    steady = scoring_of(KoopmanDetector(**SMALL).fit(train)).bounds.wander
    train[:, 0] += np.linspace(0.0, 6.0, len(train))
    wander = scoring_of(KoopmanDetector(**SMALL).fit(train)).bounds.wander
    scaled = (train - train.mean(axis=0)) / train.std(axis=0)
    levels, spreads = window_features(scaled, 6)
    reach, farthest = naive_bounds(scaled, levels, spreads, 0.0 * levels)[2], np.full(4, 0.5)
    for known, met in ((0.4, 0.55), (0.55, 0.7), (0.7, 0.85), (0.85, 1.0)):
        rows, before, after = int(known * 2000), int(known * 1995), int(met * 1995)
        low, high, *_ = naive_bounds(scaled[:rows], levels[:before], spreads[:before], 0.0 * levels[:before])
        gone = np.zeros((after - before, 4))
        for k, t in enumerate(range(before, after)):
            for c in range(4):
                outside = 5.0 * min(far(scaled[5:][t, c], low[0, c], high[0, c]) / reach[c], 5.0)
                level, spread = (far(f[t, c], low[1 + j, c], high[1 + j, c]) for j, f in enumerate((levels, spreads)))
                gone[k, c] = outside + math.hypot(level, spread)
        together = np.quantile([sum(row) for row in gone], 0.99)
        units = np.array([max(float(np.quantile(column, 0.99)), float(together) / 4.0, 0.5) for column in gone.T])
        usual = float(np.quantile([sum(row / units) for row in gone], 0.99))
        farthest = np.maximum(farthest, units * max(usual, 1.0))
    np.testing.assert_allclose(wander, farthest, rtol=1e-6)
    assert wander[0] > 2.0 * steady[0]
    assert (wander[1:] < wander[0] / 2.0).all(), "a channel that wanders does not devalue the others as much"


# -- holes --------------------------------------------------------------------------------------------------------


class Hole(NamedTuple):
    """Missing rows, or missing cells of one channel."""

    start: int
    length: int
    channel: int | None


@st.composite
def holes(draw: st.DrawFn, length: int) -> list[Hole]:
    rows = st.builds(Hole, st.integers(0, length - 1), st.integers(1, 5), st.none())
    cells = st.builds(Hole, st.integers(0, length - 1), st.integers(1, 3), st.integers(0, 3))
    dead = st.builds(Hole, st.integers(0, length - 1), st.just(length), st.integers(0, 3))
    return [*draw(st.lists(rows, max_size=4)), *draw(st.lists(cells, max_size=6)), *draw(st.lists(dead, max_size=2))]


def with_holes(series: Array, missing: Sequence[Hole]) -> Array:
    out = series.copy()
    for start, length, channel in missing:
        out[start : start + length, slice(None) if channel is None else channel] = np.nan
    return out


def naive_states(series: Array, window: int, horizon: int) -> list[str]:
    """A row without any value is bridged for a quarter window if a full window stands before it; then all is lost."""
    states, rows, hole = [], 0, 0
    for sample in series:
        absent = bool(np.isnan(sample).all())
        hole = hole + 1 if absent else 0
        if absent and (rows < window or hole > window // 4):
            states.append("gap")
            rows = 0
            continue
        rows += 1
        states.append("warming" if rows < window + horizon else "bridged" if absent else "ok")
    return states


CACHED = st.sampled_from([*CASES, {"window": 8, "smoothing": 4}, {"threshold": "quantile", "risk": 0.01}])


@draws(50, derandomize=True)
@given(CACHED, holes(length=90), st.integers(0, 50), st.sampled_from([1.0, 1.0, 3.0, 1e6]))
def test_the_stream_equals_the_batch_whatever_is_missing(
    changes: dict[str, Any], missing: list[Hole], seed: int, spike: float
) -> None:
    detector, series = fitted(**changes), machine(90, seed)
    series[50:53] *= spike
    series = with_holes(series, missing)
    scores, flags, shares = detector.decision_function(series), detector.predict(series), detector.explain(series)
    states, stream = naive_states(series, detector.window, detector.horizon), detector.stream()
    for t, sample in enumerate(series):
        reading = stream.update(sample)
        assert reading.state == states[t]
        assert reading.is_anomaly is bool(flags[t])
        assert reading.absent == [name for name, value in zip(NAMES, sample, strict=True) if np.isnan(value)]
        assert np.isnan(scores[t]) == np.isnan(reading.score) == (reading.state != "ok")
        if reading.state != "ok":
            assert (reading.kind, reading.sentence, reading.channels) == ("", "", [])
            continue
        # Where a place is left by no more than rounding, it is the root of the rounding that differs.
        scale = 1e-7 * max(1.0, scores[t])
        assert abs(reading.score - scores[t]) <= scale
        if t % 4 == 0:  # it takes long
            found = reading.shares
            np.testing.assert_allclose(found, shares[t], rtol=0.0, atol=scale)
            assert found.sum() == pytest.approx(reading.score, rel=1e-12)
            assert reading.kind in ("motion", "fit", "place")


def best_sample(dynamics: Dynamics, samples: Array, known: NDArray[np.bool_]) -> Array:
    """The newest of W + 1 samples at the a that minimises ‖z_k − Z_k a‖² + λ ‖a − Q c‖², by least squares."""
    lifting, rows = dynamics.lifting, dynamics.subspace[: dynamics.lifting.state_size]
    before = samples[: lifting.state_size]
    lifted = np.concatenate([before, np.tanh(lifting.weights @ before + lifting.bias)])
    predicted = dynamics.operator @ dynamics.subspace.T @ lifted
    penalty = np.sqrt(ANCHOR) * np.eye(len(predicted))
    left = np.concatenate([rows[known], penalty])
    right = np.concatenate([samples[lifting.channels :][known], penalty @ predicted])
    newest: Array = (rows @ np.linalg.lstsq(left, right)[0])[-lifting.channels :]
    return newest.clip(-CLIP, CLIP)


def test_what_is_missing_is_filled_with_what_the_model_expects() -> None:
    """Scores after a hole are those of a series whose missing cells hold the forecast, corrected by what is known."""
    detector = fitted(smoothing=1, window=8)
    dynamics, scaling = scoring_of(detector).dynamics, detector.scaling_
    series = with_holes(machine(90, 3), [Hole(30, 2, None), Hole(50, 1, 1), Hole(52, 1, 0), Hole(70, 1, None)])
    filled = series.copy()
    for t in np.flatnonzero(np.isnan(series).any(axis=1)):
        samples = scaling.standardise(filled[t - 8 : t + 1]).ravel()
        best = best_sample(dynamics, samples, ~np.isnan(series[t - 7 : t + 1].ravel()))
        filled[t] = np.where(np.isnan(series[t]), scaling.restore(best), series[t])
    scores, complete = detector.decision_function(series), ~np.isnan(series).any(axis=1)
    np.testing.assert_allclose(scores[complete], detector.decision_function(filled)[complete], rtol=1e-9)
    assert np.isnan(scores[[30, 31, 70]]).all()


def test_a_forecast_is_there_where_a_score_is() -> None:
    detector = fitted(window=8)
    series = with_holes(machine(90, 3), [Hole(30, 2, None), Hole(50, 4, None), Hole(70, 1, 0)])
    blind = np.isnan(detector.decision_function(series))
    assert np.array_equal(np.isnan(detector.forecast(series)).any(axis=1), blind)
    stream = detector.stream()
    expected = np.array([stream.update(sample).expected for sample in series])
    np.testing.assert_allclose(detector.forecast(series), expected, rtol=1e-9)


@pytest.mark.parametrize("horizon", [1, 2])
def test_a_channel_that_is_missing_has_no_part_in_the_score(horizon: int) -> None:
    detector = fitted(horizon=horizon, smoothing=1)
    series = with_holes(machine(120, 3), [Hole(40, 1, 0), Hole(60, 60, 1)])
    shares = detector.explain(series)
    assert shares[40, 0] == 0.0
    assert (shares[60:, 1] == 0.0).all()
    assert (shares[60:, 0] > 0.0).any()


def test_a_dead_channel_leaves_the_others_judged() -> None:
    detector, alarms = fitted(), []
    for seed in range(10):
        series = with_holes(machine(200, 100 + seed), [Hole(100, 100, 1)])
        assert not np.isnan(detector.decision_function(series)[7:]).any()
        alarms.append(detector.predict(series)[100:].mean())
    assert np.mean(alarms) < 0.05
    series[150:154, 0] += 3.0
    assert detector.predict(series)[150]
    stream = detector.stream()
    readings = [stream.update(sample) for sample in series]
    assert readings[150].channels[0][0] == "flow"
    assert {reading.state for reading in readings[100:]} == {"ok"}
    assert readings[150].absent == ["pressure"]


# -- simulated pumps ----------------------------------------------------------------------------------------------


@cache
def pumps() -> dict[str, tuple[KoopmanDetector, Array]]:
    """Detectors of three pumps, whose thresholds flag nothing, and normal data of each."""
    fleet = simulate_fleet(3, train_rows=2000, test_rows=600, faults_per_device=0, seed=4)
    found = {}
    for name, train in fleet.train.items():
        detector = KoopmanDetector().fit(Series(train, CHANNELS))
        detector.threshold_ = 1e9
        found[name] = detector, train
    return found


@cache
def twelve_channels() -> dict[str, tuple[KoopmanDetector, Array]]:
    """Detectors of two devices with twelve channels: one stands still, one is a switch, their units differ widely."""
    found = {}
    for seed in range(2):
        series = naive.normal_series(1500, 12, seed)
        series[:, 4] = 7.0
        series[:, 9] = np.random.default_rng(seed).integers(0, 2, 1500)
        detector = KoopmanDetector(window=10, rank=12, observables=24).fit(series)
        detector.threshold_ = 1e9
        found[str(seed)] = detector, series
    return found


@draws(40, derandomize=True)
@given(
    st.sampled_from([(kind, name) for kind in (pumps, twelve_channels) for name in kind()]),
    st.integers(0, 11),
    st.integers(0, 299),
    st.sampled_from([-1.0, 1.0]),
    st.floats(5.001, 1e9),
    st.booleans(),
)
def test_nothing_absurd_passes_whatever_the_threshold(
    device: tuple[Any, str], channel: int, at: int, sign: float, ranges: float, is_streamed: bool
) -> None:
    detector, train = device[0]()[device[1]]
    series, channels = train[-300:].copy(), train.shape[1]
    channel %= channels
    least, greatest = train[:, channel].min(), train[:, channel].max()
    # One that never moved may change by its own size.
    span = greatest - least if greatest > least else abs(greatest)
    assert not detector.predict(series).any()
    series[at, channel] = (greatest if sign > 0.0 else least) + sign * ranges * span
    series[(at + 5) % 300, (channel + 1) % channels] = np.nan
    if is_streamed:
        stream = detector.stream()
        readings = [stream.update(sample) for sample in series[: at + 1]]
        alarms = [int(reading.is_anomaly) for reading in readings]
        if readings[at].state == "ok":
            name = detector.model_.setup.channel_names[channel]
            assert readings[at].kind == "place"
            assert readings[at].sentence.startswith(f"{name} is ")
            assert f"{series[at, channel]:.4g}" in readings[at].sentence
    else:
        alarms = detector.predict(series, unscored=0)[: at + 1].tolist()
    # Without a full window before it nothing is judged, and an alarm would be about something else.
    assert alarms == [0] * at + [int(at >= detector.window)]


def test_four_ranges_outside_are_not_absurd() -> None:
    detector, train = pumps()["pump-01"]
    series, greatest = train[-300:].copy(), train.max(axis=0)
    series[200] = greatest + 4.9 * (greatest - train.min(axis=0))
    assert not detector.predict(series).any()


def test_what_was_seen_now_and_then_in_training_is_not_absurd() -> None:
    _, train = pumps()["pump-01"]
    train = train.copy()
    usual = train[:, 0].max() + 20.0 * (train[:, 0].max() - train[:, 0].min())
    train[[300, 700, 1100], 0] = usual  # three of them belong to the channel, but lie outside of its bounds
    detector = KoopmanDetector().fit(train)
    detector.threshold_ = 1e9
    assert scoring_of(detector).bounds.high[0][0] < detector.scaling_.standardise(train)[300, 0] / 5.0
    series = train[-300:].copy()
    series[200, 0] = usual
    assert not detector.predict(series).any()


@pytest.mark.parametrize("seed", range(10))
def test_rows_that_are_lost_here_and_there_cost_hardly_any_scores(seed: int) -> None:
    detector, train = pumps()["pump-02"]
    series = np.concatenate([train, train])
    lost = np.random.default_rng(seed).random(len(series)) < 0.02
    series[lost] = np.nan
    assert 0.005 < lost.mean() < 0.04
    scored = ~np.isnan(detector.decision_function(series))
    assert scored[~lost].mean() >= 0.97
    assert not scored[lost].any()


@pytest.mark.parametrize("channel", range(8))
def test_a_pump_whose_sensor_dies_is_not_taken_for_a_broken_one(channel: int) -> None:
    for detector, train in pumps().values():
        judge = detector.model_.with_rule(detector.model_.settings.threshold_rule)
        series = train[:700].copy()
        series[200:, channel] = np.nan
        assert KoopmanDetector.of(judge).predict(series)[200:].mean() < 0.05


@draws(30, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_missing_cells_are_those_that_fit_what_is_known_best(seed: int, share: float) -> None:
    detector, generator = fitted(private=2), np.random.default_rng(seed)
    dynamics = scoring_of(detector).dynamics
    channels, size = dynamics.lifting.channels, dynamics.lifting.state_size
    samples, known = generator.normal(size=size + channels), generator.random(size) < share
    expected = best_sample(dynamics, samples, known)
    samples[-channels:][~known[-channels:]] = np.nan
    np.testing.assert_allclose(dynamics.reconstruct(samples, ~known), expected, atol=1e-8)


# -- training data ------------------------------------------------------------------------------------------------


@draws(12, derandomize=True)
@given(st.integers(0, 2), st.lists(st.integers(0, 899), min_size=1, max_size=2, unique=True), st.floats(30.0, 1e12))
def test_an_absurd_value_in_training_widens_nothing(channel: int, rows: list[int], size: float) -> None:
    clean = fitted()
    train = machine(900)
    train[rows, channel] = size * np.ptp(train[:, channel])
    spoilt = KoopmanDetector(inputs=["load"], **SMALL).fit(Series(train, NAMES))
    np.testing.assert_allclose(spoilt.scaling_.mean, clean.scaling_.mean, rtol=0.02)
    np.testing.assert_allclose(spoilt.scaling_.scale, clean.scaling_.scale, rtol=0.02)
    one, other = scoring_of(spoilt), scoring_of(clean)
    for name in ("low", "high", "ranges", "unit"):
        np.testing.assert_allclose(getattr(one.bounds, name), getattr(other.bounds, name), atol=0.4, err_msg=name)
    # The windows that hold the value are lost; if the outermost ones are among them, the bounds are narrower.
    assert (one.bounds.low > other.bounds.low - 0.05).all()
    assert (one.bounds.high < other.bounds.high + 0.05).all()
    assert np.array_equal(one.bounds.switch, other.bounds.switch)
    np.testing.assert_allclose(one.spread, other.spread, rtol=0.1)
    np.testing.assert_allclose(one.units, other.units, rtol=0.1)
    assert spoilt.predict(train)[rows].tolist() == [int(row >= 6) for row in rows]


@draws(60, derandomize=True)
@given(st.integers(5, 20_000), st.integers(0, 8), st.integers(0, 1000))
@example(10_000, 3, 0)
def test_at_most_two_values_of_a_channel_are_absurd_in_training(rows: int, strange: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, 1))
    values[generator.permutation(rows)[:strange]] = 1e6
    found = absurd_in_training(values)
    assert int(found.sum()) == (min(strange, rows) if strange <= 2 else 0)


# -- switches and inputs ------------------------------------------------------------------------------------------


def test_a_switch_and_an_input_are_not_judged_by_prediction() -> None:
    detector, series = fitted(), machine(300, 11)
    scored = score_series(detector.model_.scoring, detector.model_.setup.scale(series))
    found = split_terms(scored.scoring, scored.rows, slice(detector.model_.settings.lead, 300))
    assert (found[:, :2, [PUMP, LOAD]] == 0.0).all()
    assert (found[:, :2, [0, 1]] > 0.0).any()


def test_a_switch_that_is_rarely_switched_may_be_switched() -> None:
    """Nobody can predict when: it is no jump, and a value that is known is not told as one that is not."""
    generator, t = np.random.default_rng(0), np.arange(6000.0)
    train = np.stack([np.sin(t / 9.0) + 0.05 * generator.normal(size=6000), np.zeros(6000)], axis=1)
    train[1000:3000, 1] = train[4000:, 1] = 1.0
    detector = KoopmanDetector(rank=8, smoothing=1).fit(Series(train, ("wave", "valve")))
    series = train[:400].copy()
    series[200:, 1] = 1.0
    stream = detector.stream()
    readings = [stream.update(sample) for sample in series]
    assert scoring_of(detector).bounds.switch.tolist() == [False, True]
    assert not any("never seen" in reading.sentence for reading in readings[195:205])
    assert readings[200].shares[1] == 0.0


@pytest.mark.parametrize("value", [0.5, 0.98, -1.0, 2.0])
def test_a_value_of_a_switch_that_was_never_seen_is_a_place_never_been(value: float) -> None:
    detector, series = fitted(), machine(300, 11)
    other = series.copy()
    other[200, PUMP] = value
    before, after = detector.witnesses(series)[200], detector.witnesses(other)[200]
    assert after[2] > before[2] + 0.05
    assert np.argmax(detector.explain(other)[200] - detector.explain(series)[200]) == PUMP
    other[200:210, PUMP] = 9.0
    assert detector.predict(other)[200:210].any()


def test_a_value_of_a_switch_may_differ_by_rounding() -> None:
    detector, series = fitted(), machine(100, 11)
    rounded = series.copy()
    rounded[:, PUMP] += 1e-8
    np.testing.assert_allclose(
        detector.witnesses(rounded)[:, 2], detector.witnesses(series)[:, 2], atol=1e-3, equal_nan=True
    )


def test_inputs_are_named_or_numbered() -> None:
    numbered = KoopmanDetector(inputs=[LOAD], **SMALL).fit(machine(900))
    assert np.array_equal(scoring_of(numbered).judged, scoring_of(fitted()).judged)
    np.testing.assert_array_equal(numbered.decision_function(disturbed()), fitted().decision_function(disturbed()))
    with pytest.raises(ValueError, match=r"inputs='speed'.*flow, pressure, pump, load"):
        KoopmanDetector(inputs=["speed"], **SMALL).fit(Series(machine(900), NAMES))


# -- files and learning -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"private": 2, "horizon": 2}, {"inputs": False, "threshold": "quantile"}], ids=str
)
def test_a_loaded_detector_says_the_same_to_the_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    detector, series = fitted(**changes), with_holes(disturbed(), [Hole(30, 1, None), Hole(130, 2, 0)])
    detector.save(tmp_path / "model")
    loaded = KoopmanDetector.load(tmp_path / "model")
    assert loaded.get_params() == {**detector.get_params(), "inputs": tuple(detector.inputs)}
    for method in ("decision_function", "score_series", "witnesses", "explain", "predict", "forecast"):
        np.testing.assert_array_equal(getattr(loaded, method)(series), getattr(detector, method)(series))
    assert loaded.events(series) == detector.events(series) != ()
    assert loaded.threshold_ == detector.threshold_
    np.testing.assert_array_equal(loaded.model_.normal_scores, detector.model_.normal_scores)
    one, two = loaded.stream(), detector.stream()
    for sample in series:
        assert one.update(sample).explanation == two.update(sample).explanation
    ours, theirs = loaded.memory_, detector.memory_
    np.testing.assert_array_equal(ours.held_out.rows, theirs.held_out.rows)
    np.testing.assert_array_equal(ours.held_out.weights, theirs.held_out.weights)
    for field in fields(KnownRanges):
        np.testing.assert_array_equal(getattr(ours.ranges, field.name), getattr(theirs.ranges, field.name))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
    more = machine(200, 21)
    again = KoopmanDetector.load(tmp_path / "model").learn(more)
    light = KoopmanDetector.load(tmp_path / "model", statistics=False).learn(more, known=tmp_path / "model")
    np.testing.assert_array_equal(again.decision_function(series), loaded.learn(more).decision_function(series))
    np.testing.assert_allclose(light.decision_function(series), loaded.decision_function(series), rtol=1e-9)


def test_places_learnt_in_pieces_are_nearly_those_learnt_at_once() -> None:
    train = machine(3000, 5)
    at_once = KoopmanDetector(**SMALL).fit(train)
    pieces = KoopmanDetector(**SMALL).fit(train[:1000]).learn(train[1000:1800]).learn(train[1800:])
    one, other = scoring_of(pieces).bounds, scoring_of(at_once).bounds
    ours, theirs = pieces.scaling_, at_once.scaling_
    assert np.array_equal(one.switch, other.switch)
    reach = other.unit * theirs.scale
    for name in ("low", "high"):
        for feature in (0, 1):
            gap = np.abs(ours.restore(getattr(one, name)[feature]) - theirs.restore(getattr(other, name)[feature]))
            assert (gap <= 0.08 * reach).all()
    np.testing.assert_allclose(one.unit * ours.scale, reach, rtol=0.1)
    for k, edge in enumerate((np.min, np.max)):
        np.testing.assert_allclose(ours.restore(one.ranges[0, :, k]), edge(train, axis=0), rtol=1e-9, atol=1e-9)


pieces_of_rows = st.lists(
    st.tuples(st.integers(500, 2500), st.floats(-2.0, 2.0), st.floats(0.5, 2.0), st.booleans()), min_size=2, max_size=5
)


@draws(40, derandomize=True)
@given(pieces_of_rows, st.integers(0, 1000))
def test_merged_quantiles_are_nearly_those_of_all_rows(pieces: list[tuple[int, float, float, bool]], seed: int) -> None:
    """Bounds stay between half and twice the share of rows that they are meant to leave outside."""
    generator = np.random.default_rng(seed)
    rows = [
        level + scale * (generator.exponential(size=(count, 1)) if is_skew else generator.normal(size=(count, 1)))
        for count, level, scale, is_skew in pieces
    ]
    places = KnownRanges.learnt(rows[0], 4)
    for piece in rows[1:]:
        places = places.joined(piece, 4)
    every = np.concatenate(rows)[:, 0]
    merged, exact = places.quantiles[0, 0], np.quantile(every, PROBABILITIES)
    assert places.rows == len(every)
    assert (np.diff(merged) >= 0.0).all()
    assert merged[0] == every.min()
    assert merged[-1] == every.max()
    assert np.abs(merged - exact).max() <= 0.1 * np.ptp(every)
    for share in (0.002, 0.005, 0.01, 0.03):
        assert 0.4 * share <= (every < places.at(share)[0, 0]).mean() <= 2.0 * share
        assert 0.4 * share <= (every > places.at(1.0 - share)[0, 0]).mean() <= 2.0 * share


def test_places_forget_what_has_not_been_seen_for_long() -> None:
    old, new = (np.random.default_rng(k).normal(5.0 * k, 1.0, size=(2000, 1)) for k in range(2))
    places = KnownRanges.learnt(old, 4)
    for _ in range(8):
        places = places.joined(new, 4, forgetting=0.25)
    assert places.at(0.002)[0, 0] == pytest.approx(np.quantile(new, 0.002), abs=0.3)
    assert places.ranges[0, 0, 0] == old.min(), "the least and the greatest that was ever seen are not forgotten"


def test_a_channel_is_a_switch_as_long_as_no_third_value_was_learnt() -> None:
    values = np.random.default_rng(0).integers(0, 2, size=(500, 1)).astype(float)
    places = KnownRanges.learnt(np.zeros((500, 1)), 4).joined(values, 4)
    assert places.values.tolist() == [[0.0, 1.0]]
    assert np.isnan(places.joined(values + 1.0, 4).values).all()


def kept_gram(detector: KoopmanDetector) -> Array:
    """Σ w c cᵀ over the pairs of the kept rows."""
    held_out, lifting = detector.memory_.held_out, detector.lifting_
    gram = np.zeros((detector.subspace_.shape[1],) * 2)
    for run in stretches(held_out.rows, shortest=detector.window + 1):
        states = lifting.transform(np.clip(held_out.rows[run], -10.0, 10.0)) @ detector.subspace_
        weights = held_out.weights[run][detector.window :, None]
        gram += states[:-1].T @ (weights * states[:-1])
    return gram


@draws(15, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(20, 200), st.sampled_from([1.0, 0.5, 0.1])), min_size=1, max_size=4),
    st.integers(1, 2),
)
def test_the_statistics_hold_every_kept_row_with_its_weight(pieces: list[tuple[int, float]], horizon: int) -> None:
    """So leaving a block of them out leaves a Gram matrix without negative eigenvalues."""
    detector = KoopmanDetector(horizon=horizon, **SMALL).fit(machine(700))
    for k, (rows, forgetting) in enumerate(pieces):
        detector.learn(machine(rows, k), forgetting=forgetting)
    whole = detector.memory_.statistics.gram(detector.subspace_)
    np.testing.assert_allclose(kept_gram(detector), whole, rtol=1e-7, atol=1e-7 * np.trace(whole))


def test_kept_rows_are_never_more_than_the_statistics_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.detect.heldout.MOST_HELD_OUT", 500)
    detector = KoopmanDetector(**SMALL).fit(machine(900))
    for k in range(4):
        detector.learn(machine(150, k), forgetting=0.5)
        assert len(detector.memory_.held_out.rows) == len(detector.memory_.held_out.weights) == 500
        whole = detector.memory_.statistics.gram(detector.subspace_)
        least = float(np.linalg.eigvalsh(whole - kept_gram(detector))[0])
        assert least >= -1e-9 * np.trace(whole)
        assert np.isfinite(detector.threshold_)


# -- sentences ----------------------------------------------------------------------------------------------------


@cache
def told_by() -> tuple[KoopmanDetector, Array]:
    """A detector without smoothing: one wave is judged by prediction; noise, a drive and a valve are not."""
    generator = np.random.default_rng(0)
    t = np.arange(4000.0)
    columns = [
        np.sin(t / 20.0) + 0.02 * generator.normal(size=4000),
        100.0 + 10.0 * generator.normal(size=4000),
        5.0 + np.sin(t / 15.0) + 0.02 * generator.normal(size=4000),
        3.0 * generator.integers(0, 2, 4000),
    ]
    train = np.stack(columns, axis=1)
    names = ("wave", "noise", "drive", "valve")
    detector = KoopmanDetector(window=12, rank=48, observables=16, smoothing=1, inputs=["noise", "drive"])
    return detector.fit(Series(train, names)), train


def calm(rows: int = 200) -> Array:
    """A normal series whose wave does at the end just what is expected."""
    series = told_by()[1][:rows].copy()
    series[-30:, 0] = np.sin(np.arange(rows - 30, rows) / 20.0)
    return series


def reading_of(series: Array) -> Reading:
    stream = told_by()[0].stream()
    return [stream.update(sample) for sample in series][-1]


def numbers(sentence: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", sentence)]


def window_range(channel: int, feature: Any) -> list[float]:
    """The 0.2 and 99.8 % quantiles of a feature of the windows in training."""
    train = told_by()[1]
    found = [feature(train[t - 11 : t + 1, channel]) for t in range(11, len(train))]
    return [float(np.quantile(found, share)) for share in (0.002, 0.998)]


def test_a_level_shift_is_told_with_the_levels_of_training() -> None:
    series = calm()
    series[-12:, 1] = 120.0 + np.tile([-9.0, 9.0], 6)
    reading = reading_of(series)
    assert reading.kind == "place"
    assert reading.sentence.startswith("noise stays where it has not been: ")
    assert numbers(reading.sentence) == pytest.approx([120.0, 12.0, *window_range(1, np.mean)], rel=2e-3)


@pytest.mark.parametrize(("size", "word"), [(0.1, "less"), (25.0, "more")])
def test_a_change_of_spread_is_told_with_the_spreads_of_training(size: float, word: str) -> None:
    series = calm()
    series[-12:, 1] = 100.0 + np.tile([-size, size], 6)
    reading = reading_of(series)
    assert reading.kind == "place"
    assert reading.sentence.startswith(f"noise varies {word} than in training: ")
    assert numbers(reading.sentence) == pytest.approx([size, *window_range(1, np.std)], rel=2e-3)


def test_a_jump_is_told_with_what_was_expected() -> None:
    series = calm()
    series[-1, 0] = -np.sign(series[-1, 0]) * 0.5
    reading = reading_of(series)
    detector, scoring = told_by()[0], scoring_of(told_by()[0])
    values = detector.scaling_.standardise(series[-detector.window - 1 :])
    moment = features_of(scoring, ScoredWindow(np.clip(values, -CLIP, CLIP).ravel(), values[-1]))
    told = OutOfPlace(detector.model_.setup, scoring, moment, 0).explain()
    assert told.sentence.startswith(f"{told.channel} jumped more than ever in training: ")
    assert numbers(told.sentence) == pytest.approx([series[-1, 0], reading.expected[0]], rel=1e-3)


@pytest.mark.parametrize("value", [1048.0, 190.0, -40.0])
def test_a_value_outside_is_told_with_all_that_was_ever_seen(value: float) -> None:
    train, series = told_by()[1], calm()
    series[-1, 1] = value
    reading = reading_of(series)
    assert reading.kind == "place"
    assert reading.sentence.startswith("noise is outside: ")
    assert reading.sentence.endswith(" was ever seen")
    assert numbers(reading.sentence) == pytest.approx([value, train[:, 1].min(), train[:, 1].max()], rel=1e-3)


@pytest.mark.parametrize("value", [1.5, 4.0, -200.0])
def test_a_new_value_of_a_switch_is_told_with_those_that_were_seen(value: float) -> None:
    series = calm()
    series[-1, 3] = value
    reading = reading_of(series)
    assert reading.sentence.startswith(f"valve is {value:.4g}, a value never seen: ")
    assert numbers(reading.sentence) == pytest.approx([value, 0.0, 3.0], abs=1e-9)


def test_a_plain_misprediction_is_told_with_what_was_expected() -> None:
    series = calm()
    series[-1, 0] += 0.4
    reading = reading_of(series)
    assert reading.kind == "motion"
    assert reading.sentence.startswith("wave moved unlike predicted: ")
    assert numbers(reading.sentence) == pytest.approx([series[-1, 0], reading.expected[0]], rel=1e-3)
    assert reading.expected[0] == pytest.approx(series[-1, 0] - 0.4, abs=0.1)


def test_numbers_that_hardly_differ_are_told_with_the_digits_that_do() -> None:
    detector, train = told_by()
    series = calm() + 1013.0
    series[-1, 0] += 0.4
    names = detector.model_.setup.channel_names
    stream = KoopmanDetector(**detector.get_params()).fit(Series(train + 1013.0, names)).stream()
    reading = [stream.update(sample) for sample in series][-1]
    assert reading.sentence.startswith("wave moved unlike predicted: ")
    assert numbers(reading.sentence) == pytest.approx([series[-1, 0], reading.expected[0]], abs=0.05)


def test_a_pattern_that_does_not_fit_names_its_channel() -> None:
    series = calm()
    series[-13:-1, 0] += np.tile([0.1, -0.1], 6)  # too little for a jump, and the newest sample is as expected
    reading = reading_of(series)
    series[-1, 0] = reading.expected[0]
    reading = reading_of(series)
    assert reading.kind == "fit"
    assert reading.sentence == "the pattern of the last 12 samples of wave does not fit the other channels"


def test_an_event_tells_what_its_peak_is_about() -> None:
    detector, series = fitted(), machine(400, 12)
    series[200:206, 1] += 400.0
    event = max(detector.events(series), key=lambda event: event.peak_score)
    assert 200 <= event.peak <= 210
    assert event.kind == "place"
    assert event.causes[0].channel == "pressure"
    assert event.sentence.startswith("pressure is outside: ")
    seen = [numbers(f"{value:.4g}")[0] for value in series[200:206, 1]]
    assert numbers(event.sentence)[0] in seen
    stream = detector.stream()
    readings = [stream.update(sample) for sample in series]
    assert (readings[event.peak].kind, readings[event.peak].sentence) == (event.kind, event.sentence)


def test_other_scorings_tell_of_motion_only() -> None:
    detector, series = fitted(scoring="paper", inputs=False), disturbed()
    with pytest.raises(ValueError, match="scoring='paper' has no witnesses"):
        detector.witnesses(series)
    events = detector.events(series)
    assert {event.kind for event in events} == {"motion"}
    assert all(re.match(r"(flow|pressure|pump|load) moved unlike predicted: ", event.sentence) for event in events)


def test_how_far_a_channel_wandered_counts_less_the_more_is_seen_since() -> None:
    calm = np.random.default_rng(0).normal(size=(3000, 2))
    places = replace(KnownRanges.learnt(calm, 4), wander=np.array([8.0, 2.0]))
    later = places.joined(calm, 4)
    np.testing.assert_allclose(later.wander, np.maximum(np.sqrt(0.5) * places.wander, 0.5))
    few = places.joined(calm[:100], 4)
    np.testing.assert_array_equal(few.wander, places.wander)


# -- coarse sensors -----------------------------------------------------------------------------------------------


def with_battery(length: int, percent: float, seed: int = 0) -> Array:
    """The machine, with a battery that reports whole per cent and wavers among three of them."""
    level = percent + 0.9 * np.sin(np.arange(length) / 40.0) + 0.1 * np.random.default_rng(seed).normal(size=length)
    return np.column_stack([machine(length, seed), np.round(level)])


def test_a_battery_that_loses_one_per_cent_is_no_news_and_one_that_loses_ten_is() -> None:
    detector = KoopmanDetector(**SMALL).fit(with_battery(1500, 97.6))
    bounds = scoring_of(detector).bounds
    assert bounds.coarse.tolist() == [False, False, False, False, True]
    later = with_battery(400, 97.6, seed=1)
    usual = detector.decision_function(later)
    for lost, is_news in ((1.0, False), (10.0, True)):
        series = later - lost * (np.arange(5) == 4)
        scores = detector.decision_function(series)
        assert (np.nanmedian(scores) > 1.5 * np.nanmedian(usual)) == is_news
        assert (detector.explain(series)[50:, 4].mean() > 0.2 * scores[50:].mean()) == is_news


def test_bounds_of_a_coarse_channel_have_room_for_one_step() -> None:
    detector = KoopmanDetector(**SMALL).fit(with_battery(900, 97.6))
    bounds, scaled = scoring_of(detector).bounds, detector.memory_.held_out.rows
    levels, spreads = window_features(scaled, 6)
    low, high, _, _ = naive_bounds(scaled, levels, spreads, departures_of(bounds, levels))
    step = 1.0 / detector.scaling_.scale[4]
    np.testing.assert_allclose(bounds.low[:2, 4], low[:2, 4] - step)
    np.testing.assert_allclose(bounds.high[:2, 4], high[:2, 4] + step)
    np.testing.assert_allclose(bounds.high[2, 4], max(high[2, 4], np.log(step / 2.0 + 0.05)))
    np.testing.assert_allclose(bounds.low[:3, LOAD], low[:3, LOAD], err_msg="steps of a count are no rounding")


def steps_of(detector: KoopmanDetector) -> Array:
    places = detector.memory_.ranges
    assert places is not None
    return places.step


def test_a_step_goes_with_the_model_into_its_file_and_on_with_learning(tmp_path: Path) -> None:
    detector = KoopmanDetector(**SMALL).fit(with_battery(900, 97.6))
    step = steps_of(detector)
    np.testing.assert_allclose(step, [0.0, 0.0, 0.0, 0.0, 1.0 / detector.scaling_.scale[4]])
    detector.save(tmp_path / "model.safetensors")
    again = KoopmanDetector.load(tmp_path / "model.safetensors")
    again.learn(with_battery(400, 96.6, seed=2))
    np.testing.assert_allclose(steps_of(again), step)
    fine = with_battery(400, 96.6, seed=3)
    fine[:, 4] += np.linspace(0.0, 0.01, 400)
    again.learn(fine)
    assert not steps_of(again).any()
    assert not scoring_of(again).bounds.coarse.any()
