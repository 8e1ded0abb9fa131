"""The features that `ranges` are of: values, levels and spreads of channels, and departures from the other channels.

A value is one sample; the level and the spread are the mean and the logarithm of the standard deviation of a window; a
departure is that of a level from what the levels of the other channels say (`ties`). All are in scaled units, and
values are not clipped here: how far outside a value lies is what matters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.quantiles import channel_quantiles
from fedkad.detect.ties import Ties
from fedkad.koopman.scaling import clipped, complete_rows, incomplete
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]
Entries = NDArray[np.intp]

TAIL = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.25)
PROBABILITIES = np.array([*TAIL, 0.5, *(1.0 - p for p in reversed(TAIL))])
"""Of the quantiles that are kept. The first and the last are the least and the greatest that was ever seen."""

VALUE, LEVEL, SPREAD, TIE = range(4)
"""Where each feature stands in arrays of all four, such as quantiles and bounds; that of a tie is the departure."""

PIECE = 2048  # rows whose windows are looked at together: few enough for a processor's cache
ENOUGH_WINDOWS = 4096  # windows that are enough to know levels and spreads

STILL = 0.05
"""Added to the standard deviation before its logarithm is taken, so that a channel that stands still has one."""


def log_spread(variance: Array) -> Array:
    """log(sd + 0.05) of a variance in scaled units."""
    logs: Array = np.log(np.sqrt(np.maximum(variance, 0.0)) + STILL)
    return logs


class Features(NamedTuple):
    """Features of a series by which ranges are known, each `(rows, channel)`."""

    values: Array  # of all complete rows
    newest: Array  # of the last row of full windows
    levels: Array  # of full windows
    spreads: Array  # of full windows
    departures: Array  # of full windows
    ends: NDArray[Any]  # the last row of each window, (rows,)

    @classmethod
    def of(cls, scaled: Array, window: int, ties: Ties) -> Features:
        """Features of a scaled series with gaps; levels and spreads are those of the clipped values of the model."""
        ends = window_ends(scaled, window)
        levels, spreads = levels_and_spreads(scaled, window, ends)
        return cls.at(ends, scaled[ends], levels, spreads, ties)._replace(values=complete_rows(scaled))

    @classmethod
    def at(cls, ends: Entries, newest: Array, levels: Array, spreads: Array, ties: Ties) -> Features:
        """Features of windows that end there, whose newest samples are the only values."""
        return cls(newest, newest, levels, spreads, ties.departures(levels), ends)

    def thinned(self, most: int) -> Features:
        """At most about so many rows of each, evenly spread."""
        return Features(*(feature[:: max(len(feature) // most, 1)] for feature in self))

    def without(self, left_out: slice) -> Features:
        """The rows before and after these."""
        return Features(*(np.concatenate([each[: left_out.start], each[left_out.stop :]]) for each in self))

    def cut(self, start: float, stop: float) -> Features:
        """The part of the rows between two shares of all of them."""
        return Features(*(feature[int(start * len(feature)) : int(stop * len(feature))] for feature in self))

    @property
    def quantiles(self) -> Array:
        """Of VALUE, LEVEL, SPREAD and TIE of every channel, `(4, n, probabilities)`."""
        return np.stack([feature_quantiles(each) for each in (self.values, self.levels, self.spreads, self.departures)])


def window_ends(scaled: Array, window: int) -> Entries:
    """The last rows of full windows; of a long series only every few, because neighbouring windows are much alike."""
    step = int(np.clip(len(scaled) // ENOUGH_WINDOWS, 1, quarter(window)))
    return np.concatenate([np.arange(run.start + window - 1, run.stop, step) for run in stretches(scaled, window)])


def window_means(rows: Array, window: int) -> Array:
    """Means of all windows of rows that follow on from each other, by sums over 1, 2, 4, … rows: exact up to rounding.

    >>> window_means(np.array([1.0, 2.0, 3.0, 7.0]), 3)
    array([2., 4.])
    """
    count = len(rows) - window + 1
    sums, width, total, done = rows, 1, np.zeros_like(rows[:count]), 0
    while True:
        if window & width:
            total += sums[done : done + count]
            done += width
        if 2 * width > window:
            total /= window
            return total
        sums, width = sums[:-width] + sums[width:], 2 * width


def levels_and_spreads(scaled: Array, window: int, ends: Entries) -> tuple[Array, Array]:
    """Those of the clipped values of the windows that end there; piece by piece, to save memory."""
    levels, spreads = (np.empty((len(ends), scaled.shape[1])) for _ in range(2))
    for start in range(0, len(scaled) - window + 1, PIECE):
        rows = clipped(scaled[start : start + PIECE + window - 1])
        rows = np.nan_to_num(rows) if incomplete(rows).any() else rows
        first = ends - window + 1 - start
        here = slice(*np.searchsorted(first, (0, PIECE)))
        levels[here] = window_means(rows, window)[first[here]]
        spreads[here] = log_spread(window_means(rows * rows, window)[first[here]] - levels[here] ** 2)
    return levels, spreads


def apart(ends: Entries, rows: int) -> list[int]:
    """Which of the windows that end there end at least so many rows after the one before.

    >>> apart(np.array([19, 21, 24, 29, 60]), 5)
    [0, 2, 3, 4]
    """
    chosen, last = [], -rows
    for k, end in enumerate(ends.tolist()):
        if end >= last + rows:
            chosen.append(k)
            last = end
    return chosen


def quarter(window: int) -> int:
    """How far apart levels are kept: neighbouring windows are much alike."""
    return max(window // 4, 1)


def feature_quantiles(feature: Array, beyond: int = 0) -> Array:
    """The quantiles of each channel that are kept, `(n, probabilities)`, with at least so many rows beyond each."""
    return channel_quantiles(feature, PROBABILITIES, beyond)
