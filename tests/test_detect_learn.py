"""Learning on: statistics, operator, forgetting, and a regime that stops being news."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import FewRowsWarning, KoopmanDetector
from fedkad.koopman.snapshots import Statistics, collect
from tests.fixtures import naive

Array = NDArray[np.float64]
SMALL: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4, "risk": 1e-3}


def kept(detector: KoopmanDetector) -> Statistics:
    return detector.memory_.statistics


@pytest.mark.parametrize("forgetting", [1.0, 0.25])
def test_learning_adds_the_new_pairs_to_the_statistics(forgetting: float) -> None:
    old, new = naive.normal_series(300), naive.normal_series(100, seed=1)
    new[30] = np.nan
    detector = KoopmanDetector(**SMALL).fit(old)
    subspace, mean = detector.subspace_, detector.scaling_.mean
    assert detector.learn(new, forgetting=forgetting) is detector
    x_old, y_old = naive.snapshots(detector.scaling_.transform(old[:180]), detector.lifting_)
    # 99 rows are complete, and 39 of them are held out
    x_new, y_new = naive.snapshots(detector.scaling_.transform(new[:61]), detector.lifting_)
    found = kept(detector)
    np.testing.assert_allclose(found.xx, forgetting * x_old @ x_old.T + x_new @ x_new.T, atol=1e-8)
    np.testing.assert_allclose(found.yx, forgetting * y_old @ x_old.T + y_new @ x_new.T, atol=1e-8)
    assert found.count == forgetting * x_old.shape[1] + x_new.shape[1]
    assert np.array_equal(detector.subspace_, subspace)
    assert np.array_equal(detector.scaling_.mean, mean)
    root = np.sqrt(forgetting)
    x, y = np.hstack([root * x_old, x_new]), np.hstack([root * y_old, y_new])
    gram = subspace.T @ x @ x.T @ subspace
    operator = naive.best_operator(x, y, subspace, detector.ridge * float(np.trace(gram)) / 3, always=True)
    operator *= min(1.0, detector.spectral_cap / max(abs(np.linalg.eigvals(operator))))
    np.testing.assert_allclose(detector.operator_, operator, atol=1e-9)


def test_learning_holds_out_the_last_part_of_the_new_series() -> None:
    old, new = naive.normal_series(300), naive.normal_series(100, seed=1)
    detector = KoopmanDetector(**SMALL).fit(old)
    before = len(detector.model_.normal_scores)
    detector.learn(new)
    assert len(detector.model_.normal_scores) == before + 40
    recent = detector.decision_function(new[60 - 3 :])[3:]
    np.testing.assert_allclose(detector.model_.normal_scores[-40:], recent, rtol=1e-9)


def test_learning_on_equals_having_been_fitted_on_both_stretches() -> None:
    train = naive.normal_series(500)
    stepwise = KoopmanDetector(**SMALL).fit(train[:300])
    for first in (300, 350, 400, 450):
        stepwise.learn(train[first : first + 50])
    parts = [train[:180], *(train[first : first + 30] for first in (300, 350, 400, 450))]
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


def test_a_detector_of_few_rows_learns_itself_out_of_it() -> None:
    first, more = naive.normal_series(90), naive.normal_series(400, seed=1)
    with pytest.warns(FewRowsWarning):
        detector = KoopmanDetector(**SMALL).fit(first)
    detector.learn(more)
    assert not detector.model_.few_rows
    joined = detector.scaling_.transform(np.concatenate([first, [[np.nan, np.nan]], more]))
    cut = 90 + 1 + 294 - 90  # the first 60 % of 490 complete rows
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
    monkeypatch.setattr("fedkad.detect.calibration.MOST_HELD_OUT", 200)
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(600))
    detector.learn(np.concatenate([naive.normal_series(300, seed=1), np.full((600, 2), np.nan)]))
    assert len(detector.model_.normal_scores) >= 100
    assert np.isfinite(detector.threshold_)


def test_a_threshold_set_by_hand_survives_learning_and_files(tmp_path: Path) -> None:
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(300))
    detector.threshold_ = 99.0
    detector.learn(naive.normal_series(300, seed=1)).save(tmp_path / "model")
    loaded = KoopmanDetector.load(tmp_path / "model")
    assert detector.threshold_ == loaded.threshold_ == 99.0
    assert loaded.learn(naive.normal_series(300, seed=2)).threshold_ == 99.0
    assert detector.fit(naive.normal_series(300)).threshold_ < 99.0  # a new fit sets its own


def test_learning_in_tiny_pieces_keeps_the_held_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pieces that can barely be judged, as many are kept as the buffer holds."""
    monkeypatch.setattr("fedkad.detect.calibration.MOST_HELD_OUT", 200)
    detector = KoopmanDetector(**SMALL).fit(naive.normal_series(600))
    for k in range(70):
        detector.learn(naive.normal_series(4, seed=k))
    assert len(detector.model_.normal_scores) == 200 // 5  # of five rows, context and gap included, each has one score
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
