"""The score of the paper: the squared residual of the whole lifted window.

It is the squared norm ‖Φ − Z Q^h c‖², averaged over h = 1 … H. With orthonormal Z no D-vector is formed,

    ‖Φ − Z Q^h c‖² = (‖Φ‖² − ‖ZᵀΦ‖²) + ‖ZᵀΦ − Q^h c‖²,

what lies off the subspace, and what moved wrongly on it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.dynamics import Dynamics
from fedkad.detect.scoring import SingleTerm, inner

Array = NDArray[np.float64]


class PaperFeatures(NamedTuple):
    """What is kept of a window."""

    windows: Array
    coordinates: Array  # ZᵀΦ
    observables: Array


@dataclass(frozen=True)
class PaperScoring(SingleTerm):
    """The mean squared norm of the residual of the whole lifted state over the horizon."""

    dynamics: Dynamics

    def features(self, windows: Array, newest: Array) -> PaperFeatures:
        """The windows, their coordinates ZᵀΦ and their observables."""
        coordinates, _, observables = self.dynamics.coordinates(windows)
        return PaperFeatures(windows, coordinates, observables)

    def score(self, earlier: PaperFeatures, since: list[PaperFeatures]) -> tuple[Array, ...]:
        """(1/H) Σ_h ‖Φ(t−H+h) − Z Q^h c(t−H)‖², by the split into two parts."""
        total = np.zeros(earlier.coordinates.shape[:-1])
        for power, (windows, coordinates, observables) in zip(self.dynamics.powers, since, strict=True):
            off = _square(windows) + _square(observables) - _square(coordinates)
            # Rounding can make the part off the subspace slightly negative.
            total = total + np.maximum(off, 0.0) + _square(coordinates - earlier.coordinates.dot(power.T))
        return (np.asarray(total / len(since)),)

    def shares(self, earlier: PaperFeatures, since: list[PaperFeatures]) -> Array:
        """Squared residuals of the windowed state go to their channel; those of the observables are apportioned.

        An observable is a function of many samples. Its squared residual is split over them in proportion to
        (w_k e_k)², weight times residual of the sample.
        """
        lifting = self.dynamics.lifting
        total = np.zeros((*earlier.coordinates.shape[:-1], lifting.channels))
        for power, (windows, _, observables) in zip(self.dynamics.powers, since, strict=True):
            predicted = earlier.coordinates @ power.T @ self.dynamics.subspace.T
            windowed = (windows - predicted[..., : lifting.state_size]) ** 2
            total += self._apportion(windowed, (observables - predicted[..., lifting.state_size :]) ** 2)
        # `score` splits the norm and rounds differently; scale the shares so that they sum to it exactly.
        (score,), sums = self.score(earlier, since), total.sum(axis=-1)
        return np.asarray(total * (score / np.where(sums > 0.0, sums, 1.0))[..., None])[..., None, :]

    def expected(self, earlier: PaperFeatures) -> Array:
        """The newest sample in Z Q^H c."""
        forecast: Array = earlier.coordinates.dot(self.dynamics.newest_decoders[-1])
        return forecast

    def _apportion(self, windowed: Array, observed: Array) -> Array:
        lifting = self.dynamics.lifting
        squared_weights = lifting.weights**2
        pull = windowed @ squared_weights.T
        aimed = pull > 0.0
        factor = np.where(aimed, observed, 0.0) / np.where(aimed, pull, 1.0)
        attributed = windowed * (1.0 + factor @ squared_weights)
        shares: Array = attributed.reshape(*attributed.shape[:-1], lifting.window, lifting.channels).sum(axis=-2)
        # If no sample has a residual, an observable points at no channel, so all get an equal part.
        shares += (np.where(aimed, 0.0, observed).sum(axis=-1) / lifting.channels)[..., None]
        return shares


def _square(values: Array) -> Array:
    """Squared norms of rows."""
    return inner(values, values)
