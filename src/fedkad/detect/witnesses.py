"""Three witnesses of whether a device is normal, each a sum over channels.

- *motion*: how far the newest sample is from its prediction, g(e) as in `CalibratedScoring`, averaged over the channels
  that are judged by prediction. Switches (at most two values in training) and inputs help to predict; nobody can
  predict them.
- *fit*: the squared residual of the whole window that was predicted, averaged over its samples and the same channels.
- *place*: how far each channel is from where it has been in training (`places`). Two things add up: a value outside of
  its bounds, or a jump larger than any in training, in ranges of the channel; and a level or a spread outside of its
  bounds, in standard deviations.

Each is averaged over the last few entries and divided by its *unit*, what 99 % of normal data stays below. The score is

    √motion + √fit + ½ √place.

Place has half the weight because that was better on SMD machine-1-* and nearly as good on simulated pumps; with equal
weights nothing changes much (`python -m measurements.witnesses`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.places import ABSURD, OUTSIDE, STILL, Bounds, absurd, beyond, log_spread
from fedkad.detect.scoring import Dynamics, LiftedProduct, Seen, clip_departures, inner

Array = NDArray[np.float64]

WITNESSES = ("motion", "fit", "place")
WEIGHTS = (1.0, 1.0, 0.5)

UNIT_FLOORS = np.array([1.0, 0.1, 0.5])
"""The smallest units: a device that never moved in training has no others."""

ROUNDING = 1e-6
"""How far from its two values a switch may read, in standard deviations."""


class Sight(NamedTuple):
    """What is kept of a window: arrays for one moment, or with time as their first axis."""

    values: Array  # the newest sample, not clipped; NaN where it is missing
    window: Array
    coordinates: Array  # c = ZᵀΦ
    own: Array  # Z_jᵀz: of the judged channels of the window alone
    level: Array  # mean of the window, per channel
    square: Array  # mean square of the window, per channel


@dataclass(frozen=True)
class WitnessScoring:
    """Motion, fit and place."""

    dynamics: Dynamics
    centre: Array  # of the residuals of the predicted sample, (H, n)
    spread: Array  # (H, n)
    judged: NDArray[np.bool_]  # channels that are judged by prediction, (n,)
    bounds: Bounds
    jump: Array  # the residual of the last step that hardly any in training exceeds, (n,)
    units: Array  # of motion, fit and place

    of_windows: ClassVar[tuple[bool, ...]] = (False, True, False, True)
    bridges: ClassVar[bool] = True

    @property
    def offline_reach(self) -> int:
        """Half a window."""
        return self.dynamics.lifting.window // 2

    # -- what is kept of a window ------------------------------------------------------------------------------

    @cached_property
    def _judged_rows(self) -> Array:
        """Z_j: the rows of Z that belong to the judged channels of a window, zeros elsewhere, (d, r)."""
        lifting = self.dynamics.lifting
        rows: Array = self.dynamics.subspace[: lifting.state_size]
        return rows * np.tile(self.judged, lifting.window)[:, None]

    @cached_property
    def lifted(self) -> LiftedProduct:
        """C = ZᵀΦ and Z_jᵀz of a window, in one product."""
        return LiftedProduct(self.dynamics.lifting, self.dynamics.subspace, None, self._judged_rows)

    @cached_property
    def _mean(self) -> Array:
        return np.full(self.dynamics.lifting.window, 1.0 / self.dynamics.lifting.window)

    def see(self, windows: Array, values: Array) -> Seen:
        """A `Sight` of one window or of every row of windows; `values` are their newest samples, not clipped."""
        lifting, rank = self.dynamics.lifting, self.dynamics.subspace.shape[1]
        is_one = windows.ndim == 1
        products = self.lifted(windows)[0]
        samples = windows.reshape(*windows.shape[:-1], lifting.window, lifting.channels)
        squares = samples * samples
        level = self._mean.dot(samples) if is_one else np.matmul(self._mean, samples)
        square = self._mean.dot(squares) if is_one else np.matmul(self._mean, squares)
        # A single window is a view of a ring that goes on turning.
        window = windows.copy() if is_one else windows
        return Sight(values, window, products[..., :rank], products[..., rank:], level, square)

    # -- the parts of a score ----------------------------------------------------------------------------------

    def score(self, earlier: Seen, since: list[Seen]) -> tuple[Array, ...]:
        """Motion, fit, values outside, and levels and spreads outside; not in units yet."""
        newest = Sight(*since[-1])
        ahead = earlier[2].dot(self._ahead)
        residuals = self._residuals(ahead, since)
        motion, misfit = self._motion(residuals), self._misfit(ahead, newest)
        # Nearly always every channel is there, and where it has been.
        if self._farthest(newest, residuals) <= 0.0:
            parts: tuple[Array, ...] = (motion, misfit, 0.0 * motion, 0.0 * motion)
        elif np.isnan(newest.values).any():
            parts = tuple(np.moveaxis(self._terms(ahead, newest, residuals).sum(axis=-1), -1, 0))
        else:
            outside, dwell = self._places(newest, residuals)
            parts = (motion, misfit, outside.sum(axis=-1), dwell.sum(axis=-1))
        if len(self.bounds.relief):
            relief = self._relief(newest)
            parts = tuple(part * relief for part in parts)
        return parts

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """The same parts split over the channels, `(…, 4, n)`."""
        ahead, parts = earlier[2].dot(self._ahead), self.score(earlier, since)
        terms = self._terms(ahead, Sight(*since[-1]), self._residuals(ahead, since))
        # Sums of the same terms in another order: scaled so that the channels add up to the parts.
        sums = terms.sum(axis=-1)
        factors = np.stack(parts, axis=-1) / np.where(sums > 0.0, sums, 1.0)
        found: Array = terms * factors[..., None]
        return found

    def _terms(self, ahead: Array, newest: Sight, residuals: Array) -> Array:
        """The parts channel by channel, `(…, 4, n)`; a channel that is missing has none, and the others count more."""
        channels, rank, window = self.dynamics.lifting.channels, len(self._newest), self.dynamics.lifting.window
        departures = self._departures(residuals)
        clipped = clip_departures(departures)
        motion = (clipped * (2.0 * departures - clipped)).reshape(*departures.shape[:-1], -1, channels).sum(axis=-2)
        predicted = ahead[..., -rank:] @ self._judged_rows.T
        squares = (newest.window * np.tile(self.judged, window) - predicted) ** 2
        misfit = squares.reshape(*squares.shape[:-1], -1, channels).sum(axis=-2)
        there = ~np.isnan(newest.values)
        judged = np.maximum((self.judged & there).sum(axis=-1), 1.0)[..., None]
        means = [motion / (judged * len(self.spread)), misfit / (judged * window)]
        split = np.stack([*means, *self._places(newest, residuals)], axis=-2)
        return np.where(there[..., None, :], split, 0.0)

    @cached_property
    def _ahead(self) -> Array:
        """From c to the coordinates that are predicted, Q c … Q^H c side by side."""
        return np.concatenate([power.T for power in self.dynamics.powers], axis=1)

    @cached_property
    def _newest(self) -> Array:
        """From coordinates to the newest sample, contiguous."""
        return np.ascontiguousarray(self.dynamics.subspace[self.dynamics.lifting.newest].T)

    def _residuals(self, ahead: Array, since: list[Seen]) -> Array:
        """Of the predicted samples of all steps ahead, side by side."""
        channels, rank = self._newest.shape[1], self._newest.shape[0]
        if len(since) == 1:
            residuals: Array = since[0][1][..., -channels:] - ahead.dot(self._newest)
            return residuals
        steps = [
            seen[1][..., -channels:] - ahead[..., h * rank : (h + 1) * rank].dot(self._newest)
            for h, seen in enumerate(since)
        ]
        return np.concatenate(steps, axis=-1)

    @cached_property
    def _offset(self) -> Array:
        return self.centre.ravel()

    @cached_property
    def _sharpness(self) -> Array:
        return (self.judged / self.spread).ravel()

    @cached_property
    def _judged_count(self) -> float:
        return max(float(self.judged.sum()), 1.0)

    def _departures(self, residuals: Array) -> Array:
        departures: Array = (residuals - self._offset) * self._sharpness
        return departures

    def _motion(self, residuals: Array) -> Array:
        """Mean of g(e) over the judged channels and the steps ahead."""
        departures = self._departures(residuals)
        clipped = clip_departures(departures)
        departures += departures
        departures -= clipped
        return inner(clipped, departures) / (self._judged_count * len(self.spread))

    @cached_property
    def _overlap(self) -> Array:
        """Z_jᵀZ_j."""
        return self._judged_rows.T @ self._judged_rows

    @cached_property
    def _energy(self) -> Array:
        """From mean squares of the channels of a window to their mean over the judged ones."""
        return self.judged / self._judged_count

    def _misfit(self, ahead: Array, newest: Sight) -> Array:
        """‖z − Z_j a‖² over the judged channels, per sample and channel, at the predicted coordinates a = Q^H c.

        It is ‖z‖² − 2 aᵀZ_jᵀz + aᵀZ_jᵀZ_j a, and rounding can make it slightly negative.
        """
        last = ahead[..., -len(self._overlap) :]
        rest = last.dot(self._overlap)
        rest -= newest.own
        rest -= newest.own
        return abs(newest.square.dot(self._energy) + inner(last, rest) * self._per_sample)

    @cached_property
    def _per_sample(self) -> float:
        return 1.0 / (self._judged_count * self.dynamics.lifting.window)

    # -- places ------------------------------------------------------------------------------------------------

    @cached_property
    def _middle_and_half(self) -> tuple[Array, Array]:
        """Middle and half width of what value, residual, level and variance may be, side by side."""
        (low, high), still = self.bounds[:2], STILL
        variance = [np.maximum(np.exp(bound[2]) - still, 0.0) ** 2 for bound in (low, high)]
        least = np.concatenate([low[0], -self.jump, low[1], variance[0]])
        most = np.concatenate([high[0], self.jump, high[1], variance[1]])
        return (least + most) / 2.0, (most - least) / 2.0

    @cached_property
    def _switches(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.bounds.switch)

    def _farthest(self, newest: Sight, residuals: Array) -> float:
        """Whether anything lies outside of its bounds (positive) or is missing (NaN)."""
        middle, half = self._middle_and_half
        channels, level = self.dynamics.lifting.channels, newest.level
        seen = (newest.values, residuals[..., -channels:], level, newest.square - level * level)
        distance = np.concatenate(seen, axis=-1)
        distance -= middle
        np.abs(distance, out=distance)
        distance -= half
        if len(self._switches):
            distance[..., self._switches] = np.abs(distance[..., self._switches]) - ROUNDING
        return float(distance.max())

    def _places(self, newest: Sight, residuals: Array) -> tuple[Array, Array]:
        """How far each channel is outside: by its value or a jump, in ranges, and by its level and spread."""
        low, high, unit, switch, *_ = self.bounds
        values, level = newest.values, newest.level
        jump = np.maximum(np.abs(residuals[..., -len(unit) :]) - self.jump, 0.0)
        away = beyond(values, low[0], high[0])
        nearest = np.minimum(np.abs(values - low[0]), np.abs(values - high[0]))
        away = np.where(switch, np.where(nearest > ROUNDING, nearest, 0.0), away)
        outside = OUTSIDE * np.minimum(np.maximum(away, jump) / unit, ABSURD)
        spread = log_spread(newest.square - level * level)
        dwell = np.hypot(beyond(level, low[1], high[1]), beyond(spread, low[2], high[2]))
        missing = np.isnan(values)
        return np.where(missing, 0.0, outside), np.where(missing, 0.0, dwell)

    def _relief(self, newest: Sight) -> Array:
        """The least factor of the confirmed stretches that the sample may be a part of; 1 if there is none."""
        level = newest.level
        features = np.stack([newest.values, level, log_spread(newest.square - level * level)], axis=-2)[..., None, :, :]
        calm = self.bounds.calm
        outside = (features < calm[..., 0]) | (features > calm[..., 1])  # a missing value is not
        factors = np.where(outside.any(axis=(-2, -1)), 1.0, self.bounds.relief)
        return np.asarray(factors.min(axis=-1))

    def residuals(self, earlier: Seen, since: list[Seen]) -> Array:
        """Of the predicted samples of all steps ahead, side by side."""
        return self._residuals(earlier[2].dot(self._ahead), since)

    def distances(self, earlier: Seen, since: list[Seen]) -> tuple[Array, Array]:
        """How far each channel is outside by its value or a jump, and by its level and spread."""
        return self._places(Sight(*since[-1]), self.residuals(earlier, since))

    def impossible(self, parts: Sequence[Any], values: Array) -> Any:
        """Whether a channel of the sample lies more than five ranges outside of its bounds."""
        suspect = parts[2] >= OUTSIDE * ABSURD
        if suspect is False:  # for one moment it is a plain bool, and nearly always this one
            return False
        low, high, unit, *_ = self.bounds
        return suspect & absurd(values, low[0], high[0], unit).any(axis=-1)

    @property
    def possible(self) -> tuple[Array, Array]:
        """The least and the greatest scaled value of each channel that is not impossible."""
        low, high, unit, *_ = self.bounds
        return low[0] - ABSURD * unit, high[0] + ABSURD * unit

    # -- parts into a score ------------------------------------------------------------------------------------

    def voices(self, parts: Sequence[Any]) -> tuple[Any, Any, Any]:
        """What motion, fit and place add to the score, from smoothed parts: numbers or arrays."""
        motion, misfit, outside, dwell = parts
        unit, weight = self._plain_units, WEIGHTS
        return (
            weight[0] * (motion / unit[0]) ** 0.5,
            weight[1] * (misfit / unit[1]) ** 0.5,
            weight[2] * ((outside + dwell) / unit[2]) ** 0.5,
        )

    @cached_property
    def _plain_units(self) -> list[float]:
        units: list[float] = self.units.tolist()
        return units

    def combine(self, parts: Sequence[Any]) -> Any:
        """√motion + √fit + ½ √place."""
        motion, misfit, place = self.voices(parts)
        return motion + misfit + place

    def split(self, parts: Array, shares: Array) -> Array:
        """The score split over the channels, from smoothed parts `(…, 4)` and their shares `(…, 4, n)`."""
        three = np.stack(self.voices(list(np.moveaxis(parts, -1, 0))), axis=-1)
        place = parts[..., 2] + parts[..., 3]
        whole = np.stack([parts[..., 0], parts[..., 1], place], axis=-1)
        terms = np.stack([shares[..., 0, :], shares[..., 1, :], shares[..., 2, :] + shares[..., 3, :]], axis=-2)
        factors = three / np.where(whole > 0.0, whole, 1.0)
        return np.asarray((terms * factors[..., None]).sum(axis=-2))

    def expected(self, earlier: Seen) -> Array:
        """The newest sample that was predicted for the last step, scaled."""
        forecast: Array = earlier[2].dot(self.dynamics.newest_decoders[-1])
        return forecast
