"""A table: the series of one file, with its times and its gaps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.times import Times, gap_starts, period_of


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """The samples of one device, in the order of time.

    Parameters
    ----------
    name
        The device: the file's name without its ending.
    channels
        The names of the columns of `values`.
    values
        ``(time, channel)``; NaN is a missing value.
    times
        ``datetime64[ns]`` (UTC where the file names a zone), or ``float64`` in the unit of the file, or None.
    filled
        The number of cells that were missing in the file and hold the channel's previous value here.
    time_column
        The name of the column that `times` come from, None without times.
    utc
        Whether the file names a zone, so that `times` are UTC.

    Examples
    --------
    >>> values, times = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([0.0, 1.0, 2.0, 9.0])
    >>> table = SeriesTable("pump-1", ("flow",), values, times)
    >>> table.period, stretches(table)
    (1.0, [(0, 3), (3, 4)])
    >>> series, rows = table.with_gaps()
    >>> series.ravel().tolist(), rows.tolist()
    ([1.0, 2.0, 3.0, nan, 4.0], [0, 1, 2, -1, 3])
    """

    name: str
    channels: tuple[str, ...]
    values: NDArray[np.float64]
    times: Times | None = None
    filled: int = 0
    time_column: str | None = None
    utc: bool = False

    @property
    def period(self) -> float | None:
        """The median step in seconds, None without times; numbers are seconds unless they look like an epoch.

        The rule for epochs is said at :func:`fedkad.tables.times.period_of`.
        """
        return period_of(self.times)

    @property
    def gap_rows(self) -> int:
        """The number of rows with a missing value: each breaks the detector's window."""
        return int(np.isnan(self.values).any(axis=1).sum())

    @property
    def silent(self) -> tuple[str, ...]:
        """The channels without any value."""
        return tuple(name for at, name in enumerate(self.channels) if np.isnan(self.values[:, at]).all())

    def with_gaps(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the series a detector should see, and for each of its entries the row of the table.

        One row of NaN stands at each time gap; its entry in the second array is -1. So
        ``scores[rows >= 0]`` has one score for each row of the table.
        """
        starts = gap_starts(self.times)
        series = np.insert(self.values, starts, np.nan, axis=0)
        rows = np.insert(np.arange(len(self.values)), starts, -1)
        return series, rows


def stretches(table: SeriesTable) -> list[tuple[int, int]]:
    """Return the pieces between time gaps as ``(start, end)``: rows ``start, ..., end - 1``.

    A time gap is a step larger than 1.5 × the median step; without times the table is one piece. Rows with
    missing values do not end a piece.
    """
    starts = gap_starts(table.times).tolist()
    return list(zip([0, *starts], [*starts, len(table.values)], strict=True))
