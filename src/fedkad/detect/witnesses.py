"""Three witnesses of whether a device is normal, each a sum over channels.

- *motion*: how far the newest sample is from its prediction, averaged over the channels that are judged by prediction.
  Each counts in units of its own spread in training, and large departures linearly: g(e) = e² up to |e| = 3, 6|e| − 9
  beyond. Switches (at most two values in training) and inputs help to predict, and cannot be predicted.
- *fit*: the squared residual of the whole window that was predicted (`windowfit`), averaged over its samples and the
  same channels.
- *place*: how far each channel is from where it has been in training (`place`). Three things add up: a value outside
  of its bounds, or a jump larger than any in training, in ranges of the channel; a level or a spread outside of its
  bounds, in standard deviations; and a level that does not go with those of the other channels (`ties`), in ranges of
  how far it was from what they say.

Each is averaged over the last few entries and divided by its *unit*, what 99 % of normal data stays below. The score is

    √motion + √fit + ½ √place.

A channel may have a *tolerance*: departures up to it count for nothing, those beyond it in full. That is the departure
of each sample from its prediction, and how far a value, a level, a spread or a tie is from where it has been.

Place has half the weight because that was better on SMD machine-1-* and nearly as good on simulated pumps; with equal
weights nothing changes much (`python -m measurements.witnesses`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.dynamics import Dynamics
from fedkad.detect.features import window_means
from fedkad.detect.place import PlaceWitness, Residuals
from fedkad.detect.ranges import Bounds
from fedkad.detect.scoring import Terms, inner
from fedkad.detect.windowfit import WindowFit

Array = NDArray[np.float64]

WITNESSES = ("motion", "fit", "place")
WEIGHTS = (1.0, 1.0, 0.5)

TERMS_OF = {"motion": (0,), "fit": (1,), "place": (2, 3)}
"""The terms of each witness. Place has two: values outside; and levels, spreads and ties outside, of whole windows."""

LINEAR_BEYOND = np.array(3.0)
"""Departures beyond this many standard deviations count linearly: one broken channel must not drown the rest.

(An array, because numpy takes longer to convert a Python number than to use it.)
"""


class WitnessFeatures(NamedTuple):
    """What is kept of a window: arrays for one moment, or with time as their first axis."""

    values: Array  # the newest sample, not clipped; NaN where it is missing
    window: Array
    coordinates: Array  # c = ZᵀΦ
    own: Array  # Z_jᵀz: of the judged channels of the window alone
    level: Array  # mean of the window, per channel
    square: Array  # mean square of the window, per channel


def saturated(departures: Array) -> tuple[Array, Array]:
    """The two factors of g(e) for departures e without sign: e clipped to 3, c, and 2e − c.

    >>> clipped, rest = saturated(np.array([2.0, 3.0, 5.0]))
    >>> clipped * rest
    array([ 4.,  9., 21.])
    """
    clipped: Array = np.minimum(departures, LINEAR_BEYOND)
    return clipped, departures + departures - clipped


def by_witness(terms: Array, axis: int = -1) -> Array:
    """Join four terms into three witnesses."""
    motion, fit, outside, dwell = np.moveaxis(terms, axis, 0)
    return np.stack([motion, fit, outside + dwell], axis=axis)


def _root(value: Any) -> Any:
    """The square root of a number or of an array."""
    return value**0.5


@dataclass(frozen=True)
class WitnessScoring:
    """Motion, fit and place."""

    dynamics: Dynamics
    centre: Array  # of the residuals of the predicted sample, (H, n)
    spread: Array  # (H, n)
    judged: NDArray[np.bool_]  # channels that are judged by prediction, (n,)
    bounds: Bounds
    jump: Array  # how far hardly any residual of the last step is from its centre in training, (n,)
    units: Array  # of motion, fit and place
    tolerance: Array | None = None  # departures of a channel up to this count for nothing, (n,)

    of_windows: ClassVar[tuple[bool, ...]] = (False, True, False, True)
    bridges: ClassVar[bool] = True

    @cached_property
    def fit(self) -> WindowFit:
        """What measures the residuals of windows."""
        return WindowFit(self.dynamics, self.judged, self.tolerance)

    @cached_property
    def place(self) -> PlaceWitness:
        """What measures deviations, and how far outside they are."""
        return PlaceWitness(self.bounds, Residuals(self.centre, self.spread, self.judged, self.jump), self.tolerance)

    @property
    def predicted(self) -> Array:
        """The share of the variance of each channel that is predicted one step ahead, 0 to 1; NaN for switches."""
        return np.where(self.bounds.switch, np.nan, np.clip(1.0 - self.spread[-1] ** 2, 0.0, 1.0))

    @property
    def possible(self) -> tuple[Array, Array]:
        """The least and the greatest scaled value of each channel that is not impossible."""
        return self.place.possible

    @property
    def offline_reach(self) -> int:
        """Half a window."""
        return self.dynamics.lifting.window // 2

    def features(self, windows: Array, newest: Array) -> WitnessFeatures:
        """The features of one window, or of windows that follow on from each other, with their newest samples."""
        coordinates, linear, _ = self.dynamics.coordinates(windows)
        own, mean, channels = self.fit.of_judged(linear, windows), self.fit.mean, self.dynamics.lifting.channels
        if windows.ndim == 1:
            samples = windows.reshape(len(mean), -1)
            return WitnessFeatures(newest, windows, coordinates, own, mean.dot(samples), mean.dot(samples * samples))
        before = windows[0, :-channels].reshape(-1, channels)
        samples = np.concatenate([before, windows[:, -channels:]])
        level, square = (window_means(rows, len(mean)) for rows in (samples, samples * samples))
        return WitnessFeatures(newest, windows, coordinates, own, level, square)

    # -- the terms of a score ----------------------------------------------------------------------------------

    def score(self, earlier: WitnessFeatures, since: list[WitnessFeatures]) -> tuple[Array, ...]:
        """Motion, fit, values outside, and levels, spreads and ties outside; not in units yet."""
        newest = since[-1]
        misfit, deviations = self.measured(earlier, since)
        terms: tuple[Array, ...]
        if np.isnan(newest.values).any():
            terms = tuple(np.moveaxis(self._by_channel(earlier, newest, deviations).sum(axis=-1), -1, 0))
        else:
            motion, *outside = self.of_deviations(deviations, newest)
            terms = (motion, misfit, *outside)
        if len(self.bounds.discounts):
            discount = self.place.discount(newest.values, newest.level, newest.square)
            terms = tuple(term * discount for term in terms)
        return terms

    def of_deviations(self, deviations: Array, newest: WitnessFeatures) -> tuple[Array, Array, Array]:
        """Motion, values outside, and levels, spreads and ties outside, if every channel is there."""
        motion = inner(*saturated(deviations[..., self.place.residuals])) * self.fit.per_departure
        outside, dwell, apart = self.place.distances(deviations, newest.level, newest.square)
        return motion, outside.dot(self.place.per_wander), (dwell + apart).dot(self.place.per_wander)

    def shares(self, earlier: WitnessFeatures, since: list[WitnessFeatures]) -> Array:
        """The same terms split over the channels, `(…, 4, n)`."""
        terms = self.score(earlier, since)
        shares = self._by_channel(earlier, since[-1], self.measured(earlier, since)[1])
        # Sums of the same numbers in another order: scaled so that the channels add up to the terms.
        sums = shares.sum(axis=-1)
        factors = np.stack(terms, axis=-1) / np.where(sums > 0.0, sums, 1.0)
        scaled: Array = shares * factors[..., None]
        return scaled

    def measured(self, earlier: WitnessFeatures, since: list[WitnessFeatures]) -> tuple[Array, Array]:
        """The mean squared residual of the window, and the deviations of everything else, side by side."""
        newest, fit, rank = since[-1], self.fit, self.dynamics.subspace.shape[1]
        predicted = earlier.coordinates.dot(fit.predictions)
        if self.tolerance is None:
            cross = inner(predicted[..., :rank], newest.own)
            energy = inner(predicted[..., rank : 2 * rank], earlier.coordinates)
            # Rounding can make it slightly negative.
            misfit = abs(newest.square.dot(fit.energy) + (energy - cross - cross) * fit.per_sample)
        else:
            residuals = fit.residuals(earlier.coordinates, newest.window)
            misfit = inner(residuals, residuals) * fit.per_sample
        channels = self.dynamics.lifting.channels
        samples = [each.window[..., -channels:] for each in since]
        ahead = samples[0] if len(samples) == 1 else np.concatenate(samples, axis=-1)
        residuals = ahead - predicted[..., 2 * rank :]
        return misfit, self.place.deviations(newest.values, residuals, newest.level, newest.square)

    def _by_channel(self, earlier: WitnessFeatures, newest: WitnessFeatures, deviations: Array) -> Array:
        """The terms channel by channel, `(…, 4, n)`; a channel that is missing has none, and the others count more."""
        clipped, rest = saturated(deviations[..., self.place.residuals])
        channels = self.dynamics.lifting.channels
        motion = _summed(clipped * rest, channels)
        misfit = _summed(self.fit.residuals(earlier.coordinates, newest.window) ** 2, channels)
        there = ~np.isnan(newest.values)
        judged = np.maximum((self.judged & there).sum(axis=-1), 1.0)[..., None]
        means = [motion / (judged * len(self.spread)), misfit / (judged * self.dynamics.lifting.window)]
        outside, dwell, apart = self.place.distances(deviations, newest.level, newest.square)
        # While a channel is missing, no tie counts.
        dwell = dwell + np.where(there.all(axis=-1, keepdims=True), apart, 0.0)
        distances = (outside * self.place.per_wander, dwell * self.place.per_wander)
        return np.where(there[..., None, :], np.stack([*means, *distances], axis=-2), 0.0)

    def impossible(self, terms: Sequence[Any], newest: Array) -> Any:
        """Whether a channel of the sample lies more than five ranges outside of everything that it has shown."""
        suspect = self.place.may_be_impossible(terms[2])
        if suspect is False:  # for one moment it is a plain bool, and nearly always this one
            return False
        return suspect & self.place.impossible(newest).any(axis=-1)

    # -- terms into a score ------------------------------------------------------------------------------------

    def smoothed(self, terms: Collection[Terms]) -> tuple[float, float]:
        """The score from the mean of each term, and place."""
        motions = misfits = outsides = 0.0
        for motion, misfit, outside, dwell in terms:
            motions += motion
            misfits += misfit
            outsides += outside + dwell
        count = len(terms)
        means = (motions / count, misfits / count, outsides / count, 0.0)
        return self.combine(means, sqrt), means[2] / self.units.item(2)

    def contributions(self, terms: Sequence[Any], root: Callable[[Any], Any] = _root) -> tuple[Any, Any, Any]:
        """What motion, fit and place add to the score, from smoothed terms."""
        motion, misfit, outside, dwell = terms
        unit = self.units.tolist()
        return (
            WEIGHTS[0] * root(motion / unit[0]),
            WEIGHTS[1] * root(misfit / unit[1]),
            WEIGHTS[2] * root((outside + dwell) / unit[2]),
        )

    def combine(self, terms: Sequence[Any], root: Callable[[Any], Any] = _root) -> Any:
        """√motion + √fit + ½ √place."""
        motion, misfit, place = self.contributions(terms, root)
        return motion + misfit + place

    def split(self, terms: Array, shares: Array) -> Array:
        """The score split over the channels, from smoothed terms `(…, 4)` and their shares `(…, 4, n)`."""
        contributions = np.stack(self.contributions(list(np.moveaxis(terms, -1, 0))), axis=-1)
        witnesses = by_witness(terms)
        factors = contributions / np.where(witnesses > 0.0, witnesses, 1.0)
        return np.asarray((by_witness(shares, axis=-2) * factors[..., None]).sum(axis=-2))

    def outside(self, shares: Array) -> Array:
        """Place split over the channels, from mean shares `(4, n)`."""
        place: Array = by_witness(shares, axis=0)[2] / self.units[2]
        return place

    def expected(self, earlier: WitnessFeatures) -> Array:
        """The newest sample that was predicted for the last step, scaled."""
        forecast: Array = earlier.coordinates.dot(self.dynamics.newest_decoders[-1])
        return forecast

    def with_tolerance(self, tolerance: Array) -> WitnessScoring:
        """The scoring by which departures of a channel up to its tolerance count for nothing, `(n,)`, scaled."""
        return replace(self, tolerance=tolerance)

    def with_discounts(self, discounts: Array) -> WitnessScoring:
        """The scoring that multiplies its terms by these factors in the stretches that a person called normal."""
        return replace(self, bounds=self.bounds._replace(discounts=discounts))


def _summed(terms: Array, channels: int) -> Array:
    """Sums over the samples that stand side by side."""
    sums: Array = terms.reshape(*terms.shape[:-1], -1, channels).sum(axis=-2)
    return sums
