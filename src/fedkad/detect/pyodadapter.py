"""FedKAD as a detector of PyOD, with `decision_scores_`, `labels_` and all that PyOD makes of them.

    from fedkad.detect.pyodadapter import KoopmanOD

    found = KoopmanOD(contamination=0.02).fit(series)

This module alone imports PyOD, and nothing imports this module.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pyod.models.base import BaseDetector

from fedkad.detect.detector import KoopmanDetector


class KoopmanOD(BaseDetector):  # type: ignore[misc]
    """A `KoopmanDetector` whose threshold is PyOD's: a share of the training rows.

    PyOD has no word for rows that cannot be judged, such as those of the first window: they get the lowest score of
    the training data, so they are never outliers. To tell them apart, ask `detector_`.

    Parameters
    ----------
    contamination : float
        Share of the training rows that are outliers.
    detector : KoopmanDetector, optional
        With the parameters to use; it is not changed. The default has the default ones.
    """

    def __init__(self, contamination: float = 0.1, detector: KoopmanDetector | None = None) -> None:
        super().__init__(contamination=contamination)
        self.detector = detector

    def fit(self, X: Any, y: object = None) -> Self:
        """Fit on a series `(time, channel)`; `y` is there for PyOD and ignored."""
        self._set_n_classes(None)
        parameters = {} if self.detector is None else self.detector.get_params()
        self.detector_ = KoopmanDetector(**parameters).fit(X)
        scores = self.detector_.decision_function(X)
        self.lowest_ = float(np.nanmin(scores))
        self.decision_scores_ = self._without_holes(scores)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores `(time,)`, higher is more abnormal."""
        return self._without_holes(self.detector_.decision_function(X))

    def _without_holes(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.isnan(scores), self.lowest_, scores)
