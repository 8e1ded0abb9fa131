"""Runs of flagged entries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


class Segments(NamedTuple):
    """Maximal runs of flagged entries, in order: the first entry of each, and the one after its last."""

    starts: Indices
    stops: Indices

    @property
    def lengths(self) -> Indices:
        """Entries in each run."""
        return self.stops - self.starts


def segments(flags: Flags) -> Segments:
    """The maximal runs of True.

    >>> segments(np.array([True, False, True, True]))
    Segments(starts=array([0, 2]), stops=array([1, 4]))
    """
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False)).astype(np.int64)
    return Segments(edges[::2], edges[1::2])


def flagged_within(found: Segments, flags: Flags) -> Indices:
    """How many entries of each segment are flagged.

    >>> flagged_within(Segments(np.array([0, 2]), np.array([1, 4])), np.array([True, True, False, True]))
    array([1, 1])
    """
    totals = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    return np.asarray(totals[found.stops] - totals[found.starts])


def overlapping(these: Segments, others: Segments) -> Indices:
    """How many of the other segments each of these shares an entry with.

    >>> overlapping(Segments(np.array([0, 6]), np.array([5, 7])), Segments(np.array([1, 4, 8]), np.array([2, 6, 9])))
    array([2, 0])
    """
    begun = np.searchsorted(others.starts, these.stops, side="left")
    over = np.searchsorted(others.stops, these.starts, side="right")
    return np.asarray(begun - over)
