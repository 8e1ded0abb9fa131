"""Motion alone, the benchmark's ablation, against naive formulas; it is a scoring that is passed to the detector."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import FewRowsWarning, KoopmanDetector
from fedkad.detect import calibration
from fedkad.detect.modelfile import ModelFileError
from fedkad.detect.scoring import SPREAD_FLOOR
from fedkad.detect.threshold import event_threshold
from fedkad.detect.witnesses import LINEAR_BEYOND as LINEAR
from fedkad_bench.methods.motion import MOTION, MotionScoring
from tests.fixtures import naive
from tests.fixtures.scored import SMALL, model, naive_scaled, with_gaps

Array = NDArray[np.float64]
LINEAR_BEYOND = float(LINEAR)


def fitted(horizon: int = 1, smoothing: int = 3) -> KoopmanDetector:
    detector = KoopmanDetector(scoring=MOTION, horizon=horizon, smoothing=smoothing, **SMALL)
    return detector.fit(naive.normal_series(320))


def moments(residuals: dict[int, Array]) -> tuple[Array, Array]:
    """Centre and spread `(H, n)` of the residuals, the spread with its floor."""
    stacked = np.array(list(residuals.values()))
    return stacked.mean(axis=0), np.maximum(stacked.std(axis=0), SPREAD_FLOOR)


def test_the_score_is_the_naive_one() -> None:
    detector, train, series = fitted(), naive.normal_series(320), with_gaps(100)
    cut = math.ceil(320 * 0.6)
    centre, spread = moments(naive.newest_residuals(model(detector), naive_scaled(detector, train[:cut], train)))
    scaled = naive_scaled(detector, series, train)
    residuals = naive.newest_residuals(model(detector), scaled)
    sizes = np.abs(np.array(list(residuals.values())) - centre) / spread
    assert 0.01 < np.mean(sizes > LINEAR_BEYOND) < 0.5, "the series must reach both branches of the score"
    raw = naive.calibrated_scores(residuals, len(series), centre, spread, LINEAR_BEYOND)
    np.testing.assert_allclose(detector.decision_function(series), naive.smooth(raw, back=2), rtol=1e-9)
    np.testing.assert_allclose(detector.score_series(series), naive.smooth(raw, 4 // 3, 4 // 3), rtol=1e-9)
    assert isinstance(detector.model_.scoring, MotionScoring)
    np.testing.assert_allclose(detector.model_.scoring.centre, centre, atol=1e-10)
    np.testing.assert_allclose(detector.model_.scoring.spread, spread, rtol=1e-9)


@pytest.mark.parametrize("horizon", [2, 3])
def test_the_score_over_a_horizon_uses_every_step(horizon: int) -> None:
    detector, train, series = fitted(horizon, smoothing=1), naive.normal_series(320), with_gaps(100)
    assert isinstance(detector.model_.scoring, MotionScoring)
    residuals = naive.newest_residuals(model(detector), naive_scaled(detector, series, train))
    centre, spread = detector.model_.scoring.centre, detector.model_.scoring.spread
    raw = naive.calibrated_scores(residuals, len(series), centre, spread, LINEAR_BEYOND)
    np.testing.assert_allclose(detector.decision_function(series), raw, rtol=1e-9)
    # The moments farther ahead come from sums over slightly other pairs: near, not equal.
    cut = math.ceil(320 * 0.6)
    mean, sd = moments(naive.newest_residuals(model(detector), naive_scaled(detector, train[:cut], train)))
    np.testing.assert_allclose(centre, mean, atol=0.03)
    np.testing.assert_allclose(spread, sd, rtol=0.05)


def test_causes_are_the_terms_of_the_mean() -> None:
    detector, series = fitted(smoothing=1), with_gaps(80)
    assert isinstance(detector.model_.scoring, MotionScoring)
    residuals = naive.newest_residuals(model(detector), naive_scaled(detector, series, naive.normal_series(320)))
    shares = detector.explain(series)
    for t, steps in residuals.items():
        size = np.abs(steps[0] - detector.model_.scoring.centre[0]) / detector.model_.scoring.spread[0]
        terms = np.where(size <= LINEAR_BEYOND, size**2, 2 * LINEAR_BEYOND * size - LINEAR_BEYOND**2)
        np.testing.assert_allclose(shares[t], terms / 2.0, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gap", [False, True])
def test_few_rows_are_judged_by_operators_that_did_not_see_them(gap: bool) -> None:
    train = naive.normal_series(130)
    if gap:
        train[50] = np.nan
    few: dict[str, Any] = {"window": 4, "rank": 3, "observables": 5, "smoothing": 3, "risk": 0.05}
    detector = KoopmanDetector(scoring=MOTION, **few)
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
        operator = naive.best_operator(x, y, detector.subspace_, detector.ridge * unit, always=True)
        operator *= min(1.0, detector.spectral_cap / max(abs(np.linalg.eigvals(operator))))
        for t in fold:
            left[t] = naive.Model(detector.lifting_, detector.subspace_, operator, 1)
    residuals: dict[int, Array] = {}
    for fold in folds:
        found = naive.newest_residuals(left[fold[0]], scaled)
        residuals |= {t: found[t] for t in fold if t in found}
    centre, spread = moments(residuals)
    raw = naive.calibrated_scores(residuals, len(train), centre, spread, LINEAR_BEYOND)
    assert isinstance(detector.model_.scoring, MotionScoring)
    np.testing.assert_allclose(detector.model_.scoring.spread, spread, rtol=1e-8)
    expected = naive.smooth(raw, back=2)
    np.testing.assert_allclose(detector.model_.normal_scores, expected, rtol=1e-8)
    assert detector.threshold_ == pytest.approx(event_threshold(expected, 0.05, apart=4).value, rel=1e-8)


def test_what_a_detector_does_with_a_scoring_that_is_passed(tmp_path: Any) -> None:
    detector, series = fitted(), with_gaps(100)
    assert KoopmanDetector.of(detector.model_, detector.memory_).scoring is MOTION
    assert MOTION is detector.get_params()["scoring"]
    scores = detector.decision_function(series)
    stream = detector.stream()
    readings = [stream.update(sample) for sample in series]
    np.testing.assert_allclose([reading.score for reading in readings], scores, rtol=1e-9)
    np.testing.assert_allclose(
        [reading.shares.sum() for reading in readings], [reading.score for reading in readings], rtol=1e-9
    )
    assert {event.kind for event in detector.events(series)} == {"motion"}
    with pytest.raises(ValueError, match="scoring='motion' has no witnesses"):
        detector.witnesses(series)
    with pytest.raises(ModelFileError, match="a model with a scoring of its own, 'motion', cannot be stored"):
        detector.save(tmp_path / "motion.safetensors")
