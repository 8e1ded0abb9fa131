"""Model files of earlier releases load, score as they did when they were written, and go on learning.

`recorded/<release>` holds one small file of each kind and, in scores.npz, what the release itself made of them.
"""

from pathlib import Path

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.detect.threshold import ADAPTING, ThresholdRule, judge_all

FITTED = 1e-6
"""What a fit may differ by from one processor to another, relative to a score.

BLAS adds in another order on each, so the statistics differ by rounding, 1e-16. The subspace has them divided by the
gap between the last direction that is kept and the first that is not, which is small where neither matters; then the
scores differ by up to 9e-8 (seen with kernels of five processors). A loaded model is only multiplied: 1e-9 is ample.
"""

RECORDED = sorted((Path(__file__).parents[1] / "recorded").glob("*/*.safetensors"))
CHANNELS = 3


def scores_of(release: Path) -> dict[str, np.ndarray]:
    """What a release recorded, read at once: an open file would be complained about in another test."""
    with np.load(release / "scores.npz") as recorded:
        return dict(recorded)


def normal_series(rows: int, seed: int) -> np.ndarray:
    """The series that the recorded detectors were fitted on."""
    t = np.arange(rows)[:, None]
    noise = np.random.default_rng(seed).normal(size=(rows, CHANNELS))
    return np.round(np.sin(t / [[7.0, 11.0, 5.0]]) + 0.1 * noise, 3)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_model_file_still_gives_its_scores(path: Path) -> None:
    recorded = scores_of(path.parent)
    kind = "calibrated" if path.stem == "detect-only" else path.stem
    detector, test = KoopmanDetector.load(path), recorded["test"]
    assert detector.threshold_ == recorded[f"{kind}.threshold"]
    np.testing.assert_allclose(detector.decision_function(test), recorded[kind], rtol=1e-9)
    np.testing.assert_allclose(detector.explain(test), recorded[f"{kind}.explain"], rtol=1e-6, atol=1e-9)
    if detector.threshold in ADAPTING:
        # It goes on about events, which the release that recorded its alarms did not.
        judge = ThresholdRule(detector.threshold, detector.risk, None, detector.window).judge(
            detector.model_.normal_scores
        )
        assert np.array_equal(detector.predict(test), judge_all(judge, recorded[kind])[1])
    else:
        assert np.array_equal(detector.predict(test), recorded[f"{kind}.alarms"])
    if path.stem == "detect-only":
        with pytest.raises(ValueError, match="saved without its statistics"):
            detector.learn(normal_series(300, 5))
    else:
        detector.learn(normal_series(300, 5))
        np.testing.assert_allclose(detector.decision_function(test), recorded[f"{kind}.learnt"], rtol=FITTED)


def test_what_was_recorded_besides_the_scores() -> None:
    by_kind = {path.stem: KoopmanDetector.load(path).model_ for path in RECORDED}
    assert by_kind["calibrated"].setup.names == ("flow", "level", "speed")
    assert by_kind["unnamed"].setup.names is None
    assert by_kind["few-rows"].few_rows
    assert by_kind["by-hand"].by_hand
    assert by_kind["by-hand"].threshold == 4.5
    assert by_kind["admitted"].least_threshold > 0.0
    assert by_kind["learnt"].learnt_through == "2024-01-01T00:00:00"
    assert by_kind["paper"].settings.scoring == "paper"
    assert by_kind["calibrated"].settings.scoring == "calibrated"
    assert not any(model.scoring.bridges for model in by_kind.values())


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
@pytest.mark.parametrize("kind", ["unnamed", "spot", "dspot", "budget", "few-rows", "paper"])
def test_a_detector_fitted_today_scores_as_one_of_an_earlier_release(kind: str) -> None:
    """Motion is what was called calibrated; thresholds differ, because they are about events now."""
    path = next(path for path in RECORDED if path.stem == kind)
    old, recorded = KoopmanDetector.load(path), scores_of(path.parent)
    train, test = normal_series(200 if kind == "few-rows" else 1500, 0), recorded["test"]
    scorings = ["paper"] if kind == "paper" else ["motion", "calibrated"]
    fitted = [KoopmanDetector(**{**old.get_params(), "scoring": scoring}).fit(train) for scoring in scorings]
    for detector in fitted:
        np.testing.assert_allclose(detector.decision_function(test), recorded[kind], rtol=FITTED)
        np.testing.assert_allclose(detector.explain(test), recorded[f"{kind}.explain"], rtol=10 * FITTED, atol=1e-9)
        np.testing.assert_allclose(detector.memory_.held_out.rows, old.memory_.held_out.rows, rtol=1e-12, atol=1e-12)
        assert detector.threshold_ == fitted[0].threshold_
        assert np.array_equal(detector.decision_function(test), fitted[0].decision_function(test), equal_nan=True)
