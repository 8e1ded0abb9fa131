"""Scores, causes and their calibration against a naive implementation of the docstrings."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import FewRowsWarning, KoopmanDetector
from fedkad.detect import calibration, heldout
from fedkad.detect import scoring as scoring_module
from fedkad.detect.methods import ScoringName
from fedkad.detect.threshold import event_threshold
from fedkad.detect.witnesses import WitnessScoring
from fedkad.koopman.snapshots import collect
from tests.fixtures import naive
from tests.fixtures.draws import draws
from tests.fixtures.scored import SMALL, model, naive_scaled, with_gaps

Array = NDArray[np.float64]


@cache
def fitted(
    scoring: str = "paper", horizon: int = 1, smoothing: int = 3, channels: int = 2, **changes: Any
) -> KoopmanDetector:
    train = naive.normal_series(320, channels)
    return KoopmanDetector(scoring=scoring, horizon=horizon, smoothing=smoothing, **{**SMALL, **changes}).fit(train)  # type: ignore[arg-type]


# -- scores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_the_papers_score_is_the_naive_one(horizon: int) -> None:
    detector, series = fitted("paper", horizon, smoothing=5), with_gaps(100)
    raw = naive.paper_scores(model(detector), naive_scaled(detector, series, naive.normal_series(320)))
    np.testing.assert_allclose(detector.decision_function(series), naive.smooth(raw, back=4), rtol=1e-9)
    np.testing.assert_allclose(detector.score_series(series), naive.smooth(raw, 1, 1), rtol=1e-9)


def test_the_operator_is_the_naive_one_at_the_subspace() -> None:
    for ridge in (1e-9, 0.05, 1.0):
        detector, train = fitted("paper", ridge=ridge, spectral_cap=0.9), naive.normal_series(320)
        x, y = naive.snapshots(naive_scaled(detector, train[:192], train), detector.lifting_)
        gram = detector.subspace_.T @ x @ x.T @ detector.subspace_
        unit = np.trace(gram) / 3
        operator = naive.best_operator(x, y, detector.subspace_, ridge * float(unit), always=False)
        radius = max(abs(np.linalg.eigvals(operator)))
        np.testing.assert_allclose(detector.operator_, operator * min(1.0, 0.9 / radius), atol=1e-9)


def test_without_observables_and_with_one_channel_and_a_window_of_one() -> None:
    train = naive.normal_series(320, 1)
    detector = KoopmanDetector(window=1, rank=1, observables=0, validation=0.4, scoring="paper", smoothing=1).fit(train)
    series = naive.normal_series(50, 1, seed=3)
    raw = naive.paper_scores(model(detector), naive_scaled(detector, series, train))
    np.testing.assert_allclose(detector.decision_function(series), raw, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(detector.explain(series)[1:, 0], raw[1:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("horizon", [1, 3])
def test_scores_begin_after_window_and_horizon_and_again_after_a_gap(horizon: int) -> None:
    detector, series = fitted("paper", horizon), naive.normal_series(60, seed=9)
    series[25, 1] = np.nan
    scores = detector.decision_function(series)
    first = 4 + horizon - 1
    expected = np.ones(60, dtype=bool)
    expected[:first] = False
    expected[25 : 26 + first] = False
    assert np.array_equal(~np.isnan(scores), expected)
    assert np.array_equal(~np.isnan(detector.score_series(series)), expected)
    assert np.array_equal(~np.isnan(detector.explain(series)).any(axis=1), expected)
    flags = detector.predict(series)
    assert flags.dtype == np.int64
    assert not flags[~expected].any()
    assert np.array_equal(flags[expected], scores[expected] > detector.threshold_)


def test_short_and_empty_series_have_no_scores() -> None:
    detector = fitted()
    for length in (0, 1, 4):
        series = np.zeros((length, 2))
        assert np.isnan(detector.decision_function(series)).all()
        assert detector.decision_function(series).shape == detector.predict(series).shape == (length,)
        assert detector.explain(series).shape == (length, 2)
        assert not detector.predict(series).any()
    assert np.isnan(detector.decision_function(np.full((50, 2), np.nan))).all()


def test_scores_do_not_depend_on_the_size_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for scoring in ("witnesses", "paper"):
        detector, series = fitted(scoring, horizon=2), with_gaps(90)
        whole, shares = detector.decision_function(series), detector.explain(series)
        for block in (1, 2, 7):
            monkeypatch.setattr("fedkad.detect.scoring.BLOCK", block)
            np.testing.assert_allclose(detector.decision_function(series), whole, rtol=1e-10)
            np.testing.assert_allclose(detector.explain(series), shares, rtol=1e-8, atol=1e-12)
        monkeypatch.undo()


# -- causality ----------------------------------------------------------------------------------------------------


@draws(40, derandomize=True)
@given(
    st.sampled_from(["witnesses", "paper"]),
    st.integers(1, 3),
    st.integers(1, 79),
    st.sampled_from(["shift", "gap", "noise"]),
)
def test_the_future_changes_no_earlier_score(scoring: str, horizon: int, at: int, change: str) -> None:
    detector = fitted(scoring, horizon, window=7)
    series = with_gaps(80)
    other = series.copy()
    noise = np.random.default_rng(at).normal(size=(80 - at, 2))
    other[at:] += np.full_like(noise, 100.0 if change == "shift" else np.nan) if change != "noise" else noise
    before, after = detector.decision_function(series), detector.decision_function(other)
    np.testing.assert_allclose(after[:at], before[:at], rtol=1e-10, atol=0.0)
    np.testing.assert_allclose(detector.explain(other)[:at], detector.explain(series)[:at], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(detector.decision_function(series[:at]), before[:at], rtol=1e-10, atol=0.0)
    assert np.array_equal(detector.predict(other)[:at], detector.predict(series)[:at])
    # The parts of witnesses that tell of a whole window are moved half a window back before they are averaged; beside
    # one of the single rows that are missing here that is one row further.
    for rows, further in ((naive.normal_series(80), 0), (series, int(scoring == "witnesses"))):
        reach = max(at - (7 // 2 + 7 // 2 if scoring == "witnesses" else 7 // 3) - further, 0)
        changed = np.vstack([rows[:at], other[at:]])
        np.testing.assert_allclose(
            detector.score_series(changed)[:reach], detector.score_series(rows)[:reach], rtol=1e-10
        )


@pytest.mark.parametrize(("scoring", "reach"), [("witnesses", 7 // 2 + 7 // 2), ("paper", 7 // 3)])
def test_the_offline_score_looks_ahead(scoring: str, reach: int) -> None:
    detector, series = fitted(scoring, window=7), naive.normal_series(60)
    other = series.copy()
    other[40:] += 100.0
    changed = np.flatnonzero(~np.isclose(detector.score_series(other), detector.score_series(series), equal_nan=True))
    assert changed[0] == 40 - reach


# -- causes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("smoothing", [1, 4])
def test_causes_are_shares_that_sum_to_the_score(scoring: str, horizon: int, smoothing: int) -> None:
    detector, series = fitted(scoring, horizon, smoothing, channels=3), with_gaps(100, 3)
    shares, scores = detector.explain(series), detector.decision_function(series)
    assert shares.shape == (100, 3)
    valid = ~np.isnan(scores)
    assert np.isnan(shares[~valid]).all()
    assert (shares[valid] >= 0.0).all()
    np.testing.assert_allclose(shares[valid].sum(axis=1), scores[valid], rtol=1e-10)


@pytest.mark.parametrize("smoothing", [1, 5, 600])
@pytest.mark.parametrize("scoring", ["paper", "witnesses"])
def test_causes_are_the_same_to_the_bit_whatever_is_wanted(scoring: str, smoothing: int) -> None:
    model = fitted(scoring, smoothing=smoothing).model_
    series = naive.normal_series(5 * scoring_module.SPLIT, 2, 7)
    series[2000:2003] = np.nan
    raw = scoring_module.score_series(model.scoring, model.setup.scale(series))
    wanted = np.array([1500, 3100, 3200, 9000])
    every, some = raw.causal_shares(smoothing), raw.causal_shares(smoothing, wanted)
    np.testing.assert_array_equal(some, every[wanted])
    np.testing.assert_allclose(every.sum(axis=1), raw.causal(smoothing), rtol=1e-9)


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
@pytest.mark.parametrize("channel", [0, 1, 2])
def test_a_fault_in_one_channel_puts_it_on_top(scoring: str, channel: int) -> None:
    detector, series = fitted(scoring, channels=3), naive.normal_series(100, 3, seed=4)
    series[60:64, channel] += 8.0 * 10.0**channel
    shares = detector.explain(series)
    assert np.argmax(shares[60]) == channel
    assert shares[62, channel] > 0.5 * shares[62].sum()


def test_the_papers_causes_without_observables_are_the_squared_residuals_of_the_channels() -> None:
    detector, series = fitted("paper", 2, 1, observables=0), with_gaps(80)
    shares = detector.explain(series)
    for t, steps in naive.predictions(
        model(detector), naive_scaled(detector, series, naive.normal_series(320))
    ).items():
        expected = np.mean([((seen - said) ** 2).reshape(4, 2).sum(axis=0) for seen, said in steps], axis=0)
        np.testing.assert_allclose(shares[t], expected, rtol=1e-8)


# -- the split ----------------------------------------------------------------------------------------------------


def test_without_witnesses_held_out_rows_set_the_threshold_and_nothing_else() -> None:
    train = naive.normal_series(320)
    cut = math.ceil(320 * 0.6)
    other = train.copy()
    other[cut:] += np.random.default_rng(0).normal(size=(320 - cut, 2)) * [1.0, 10.0]
    one, two = (KoopmanDetector(scoring="paper", **SMALL).fit(data) for data in (train, other))
    for name in ("subspace_", "operator_"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert np.array_equal(one.scaling_.mean, two.scaling_.mean)
    assert np.array_equal(one.scaling_.scale, two.scaling_.scale)
    for name, value in one.memory_.statistics.as_arrays().items():
        assert np.array_equal(value, getattr(two.memory_.statistics, name))
    series = naive.normal_series(60, seed=3)
    assert np.array_equal(one.decision_function(series), two.decision_function(series), equal_nan=True)
    assert one.threshold_ != two.threshold_


@pytest.mark.parametrize("horizon", [1, 2])
def test_normal_scores_are_those_of_the_held_out_rows(horizon: int) -> None:
    train = naive.normal_series(320)
    detector = fitted(horizon=horizon)
    cut = math.ceil(320 * 0.6)
    lead = 4 + horizon - 1
    np.testing.assert_allclose(
        detector.model_.normal_scores, detector.decision_function(train[cut - lead :]), rtol=1e-10
    )
    assert len(scores_known(detector)) == 320 - cut
    assert not detector.model_.few_rows


def scores_known(detector: KoopmanDetector) -> Array:
    """Scores of normal data, without the gaps between them."""
    scores = detector.model_.normal_scores
    return np.asarray(scores[~np.isnan(scores)])


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
def test_the_split_counts_complete_rows(scoring: ScoringName) -> None:
    train = naive.normal_series(400)
    train[:80] = np.nan
    detector = KoopmanDetector(scoring=scoring, **SMALL).fit(train)
    shorter = KoopmanDetector(scoring=scoring, **SMALL).fit(train[80:])
    np.testing.assert_allclose(detector.operator_, shorter.operator_, atol=1e-12)
    assert detector.threshold_ == pytest.approx(shorter.threshold_)


@pytest.mark.parametrize("validation", [0.001, 0.002])
def test_a_tiny_held_out_share_is_cross_fitted(validation: float) -> None:
    with pytest.warns(FewRowsWarning):
        KoopmanDetector(**{**SMALL, "validation": validation}).fit(naive.normal_series(200))


def test_a_long_outage_at_the_end_leaves_the_held_out_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldout, "MOST_HELD_OUT", 200)
    train = np.concatenate([naive.normal_series(600), np.full((300, 2), np.nan)])
    detector = KoopmanDetector(**SMALL).fit(train)  # a FewRowsWarning would be an error
    assert not detector.model_.few_rows
    assert len(detector.memory_.held_out.rows) <= 200 + 300


def test_a_long_outage_inside_the_held_out_rows_does_not_use_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldout, "MOST_HELD_OUT", 200)
    train = np.concatenate([naive.normal_series(600), np.full((300, 2), np.nan), naive.normal_series(10)])
    detector = KoopmanDetector(**SMALL).fit(train)  # a FewRowsWarning would be an error
    assert not detector.model_.few_rows
    assert len(scores_known(detector)) >= 100


def test_the_held_out_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heldout, "MOST_HELD_OUT", 150)
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(600))
    assert len(detector.memory_.held_out.rows) == 150
    detector.learn(naive.normal_series(600, seed=1))
    assert len(detector.memory_.held_out.rows) == 150


def test_scattered_holes_that_leave_little_to_learn_from_are_said_with_the_channel_to_blame() -> None:
    train = naive.normal_series(8000)
    train[::8, 1] = np.nan  # a window of six fits between two holes, but only one of eight rows follows one
    detector = KoopmanDetector(**{**SMALL, "window": 6})
    with pytest.warns(
        FewRowsWarning, match=r"^Only 1000 of 8000 rows could be learned from, .* channel 1 has no value in 1000"
    ):
        detector.fit(train)
    filled = train.copy()
    filled[::8, 1] = filled[7::8, 1]
    detector.fit(filled)  # a FewRowsWarning would be an error


# -- few rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 2])
@pytest.mark.parametrize("gap", [False, True])
def test_few_rows_are_judged_by_operators_that_did_not_see_them(horizon: int, gap: bool) -> None:
    train = naive.normal_series(130)
    if gap:
        train[50] = np.nan
    few: dict[str, Any] = {"window": 4, "rank": 3, "observables": 5, "smoothing": 3, "risk": 0.05}
    detector = KoopmanDetector(scoring="paper", horizon=horizon, **few)
    with pytest.warns(FewRowsWarning, match=rf"{130 - gap} rows"):
        detector.fit(train)
    assert detector.model_.few_rows
    scaled = detector.scaling_.transform(train)
    states = naive.lifted_states(scaled, detector.lifting_)
    pairs = [t for t in states if t - 1 in states]  # by the time of the target
    folds = [range(part[0], part[-1] + 1) for part in np.array_split(pairs, calibration.BLOCKS)]
    left: dict[int, naive.Model] = {}
    for fold in folds:
        kept = [t for t in pairs if t not in fold]
        x, y = np.array([states[t - 1] for t in kept]).T, np.array([states[t] for t in kept]).T
        gram = detector.subspace_.T @ x @ x.T @ detector.subspace_
        unit = float(np.trace(gram)) / 3
        operator = naive.best_operator(x, y, detector.subspace_, detector.ridge * unit, always=False)
        operator *= min(1.0, detector.spectral_cap / max(abs(np.linalg.eigvals(operator))))
        for t in fold:
            left[t] = naive.Model(detector.lifting_, detector.subspace_, operator, horizon)
    raw = np.full(len(train), np.nan)
    for fold in folds:
        raw[fold] = naive.paper_scores(left[fold[0]], scaled)[fold]
    expected = naive.smooth(raw, back=2)
    np.testing.assert_allclose(detector.model_.normal_scores, expected, rtol=1e-8)
    assert detector.threshold_ == pytest.approx(event_threshold(expected, 0.05, apart=4).value, rel=1e-8)


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_left_out_statistics_add_up_to_the_whole(horizon: int) -> None:
    train = naive.normal_series(130)
    train[40] = np.nan
    with pytest.warns(FewRowsWarning):
        detector = KoopmanDetector(window=4, rank=3, observables=5, horizon=horizon).fit(train)
    scaled = detector.scaling_.transform(train)
    blocks = calibration._blocks(scaled, detector.lifting_, horizon)
    total = collect(scaled, detector.lifting_, horizon)
    for name in ("xx", "yx", "yy", "x_sum", "y_sum", "count"):
        parts = sum(getattr(left_out, name) for _, left_out in blocks)
        np.testing.assert_allclose(parts, getattr(total, name), atol=1e-9, err_msg=name)


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
@pytest.mark.parametrize("level", [0.0, 0.1, 0.3, 1e6 / 3.0])
@pytest.mark.parametrize("validation", [0.15, 0.4])
@pytest.mark.parametrize("threshold", ["pot", "quantile"])
def test_normal_data_of_an_idle_device_raises_no_alarm(level: float, validation: float, threshold: str) -> None:
    """A device that stood still in training and goes on standing still is not anomalous by rounding."""
    detector = KoopmanDetector(**{**SMALL, "validation": validation, "threshold": threshold})
    detector.fit(np.full((400, 2), level))
    still = np.full((600, 2), level)
    assert not detector.predict(still).any()
    stream = detector.stream()
    assert not any(stream.update(row).is_anomaly for row in still[:60])


def test_a_constant_fleet_channel_that_moves_is_found() -> None:
    train = naive.normal_series(400)
    train[:, 1] = 3.0
    detector = KoopmanDetector(**SMALL).fit(train)
    series = naive.normal_series(100, seed=2)
    series[:, 1] = 3.0
    assert detector.predict(series).mean() < 0.1
    series[60:65, 1] = 9.0
    assert detector.predict(series)[60:65].any()
    assert np.argmax(detector.explain(series)[61]) == 1


def test_a_series_without_any_energy_is_no_arithmetic_error() -> None:
    detector = KoopmanDetector(**{**SMALL, "observables": 0}).fit(np.zeros((400, 2)))
    assert not detector.predict(np.zeros((50, 2))).any()
    assert detector.predict(np.full((50, 2), 5.0)).any()


def learnt(detector: KoopmanDetector) -> list[NDArray[Any]]:
    """What a scoring has learned of normal data."""
    scoring = detector.model_.scoring
    found: list[NDArray[Any]] = [detector.subspace_, detector.operator_]
    if not isinstance(scoring, WitnessScoring):
        return found
    return [*found, scoring.centre, scoring.spread, scoring.jump, scoring.units, *scoring.bounds]


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
def test_an_outage_around_few_rows_does_not_change_what_they_teach(scoring: ScoringName) -> None:
    rows = naive.normal_series(60)
    hole = np.full((700, 2), np.nan)
    alone, inside = (
        KoopmanDetector(scoring=scoring, **SMALL).fit(train) for train in (rows, np.concatenate([hole, rows, hole]))
    )
    for one, other in zip(learnt(alone), learnt(inside), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9)
    assert inside.threshold_ == pytest.approx(alone.threshold_, rel=1e-9)
