"""Learning on: statistics, operator, forgetting, and a regime that stops being news."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import FewRowsWarning, KoopmanDetector
from fedkad.detect.methods import ScoringName
from fedkad.koopman.snapshots import Statistics, collect
from tests.fixtures import naive

Array = NDArray[np.float64]
SMALL: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4, "risk": 1e-3}


def kept(detector: KoopmanDetector) -> Statistics:
    return detector.memory_.statistics


@pytest.mark.parametrize("forgetting", [1.0, 0.25])
@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
def test_learning_adds_the_new_pairs_to_the_statistics(scoring: ScoringName, forgetting: float) -> None:
    old, new = naive.normal_series(300), naive.normal_series(100, seed=1)
    new[30] = np.nan
    detector = KoopmanDetector(scoring=scoring, **SMALL).fit(old)
    subspace, mean = detector.subspace_, detector.scaling_.mean
    assert detector.learn(new, forgetting=forgetting) is detector
    if scoring == "paper":
        old, new = old[:180], new[:61]  # 99 new rows are complete, and 39 of them are held out
    x_old, y_old = naive.snapshots(detector.scaling_.transform(old), detector.lifting_)
    x_new, y_new = naive.snapshots(detector.scaling_.transform(new), detector.lifting_)
    found = kept(detector)
    np.testing.assert_allclose(found.xx, forgetting * x_old @ x_old.T + x_new @ x_new.T, atol=1e-8)
    np.testing.assert_allclose(found.yx, forgetting * y_old @ x_old.T + y_new @ x_new.T, atol=1e-8)
    assert found.count == forgetting * x_old.shape[1] + x_new.shape[1]
    assert np.array_equal(detector.subspace_[:, :3], subspace[:, :3])
    assert np.array_equal(detector.scaling_.mean, mean)
    subspace = detector.subspace_  # its private directions follow the statistics
    root = np.sqrt(forgetting)
    x, y = np.hstack([root * x_old, x_new]), np.hstack([root * y_old, y_new])
    gram = subspace.T @ x @ x.T @ subspace
    ridge = detector.ridge * float(np.trace(gram)) / len(gram)
    operator = naive.best_operator(x, y, subspace, ridge, always=scoring == "witnesses")
    operator *= min(1.0, detector.spectral_cap / max(abs(np.linalg.eigvals(operator))))
    np.testing.assert_allclose(detector.operator_, operator, atol=1e-9)


def scores_known(detector: KoopmanDetector) -> Array:
    """Scores of normal data, without the gaps between them."""
    scores = detector.model_.normal_scores
    return np.asarray(scores[~np.isnan(scores)])


def test_without_witnesses_learning_holds_out_the_last_part_of_the_new_series() -> None:
    old, new = naive.normal_series(300), naive.normal_series(100, seed=1)
    detector = KoopmanDetector(scoring="paper", **SMALL).fit(old)
    before = len(scores_known(detector))
    detector.learn(new)
    assert len(scores_known(detector)) == before + 40
    recent = detector.decision_function(new[60 - 3 :])[3:]
    np.testing.assert_allclose(detector.model_.normal_scores[-40:], recent, rtol=1e-9)


def test_with_witnesses_learning_holds_out_nothing() -> None:
    old, new = naive.normal_series(300), naive.normal_series(100, seed=1)
    detector = KoopmanDetector(**SMALL).fit(old)
    assert len(scores_known(detector)) == 300 - 3
    detector.learn(new, forgetting=0.5)
    assert len(scores_known(detector)) == 300 - 3 + 100 - 3
    expected = detector.scaling_.standardise(np.concatenate([old, [[np.nan, np.nan]], new]))
    np.testing.assert_allclose(detector.memory_.held_out.rows, expected)
    np.testing.assert_array_equal(detector.memory_.held_out.weights[:300], np.full(300, 0.5))
    np.testing.assert_array_equal(detector.memory_.held_out.weights[-100:], np.ones(100))


@pytest.mark.parametrize(("scoring", "first_rows", "rows"), [("witnesses", 300, 50), ("paper", 180, 30)])
def test_learning_on_equals_having_been_fitted_on_both_stretches(
    scoring: ScoringName, first_rows: int, rows: int
) -> None:
    train = naive.normal_series(500)
    stepwise = KoopmanDetector(scoring=scoring, **SMALL).fit(train[:300])
    for first in (300, 350, 400, 450):
        stepwise.learn(train[first : first + 50])
    parts = [train[:first_rows], *(train[first : first + rows] for first in (300, 350, 400, 450))]
    expected = sum(
        (collect(stepwise.scaling_.transform(part), stepwise.lifting_) for part in parts[1:]),
        start=collect(stepwise.scaling_.transform(parts[0]), stepwise.lifting_),
    )
    np.testing.assert_allclose(kept(stepwise).xx, expected.xx, atol=1e-8)
    np.testing.assert_allclose(kept(stepwise).yx, expected.yx, atol=1e-8)
    assert kept(stepwise).count == expected.count


def other_regime(length: int, seed: int) -> Array:
    """The same channels at another speed."""
    generator = np.random.default_rng(seed)
    t = np.arange(float(length))[:, None]
    values = np.sin(t * [[2.4, 1.9]]) + 0.3 * generator.normal(size=(length, 2))
    return np.asarray(values * [1.0, 10.0] + 5.0)


def test_a_learnt_regime_is_no_longer_flagged() -> None:
    detector = KoopmanDetector(**{**SMALL, "rank": 6}).fit(naive.normal_series(600, noise=0.1))
    series = other_regime(300, seed=5)
    assert detector.predict(series).mean() > 0.5
    detector.learn(other_regime(1200, seed=6), forgetting=0.2)
    assert detector.predict(series).mean() < 0.05
    assert detector.stream().update(series[0]).threshold == detector.threshold_


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
def test_a_detector_of_few_rows_learns_itself_out_of_it(scoring: ScoringName) -> None:
    first, more = naive.normal_series(90), naive.normal_series(400, seed=1)
    with pytest.warns(FewRowsWarning):
        detector = KoopmanDetector(scoring=scoring, **SMALL).fit(first)
    detector.learn(more)
    assert not detector.model_.few_rows
    joined = detector.scaling_.transform(np.concatenate([first, [[np.nan, np.nan]], more]))
    cut = len(joined) if scoring == "witnesses" else 90 + 1 + 294 - 90  # the first 60 % of 490 complete rows
    expected = collect(joined[:cut], detector.lifting_)
    np.testing.assert_allclose(kept(detector).xx, expected.xx, atol=1e-8)
    assert kept(detector).count == expected.count


def test_learning_refuses_what_makes_no_sense() -> None:
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(300))
    for forgetting in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="forgetting"):
            detector.learn(naive.normal_series(50), forgetting=forgetting)
    with pytest.raises(ValueError, match=r"3 channel.*2"):
        detector.learn(np.ones((50, 3)))
    with pytest.raises(ValueError, match="not fitted"):
        KoopmanDetector().learn(np.ones((50, 2)))


def test_a_refused_series_leaves_the_detector_as_it_was() -> None:
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(300))
    before = kept(detector)
    with pytest.raises(ValueError, match="infinite"):
        detector.learn(np.full((50, 2), np.inf))
    assert kept(detector) is before


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_pieces_without_a_window_are_refused_and_change_nothing(rows: int) -> None:
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(300))
    before, threshold = kept(detector).xx.copy(), detector.threshold_
    for piece in (naive.normal_series(rows) if rows else np.empty((0, 2)), np.full((600, 2), np.nan)):
        with pytest.raises(ValueError, match="Nothing to learn from"):
            detector.learn(piece)
    np.testing.assert_array_equal(kept(detector).xx, before)
    assert detector.threshold_ == threshold


def test_learning_through_an_outage_keeps_the_held_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.detect.heldout.MOST_HELD_OUT", 200)
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(600))
    detector.learn(np.concatenate([naive.normal_series(300, seed=1), np.full((600, 2), np.nan)]))
    assert len(scores_known(detector)) >= 100
    assert np.isfinite(detector.threshold_)


def test_a_threshold_set_by_hand_survives_learning_and_files(tmp_path: Path) -> None:
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(300))
    detector.threshold_ = 99.0
    detector.learn(naive.normal_series(300, seed=1)).save(tmp_path / "model")
    loaded = KoopmanDetector.load(tmp_path / "model")
    assert detector.threshold_ == loaded.threshold_ == 99.0
    assert loaded.learn(naive.normal_series(300, seed=2)).threshold_ == 99.0
    assert detector.fit(naive.normal_series(300)).threshold_ < 99.0  # a new fit sets its own


@pytest.mark.parametrize("scoring", ["witnesses", "paper"])
def test_learning_in_tiny_pieces_keeps_the_held_out_rows(monkeypatch: pytest.MonkeyPatch, scoring: ScoringName) -> None:
    """Of pieces that can barely be judged, as many are kept as the buffer holds."""
    monkeypatch.setattr("fedkad.detect.heldout.MOST_HELD_OUT", 200)
    detector = KoopmanDetector(scoring=scoring, **SMALL).fit(naive.normal_series(600))
    for k in range(70):
        detector.learn(naive.normal_series(4, seed=k))
    assert len(scores_known(detector)) == 200 // 5  # of five rows, context and gap included, each has one score
    assert np.isfinite(detector.threshold_)


@pytest.mark.parametrize("forgetting", [1.0, 0.5])
@pytest.mark.parametrize("rows", [60, 900])
def test_a_detector_without_statistics_learns_from_the_file_that_has_them(
    tmp_path: Path, rows: int, forgetting: float
) -> None:
    small: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        KoopmanDetector(**small).fit(naive.normal_series(rows, 2)).save(tmp_path / "model")
    whole, light = KoopmanDetector.load(tmp_path / "model"), KoopmanDetector.load(tmp_path / "model", statistics=False)
    with pytest.raises(ValueError, match="without its statistics"):
        light.memory_  # noqa: B018
    new = naive.normal_series(400, 2, seed=9)
    whole.learn(new, forgetting)
    light.learn(new, forgetting, known=tmp_path / "model")
    for name, value in whole.memory_.statistics.as_arrays().items():
        np.testing.assert_allclose(light.memory_.statistics.as_arrays()[name], value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(light.operator_, whole.operator_, rtol=1e-9, atol=1e-12)
    assert light.threshold_ == pytest.approx(whole.threshold_)
    with pytest.raises(ValueError, match="saved without its statistics"):
        KoopmanDetector.load(tmp_path / "model", statistics=False).learn(new)


# -- what a person says, and what is forgotten --------------------------------------------------------------------


def waves(rows: int, seed: int = 0) -> Array:
    series = np.sin(np.arange(rows)[:, None] / [[7.0, 11.0, 13.0]])
    return series + 0.05 * np.random.default_rng(seed).normal(size=series.shape)


def with_faults() -> tuple[KoopmanDetector, Array]:
    """A detector, and a series with two faults: channel 0 shifts at 200, channel 2 gets stuck at 600."""
    series = waves(1000, seed=1)
    series[200:300, 0] += 3.0
    series[600:700, 2] = 0.3
    return KoopmanDetector(rank=8, sample_period=60.0).fit(waves(3000)), series


def test_what_an_operator_confirms_is_no_alarm_again_and_other_faults_still_are(tmp_path: Path) -> None:
    detector, series = with_faults()
    stretch, threshold = series[170:330], detector.threshold_
    assert detector.predict(stretch).any()
    assert detector.predict(series)[600:720].any()
    detector.learn(stretch, confirmed=True)
    for later in (detector, KoopmanDetector.of(detector.model_, detector.memory_).adopt(detector.subspace_[:, :8])):
        assert not detector.predict(stretch).any()
        assert later.predict(series)[600:720].any()
        assert detector.memory_.ranges is not None
        assert len(detector.memory_.ranges.discounts) == 1
    assert detector.threshold_ == pytest.approx(threshold, rel=0.2)  # the stretch itself sets no threshold
    detector.save(tmp_path / "m.safetensors")
    assert not KoopmanDetector.load(tmp_path / "m.safetensors").predict(stretch).any()


def test_confirming_needs_witnesses() -> None:
    detector = KoopmanDetector(rank=8, scoring="paper").fit(waves(1500))
    with pytest.raises(ValueError, match="fit with scoring='witnesses'"):
        detector.learn(waves(100), confirmed=True)


def test_a_half_life_is_a_share_that_follows_from_the_rows() -> None:
    for half_life in ("200 rows", "200 samples", "200 minutes"):
        detector, _ = with_faults()
        twin = KoopmanDetector.of(detector.model_, detector.memory_)
        detector.learn(waves(400, seed=2), forgetting=half_life)
        twin.learn(waves(400, seed=2), forgetting=0.25)
        np.testing.assert_array_equal(detector.memory_.statistics.xx, twin.memory_.statistics.xx)
        assert detector.memory_.ranges is not None
        assert detector.memory_.ranges.rows == pytest.approx(0.25 * 3000 + 400)


@pytest.mark.parametrize("forgetting", ["soon", "0 rows", "2 parsecs", 0.0, 1.5])
def test_a_forgetting_that_makes_no_sense_is_refused(forgetting: float | str) -> None:
    detector, series = with_faults()
    with pytest.raises(ValueError, match=r"a share in .* or a half-life such as '5000 rows'"):
        detector.learn(series, forgetting=forgetting)


def test_a_half_life_in_time_needs_the_sample_period() -> None:
    with pytest.raises(ValueError, match="needs sample_period"):
        KoopmanDetector(rank=8).fit(waves(1500)).learn(waves(200), forgetting="1 day")


def test_levels_that_are_forgotten_become_strange_again() -> None:
    early, late = waves(3000), waves(6000, seed=3)
    early[:600, 0] += 4.0
    detector = KoopmanDetector(rank=8).fit(early)
    assert detector.memory_.ranges is not None
    before = detector.memory_.ranges.bounds(detector.scaling_).high[1, 0]
    detector.learn(late, forgetting=0.001)
    assert detector.memory_.ranges is not None
    assert detector.memory_.ranges.bounds(detector.scaling_).high[1, 0] < before - 0.5


def test_a_rule_set_later_survives_saving_and_learning(tmp_path: Path) -> None:
    detector, _ = with_faults()
    detector.rejudge("1/month", 60.0)
    kept = detector.threshold_
    detector.save(tmp_path / "m.safetensors")
    loaded = KoopmanDetector.load(tmp_path / "m.safetensors")
    assert loaded.model_.rule == detector.model_.rule
    loaded.learn(waves(200, seed=4))
    assert loaded.model_.rule is not None
    assert loaded.model_.rule.threshold == "1/month"
    assert loaded.threshold_ == pytest.approx(kept, rel=0.2)


def test_separate_stretches_are_not_bridged() -> None:
    detector, series = with_faults()
    joined = detector.decision_function([series[:50], series[500:550]])
    second = detector.decision_function(series[500:550])
    np.testing.assert_allclose(joined[-50:], second, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
def test_what_was_confirmed_stays_confirmed_when_the_device_goes_on_learning() -> None:
    for rows in (400, 3000):
        train, stretch = waves(rows), waves(150, seed=5)
        train[:, 2], stretch[:, 2] = np.arange(rows) % 50 > 25, 0.5
        stretch[:, 0] += 3.0
        stretch[60:63, 1] = np.nan
        detector = KoopmanDetector(rank=8).fit(train)
        assert detector.predict(stretch).any()
        detector.learn(stretch, confirmed=True)
        assert not detector.predict(stretch).any()
        for seed in range(6, 9):
            more = waves(300, seed)
            more[:, 2] = np.arange(300) % 50 > 25
            detector.learn(more)
            assert not detector.predict(stretch).any()


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
@pytest.mark.parametrize(("rows", "more"), [(400, 100), (1500, 300), (5000, 100)])
def test_an_absurd_value_in_what_is_learned_later_widens_nothing(rows: int, more: int) -> None:
    detector, later, test = KoopmanDetector(rank=8).fit(waves(rows)), waves(more, seed=1), waves(200, seed=2)
    later[more // 2, 0], test[100, 0] = 1e4, 60.0
    detector.learn(later)
    assert detector.predict(test)[100] == 1
    assert detector.memory_.ranges is not None
    assert detector.memory_.ranges.bounds(detector.scaling_).unit[0] < 10.0


def test_learning_in_small_pieces_does_not_devalue_places() -> None:
    detector = KoopmanDetector(rank=8).fit(waves(3000))
    assert detector.memory_.ranges is not None
    before = detector.memory_.ranges.wander.tolist()
    for seed in range(10):
        detector.learn(waves(60, seed))
    assert detector.memory_.ranges is not None
    assert detector.memory_.ranges.wander.tolist() == before
