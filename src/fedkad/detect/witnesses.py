"""Three witnesses of whether a device is normal, each a sum over channels.

- *motion*: how far the newest sample is from its prediction, g(e) as in `CalibratedScoring`, averaged over the channels
  that are judged by prediction. Switches (at most two values in training) and inputs help to predict; nobody can
  predict them.
- *fit*: the squared residual of the whole window that was predicted, averaged over its samples and the same channels.
- *place*: how far each channel is from where it has been in training (`places`). Three things add up: a value outside
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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.places import ABSURD, OUTSIDE, STILL, Bounds, beyond, log_spread, window_means
from fedkad.detect.scoring import LINEAR_BEYOND, Dynamics, Parts, Seen, inner
from fedkad.detect.ties import FARTHEST

Array = NDArray[np.float64]

WITNESSES = ("motion", "fit", "place")
WEIGHTS = (1.0, 1.0, 0.5)

UNIT_FLOORS = np.array([1.0, 0.1, 1.0])
"""The smallest units: a device that never moved in training has no others."""

SLACK = 1e-12
"""How far outside is nothing but rounding, relative to the bounds: many a channel rests at the least of its values."""

NEVER = 1e300
"""More than any departure."""

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


class Frame(NamedTuple):
    """Where value, residuals, level, variance and departure from the other channels may be, side by side."""

    middle: Array
    sharpness: Array  # one over the spread of residuals, 0 if a channel is not judged by prediction, 1 for the others
    half: Array  # the width on either side of the middle


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

    @property
    def offline_reach(self) -> int:
        """Half a window."""
        return self.dynamics.lifting.window // 2

    # -- what is kept of a window ------------------------------------------------------------------------------

    @cached_property
    def mean(self) -> Array:
        """From the samples of a window to their mean."""
        return np.full(self.dynamics.lifting.window, 1.0 / self.dynamics.lifting.window)

    def see(self, windows: Array, values: Array) -> Seen:
        """What a `Sight` has, of one window or of windows that follow on from each other, with their newest samples."""
        coordinates, linear, _ = self.dynamics.coordinates(windows)
        own, mean = self.of_judged(linear, windows), self.mean
        if windows.ndim == 1:
            samples = windows.reshape(len(mean), -1)
            return values, windows, coordinates, own, mean.dot(samples), mean.dot(samples * samples)
        before = windows[0, : -self._channels].reshape(-1, self._channels)
        samples = np.concatenate([before, windows[:, -self._channels :]])
        level, square = (window_means(rows, len(mean)) for rows in (samples, samples * samples))
        return values, windows, coordinates, own, level, square

    def of_judged(self, linear: Array, windows: Array) -> Array:
        """Z_jᵀz from Z_wᵀz: without what the channels add that are not judged by prediction."""
        if self.unjudged is None:
            return linear
        rest: Array = linear - windows[..., self.unjudged].dot(self.unjudged_rows)
        return rest

    @cached_property
    def unjudged(self) -> NDArray[np.intp] | None:
        """Where in a window the channels stand that are not judged by prediction; None if all are."""
        return None if self.judged.all() else np.flatnonzero(~np.tile(self.judged, self.dynamics.lifting.window))

    @cached_property
    def unjudged_rows(self) -> Array:
        """Their rows of Z."""
        return self.dynamics.subspace[self.unjudged]

    # -- the parts of a score ----------------------------------------------------------------------------------

    def score(self, earlier: Seen, since: list[Seen]) -> tuple[Array, ...]:
        """Motion, fit, values outside, and levels, spreads and ties outside; not in units yet."""
        newest = since[-1]
        misfit, deviations = self._look(earlier, since)
        if np.isnan(newest[0]).any():
            parts = tuple(np.moveaxis(self._terms(earlier, newest, deviations).sum(axis=-1), -1, 0))
        else:
            motion, *outside = self.of_deviations(deviations, newest)
            parts = (motion, misfit, *outside)
        if len(self.bounds.relief):
            relief = self._relief(newest)
            parts = tuple(part * relief for part in parts)
        return parts

    def of_deviations(self, deviations: Array, newest: Seen) -> tuple[Array, Array, Array]:
        """Motion, values outside, and levels, spreads and ties outside, if every channel is there."""
        departures = deviations[..., self.of_departures]
        clipped = np.minimum(departures, LINEAR_BEYOND)
        motion = inner(clipped, departures + departures - clipped) * self.share
        away, dwell, apart = self._distances(newest, deviations)
        return motion, away.dot(self.per_wander), (dwell + apart).dot(self.per_wander)

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """The same parts split over the channels, `(…, 4, n)`."""
        parts, terms = self.score(earlier, since), self._terms(earlier, since[-1], self._look(earlier, since)[1])
        # Sums of the same terms in another order: scaled so that the channels add up to the parts.
        sums = terms.sum(axis=-1)
        factors = np.stack(parts, axis=-1) / np.where(sums > 0.0, sums, 1.0)
        found: Array = terms * factors[..., None]
        return found

    def _look(self, earlier: Seen, since: list[Seen]) -> tuple[Array, Array]:
        """The misfit of the window, and how far everything is from its middle, without sign, side by side.

        That is the value of each channel, the departures of all steps ahead, in spreads, the level, the variance and,
        if there are ties, what they make of the level.

        With a = Q^H c the misfit is ‖z‖² − 2 aᵀZ_jᵀz + aᵀZ_jᵀZ_j a over the judged channels, per sample and channel;
        rounding can make it slightly negative.
        """
        values, _, _, own, level, square = since[-1]
        coordinates, channels, rank = earlier[2], self._channels, self.dynamics.subspace.shape[1]
        predicted = coordinates.dot(self.predictions)
        cross = inner(predicted[..., :rank], own)
        energy = inner(predicted[..., rank : 2 * rank], coordinates)
        misfit = abs(square.dot(self.energy) + (energy - cross - cross) * self.per_sample)
        if self.tolerance is not None:
            misfits = self._misfits(earlier, since[-1])
            misfit = inner(misfits, misfits) * self.per_sample
        samples = since[0][1][..., -channels:]
        if len(since) > 1:
            samples = np.concatenate([seen[1][..., -channels:] for seen in since], axis=-1)
        residuals = samples - predicted[..., 2 * rank :]
        frame = self.frame
        features = [values, residuals, level, square - level * level]
        if self.ties is not None:
            features.append(level.dot(self.ties))
        deviations = np.concatenate(features, axis=-1)
        deviations -= frame.middle
        deviations *= frame.sharpness
        np.abs(deviations, out=deviations)
        if self.tolerance is not None:
            departures = deviations[..., self.of_departures]
            departures[departures <= (self.tolerance / self.spread).ravel()] = 0.0
        return misfit, deviations

    def _misfits(self, earlier: Seen, newest: Seen) -> Array:
        """The residuals of the judged channels of a window; those within the tolerance, and of others, are 0."""
        predicted = earlier[2].dot(self.dynamics.powers[-1].T).dot(self._window_decoder)
        residuals: Array = newest[1] - predicted
        if self.unjudged is not None:
            residuals[..., self.unjudged] = 0.0
        if self.tolerance is not None:
            residuals[np.abs(residuals) <= np.tile(self.tolerance, self.dynamics.lifting.window)] = 0.0
        return residuals

    @cached_property
    def judged_rows(self) -> Array:
        """Z_j, the rows of Z that belong to judged channels of a window."""
        rows = self.dynamics.subspace[: self.dynamics.lifting.state_size]
        return rows if self.unjudged is None else np.delete(rows, self.unjudged, axis=0)

    @cached_property
    def predictions(self) -> Array:
        """From c to a = Q^H c, to (Q^H)ᵀZ_jᵀZ_j a, and to the predicted samples of all steps ahead, side by side."""
        last, judged = self.dynamics.powers[-1], self.judged_rows
        return np.concatenate([last.T, last.T @ (judged.T @ judged) @ last, *self.dynamics.newest_decoders], axis=1)

    @cached_property
    def frame(self) -> Frame:
        """What deviations are measured by."""
        low, high = self.bounds[:2]
        least, most = (
            np.stack([*bound[:2], np.maximum(np.exp(bound[2]) - STILL, 0.0) ** 2, bound[3]]) for bound in (low, high)
        )
        middle, half = (least + most) / 2.0, (most - least) / 2.0
        half += SLACK * (1.0 + np.abs(middle) + half)
        middle[3] += self.bounds.offset
        half[3] = np.where(self.judged, half[3], NEVER)
        # What is not judged by prediction has no departure, and only the last step can jump.
        sharpness = self.judged / self.spread
        jump = np.full_like(self.spread, NEVER)
        jump[-1] = self.jump / self.spread[-1]
        rest = slice(1, 4 if self.ties is not None else 3)
        return Frame(
            np.concatenate([middle[0], self.centre.ravel(), *middle[rest]]),
            np.concatenate([self._one, sharpness.ravel(), *[self._one] * len(middle[rest])]),
            np.concatenate([half[0], jump.ravel(), *half[rest]]),
        )

    @cached_property
    def of_departures(self) -> slice:
        """Where the departures of all steps ahead stand in deviations."""
        return slice(self._channels, (1 + len(self.spread)) * self._channels)

    @cached_property
    def ties(self) -> Array | None:
        """From levels to departures from what the other channels say; None if no channel is tied."""
        return np.ascontiguousarray(self.bounds.ties.T) if self.bounds.ties.any() else None

    @cached_property
    def share(self) -> float:
        """Of one departure in motion."""
        return 1.0 / (self._judged_count * len(self.spread))

    def _terms(self, earlier: Seen, newest: Seen, deviations: Array) -> Array:
        """The parts channel by channel, `(…, 4, n)`; a channel that is missing has none, and the others count more."""
        departures = deviations[..., self.of_departures]
        clipped = np.minimum(departures, LINEAR_BEYOND)
        motion = self._by_channel(clipped * (2.0 * departures - clipped))
        misfit = self._by_channel(self._misfits(earlier, newest) ** 2)
        there = ~np.isnan(newest[0])
        judged = np.maximum((self.judged & there).sum(axis=-1), 1.0)[..., None]
        means = [motion / (judged * len(self.spread)), misfit / (judged * self.dynamics.lifting.window)]
        away, dwell, apart = self._distances(newest, deviations)
        # While a channel is missing, no tie counts.
        place = dwell + np.where(there.all(axis=-1, keepdims=True), apart, 0.0)
        distances = (away * self.per_wander, place * self.per_wander)
        return np.where(there[..., None, :], np.stack([*means, *distances], axis=-2), 0.0)

    @cached_property
    def _window_decoder(self) -> Array:
        """From coordinates to a window."""
        return self.dynamics.subspace[: self.dynamics.lifting.state_size].T

    def _by_channel(self, terms: Array) -> Array:
        """Sums over the samples that stand side by side."""
        found: Array = terms.reshape(*terms.shape[:-1], -1, self._channels).sum(axis=-2)
        return found

    @cached_property
    def _channels(self) -> int:
        return self.dynamics.lifting.channels

    @cached_property
    def _judged_count(self) -> float:
        return max(float(self.judged.sum()), 1.0)

    @cached_property
    def per_sample(self) -> float:
        """One over the judged cells of a window."""
        return 1.0 / (self._judged_count * self.dynamics.lifting.window)

    @cached_property
    def energy(self) -> Array:
        """From mean squares of the channels of a window to their mean over the judged ones."""
        return self.judged / self._judged_count

    # -- places ------------------------------------------------------------------------------------------------

    @cached_property
    def is_plain(self) -> bool:
        """Whether it predicts one step ahead, without a tolerance and without stretches that a person confirmed."""
        return self.dynamics.horizon == 1 and self.tolerance is None and not len(self.bounds.relief)

    @cached_property
    def _switches(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.bounds.switch)

    def _distances(self, newest: Seen, deviations: Array) -> tuple[Array, Array, Array]:
        """How far each channel is outside by its value or a jump, by level and spread, and by ties; NaN if missing."""
        excess: Array = deviations - self.frame.half
        if len(self._switches):  # a switch must have one of its two values
            excess[..., self._switches] = np.abs(excess[..., self._switches]) - ROUNDING
        np.maximum(excess, 0.0, out=excess)
        value, jump, level, variance, *ties = (excess[..., place] for place in self._of_places)
        if self.tolerance is not None:
            for far in (value, level, *ties):
                far *= far > self.tolerance
        away = np.minimum(np.maximum(value * self.per_unit, jump * self.per_jump), OUTSIDE * ABSURD)
        if np.count_nonzero(variance):
            at = np.nonzero(variance)  # few, and logarithms take time
            level[at] = np.hypot(level[at], self._spread_outside(newest, at))
        if ties and np.count_nonzero(ties[0]):
            return away, level, OUTSIDE * self._apart(ties[0] / self.bounds.tightness, newest[4])
        return away, level, 0.0 * level

    @cached_property
    def _of_places(self) -> tuple[slice, ...]:
        """Where value, last departure, level, variance and, if there are any, ties stand in deviations."""
        count, steps = self._channels, len(self.spread)
        places = (0, steps, steps + 1, steps + 2, steps + 3)[: 5 if self.ties is not None else 4]
        return tuple(slice(k * count, (k + 1) * count) for k in places)

    @cached_property
    def _one(self) -> Array:
        return np.ones(self._channels)

    @cached_property
    def per_wander(self) -> Array:
        """What a distance of each channel from its places is multiplied by."""
        return 1.0 / self.bounds.wander

    @cached_property
    def _suspect(self) -> float:
        """How far outside values are in total, at least, if one of them is impossible."""
        return OUTSIDE * ABSURD * float(self.per_wander.min())

    @cached_property
    def per_unit(self) -> Array:
        """What a value counts that is one standard deviation outside."""
        return OUTSIDE / self.bounds.unit

    @cached_property
    def per_jump(self) -> Array:
        """What a departure counts that is one spread beyond the largest jump."""
        return np.asarray(self.spread[-1] * self.per_unit)

    def _spread_outside(self, newest: Seen, at: tuple[NDArray[np.intp], ...]) -> Array:
        """How far the logarithms of standard deviations of windows are outside of their bounds, at these places."""
        level, square, channels = newest[4][at], newest[5][at], at[-1]
        variance = square - level * level
        outside = beyond(log_spread(variance), self.bounds.low[2][channels], self.bounds.high[2][channels])
        if self.tolerance is None:
            return outside
        least, most = (np.maximum(np.exp(bound[2][channels]) - STILL, 0.0) for bound in self.bounds[:2])
        return outside * (beyond(np.sqrt(np.maximum(variance, 0.0)), least, most) > self.tolerance[channels])

    def _apart(self, far: Array, level: Array) -> Array:
        """What broken ties add, for departures that are so many ranges outside, up to `FARTHEST` each.

        One faulty channel breaks the ties of all that go with it. Each channel takes a share by how well a change of it
        alone explains all departures u, in ranges: (uᵀv)²/‖v‖², with v what the ties make of that change.
        """
        total = np.minimum(far, FARTHEST).sum(axis=-1, keepdims=True)
        sharp = self.judged / self.bounds.tightness
        changes = sharp[:, None] * self.bounds.ties
        departures = sharp * (level.dot(self.bounds.ties.T) - self.bounds.offset)
        explained = departures.dot(changes) ** 2 / np.maximum((changes**2).sum(axis=0), 1e-300)
        shares = explained / np.maximum(explained.sum(axis=-1, keepdims=True), 1e-300)
        return np.asarray(total * shares)

    def _relief(self, newest: Seen) -> Array:
        """The least factor of the confirmed stretches that the sample may be a part of; 1 if there is none."""
        values, *_, level, square = newest
        departures = level.dot(self.bounds.ties.T) - self.bounds.offset
        features = np.stack([values, level, log_spread(square - level * level), departures], axis=-2)[..., None, :, :]
        calm = self.bounds.calm
        outside = (features < calm[..., 0]) | (features > calm[..., 1])  # a missing value is not
        factors = np.where(outside.any(axis=(-2, -1)), 1.0, self.bounds.relief)
        return np.asarray(factors.min(axis=-1))

    def distances(self, earlier: Seen, since: list[Seen]) -> tuple[Array, Array, Array]:
        """How far each channel that is there is outside: by its value or a jump, by level and spread, and by ties."""
        away, dwell, apart = self._distances(since[-1], self._look(earlier, since)[1])
        there = ~np.isnan(since[-1][0])
        whole = there.all(axis=-1, keepdims=True)
        return np.where(there, away, 0.0), np.where(there, dwell, 0.0), np.where(whole, apart, 0.0)

    def impossible(self, parts: Sequence[Any], values: Array) -> Any:
        """Whether a channel of the sample lies more than five ranges outside of everything that it has shown."""
        suspect = parts[2] >= self._suspect
        if suspect is False:  # for one moment it is a plain bool, and nearly always this one
            return False
        return suspect & self.absurd(values).any(axis=-1)

    def absurd(self, values: Array) -> NDArray[np.bool_]:
        """Which values of a sample are impossible; NaN is not."""
        least, greatest = self.possible
        with np.errstate(invalid="ignore"):
            return (values < least) | (values > greatest)

    @property
    def possible(self) -> tuple[Array, Array]:
        """The least and the greatest scaled value of each channel that is not impossible.

        What was seen in training counts here, not the bounds that hardly any of it left: a channel that is mostly quiet
        and now and then far from it would be impossible again and again.
        """
        least, greatest = self.bounds.ranges[0].T
        reach = ABSURD * np.maximum(greatest - least, self.bounds.unit)
        if self.tolerance is not None:
            reach = np.maximum(reach, self.tolerance)
        return least - reach, greatest + reach

    # -- parts into a score ------------------------------------------------------------------------------------

    def smoothed(self, parts: Collection[Parts]) -> tuple[float, float]:
        """`combine` of the mean of each part, written out because a stream needs it for every sample; and place."""
        motions = misfits = outsides = 0.0
        for motion, misfit, outside, dwell in parts:
            motions += motion
            misfits += misfit
            outsides += outside + dwell
        count, (motion, misfit, outside) = len(parts), self._plain_units
        place = outsides / count / outside
        of_motion, of_fit, of_place = WEIGHTS
        score = of_motion * sqrt(motions / count / motion) + of_fit * sqrt(misfits / count / misfit)
        return score + of_place * sqrt(place), place

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
