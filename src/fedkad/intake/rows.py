"""Rows in the order of time, and rows on a grid of time."""

import shlex
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.errors import TableSource
from fedkad.tables.times import Times, epoch_ticks, increasing

Array = NDArray[np.float64]


def in_order(times: Times, column: str, source: TableSource, *, sort: bool) -> tuple[NDArray[np.intp] | None, int]:
    """Return the rows in the order of time, the last of those with the same time, and how many are dropped.

    None if they are in order already. Without `sort`, others are refused; with it, those that would mostly be dropped.

    >>> from pathlib import Path
    >>> in_order(np.array([3.0, 1.0, 3.0, 2.0]), "time", TableSource(Path("a.csv")), sort=True)
    (array([1, 3, 2]), 1)
    """
    if not (np.diff(times).astype(np.float64) <= 0.0).any():
        return None, 0
    order = np.argsort(times, kind="stable")
    last = np.append(times[order][1:] != times[order][:-1], True)
    dropped = int((~last).sum())
    if 2 * dropped > len(times):
        what = f"{dropped} of {len(times)} rows have the same time as another"
        remedy = (
            "name the column that tells devices apart with --device, if there are several, or another column with "
            f"--time, or take the rows as if they followed one another with --ignore {shlex.quote(column)}"
        )
        raise source.error(what, remedy, where=f"time column {column!r}")
    if not sort:
        remedy = "pass --sort, which also drops all but the last row of a time, or name another column with --time"
        increasing(times, column, source, remedy)
    return order[last], dropped


def resampled(times: Times, values: Array, period: float) -> tuple[Times, Array]:
    """Return one row for each period in which there is a sample: the mean of its values, stamped with its beginning.

    A channel with at most two different values is a switch, and a switch is never between its positions: it takes its
    last value in the period. Periods without a sample have no row, so that they are gaps as elsewhere.

    >>> times, values = np.array([0.0, 4.0, 11.0, 31.0]), np.array([[1.0, 0], [3.0, 1], [5.0, 1], [np.nan, 0]])
    >>> grid, means = resampled(times, values, 10.0)
    >>> grid.tolist(), means.tolist()
    ([0.0, 10.0, 30.0], [[2.0, 1.0], [5.0, 1.0], [nan, 0.0]])
    """
    dated = times.dtype.kind == "M"
    ticks: Any = times.astype(np.int64 if dated else np.float64)
    step = round(period * 1e9) if dated else period * epoch_ticks(float(ticks[-1]))
    slot = ticks // step
    first = np.flatnonzero(np.append(True, slot[1:] != slot[:-1]))
    grid: Any = (slot[first] * step).astype(times.dtype)
    is_known = ~np.isnan(values)
    counts = np.add.reduceat(is_known, first, axis=0, dtype=np.int64)
    sums = np.add.reduceat(np.where(is_known, values, 0.0), first, axis=0)
    with np.errstate(invalid="ignore"):
        means = sums / counts
    for at, column in enumerate(values.T):
        if len(np.unique(column[is_known[:, at]])) <= 2:
            rows = np.maximum.reduceat(np.where(is_known[:, at], np.arange(len(values)), -1), first)
            means[:, at] = np.where(rows >= 0, column[rows], np.nan)
    return grid, means
