"""Model files of earlier releases load, score as they did when they were written, and go on learning.

`recorded/<release>` holds one small file of each kind and, in scores.npz, what the release itself made of them.
"""

from pathlib import Path

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.detect.modelfile import ModelFileError

FITTED = 1e-6
"""What a fit may differ by from one processor to another, relative to a score.

BLAS adds in another order on each, so the statistics differ by rounding, 1e-16. The subspace has them divided by the
gap between the last direction that is kept and the first that is not, which is small where neither matters; then the
scores differ by up to 9e-8 (seen with kernels of five processors). A loaded model is only multiplied: 1e-9 is ample.
"""

FOLDER = Path(__file__).parents[1] / "recorded"
RECORDED = sorted((FOLDER / "0.1.0").glob("*.safetensors"))
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


@pytest.mark.parametrize("path", [path for path in RECORDED if path.stem != "paper"], ids=lambda path: path.stem)
def test_a_model_of_the_score_that_left_says_what_it_is_and_what_to_do(path: Path) -> None:
    message = r"scoring='calibrated', the score of release 0.1, which is no longer part of fedkad; fit it again, or use"
    with pytest.raises(ModelFileError, match=message):
        KoopmanDetector.load(path)


def paper() -> tuple[KoopmanDetector, dict[str, np.ndarray]]:
    """The recorded model with the paper's score, and what was recorded of it."""
    path = next(path for path in RECORDED if path.stem == "paper")
    return KoopmanDetector.load(path), scores_of(path.parent)


def test_a_recorded_model_file_still_gives_its_scores() -> None:
    detector, recorded = paper()
    test = recorded["test"]
    assert detector.scoring == "paper"
    assert not detector.model_.scoring.bridges
    assert detector.threshold_ == recorded["paper.threshold"]
    np.testing.assert_allclose(detector.decision_function(test), recorded["paper"], rtol=1e-9)
    np.testing.assert_allclose(detector.explain(test), recorded["paper.explain"], rtol=1e-6, atol=1e-9)
    assert np.array_equal(detector.predict(test), recorded["paper.alarms"])
    detector.learn(normal_series(300, 5))
    np.testing.assert_allclose(detector.decision_function(test), recorded["paper.learnt"], rtol=FITTED)


def test_a_detector_fitted_today_scores_as_one_of_an_earlier_release() -> None:
    """Thresholds differ, because they are about events now."""
    old, recorded = paper()
    fitted = KoopmanDetector(**old.get_params()).fit(normal_series(1500, 0))
    np.testing.assert_allclose(fitted.decision_function(recorded["test"]), recorded["paper"], rtol=FITTED)
    np.testing.assert_allclose(fitted.explain(recorded["test"]), recorded["paper.explain"], rtol=10 * FITTED, atol=1e-9)
    np.testing.assert_allclose(fitted.memory_.held_out.rows, old.memory_.held_out.rows, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("former", "threshold"), [("spot", 2.064287138547273), ("dspot", 2.343891234609266)])
def test_a_threshold_that_moved_with_the_stream_stays_where_it_was(former: str, threshold: float) -> None:
    with pytest.warns(UserWarning, match=rf"its threshold moved with the stream \('{former}'\).* it stays at"):
        detector = KoopmanDetector.load(FOLDER / "adapting" / f"{former}.safetensors")
    assert detector.threshold_ == pytest.approx(threshold, rel=1e-12)
    assert detector.threshold == "pot"
    assert detector.stream().threshold == detector.threshold_
    assert detector.rejudge("1/week", 60.0).stream(follow=True).threshold == detector.threshold_
