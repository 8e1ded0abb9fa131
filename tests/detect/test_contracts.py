"""The contracts of scikit-learn and PyOD: what holds, and what does not because a series has an order."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer, roc_auc_score
from sklearn.model_selection import TimeSeriesSplit, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import fedkad
from fedkad import FewRowsWarning, KoopmanDetector

TINY: dict[str, Any] = {"window": 1, "rank": 2, "observables": 2, "private": 1}
"""A window of one sample, because these checks have 10 to 30 rows."""

EXCEPTIONS = {
    "check_outliers_fit_predict": "1 is an anomaly and 0 is none, as in PyOD; scikit-learn has -1 and 1",
    "check_outliers_train": "the same, and higher scores are more abnormal; `score_samples` has the other sign",
    "check_methods_sample_order_invariance": "the order of the rows is what a time series is about",
    "check_methods_subset_invariance": "a score needs the window before it: the first rows have none, and say NaN",
    "check_n_features_in_after_fitting": "the error says channels, not features",
    "check_dtype_object": "the error is a ValueError with row and channel, not a TypeError",
}


def test_all_checks_of_scikit_learn_but_the_stated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.detect.learning.FEWEST_PAIRS", 3)  # most checks have fewer rows than any model needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(KoopmanDetector(**TINY), on_fail=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    assert failed == set(EXCEPTIONS)
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    assert len(passed) > 30
    assert {"check_estimators_unfitted", "check_estimators_pickle", "check_dict_unchanged"} <= passed


def waves(rows: int) -> NDArray[np.float64]:
    series = np.sin(np.arange(rows)[:, None] / [[7.0, 11.0]])
    return series + 0.05 * np.random.default_rng(0).normal(size=series.shape)


@pytest.fixture(scope="module")
def detector() -> KoopmanDetector:
    return KoopmanDetector(rank=8, observables=32).fit(waves(1500))


def test_an_unfitted_detector_raises_the_error_of_scikit_learn_and_its_own() -> None:
    for error in (NotFittedError, fedkad.NotFittedError):
        with pytest.raises(error, match="not fitted yet; call fit"):
            KoopmanDetector().predict(waves(50))
        with pytest.raises(error):
            _ = KoopmanDetector().threshold_


def test_scores_with_the_sign_of_scikit_learn_and_fit_predict(detector: KoopmanDetector) -> None:
    series = waves(300)
    np.testing.assert_array_equal(detector.score_samples(series), -detector.decision_function(series))
    train = waves(900)
    again = KoopmanDetector(rank=4, observables=8)
    np.testing.assert_array_equal(again.fit_predict(train, np.zeros(900)), again.predict(train))


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
def test_cross_validation_with_a_scorer_that_leaves_out_the_warm_up() -> None:
    series, labels = waves(2400), np.zeros(2400)
    for start in (1000, 1700, 2300):
        series[start : start + 20, 1] += 2.0
        labels[start : start + 20] = 1.0

    def judged(truth: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
        known = ~np.isnan(scores)
        return float(roc_auc_score(truth[known], scores[known]))

    scorer = make_scorer(judged, response_method="decision_function")
    detector = KoopmanDetector(rank=4, observables=8)
    found = cross_val_score(detector, series, labels, scoring=scorer, cv=TimeSeriesSplit(3))
    assert (found > 0.9).all()


@pytest.mark.parametrize("wrong", ["pump.csv", b"pump.csv", None])
def test_what_is_no_series_is_told_what_to_do(wrong: Any, detector: KoopmanDetector) -> None:
    for call in (KoopmanDetector().fit, detector.predict):
        with pytest.raises(ValueError, match=r"read a file first, e\.g\. with pandas\.read_csv") as raised:
            call(wrong)
        assert "reshape" not in str(raised.value)
    with pytest.raises(ValueError, match=r"3 dimension.*Pass separate stretches as a list"):
        detector.predict(np.ones((3, 4, 5)))


@pytest.mark.parametrize("threshold", [-1, -0.5, float("nan"), float("-inf")])
def test_a_threshold_below_every_score_is_refused(threshold: float, detector: KoopmanDetector) -> None:
    with pytest.raises(ValueError, match="threshold"):
        KoopmanDetector(threshold=threshold).fit(waves(900))
    with pytest.raises(ValueError, match="threshold"):
        KoopmanDetector.of(detector.model_).threshold_ = threshold


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
def test_a_channel_that_never_changes_raises_the_score_by_how_far_it_moves() -> None:
    for steady in (0.0, 5.0, -1e6):
        train = np.column_stack([waves(1500), np.full(1500, steady)])
        detector = KoopmanDetector(rank=8, observables=32).fit(train)
        highest = []
        for change in (0.0, 1e-3, 0.5, 5.0):
            series = train[:200].copy()
            series[100:, 2] += change * max(abs(steady), 1.0)
            highest.append(float(np.nanmax(detector.decision_function(series))))
        assert highest == sorted(highest)
        assert highest[0] < highest[1] < highest[3]
    still = KoopmanDetector(rank=8, observables=32).fit(np.full((1500, 3), 7.0))
    assert not still.predict(np.full((200, 3), 7.0)).any()
    moved = np.full((200, 3), 7.0)
    moved[100:] = 8.0
    assert still.predict(moved)[100:].any()


def test_the_adapter_for_pyod(detector: KoopmanDetector) -> None:
    base = pytest.importorskip("pyod.models.base")
    from fedkad.detect.pyodadapter import KoopmanOD

    series = waves(1500)
    series[700:730, 1] += 3.0
    adapter = KoopmanOD(contamination=0.02, detector=KoopmanDetector(rank=8, observables=32))
    assert isinstance(adapter, base.BaseDetector)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        adapter.fit(series)
    assert adapter.decision_scores_.shape == adapter.labels_.shape == (1500,)
    assert abs(adapter.labels_.mean() - 0.02) < 0.002
    assert adapter.labels_[700:760].sum() >= 20
    known = ~np.isnan(adapter.detector_.decision_function(series))
    np.testing.assert_array_equal(
        adapter.decision_function(series)[known], adapter.detector_.decision_function(series)[known]
    )
    assert not adapter.predict(series)[~known].any()
    assert adapter.predict_proba(series).shape == (1500, 2)
    np.testing.assert_array_equal(adapter.predict(series), adapter.labels_)
