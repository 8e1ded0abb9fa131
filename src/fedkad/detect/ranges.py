"""Where a device has been: the ranges of what its channels showed in normal operation, as quantiles.

Each channel has four `features`. Its value is judged sample by sample; its level and its spread, the mean and the
logarithm of the standard deviation of a window, tell a device that stays where it has never been; its departure from
the level that the other channels suggest (`ties`) tells one whose channels do not belong together. Of each feature a
few quantiles are kept, dense at both ends, which can be merged with those of other rows and forgotten.

A coarse sensor reports no change smaller than its *step*, the least that was seen: 1 % of a battery, 1 V of a plug.
What is less than a step outside is rounding, and not outside.

All numbers are in scaled units. Values are not clipped here: how far outside a value lies is what matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.features import (
    LEVEL,
    PIECE,
    PROBABILITIES,
    SPREAD,
    TAIL,
    TIE,
    VALUE,
    Features,
    apart,
    feature_quantiles,
    levels_and_spreads,
    log_spread,
    quarter,
    window_ends,
)
from fedkad.detect.ties import FARTHEST, FOLDS, NARROWEST, Ties, learn_ties, settled_after
from fedkad.koopman.scaling import CONSTANT, Scaling, complete_rows
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]

BOUND = 0.002
"""Share of the rows at either end that lie outside of the bounds: a few bad values in training cannot widen them."""

REACH = 0.0005  # share of the rows at either end that do not count for the range of a channel
GLANCE = 64  # rows in which a channel with more than two values mostly shows them
FEW = 2  # values of a channel in training that may be absurd: if it has more of them, they belong to it

ABSURD = 5.0
"""A value farther outside of all that was seen than this many ranges is impossible, whatever the threshold."""

MARGIN = 0.1  # how near to a confirmed stretch a row must be to be taken for a part of it, in standard deviations
MOST_CONFIRMED = 2048  # rows of confirmed stretches that are kept
MOST_CALM = 32  # confirmed stretches that are remembered as a whole
TELLING = 500  # windows of new rows that tell how far normal data wanders
THINNED = 2048  # rows that are enough to see how far channels wander

FEW_WINDOWS = 100
"""In no more windows that do not overlap, all channels have one unit; in four times as many, each its own."""

CALMEST = 0.5  # the smallest number that the distance of a channel from its ranges is divided by

ALONE = 0.25
"""The share of the wander of all channels together that each has at least.

With none the score was worse on SMD machine-1-*, where channels wander together; with all of it one channel of a device
that wanders, such as the pressure of the air, devalues the ranges of all the others.
"""

ROUNDED = 0.1  # a step of at most this share of the usual value is rounding; that of a count, 0, 1, 2, is not
FINE = 0.05  # a step of fewer standard deviations than this is none
COARSE = 1.0  # a channel whose step is more than so many of its standard deviations shows little but rounding
OUTSIDE = 5.0  # a value one range outside of its bounds counts as much as a level so many standard deviations outside


class Bounds(NamedTuple):
    """The ranges as scoring needs them, in scaled units."""

    low: Array  # of each feature, (4, n)
    high: Array  # (4, n)
    unit: Array  # the range of the values of each channel, (n,)
    switch: NDArray[np.bool_]  # channels that had at most two values, `low[VALUE]` and `high[VALUE]`, (n,)
    ranges: Array  # the least and the greatest of each feature that was ever seen, (4, n, 2)
    calm: Array  # ranges of each feature in each confirmed stretch: a person called it normal, (stretches, 4, n, 2)
    discounts: Array  # what the terms of the score are multiplied by inside each of them, (stretches,)
    ties: Array  # as in `Ties`, (n, n)
    offset: Array  # (n,)
    tightness: Array  # the range of the departures of each channel, (n,)
    wander: Array  # what a departure of each channel is divided by, (n,)
    coarse: NDArray[np.bool_]  # channels that hardly move by more than their step, (n,)

    @property
    def predictable(self) -> NDArray[np.bool_]:
        """Channels that can be judged by prediction, unless they are inputs."""
        return ~self.switch & ~self.coarse

    def absurd(self, values: Array) -> NDArray[np.bool_]:
        """Mark scaled values more than five ranges outside of their bounds; NaN is not."""
        return absurd(values, self.low[VALUE], self.high[VALUE], self.unit)


@dataclass(frozen=True, eq=False)
class KnownRanges:
    """Where a device has been.

    `wander` is how far each channel lay outside of what was known before, in rows of normal operation that were not
    known yet: it devalues the ranges of a channel whose levels wander (`_wander`).
    """

    rows: float  # that the quantiles stand for
    quantiles: Array  # of each feature and channel, (4, n, len(PROBABILITIES))
    values: Array  # the values of a channel that has at most two, (n, 2); NaN if it has more
    confirmed: Array  # the least and the greatest that a person called normal, (4, n, 2); NaN if there is none
    wander: Array  # (n,)
    calm: Array  # ranges of each confirmed stretch, as in `Bounds`
    discounts: Array
    stretches: Array  # their rows, as many as are kept: discounts are set again for every model, (rows, n)
    lengths: Array  # rows of each of them; 0 if they are not kept any more
    ties: Array  # as in `Ties`, (n, n)
    offset: Array  # (n,)
    levels: Array  # a quarter of a window apart, as long as ties are not settled, (levels, n)
    windows: float  # that do not overlap and that ties were learned from
    step: Array  # the least change of each channel, (n,); 0 if it is no rounding

    @classmethod
    def of(cls, features: Features, ties: Ties) -> KnownRanges:
        """Take the ranges of these features, without how far they wander."""
        quantiles = features.quantiles
        unknown = np.full((*quantiles.shape[:2], 2), np.nan)
        values, none = features.values, np.empty((0, *unknown.shape))
        nothing = none[:, 0, 0, 0]
        no_rows = np.empty((0, values.shape[1]))
        still = np.zeros(values.shape[1])
        kept = (no_rows, nothing, *ties, no_rows, 0.0, still)
        return cls(float(len(values)), quantiles, _two_values(values), unknown, still, none, nothing, *kept)

    @classmethod
    def learnt(cls, scaled: Array, window: int, size: Array | float = 0.0) -> KnownRanges:
        """Learn the ranges of scaled rows of normal operation, not clipped; rows with NaN are gaps.

        `size` is the distance of the mean of each channel from zero, in standard deviations.
        """
        ends = window_ends(scaled, window)
        levels, spreads = levels_and_spreads(scaled, window, ends)
        kept = apart(ends, quarter(window))
        windows = len(kept) * quarter(window) / window
        ties = learn_ties(levels, windows)
        features = Features.at(ends, scaled[ends], levels, spreads, ties)._replace(values=complete_rows(scaled))
        step = least_change(scaled)
        ranges = replace(cls.of(features, ties), step=np.where(step <= ROUNDED * size, step, 0.0))
        wander = _wandering(features, ranges.reach, ranges.step, windows)
        return replace(ranges, wander=wander, levels=levels[kept], windows=windows).settled()

    def settled(self) -> KnownRanges:
        """The ranges without the levels, once ties stay as they are."""
        return replace(self, levels=np.empty((0, len(self.ties)))) if self.is_settled else self

    @property
    def is_settled(self) -> bool:
        """Whether ties stay as they are."""
        return self.windows >= settled_after(len(self.ties))

    def at(self, probability: float) -> Array:
        """One of the quantiles that are kept, of every feature and channel."""
        return self.quantiles[..., int(np.flatnonzero(probability == PROBABILITIES)[0])]

    @property
    def ranges(self) -> Array:
        """The least and the greatest of each feature that was ever seen, `(4, n, 2)`."""
        return _hull(self.quantiles[..., [0, -1]], self.confirmed)

    @property
    def reach(self) -> Array:
        """The range of the values of each channel."""
        reach: Array = self.at(1.0 - REACH)[VALUE] - self.at(REACH)[VALUE]
        return reach

    @property
    def switch(self) -> NDArray[np.bool_]:
        """Channels that had at most two values."""
        return ~np.isnan(self.values[:, 0])

    def loosened(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Bounds of all features with room for one step of each channel but switches, and for windows of two values."""
        step = np.where(self.switch, 0.0, self.step)
        room = np.stack([step, step, 0.0 * step, np.abs(self.ties) @ step])
        low, high = low - room, high + room
        high[SPREAD] = np.where(step > 0.0, np.maximum(high[SPREAD], log_spread((step / 2.0) ** 2)), high[SPREAD])
        return low, high

    def bounds(self, scaling: Scaling) -> Bounds:
        """The bounds that a new row is judged by."""
        inner = _hull(np.stack([self.at(BOUND), self.at(1.0 - BOUND)], axis=-1), self.confirmed)
        tightness = np.maximum(self.at(0.99)[TIE] - self.at(0.01)[TIE], NARROWEST)
        # Rare combinations of what people switch are normal, but an unnoticed fault must not open a tie far.
        least, greatest = self.ranges[TIE].T
        inner[TIE, :, 0] = np.maximum(least, self.at(BOUND)[TIE] - FARTHEST * tightness)
        inner[TIE, :, 1] = np.minimum(greatest, self.at(1.0 - BOUND)[TIE] + FARTHEST * tightness)
        inner[TIE] = _hull(inner[TIE], self.confirmed[TIE])
        low, high = self.loosened(inner[..., 0], inner[..., 1])
        unit = _unit(self.reach, np.abs(scaling.mean) / scaling.scale, 1.0 / scaling.scale)
        switch = self.switch
        low[VALUE, switch], high[VALUE, switch] = self.values[switch].T
        coarse = ~switch & (self.step > COARSE)
        rest = (self.ties, self.offset, tightness, np.maximum(self.wander, CALMEST), coarse)
        return Bounds(low, high, unit, switch, self.ranges, self.calm, self.discounts, *rest)

    def features(self, scaled: Array, window: int) -> Features:
        """Features of other rows, whose departures are from the ties that are known."""
        return Features.of(scaled, window, self.known_ties)

    @property
    def known_ties(self) -> Ties:
        """The ties that were learned so far."""
        return Ties(self.ties, self.offset)

    def joined(self, scaled: Array, window: int, forgetting: float = 1.0) -> KnownRanges:
        """Join these ranges, with the weight that forgetting leaves them, and those of newer rows."""
        features, weight = self.features(scaled, window), forgetting * self.rows
        new = float(len(features.values))
        joined = replace(
            self,
            rows=weight + new,
            quantiles=_merged(self.quantiles, weight, features.quantiles, new),
            values=_joined_values(self.values, _two_values(features.values)),
            wander=self._wandered(features, forgetting),
            step=np.minimum(self.step, least_change(scaled)),
        )
        if self.is_settled:
            return joined
        newer, share = features.levels[apart(features.ends, quarter(window))], quarter(window) / window
        levels = np.concatenate([self.levels, newer])
        ties = learn_ties(levels, len(levels) * share).instead_of(self.known_ties)
        joined = replace(joined, levels=levels, windows=self.windows + len(newer) * share)
        return joined._with_ties(ties, window).settled()

    def _with_ties(self, ties: Ties, window: int) -> KnownRanges:
        """The ranges with other ties: departures are computed again, from all that is kept."""
        new = (ties.weights != self.ties).any(axis=1)
        if not new.any():
            return self
        quantiles = self.quantiles.copy()
        quantiles[TIE, new] = feature_quantiles(ties.departures(self.levels))[new]
        confirmed, calm = self._confirmed_by(ties, window)
        return replace(self, quantiles=quantiles, confirmed=confirmed, calm=calm, ties=ties.weights, offset=ties.offset)

    def _confirmed_by(self, ties: Ties, window: int) -> tuple[Array, Array]:
        """What was confirmed, by these ties; where rows are not kept, nothing is known of new ones."""
        new = (ties.weights != self.ties).any(axis=1)
        confirmed, calm = self.confirmed.copy(), self.calm.copy()
        confirmed[TIE, new], calm[:, TIE, new] = np.nan, (-np.inf, np.inf)
        for k, rows in enumerate(self.confirmed_stretches):
            if any(stretches(rows, window)):
                seen = feature_quantiles(Features.of(rows, window, ties).departures)[new][:, [0, -1]]
                confirmed[TIE, new] = _hull(confirmed[TIE, new], seen)
                calm[k, TIE, new] = seen + MARGIN * np.array([-1.0, 1.0])
        return confirmed, calm

    def _wandered(self, features: Features, forgetting: float) -> Array:
        """How far normal data wanders, newer rows included; few rows would tell of chance.

        The farthest that was found before counts less, the more has been seen since: what was far from a few days is
        not far from months.
        """
        before: Array = forgetting * self.wander
        if len(features.levels) < TELLING:
            return before
        share = math.sqrt(self.rows / (self.rows + len(features.values)))
        return np.maximum(share * before, _wander(_outside(features, self, self.reach)))

    def widened(self, scaled: Array, window: int) -> KnownRanges:
        """Widen the ranges to all of these rows, because a person called them normal.

        The stretch is remembered as a whole as well, without a discount yet.
        """
        features = self.features(scaled, window)
        seen = features.quantiles[..., [0, -1]]
        near = seen + MARGIN * np.array([-1.0, 1.0])
        # The oldest rows are dropped, stretch by stretch, where there are too many.
        rows = scaled[-MOST_CONFIRMED:]
        lengths = np.append(self.lengths, float(len(rows)))[-MOST_CALM:]
        lengths = np.where(np.cumsum(lengths[::-1])[::-1] <= MOST_CONFIRMED, lengths, 0.0)
        rows = np.concatenate([self.stretches, rows])
        return replace(
            self,
            confirmed=_hull(self.confirmed, seen),
            values=_joined_values(self.values, _two_values(features.values)),
            calm=np.concatenate([self.calm, near[None]])[-MOST_CALM:],
            discounts=np.append(self.discounts, 1.0)[-MOST_CALM:],
            stretches=rows[len(rows) - int(lengths.sum()) :],
            lengths=lengths,
        )

    @property
    def confirmed_stretches(self) -> list[Array]:
        """The rows of each confirmed stretch; none of those that are not kept any more."""
        return np.split(self.stretches, np.cumsum(self.lengths).astype(int)[:-1]) if len(self.lengths) else []

    def keeping(self, before: KnownRanges, window: int) -> KnownRanges:
        """Add what a person confirmed before, and the ties that held, to these ranges of all rows."""
        tied = self._with_ties(self.known_ties.instead_of(before.known_ties), window)
        confirmed, calm = before._confirmed_by(tied.known_ties, window)
        kept = {name: getattr(before, name) for name in ("discounts", "stretches", "lengths")}
        values = _joined_values(self.values, before.values)
        return replace(tied, values=values, confirmed=confirmed, calm=calm, **kept)


def _unit(reach: Array, size: Array, one: Array | float) -> Array:
    """The range of each channel. One that never moved has none: it may change by its own size, or by one."""
    return np.where(reach > CONSTANT * size, reach, np.maximum(size, one))


def least_change(scaled: Array) -> Array:
    """The smallest change of each channel from one row to the next; 0 if that is fine, infinite if it never moves.

    >>> least_change(np.array([[95.0, 0.1], [95.0, 0.3], [96.0, np.nan], [94.0, 0.2]]))
    array([1. , 0.2])
    """
    least = np.full(scaled.shape[1], np.inf)
    for start in range(0, len(scaled) - 1, PIECE):
        changes = np.abs(np.diff(scaled[start : start + PIECE + 1], axis=0))
        changes[~(changes > 0.0)] = np.inf
        least = np.minimum(least, changes.min(axis=0))
    return np.where(least < FINE, 0.0, least)


def absurd_in_training(values: Array) -> NDArray[np.bool_]:
    """Which cells of training data are absurd in the light of the others, at most two of a channel; NaN is not.

    They must be found before anything is learned: one of them would change the mean, the scale and the range of its
    channel permanently.

    >>> wind = np.array([[3.0], [9.0], [1048.0], [21.0], [38.0], [17.0], [12.0]])
    >>> wind[absurd_in_training(wind)]
    array([1048.])
    """
    complete = complete_rows(values)
    if len(complete) <= 2 * FEW:
        return np.zeros(values.shape, dtype=np.bool_)
    quantiles = feature_quantiles(complete, beyond=FEW)
    low, high = quantiles[:, TAIL.index(BOUND)], quantiles[:, -1 - TAIL.index(BOUND)]
    reach = quantiles[:, -1 - TAIL.index(REACH)] - quantiles[:, TAIL.index(REACH)]
    marked = absurd(values, low, high, _unit(reach, np.abs(quantiles[:, len(TAIL)]), 1.0))
    return np.asarray(marked & (marked.sum(axis=0) <= FEW))


def absurd(values: Array, low: Array, high: Array, unit: Array) -> NDArray[np.bool_]:
    """Which values lie more than five ranges outside of their bounds; NaN does not."""
    with np.errstate(invalid="ignore"):
        return (values > high + ABSURD * unit) | (values < low - ABSURD * unit)


def _merged(first: Array, weight: float, second: Array, other: float) -> Array:
    """Quantiles of two sets of rows together: those of the weighted mean of their distribution functions."""
    merged = np.empty_like(first)
    for where in np.ndindex(first.shape[:-1]):
        knots = np.union1d(first[where], second[where])
        shares = [_distribution(knots, quantiles[where]) for quantiles in (first, second)]
        mixed = (weight * shares[0] + other * shares[1]) / (weight + other)
        merged[where] = np.interp(PROBABILITIES, mixed, knots)
        merged[where][0], merged[where][-1] = knots[0], knots[-1]
    return merged


def _distribution(knots: Array, quantiles: Array) -> Array:
    """The share of rows below each knot, between the quantiles linear, and at a value with many rows their middle."""
    lower = np.searchsorted(quantiles, knots, side="left")
    upper = np.searchsorted(quantiles, knots, side="right")
    inside: Array = np.interp(knots, quantiles, PROBABILITIES)
    tied = upper - lower > 1
    inside[tied] = (PROBABILITIES[lower[tied]] + PROBABILITIES[upper[tied] - 1]) / 2.0
    return inside


def _two_values(values: Array) -> Array:
    """The least and the greatest value of channels that have no other, `(n, 2)`; NaN for the other channels."""
    states = np.full((values.shape[1], 2), np.nan)
    # Most channels have three values among the first few rows.
    for channel in np.flatnonzero(_has_two(values[:GLANCE])):
        column = values[:, channel : channel + 1]
        if _has_two(column)[0]:
            states[channel] = column.min(), column.max()
    return states


def _has_two(values: Array) -> NDArray[np.bool_]:
    """Which channels have at most two values."""
    others: NDArray[np.bool_] = (values != values.min(axis=0)) & (values != values.max(axis=0))
    return ~np.asarray(others.any(axis=0))


def _joined_values(first: Array, second: Array) -> Array:
    """The two values of channels that have no third in both together."""
    four = np.concatenate([first, second], axis=1)
    return _two_values(four.T)


def _hull(first: Array, second: Array) -> Array:
    """The ranges that hold both ranges; one that is NaN is empty."""
    return np.stack([np.fmin(first[..., 0], second[..., 0]), np.fmax(first[..., 1], second[..., 1])], axis=-1)


def _wandering(features: Features, reach: Array, step: Array, windows: float) -> Array:
    """The farthest that each channel went, in later parts of the rows, from all that came before them.

    In few windows, of which so many do not overlap, only chance tells calm channels from others.
    """
    thin, farthest = features.thinned(THINNED), np.zeros(len(reach))
    alone = float(np.clip(FEW_WINDOWS / max(windows, 1.0), ALONE, 1.0))
    for first, last in FOLDS:
        before, after = thin.cut(0.0, first), thin.cut(first, last)
        if len(before.levels) and len(after.levels):
            ranges = replace(KnownRanges.of(before, Ties.none(len(reach))), step=step)
            farthest = np.maximum(farthest, _wander(_outside(after, ranges, reach), alone))
    return farthest


def _wander(outside: Array, alone: float = ALONE) -> Array:
    """What distances of rows of normal operation, `(rows, n)`, are divided by, so that their sum is usual.

    That is, for each channel, what 99 % of its own distances stay below: one that wanders does not devalue the others.
    A channel that did not wander yet may do so where others do, and is divided by the share `alone` of what 99 % of all
    sums stay below. If the sums of these quotients are still more than one, all of them are divided by that.

    >>> calm, wanders = np.zeros(1000), np.linspace(0.0, 10.0, 1000)
    >>> _wander(np.stack([calm, wanders], axis=1)).round(2)
    array([2.48, 9.9 ])
    """
    together, own = np.quantile(outside.sum(axis=1), 0.99), np.quantile(outside, 0.99, axis=0)
    least = np.maximum(own, max(alone * together, CALMEST))
    divisor: Array = least * max(float(np.quantile((outside / least).sum(axis=1), 0.99)), 1.0)
    return divisor


def _outside(features: Features, ranges: KnownRanges, reach: Array) -> Array:
    """How far rows lie outside of the ranges, by channel."""
    low, high = ranges.loosened(ranges.at(BOUND), ranges.at(1.0 - BOUND))
    unit = _unit(reach, np.zeros_like(reach), 1.0)
    away = OUTSIDE * np.minimum(beyond(features.newest, low[VALUE], high[VALUE]) / unit, ABSURD)
    level = beyond(features.levels, low[LEVEL], high[LEVEL])
    spread = beyond(features.spreads, low[SPREAD], high[SPREAD])
    distance: Array = away + np.hypot(level, spread)
    return distance


def beyond(feature: Array, low: Array, high: Array) -> Array:
    """How far a feature lies outside of its bounds; 0 inside."""
    distance: Array = np.maximum(np.maximum(low - feature, feature - high), 0.0)
    return distance
