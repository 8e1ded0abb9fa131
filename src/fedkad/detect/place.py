"""The witness of place: how far each channel is from where it has been in training (`ranges`).

The features of a moment stand side by side: the value of each channel, the residuals of all steps ahead, the level, the
variance and, if there are ties, the departure from them. Their *deviations* are how far they are from the middle of
what training showed, without sign; residuals count in their spreads.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.features import SPREAD, STILL, VALUE, log_spread
from fedkad.detect.ranges import ABSURD, OUTSIDE, Bounds, beyond
from fedkad.detect.ties import FARTHEST

Array = NDArray[np.float64]

SLACK = 1e-12
"""How far outside is nothing but rounding, relative to the bounds: many a channel rests at the least of its values."""

NEVER = 1e300  # more than any departure
ROUNDING = 1e-6  # how far from its two values a switch may read, in standard deviations


class Residuals(NamedTuple):
    """What training showed of the residuals of the predicted sample."""

    centre: Array  # of all steps ahead, (H, n)
    spread: Array  # (H, n)
    judged: NDArray[np.bool_]  # channels that are judged by prediction, (n,)
    jump: Array  # how far hardly any residual of the last step is from its centre, (n,)


class Distances(NamedTuple):
    """How far each channel is outside of its ranges, `(…, n)`."""

    outside: Array  # by its value or a jump, in ranges
    dwell: Array  # by level and spread, in standard deviations
    apart: Array  # by its ties, in ranges


class PlaceWitness:
    """Measures deviations, and how far outside of the ranges they are.

    Attributes
    ----------
    middle, sharpness, half
        Of all features side by side: their middle, one over the spread of residuals (0 if a channel is not judged by
        prediction, 1 for the other features), and the width on either side of the middle.
    value, residuals, last_residual, level, variance, departure : slice
        Where these features stand; `departure` is empty if no channel is tied.
    ties : (n, n), optional
        From levels to departures from what the other channels say; None if no channel is tied.
    """

    def __init__(self, bounds: Bounds, residuals: Residuals, tolerance: Array | None) -> None:
        self._bounds, self._judged, self._tolerance = bounds, residuals.judged, tolerance
        self._switches = np.flatnonzero(bounds.switch)
        self.ties = np.ascontiguousarray(bounds.ties.T) if bounds.ties.any() else None
        steps, channels = residuals.spread.shape
        first = (0, steps, steps + 1, steps + 2, steps + 3)
        self.value, self.last_residual, self.level, self.variance, self.departure = (
            slice(k * channels, (k + 1) * channels) for k in first
        )
        self.residuals = slice(channels, (1 + steps) * channels)
        self._measure_by(bounds, residuals)
        # What counts in the score: a value one standard deviation outside, a residual one spread beyond the largest
        # jump, and any distance of a channel that wanders.
        self.per_unit = OUTSIDE / bounds.unit
        self.per_jump = np.asarray(residuals.spread[-1] * self.per_unit)
        self.per_wander = 1.0 / bounds.wander
        self._suspect = OUTSIDE * ABSURD * float(self.per_wander.min())

    def _measure_by(self, bounds: Bounds, residuals: Residuals) -> None:
        least, most = (
            np.stack([*bound[:2], np.maximum(np.exp(bound[2]) - STILL, 0.0) ** 2, bound[3]])
            for bound in (bounds.low, bounds.high)
        )
        middle, half = (least + most) / 2.0, (most - least) / 2.0
        half += SLACK * (1.0 + np.abs(middle) + half)
        middle[3] += bounds.offset
        half[3] = np.where(residuals.judged, half[3], NEVER)
        # What is not judged by prediction has no departure, and only the last step can jump.
        sharpness = residuals.judged / residuals.spread
        jump = np.full_like(residuals.spread, NEVER)
        jump[-1] = residuals.jump / residuals.spread[-1]
        rest = slice(1, 3 if self.ties is None else 4)
        self.middle = np.concatenate([middle[0], residuals.centre.ravel(), *middle[rest]])
        self.half = np.concatenate([half[0], jump.ravel(), *half[rest]])
        self.sharpness = np.ones(len(self.half))
        self.sharpness[self.residuals] = sharpness.ravel()
        self._tolerated = None if self._tolerance is None else (self._tolerance / residuals.spread).ravel()

    def deviations(self, values: Array, residuals: Array, level: Array, square: Array) -> Array:
        """The deviations of a moment or of many, side by side."""
        features = [values, residuals, level, square - level * level]
        if self.ties is not None:
            features.append(level.dot(self.ties))
        deviations: Array = np.concatenate(features, axis=-1)
        deviations -= self.middle
        deviations *= self.sharpness
        np.abs(deviations, out=deviations)
        if self._tolerated is not None:
            departures = deviations[..., self.residuals]
            departures[departures <= self._tolerated] = 0.0
        return deviations

    def distances(self, deviations: Array, level: Array, square: Array) -> Distances:
        """How far outside each channel is, with levels and mean squares of the windows; NaN where it is missing."""
        excess: Array = deviations - self.half
        if len(self._switches):  # a switch must have one of its two values
            excess[..., self._switches] = np.abs(excess[..., self._switches]) - ROUNDING
        np.maximum(excess, 0.0, out=excess)
        value, jump, dwell = (excess[..., each] for each in (self.value, self.last_residual, self.level))
        variance, departure = excess[..., self.variance], excess[..., self.departure]
        if self._tolerance is not None:
            for far in (value, dwell, departure) if self.ties is not None else (value, dwell):
                far *= far > self._tolerance
        outside = np.minimum(np.maximum(value * self.per_unit, jump * self.per_jump), OUTSIDE * ABSURD)
        if np.count_nonzero(variance):
            at = np.nonzero(variance)  # few, and logarithms take time
            dwell[at] = np.hypot(dwell[at], self._spread_outside(level[at], square[at], at[-1]))
        if self.ties is not None and np.count_nonzero(departure):
            return Distances(outside, dwell, OUTSIDE * self._apart(departure / self._bounds.tightness, level))
        return Distances(outside, dwell, 0.0 * dwell)

    def _spread_outside(self, level: Array, square: Array, channels: NDArray[np.intp]) -> Array:
        """How far the logarithms of standard deviations of windows of these channels are outside of their bounds."""
        variance, (low, high) = square - level * level, (self._bounds.low[SPREAD], self._bounds.high[SPREAD])
        outside = beyond(log_spread(variance), low[channels], high[channels])
        if self._tolerance is None:
            return outside
        least, most = (np.maximum(np.exp(bound[channels]) - STILL, 0.0) for bound in (low, high))
        return outside * (beyond(np.sqrt(np.maximum(variance, 0.0)), least, most) > self._tolerance[channels])

    def _apart(self, far: Array, level: Array) -> Array:
        """What broken ties add, for departures that are so many ranges outside, up to `FARTHEST` each.

        One faulty channel breaks the ties of all that go with it. Each channel takes a share by how well a change of it
        alone explains all departures u, in ranges: (uᵀv)²/‖v‖², with v what the ties make of that change.
        """
        total = np.minimum(far, FARTHEST).sum(axis=-1, keepdims=True)
        sharp = self._judged / self._bounds.tightness
        changes = sharp[:, None] * self._bounds.ties
        departures = sharp * (level.dot(self._bounds.ties.T) - self._bounds.offset)
        explained = departures.dot(changes) ** 2 / np.maximum((changes**2).sum(axis=0), 1e-300)
        shares = explained / np.maximum(explained.sum(axis=-1, keepdims=True), 1e-300)
        return np.asarray(total * shares)

    def discount(self, values: Array, level: Array, square: Array) -> Array:
        """The least factor of the confirmed stretches that the sample may be a part of; 1 if there is none."""
        bounds = self._bounds
        departures = level.dot(bounds.ties.T) - bounds.offset
        features = np.stack([values, level, log_spread(square - level * level), departures], axis=-2)[..., None, :, :]
        outside = (features < bounds.calm[..., 0]) | (features > bounds.calm[..., 1])  # a missing value is not
        factors = np.where(outside.any(axis=(-2, -1)), 1.0, bounds.discounts)
        return np.asarray(factors.min(axis=-1))

    @property
    def possible(self) -> tuple[Array, Array]:
        """The least and the greatest scaled value of each channel that is not impossible.

        What was seen in training counts here, not the bounds that hardly any of it left: a channel that is mostly quiet
        and now and then far from it would be impossible again and again.
        """
        least, greatest = self._bounds.ranges[VALUE].T
        reach = ABSURD * np.maximum(greatest - least, self._bounds.unit)
        if self._tolerance is not None:
            reach = np.maximum(reach, self._tolerance)
        return least - reach, greatest + reach

    def impossible(self, values: Array) -> NDArray[np.bool_]:
        """Mark the impossible values of a sample; NaN is not."""
        least, greatest = self.possible
        with np.errstate(invalid="ignore"):
            return (values < least) | (values > greatest)

    def may_be_impossible(self, outside: Array | float) -> NDArray[np.bool_] | bool:
        """Whether one value may be impossible, with values so far outside in total; a number gives a plain bool."""
        return outside >= self._suspect
