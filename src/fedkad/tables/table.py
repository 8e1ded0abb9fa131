"""A table: the series of one file, with its times and its gaps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.times import Times, exact_unit, offset_text, ticks_per_second, time_text
from fedkad.timesteps import missing_before, steps_between


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """The samples of one device, in the order of time.

    >>> values, times = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([0.0, 1.0, 2.0, 9.0])
    >>> table = SeriesTable("pump-1", ("flow",), values, times)
    >>> table.period
    1.0
    >>> series, rows = table.with_gaps()
    >>> series.ravel().tolist(), rows.tolist()
    ([1.0, 2.0, 3.0, nan, 4.0], [0, 1, 2, -1, 3])
    """

    name: str  # of the device: the file's name without its ending
    channels: tuple[str, ...]
    values: NDArray[np.float64]  # (time, channel); NaN is a missing value
    times: Times | None = None  # datetime64[ns], or float64 in the unit of the file
    filled: int = 0  # cells that were missing in the file and hold the channel's previous value here
    time_column: str | None = None  # that the times come from
    utc: bool = False  # whether the file names a zone, so that the times are UTC
    notes: tuple[str, ...] = ()  # what was skipped, converted or taken as missing to read it
    offsets: NDArray[np.int64] | None = None  # minutes that the clock of the file is ahead of UTC, row by row
    absent: tuple[str, ...] = ()  # channels that were asked for and have no column in the file

    @property
    def period(self) -> float | None:
        """The median step in seconds; None without times or with a single one."""
        if self.times is None or len(self.times) < 2:
            return None
        return float(np.median(steps_between(self.times))) / ticks_per_second(self.times)

    @cached_property
    def wall_times(self) -> Times | None:
        """The times as the file has them, in its own zone."""
        if self.times is None or self.offsets is None:
            return self.times
        return np.asarray(self.times + self.offsets.astype("timedelta64[m]"))

    def time_texts(self, rows: slice) -> list[str]:
        """Return the times of some rows as ISO-8601 text, in the zone of the file and a unit that is exact for all."""
        if self.times is None:
            return []
        offsets = None if self.offsets is None else self.offsets[rows]
        return time_text(self.times[rows], utc=self.utc, offsets=offsets, unit=self._unit)

    @cached_property
    def _unit(self) -> str | None:
        return None if self.times is None or self.times.dtype.kind != "M" else exact_unit(self.times)

    @cached_property
    def zone(self) -> str:
        """The zone of the wall times, as in UTC+02:00; empty if the file names none."""
        if not self.utc or self.offsets is None:
            return "UTC" if self.utc else ""
        return " / ".join(f"UTC{offset_text(minutes)}" for minutes in np.unique(self.offsets).tolist())

    @property
    def gap_rows(self) -> int:
        """The number of rows with a missing value, other than that of a channel without any."""
        missing = np.isnan(self.values)
        heard = missing if (silent := missing.all(axis=0)).all() else missing[:, ~silent]
        return int(heard.any(axis=1).sum())

    @property
    def silent(self) -> tuple[str, ...]:
        """The channels without any value."""
        return tuple(name for at, name in enumerate(self.channels) if np.isnan(self.values[:, at]).all())

    def with_gaps(self, most: int = 1) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the series a detector should see, and for each of its entries the row of the table.

        At each time gap, a step larger than 1.5 × the median step, there are as many rows of NaN as are missing, but
        at most `most`; their entries in the second array are -1. So ``scores[rows >= 0]`` has one score for each row
        of the table. Without a gap, the series is that of the table and not a copy.
        """
        starts = missing_before(self.times, most)
        if not len(starts):
            return self.values, np.arange(len(self.values))
        series = np.insert(self.values, starts, np.nan, axis=0)
        rows = np.insert(np.arange(len(self.values)), starts, -1)
        return series, rows

    def with_channels(self, names: Sequence[str]) -> "SeriesTable":
        """Return the table with these channels in this order; one that it lacks has no value.

        >>> table = SeriesTable("pump-1", ("flow", "heat"), np.array([[1.0, 20.0]]))
        >>> table.with_channels(("heat", "speed")).values.tolist()
        [[20.0, nan]]
        """
        if tuple(names) == self.channels:
            return self
        values = np.full((len(self.values), len(names)), np.nan)
        for k, name in enumerate(names):
            if name in self.channels:
                values[:, k] = self.values[:, self.channels.index(name)]
        absent = tuple(name for name in names if name not in self.channels)
        return replace(self, channels=tuple(names), values=values, absent=absent)
