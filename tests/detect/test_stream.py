"""The stream against the batch, sample by sample."""

import copy
import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from tests.fixtures import naive
from tests.fixtures.draws import draws

Array = NDArray[np.float64]
THRESHOLDS: list[Any] = ["pot", "quantile", "2/hour", 3.5]


@cache
def fitted(channels: int = 2, **changes: Any) -> KoopmanDetector:
    train = naive.normal_series(420, channels)
    if channels == 3:
        train[:, 1] = -4.0  # a constant channel
    settings_: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4, "risk": 0.02}
    return KoopmanDetector(sample_period=10.0, **{**settings_, **changes}).fit(train)


@st.composite
def streams(draw: st.DrawFn) -> tuple[KoopmanDetector, NDArray[Any]]:
    channels, observables = draw(st.integers(1, 3)), draw(st.sampled_from([0, 4]))
    window = draw(st.sampled_from([1, 3, 6] if observables or channels == 3 else [3, 6]))
    detector = fitted(
        channels,
        window=window,
        horizon=draw(st.integers(1, 3)),
        smoothing=draw(st.integers(1, 7)),
        scoring="paper",
        threshold=draw(st.sampled_from(THRESHOLDS)),
        observables=observables,
    )
    length = draw(st.integers(0, 70))
    series: NDArray[Any] = naive.normal_series(length, channels, draw(st.integers(0, 1000)))
    series *= draw(st.sampled_from([1.0, 1.0, 3.0, 1e6]))
    for channel in range(channels):
        if draw(st.integers(0, 3)) == 0:
            series[:, channel] = series[:1, channel]
    for at in draw(st.lists(st.integers(0, 69), max_size=3)):
        series[at : at + 2] += 50.0
    series = series.astype(draw(st.sampled_from([np.float64, np.float32, np.int64])))
    if series.dtype.kind == "f":
        for at in draw(st.lists(st.integers(0, 69), max_size=4)):
            series[at : at + 1, draw(st.integers(0, channels - 1))] = np.nan
    return detector, series


@draws(40, derandomize=True)
@given(streams())
def test_without_witnesses_the_stream_equals_the_batch(case: tuple[KoopmanDetector, NDArray[Any]]) -> None:
    detector, series = case
    scores, flags, shares = detector.decision_function(series), detector.predict(series), detector.explain(series)
    stream = detector.stream()
    need = detector.window + detector.horizon
    filled = 0
    for t, sample in enumerate(series):
        reading = stream.update(sample)
        gap = bool(np.isnan(np.asarray(sample, dtype=float)).any())
        filled = 0 if gap else filled + 1
        assert reading.state == ("gap" if gap else "ok" if filled >= need else "warming")
        assert reading.missing == max(need - filled, 0)
        assert reading.is_anomaly is bool(flags[t])
        assert reading.threshold == detector.threshold_
        if reading.state != "ok":
            assert np.isnan(reading.score)
            assert np.isnan(scores[t])
            assert reading.channels == []
            assert reading.shares.shape == (series.shape[1],)
            assert np.isnan(reading.shares).all()
            continue
        scale = max(1.0, abs(scores[t]))
        assert abs(reading.score - scores[t]) <= 1e-9 * scale
        np.testing.assert_allclose(reading.shares, shares[t], rtol=0.0, atol=1e-9 * scale)
        ranked = [share for _, share in reading.channels]
        assert ranked == sorted(ranked, reverse=True)
        assert dict(reading.channels) == {str(k): float(share) for k, share in enumerate(reading.shares)}


def test_a_stream_that_follows_its_alarms_keeps_the_budget() -> None:
    """Three times as noisy as in training, it alarms all the time at first, and hardly a week later."""
    detector = fitted(threshold="1/hour", smoothing=1)
    series = naive.normal_series(20_000, seed=8, noise=0.6)
    fixed, following = detector.stream(), detector.stream(follow=True)
    still, moved = ([stream.update(sample) for sample in series] for stream in (fixed, following))
    assert {reading.threshold for reading in still} == {detector.threshold_}
    assert moved[0].threshold == detector.threshold_
    assert max(reading.threshold for reading in moved) > 1.2 * detector.threshold_
    assert sum(r.is_anomaly for r in moved[10_000:]) < 0.5 * sum(r.is_anomaly for r in still[10_000:])
    # What is not to be learned from does not move it.
    waiting = detector.stream(follow=True)
    assert {waiting.update(sample, adapt=False).threshold for sample in series[:2000]} == {detector.threshold_}
    with pytest.raises(ValueError, match="'pot' must be a budget such as '1/week'"):
        fitted(threshold="pot").stream(follow=True)


def test_another_threshold_may_be_passed_with_a_sample() -> None:
    detector, series = fitted(), naive.normal_series(40, seed=1)
    stream = detector.stream()
    readings = [stream.update(sample, threshold=0.0) for sample in series]
    assert all(reading.threshold == 0.0 for reading in readings)
    assert all(reading.is_anomaly == (reading.state == "ok") for reading in readings)


def test_two_streams_of_one_detector_do_not_disturb_each_other() -> None:
    detector, one, two = fitted(), naive.normal_series(40, seed=1), naive.normal_series(40, seed=2)
    first, second = detector.stream(), detector.stream()
    found = [(first.update(a).score, second.update(b).score) for a, b in zip(one, two, strict=True)]
    np.testing.assert_allclose([pair[0] for pair in found], detector.decision_function(one), rtol=1e-9)
    np.testing.assert_allclose([pair[1] for pair in found], detector.decision_function(two), rtol=1e-9)


@pytest.mark.parametrize("scoring", ["paper", "witnesses"])
def test_a_reading_does_not_change_when_the_stream_goes_on(scoring: str) -> None:
    detector, series = fitted(scoring=scoring), naive.normal_series(200, seed=1)
    series[40:44], series[90, 1] = np.nan, np.nan
    stream = detector.stream()
    readings = [stream.update(sample) for sample in series]
    late = np.array([reading.shares for reading in readings])  # asked for only now
    np.testing.assert_allclose(late, detector.explain(series), rtol=1e-8, atol=1e-12)


def test_the_stream_keeps_nothing_of_the_callers_sample() -> None:
    detector, series = fitted(), naive.normal_series(40, seed=1)
    buffer, stream, scores = np.empty(2), detector.stream(), []
    for sample in series:
        buffer[:] = sample
        scores.append(stream.update(buffer).score)
        buffer[:] = -999.0
    np.testing.assert_allclose(scores, detector.decision_function(series), rtol=1e-9)


def test_samples_that_are_no_samples_are_refused() -> None:
    stream = fitted().stream()
    with pytest.raises(ValueError, match="3 values but the detector has 2 channels"):
        stream.update([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="numbers"):
        stream.update(["a", 1.0])
    with pytest.raises(ValueError, match=r"Channel '1'.*infinite"):
        stream.update([1.0, np.inf])
    with pytest.raises(ValueError, match=r"Channel '0'.*infinite"):
        stream.update([-np.inf, np.inf])
    assert stream.update([1.0, 2.0]).missing == 3  # a refused sample leaves no trace
    assert stream.update([None, 2.0]).state == "warming"
    assert stream.update([1e308, 1e308]).missing == 1


def test_with_the_papers_score_a_missing_value_is_a_gap() -> None:
    stream = fitted(scoring="paper").stream()
    assert stream.update([1.0, 2.0]).missing == 3
    assert stream.update([None, 2.0]).state == "gap"
    assert stream.update([1e308, 1e308]).missing == 3


def test_adopt_goes_on_with_the_window() -> None:
    series = naive.normal_series(60, seed=3)
    old = fitted(smoothing=3, horizon=2)
    new = KoopmanDetector(**old.get_params()).prepare(naive.normal_series(420))
    new.adopt(np.linalg.qr(np.random.default_rng(0).normal(size=(old.lifting_.dimension, old.rank)))[0])
    stream = old.stream()
    for sample in series[:30]:
        stream.update(sample)
    stream.adopt(new.model_)
    readings = [stream.update(sample) for sample in series[30:]]
    assert [reading.state for reading in readings] == ["ok"] * 30
    unsmoothed = replace(new.model_.setup, settings=replace(new.model_.settings, smoothing=1))
    fresh = KoopmanDetector.of(replace(new.model_, setup=unsmoothed)).decision_function(series)
    assert readings[0].score == pytest.approx(fresh[30], rel=1e-9)
    # As soon as the smoothing has only scores of the new model, everything is as in batch.
    np.testing.assert_allclose([r.score for r in readings[3:]], new.decision_function(series)[33:], rtol=1e-9)
    assert readings[0].threshold == new.threshold_


@pytest.mark.parametrize("smoothing", [1, 7])
def test_adopt_of_a_detector_with_other_smoothing_follows_it(smoothing: int) -> None:
    series = naive.normal_series(80, seed=3)
    old, new = fitted(smoothing=3, horizon=2), fitted(smoothing=smoothing, horizon=2)
    stream = old.stream()
    for sample in series[:30]:
        stream.update(sample)
    stream.adopt(new.model_)
    readings = [stream.update(sample) for sample in series[30:]]
    assert [reading.missing for reading in readings] == [0] * 50
    np.testing.assert_allclose([r.score for r in readings[10:]], new.decision_function(series)[40:], rtol=1e-9)


@pytest.mark.parametrize("filled", range(1, 8))
def test_adopt_while_warming_up_keeps_what_is_there(filled: int) -> None:
    series = naive.normal_series(30, seed=3)
    old, new = fitted(horizon=3), fitted(horizon=3, threshold="quantile")
    stream = old.stream()
    for sample in series[:filled]:
        stream.update(sample)
    stream.adopt(new.model_)
    scores = [stream.update(sample).score for sample in series[filled:]]
    expected = new.decision_function(series)[filled:]
    assert np.isnan(scores).tolist() == np.isnan(expected).tolist()
    np.testing.assert_allclose(scores[8:], expected[8:], rtol=1e-9)


def test_adopt_of_a_detector_with_another_lifting_or_scaling_starts_over() -> None:
    series = naive.normal_series(40, seed=3)
    scaled_otherwise = KoopmanDetector(**fitted().get_params()).fit(naive.normal_series(420, seed=9))
    for new in (fitted(window=6), fitted(observables=0), fitted(horizon=2), fitted(horizon=3), scaled_otherwise):
        stream = fitted().stream()
        for sample in series[:20]:
            stream.update(sample)
        stream.adopt(new.model_)
        readings = [stream.update(sample) for sample in series[20:]]
        assert readings[0].state == "warming"
        np.testing.assert_allclose([r.score for r in readings], new.decision_function(series[20:]), rtol=1e-9)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_a_copied_stream_goes_on_by_itself(duplicate: Any) -> None:
    series = naive.normal_series(60, seed=3)
    stream = fitted(horizon=2).stream()
    for sample in series[:30]:
        stream.update(sample)
    other = duplicate(stream)
    ours = [stream.update(sample).score for sample in series[30:]]
    assert [other.update(sample).score for sample in series[30:]] == ours


def test_a_labelled_sample_must_have_the_channels_in_order() -> None:
    frame = pd.DataFrame(naive.normal_series(300), columns=["a", "b"])
    stream = KoopmanDetector(window=3, rank=3, observables=4, validation=0.4).fit(frame).stream()
    assert stream.update(frame.iloc[0]).state == "warming"
    with pytest.raises(ValueError, match="order"):
        stream.update(frame[["b", "a"]].iloc[0])


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
@pytest.mark.parametrize("horizon", [1, 2])
def test_a_reading_says_what_was_seen_and_what_was_expected(scoring: str, horizon: int) -> None:
    detector = fitted(2, window=3, scoring=scoring, horizon=horizon)
    series = naive.normal_series(30, 2, seed=5)
    stream = detector.stream()
    readings = [stream.update(sample) for sample in series]
    assert np.isnan(readings[0].expected).all()
    np.testing.assert_array_equal(readings[-1].seen, series[-1])
    # Z Q^H ZᵀΦ of the window H steps before, its newest sample.
    lifted = detector.lifting_.transform(detector.scaling_.transform(series))[-1 - horizon]
    power = np.linalg.matrix_power(detector.operator_, horizon)
    predicted = (detector.subspace_ @ power @ detector.subspace_.T @ lifted)[detector.lifting_.newest]
    expected = predicted * detector.scaling_.scale + detector.scaling_.mean
    np.testing.assert_allclose(readings[-1].expected, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
@pytest.mark.parametrize("horizon", [1, 2])
def test_the_forecast_of_a_recording_is_what_the_stream_expected(scoring: str, horizon: int) -> None:
    detector = fitted(2, window=3, scoring=scoring, horizon=horizon)
    series = naive.normal_series(600, 2, seed=5)
    series[40, 1] = np.nan
    series[90:95] += 30.0
    stream = detector.stream()
    expected = np.array([stream.update(sample).expected for sample in series])
    forecast = detector.forecast(series)
    np.testing.assert_allclose(forecast, expected, rtol=1e-9, atol=1e-9)
    assert np.array_equal(np.isnan(forecast).any(axis=1), np.isnan(detector.decision_function(series)))


def test_an_entry_without_a_score_can_be_told_from_a_healthy_one() -> None:
    detector = fitted(2, window=3)
    series = naive.normal_series(60, 2, seed=5)
    series[30] = np.nan
    blind = np.isnan(detector.decision_function(series))
    told = detector.predict(series, unscored=-1)
    assert blind.any()
    assert np.array_equal(told == -1, blind)
    assert np.array_equal(np.where(blind, 0, told), detector.predict(series))
    for wrong in ("none", None, 0.5, np.nan):
        with pytest.raises(ValueError, match=r"unscored.*an integer"):
            detector.predict(series, unscored=wrong)  # type: ignore[arg-type]


def test_a_new_stream_is_where_the_old_one_is_after_as_many_samples_as_it_remembers() -> None:
    detector = fitted(2, window=3, smoothing=4)
    series = naive.normal_series(60, 2, seed=6)
    old, new = detector.stream(), detector.stream()
    for sample in series[:40]:
        old.update(sample)
    for sample in series[40 - old.memory : 40]:
        new.update(sample)
    for sample in series[40:]:
        assert old.update(sample) == new.update(sample)
