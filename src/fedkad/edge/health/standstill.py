"""How long each channel of a device stands still, and whether that is longer than it ever was.

A *run* is a stretch of rows in which a channel does not change. A sensor that measures something moves most of the
time, if only by its noise, and its runs are short; how short is learned from its own normal rows. Channels that rest
by nature are not judged: switches, set-points, counters of small numbers, constants, what hardly ever changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MARGIN = 3
"""A channel is stuck if a run is longer than this many times the longest one in normal rows,"""

LEAST = 30
"""and longer than this many rows. Nothing on SMD machine-1-* (304 channels, 19 weeks) is called stuck then."""

ENOUGH = 100
"""Runs after which the longest one means something."""

SELDOM = 0.05
"""A channel that changes in a smaller share of the rows rests by nature, as a set-point does,"""

USUAL = 0.4
"""and so does one that has the same value in a larger share of them, as a switch or a small counter does."""

NEVER = 2**62
"""More rows than any run has."""

VALUES = 4
"""Values that are counted to find a usual one; a value in more than a fifth of the rows cannot be missed."""


COUNTS = ("run", "longest", "runs", "rows")
"""What is counted: rows of the run that goes on and of the longest, the number of normal runs, and the rows in them."""


class Standstill:
    """The runs of all channels; `state` is what `state()` returned, to continue from there.

    >>> runs = Standstill(1)
    >>> for k in range(200):
    ...     runs.add(np.array([float(k // 2)]), learns=True)
    >>> for k in range(31):
    ...     runs.add(np.array([7.5]), learns=True)
    >>> runs.stuck(), runs.length(0), runs.longest(0)
    ([0], 31, 2)
    """

    def __init__(self, channels: int, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        last = state.get("last", [None] * channels)
        self._last = np.array([math.nan if value is None else value for value in last])
        self._run, self._longest, self._runs, self._rows = (
            np.array(state.get(name, [0] * channels), dtype=np.int64) for name in COUNTS
        )
        self._usual: list[dict[float, int]] = [dict(pairs) for pairs in state.get("usual", [[]] * channels)]
        self._limit = np.maximum(MARGIN * self._longest, LEAST)
        self._is_moving = bool((self._run == 1).all())
        self._moves = 0  # rows that ended a run of one row of every channel, to be counted

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON; None stands for NaN."""
        self._count_moves()
        counts = (self._run, self._longest, self._runs, self._rows)
        return {
            "last": [None if math.isnan(value) else value for value in self._last.tolist()],
            **{name: count.tolist() for name, count in zip(COUNTS, counts, strict=True)},
            "usual": [[*map(list, counted.items())] if counted else [] for counted in self._usual],
        }

    def add(self, values: Array, *, learns: bool) -> None:
        """Take a row, with NaN where there is no value, which ends a run; runs that end are learned if it `learns`."""
        before, self._last = self._last, values
        moved = values != before
        has_holes = math.isnan(values.dot(values))
        if self._is_moving and not has_holes and np.count_nonzero(moved) == len(moved):  # usual for sensors with noise
            self._moves += learns
            return
        if learns:
            self._learn(moved, before)
        self._run += 1
        self._run[moved] = 1
        if has_holes:
            self._run[np.isnan(values)] = 0
        self._is_moving = bool((self._run == 1).all())

    def _count_moves(self) -> None:
        if self._moves:
            self._runs += self._moves
            self._rows += self._moves
            np.maximum(self._longest, 1, out=self._longest)
            self._moves = 0

    def _learn(self, moved: NDArray[np.bool_], before: Array) -> None:
        """Learn from the runs of channels that have moved; one that was stuck teaches nothing."""
        self._count_moves()
        single = moved & (self._run == 1)
        self._runs += single
        self._rows += single
        np.maximum(self._longest, single, out=self._longest)
        for k in np.flatnonzero(moved & (self._run > 1)).tolist():
            if not self._is_stuck(k):
                run = int(self._run[k])
                self._runs[k] += 1
                self._rows[k] += run
                self.allow(k, run)
                _count(self._usual[k], float(before[k]), run)

    def allow(self, k: int, rows: int) -> None:
        """Take it as normal that a channel stands still for so many rows."""
        longest = max(int(self._longest[k]), rows)
        self._longest[k], self._limit[k] = longest, max(MARGIN * longest, LEAST)

    def forbid(self, k: int, rows: int) -> None:
        """Take back that a channel may stand still for longer than so many rows."""
        self._longest[k], self._limit[k] = rows, max(MARGIN * rows, LEAST)

    def stuck(self) -> list[int]:
        """The channels that stand still for longer than they ever did in normal rows."""
        if self._is_moving:
            return []
        over = self._run > self._limit
        return [k for k in np.flatnonzero(over).tolist() if self._is_stuck(k)] if over.any() else []

    def _is_stuck(self, k: int) -> bool:
        if self._run[k] <= self._limit[k]:
            return False
        self._count_moves()
        if self._runs[k] >= ENOUGH and not self.rests(k):
            return True
        self._limit[k] = NEVER  # it rests by nature, and nothing more is learned before the run ends
        return False

    def rests(self, k: int) -> bool:
        """Whether a channel is known to rest by nature, so that no run of it says anything."""
        self._count_moves()
        runs, rows, most = self._runs[k], self._rows[k], max(self._usual[k].values(), default=0)
        return bool(rows >= ENOUGH and (runs < SELDOM * rows or most > USUAL * rows))

    def length(self, k: int) -> int:
        """Rows for which a channel has stood still, that in which it came to stand included."""
        return int(self._run[k])

    def longest(self, k: int) -> int:
        """The most of them in normal rows."""
        self._count_moves()
        return int(self._longest[k])


def _count(counted: dict[float, int], value: float, rows: int) -> None:
    """Count rows at a value among at most `VALUES` of them; rare ones cancel each other out (Misra and Gries).

    >>> counted = {1.0: 5, 2.0: 1, 3.0: 2, 4.0: 1}
    >>> _count(counted, 9.0, 3)
    >>> counted
    {1.0: 4, 3.0: 1, 9.0: 2}
    """
    if value in counted or len(counted) < VALUES:
        counted[value] = counted.get(value, 0) + rows
        return
    least = min(rows, *counted.values())
    left = {known: count - least for known, count in (*counted.items(), (value, rows))}
    counted.clear()
    counted.update({known: count for known, count in left.items() if count})
