"""The times of rows: how far apart they are, and where rows are missing.

Times are ``datetime64``, ``timedelta64`` or plain numbers, and strictly increase.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[Any]

GAP_FACTOR = 1.5
"""A step larger than this many usual ones is a gap; the usual step is the median."""

MOST_APART = 1.5
"""Factor between the sampling periods of two recordings beyond which they have different rates."""


def is_other_rate(period: float | None, known: float | None) -> bool:
    """Tell whether two sampling periods are both known, and far apart.

    >>> is_other_rate(60.0, 61.0), is_other_rate(60.0, 600.0), is_other_rate(None, 60.0)
    (False, True, False)
    """
    if not period or not known:
        return False
    return not 1.0 / MOST_APART <= period / known <= MOST_APART


def steps_between(times: Times) -> NDArray[np.float64]:
    """Return the steps from each time to the next, in the unit of the times."""
    return np.diff(times).astype(np.float64)


def gap_starts(times: Times | None) -> NDArray[np.intp]:
    """Return the rows that follow a time gap: a step larger than 1.5 × the median step.

    >>> gap_starts(np.array([0.0, 1.0, 2.0, 4.0, 5.0]))
    array([3])
    """
    if times is None or len(times) < 2:
        return np.empty(0, dtype=np.intp)
    steps = steps_between(times)
    return np.flatnonzero(steps > GAP_FACTOR * np.median(steps)) + 1


def missing_before(times: Times | None, most: int) -> NDArray[np.intp]:
    """Return the rows that follow a time gap, each as often as rows are missing before it, at most `most` times.

    >>> missing_before(np.array([0.0, 1.0, 2.0, 5.0, 6.0, 7.0, 99.0]), most=3)
    array([3, 3, 6, 6, 6])
    """
    starts = gap_starts(times)
    return np.repeat(starts, np.minimum(_missing(times, starts), most))


def grid_positions(times: Times) -> NDArray[np.int64]:
    """Return where each row lies, counted in usual steps from the first: beyond a gap by the rows missing in it.

    >>> grid_positions(np.array([0.0, 1.0, 2.0, 5.0, 6.0])), grid_positions(np.array([7.0]))
    (array([0, 1, 2, 5, 6]), array([0]))
    """
    step = np.ones(len(times), dtype=np.int64)
    step[:1] = 0
    starts = gap_starts(times)
    step[starts] += _missing(times, starts)
    return np.cumsum(step)


def _missing(times: Times | None, starts: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return how many rows are missing before each of these, at least one."""
    if times is None or not len(starts):  # as of a single row, which has no step
        return np.empty(0, dtype=np.int64)
    steps = steps_between(times)
    return np.maximum(np.rint(steps[starts - 1] / np.median(steps)) - 1.0, 1.0).astype(np.int64)
