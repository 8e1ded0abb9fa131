"""The witness of fit: the residual of the whole window that was predicted, on the channels judged by prediction.

With c the coordinates of an earlier window z₀, a = Q^H c and Z_j the rows of Z that belong to judged channels, the
squared residual needs no window to be formed,

    ‖z − Z_j a‖² = ‖z‖² − 2 aᵀZ_jᵀz + aᵀZ_jᵀZ_j a.
"""

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.dynamics import Dynamics

Array = NDArray[np.float64]


class WindowFit:
    """What it takes to predict windows and to measure the residuals of the `judged` channels.

    Attributes
    ----------
    mean : (W,)
        From the samples of a window to their mean.
    predictions : (r, 2 r + H n)
        From c to a, to (Q^H)ᵀZ_jᵀZ_j a, and to the predicted samples of all steps ahead, side by side.
    energy : (n,)
        From mean squares of the channels of a window to their mean over the judged ones.
    per_sample, per_departure : float
        One over the judged cells of a window, and over the judged samples of all steps ahead.
    """

    def __init__(self, dynamics: Dynamics, judged: NDArray[np.bool_], tolerance: Array | None) -> None:
        lifting, last = dynamics.lifting, dynamics.powers[-1]
        self._dynamics, count = dynamics, max(float(judged.sum()), 1.0)
        self._tolerance = None if tolerance is None else np.tile(tolerance, lifting.window)
        self._rows = dynamics.subspace[: lifting.state_size]
        # Where in a window the channels stand that are not judged; None if all are.
        self._unjudged = None if judged.all() else np.flatnonzero(~np.tile(judged, lifting.window))
        self._unjudged_rows = self._rows if self._unjudged is None else dynamics.subspace[self._unjudged]
        judged_rows = self._rows if self._unjudged is None else np.delete(self._rows, self._unjudged, axis=0)
        self.mean = np.full(lifting.window, 1.0 / lifting.window)
        self.per_sample = 1.0 / (count * lifting.window)
        self.per_departure = 1.0 / (count * dynamics.horizon)
        self.energy = judged / count
        self.predictions = np.concatenate(
            [last.T, last.T @ (judged_rows.T @ judged_rows) @ last, *dynamics.newest_decoders], axis=1
        )

    def of_judged(self, linear: Array, windows: Array) -> Array:
        """Z_jᵀz from Z_wᵀz: without what the channels add that are not judged."""
        if self._unjudged is None:
            return linear
        rest: Array = linear - windows[..., self._unjudged].dot(self._unjudged_rows)
        return rest

    def residuals(self, coordinates: Array, window: Array) -> Array:
        """The residuals of the cells of a window; those within the tolerance, and of other channels, are 0."""
        predicted = coordinates.dot(self._dynamics.powers[-1].T).dot(self._rows.T)
        residuals: Array = window - predicted
        if self._unjudged is not None:
            residuals[..., self._unjudged] = 0.0
        if self._tolerance is not None:
            residuals[np.abs(residuals) <= self._tolerance] = 0.0
        return residuals
