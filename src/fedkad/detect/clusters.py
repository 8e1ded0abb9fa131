"""Clusters of high scores: what belongs to one alarm, and how high it reached.

Smoothed scores of neighbouring rows are alike, so one disturbance lifts many of them. Those not more than a window
apart count as one *cluster*, by the rule that gathers alarms into events. Entries without a score between them do not
matter: after a hole that is too long to be bridged, the next score is more than a window away.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Clusters(NamedTuple):
    """The clusters over a level, in order of time."""

    peaks: Array  # the highest score of each
    starts: NDArray[np.int64]  # the entry of its first score over the level


def clusters_over(scores: Array, level: float, apart: int) -> Clusters:
    """Gather the scores over the level: two of them belong together if at most `apart` apart.

    >>> scores = np.array([9.0, 1.0, 8.0, 1.0, 1.0, 6.0, np.nan, 7.0])
    >>> clusters_over(scores, 5.0, apart=2)
    Clusters(peaks=array([9., 7.]), starts=array([0, 5]))
    """
    entries = np.flatnonzero(scores > level)
    if not len(entries):
        return Clusters(np.empty(0), entries)
    firsts = first_of_each(entries, apart)
    return Clusters(np.maximum.reduceat(scores[entries], firsts), entries[firsts])


def first_of_each(entries: NDArray[np.int64], apart: int) -> NDArray[np.int64]:
    """Where in the sorted `entries` a cluster begins: more than `apart` after the one before."""
    return np.flatnonzero(np.diff(entries, prepend=-apart - 1) > apart)


def declustered(scores: Array, level: float, apart: int) -> Array:
    """The highest score of every cluster over the level."""
    return clusters_over(scores, level, apart).peaks
