"""Carrying a channel's last value over short holes, and nothing longer."""

import numpy as np
from numpy.typing import NDArray


def fill_forward(
    values: NDArray[np.float64], gap_starts: NDArray[np.intp], max_fill: int
) -> tuple[NDArray[np.float64], int]:
    """Return a copy with short holes filled, and the number of cells filled.

    A missing cell of row t and channel c takes the channel's last known value, of row s < t, if

    - t - s <= `max_fill`: of a longer hole only the first `max_fill` cells are filled;
    - no time gap lies between s and t (`gap_starts` holds the rows that follow one);
    - none of the rows s + 1, ..., t is missing as a whole: such a row is itself a gap.

    >>> holes = np.array([[1.0, 5.0], [2.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    >>> filled, cells = fill_forward(holes, np.array([], dtype=np.intp), max_fill=3)
    >>> filled.tolist(), cells
    ([[1.0, 5.0], [2.0, 5.0], [nan, nan], [3.0, nan]], 1)
    """
    missing = np.isnan(values)
    if not missing.any():
        return values.copy(), 0
    row = np.arange(len(values))
    whole: NDArray[np.bool_] = np.asarray(missing.all(axis=1))

    # The first row that a value may be carried from: values never cross a gap. In a row that is missing as a
    # whole it is the row itself, so that nothing is near enough.
    barrier = np.where(whole, row, 0)
    barrier[gap_starts] = gap_starts
    barrier = np.maximum.accumulate(barrier)

    known = np.maximum.accumulate(np.where(missing, -1, row[:, None]), axis=0)
    near = (known >= barrier[:, None]) & (row[:, None] - known <= max_fill)
    rows, channels = np.nonzero(missing & near)

    filled = values.copy()
    filled[rows, channels] = values[known[rows, channels], channels]
    return filled, len(rows)
