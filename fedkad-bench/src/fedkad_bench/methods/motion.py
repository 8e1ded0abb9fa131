"""Motion alone, the score of release 0.1, as an ablation: what the other two witnesses are worth.

Only the sample just predicted counts (the rest of the window was judged before), each channel in units of its own
spread in training, and large departures linearly: g(e) = e² up to |e| = 3, 6|e| − 9 beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.calibration import Fitted, HoldOutMethod, ResidualMoments
from fedkad.detect.dynamics import Dynamics, LiftedProduct
from fedkad.detect.scoring import SingleTerm, inner
from fedkad.detect.witnesses import LINEAR_BEYOND

Array = NDArray[np.float64]


class MotionFeatures(NamedTuple):
    """What is kept of a window, in units of the spread, the H steps ahead side by side."""

    newest: Array  # x/σ_h
    forecast: Array  # (x̂_h + centre_h)/σ_h


@dataclass(frozen=True)
class MotionScoring(SingleTerm):
    """Residuals of the predicted sample in units of their training spread, averaged over channels and steps."""

    dynamics: Dynamics
    centre: Array  # (H, n)
    spread: Array  # (H, n)

    @property
    def predicted(self) -> Array:
        """The share of the variance of each channel that is predicted one step ahead, 0 to 1."""
        share: Array = np.clip(1.0 - self.spread[-1] ** 2, 0.0, 1.0)
        return share

    @cached_property
    def forecast(self) -> LiftedProduct:
        """The predicted samples of all steps ahead, in units of the spread, from a window."""
        steps = zip(self.dynamics.newest_decoders, self.spread, strict=True)
        decoder = np.concatenate([decoder / spread for decoder, spread in steps], axis=1)
        matrix = self.dynamics.subspace @ decoder
        return LiftedProduct(self.dynamics.lifting, matrix, (self.centre / self.spread).ravel())

    @cached_property
    def _sharpness(self) -> Array:
        return 1.0 / self.spread.ravel()

    @cached_property
    def _newest(self) -> slice | list[int]:
        """Where the newest sample stands in a window, once for every step ahead."""
        horizon, channels = self.spread.shape
        columns = range(-channels, 0)
        return slice(-channels, None) if horizon == 1 else list(columns) * horizon

    def features(self, windows: Array, newest: Array) -> MotionFeatures:
        """The newest sample and the forecast, both in units of the spread."""
        return MotionFeatures(windows[..., self._newest] * self._sharpness, self.forecast(windows)[0])

    def _departures(self, earlier: MotionFeatures, since: list[MotionFeatures]) -> Array:
        if len(since) == 1:
            return since[0].newest - earlier.forecast
        channels = self.spread.shape[1]
        steps = [each.newest[..., h * channels : (h + 1) * channels] for h, each in enumerate(since)]
        return np.concatenate(steps, axis=-1) - earlier.forecast

    def score(self, earlier: MotionFeatures, since: list[MotionFeatures]) -> tuple[Array, ...]:
        """Mean of g(e) over channels and steps: about 1 on normal data."""
        departures = self._departures(earlier, since)
        clipped = clip_departures(departures)
        return (inner(clipped, departures + departures - clipped) * (1.0 / self.spread.size),)

    def shares(self, earlier: MotionFeatures, since: list[MotionFeatures]) -> Array:
        """g(e_c) / n for every channel c, averaged over the steps of the horizon."""
        departures = self._departures(earlier, since)
        clipped = clip_departures(departures)
        terms = clipped * (2.0 * departures - clipped)
        shares: Array = terms.reshape(*terms.shape[:-1], *self.spread.shape).sum(axis=-2) / self.spread.size
        return shares[..., None, :]

    def expected(self, earlier: MotionFeatures) -> Array:
        """The forecast of the last step, back from units of the spread."""
        spread = self.spread[-1]
        forecast: Array = earlier.forecast[..., -len(spread) :] * spread
        return forecast


def clip_departures(departures: Array) -> Array:
    """Clip departures e to ±k, c; the saturated square g(e), e² up to |e| = k and 2k|e| − k² beyond, is c (2e − c).

    >>> e = np.array([-2.0, 3.0, 5.0])
    >>> clip_departures(e) * (2 * e - clip_departures(e))
    array([ 4.,  9., 21.])
    """
    clipped: Array = np.clip(departures, -LINEAR_BEYOND, LINEAR_BEYOND)
    return clipped


class MotionMethod(HoldOutMethod):
    """Motion alone as the `scoring` of a detector."""

    name = "motion"

    def scoring(self, dynamics: Dynamics, fitted: Fitted) -> MotionScoring:
        """The scoring by these dynamics, with the spread of the residuals of the fitted ones."""
        moments = [ResidualMoments.of(others, statistics) for others, statistics in fitted]
        pooled = ResidualMoments(*(sum(several[1:], start=several[0]) for several in zip(*moments, strict=True)))
        return MotionScoring(dynamics, *pooled.centre_and_spread)


MOTION = MotionMethod()
"""To be passed as the `scoring` of a detector."""
