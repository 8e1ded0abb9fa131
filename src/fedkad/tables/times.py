"""The times of a table: what the cells mean, the step from one to the next, and the gaps.

Times are either ``datetime64[ns]`` (ISO-8601 text, timestamps; zoned times are converted to UTC, others are
kept as they stand) or ``float64`` (plain numbers, in the unit of the file). They strictly increase.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.cells import is_iso_time, is_missing, is_number, names_zone, shown
from fedkad.tables.errors import TableError, TableSource
from fedkad.timesteps import steps_between

Times = NDArray[np.datetime64] | NDArray[np.float64]

# The years that fit whole into 64-bit nanoseconds around 1970.
YEARS = range(1678, 2262)
SORT = "sort the rows and remove duplicates, or rename the column if it is a channel"
EPOCH_2000, EPOCH_2100 = 946_684_800, 4_102_444_800


class TimesInText:
    """The cells of a time column, read block by block: numbers if the first cell is one, ISO-8601 text otherwise.

    Text is read to the microsecond; numbers keep 53 bits, so nanosecond epochs are exact to 256 ns.
    """

    def __init__(self, column: str, first: str, source: TableSource) -> None:
        self.column, self._source = column, source
        self._is_number, self.zoned = is_number(first), names_zone(first)
        self._times: list[NDArray[Any]] = []
        self._offsets: list[NDArray[np.int64]] = []

    def add(self, cells: Sequence[str], row: int) -> None:
        """Read the next cells; the first of them is that of this row."""
        if self._is_number:
            self._times.append(self._numbers(cells, row))
            return
        moments = self._moments(cells, row)
        self._times.append(_as_datetime64(moments, zoned=self.zoned))
        if self.zoned:
            self._offsets.append(_minutes_ahead(moments))

    def times(self) -> Times:
        """Return the times, once they are known to increase."""
        return increasing(np.concatenate(self._times), self.column, self._source)

    def offsets(self) -> NDArray[np.int64] | None:
        """Return the minutes that the clock of the file is ahead of UTC; None if it names no zone."""
        return np.concatenate(self._offsets) if self.zoned else None

    def _numbers(self, cells: Sequence[str], first: int) -> Times:
        for row, cell in enumerate(cells, first):
            if not is_number(cell):
                raise self._unusable(cell, "a number like the first time", row)
        return np.array(cells, dtype=np.float64)

    def _moments(self, cells: Sequence[str], first: int) -> list[datetime]:
        try:
            moments = list(map(datetime.fromisoformat, map(str.strip, cells)))
        except ValueError:
            row = next(row for row, cell in enumerate(cells) if not is_iso_time(cell))
            raise self._unusable(cells[row], "a number or ISO-8601 text", first + row) from None
        for row, moment in enumerate(moments):
            if moment.year not in YEARS:
                raise self._unusable(cells[row], f"between {YEARS.start} and {YEARS.stop - 1}", first + row)
            if self.zoned != (moment.tzinfo is not None):
                raise self._unusable(cells[row], "written like the first time, with or without a zone", first + row)
        return moments

    def _unusable(self, cell: str, wanted: str, row: int) -> TableError:
        what = "the time is missing" if is_missing(cell) else f"the time {shown(cell)} is not {wanted}"
        remedy = "correct the cell or remove the row"
        return self._source.error(what, remedy, row=row, where=f"time column {self.column!r}")


def increasing(times: Times, column: str, source: TableSource, remedy: str = SORT) -> Times:
    """Return the times unchanged once every one is known, finite and later than the one before it."""
    where = f"time column {column!r}"
    unknown = ~np.isfinite(times)
    if unknown.any():
        row = int(np.argmax(unknown))
        raise source.error("the time is missing or infinite", "write it in or remove the row", row=row, where=where)
    late = steps_between(times) <= 0
    if late.any():
        row = int(np.argmax(late)) + 1
        now, before = (time_text(times[i : i + 1])[0] for i in (row, row - 1))
        raise source.error(
            f"the time {now} does not come after {before} of the row before it",
            remedy,
            row=row,
            where=where,
        )
    return times


def epoch_ticks(time: float) -> int:
    """Return how many units of a plain number make a second: of seconds, milli-, micro- or nanoseconds since 1970.

    Numbers below 1e11 are seconds. Larger ones can only be an epoch (1e11 s is the year 5138, while 1e11 ms is 1973):
    milliseconds below 1e14, microseconds below 1e17, nanoseconds from there on.

    >>> epoch_ticks(3600.0), epoch_ticks(1_700_000_000_000.0)
    (1, 1000)
    """
    bounds = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000))
    return next((ticks for bound, ticks in bounds if time < bound), 1_000_000_000)


def looks_like_epoch(values: NDArray[np.float64]) -> bool:
    """Tell whether numbers strictly increase and, by the rule of :func:`epoch_ticks`, are times from 2000 to 2100.

    >>> looks_like_epoch(np.array([1_700_000_000_000.0, 1_700_000_060_000.0])), looks_like_epoch(np.arange(9.0))
    (True, False)
    """
    if len(values) < 2 or not np.isfinite(values).all() or not (steps_between(values) > 0).all():
        return False
    seconds = values / ticks_per_second(values)
    return bool(seconds[0] >= EPOCH_2000 and seconds[-1] < EPOCH_2100)


def exact_unit(times: Times) -> str:
    """Return the coarsest unit, from seconds to nanoseconds, in which each of these dates and times is exact.

    >>> exact_unit(np.array(["2024-05-01T12:00:00.500"], dtype="datetime64[ns]"))
    'ms'
    """
    units = ("s", "ms", "us")
    exact = (((times.astype(f"datetime64[{unit}]") == times) | np.isnat(times)).all() for unit in units)
    return next((unit for unit, is_exact in zip(units, exact, strict=True) if is_exact), "ns")


def time_text(
    times: Times, *, utc: bool = False, offsets: NDArray[np.int64] | None = None, unit: str | None = None
) -> list[str]:
    """Return each time as text: ISO-8601 in the coarsest unit that is exact for all, or `unit`, or the plain number.

    Dates and times that are `utc` end in Z; with `offsets`, minutes ahead of UTC, they are written in that zone.

    >>> time_text(np.array(["2024-05-01T12:00:00.500"], dtype="datetime64[ns]"))
    ['2024-05-01T12:00:00.500']
    >>> noon = np.array(["2024-05-01T12:00:00"], dtype="datetime64[ns]")
    >>> time_text(noon, utc=True), time_text(noon, utc=True, offsets=np.array([120]))
    (['2024-05-01T12:00:00Z'], ['2024-05-01T14:00:00+02:00'])
    >>> time_text(np.array([1_700_000_000_000.0]))
    ['1700000000000']
    """
    if times.dtype.kind != "M":
        return [np.format_float_positional(time, trim="-") for time in times]
    zones = ["Z" if utc else ""] * len(times)
    if utc and offsets is not None:
        times, zones = times + offsets.astype("timedelta64[m]"), [offset_text(east) or "Z" for east in offsets.tolist()]
    texts = times.astype(f"datetime64[{unit or exact_unit(times)}]").astype(str).tolist()
    return [f"{text}{zone}" for text, zone in zip(texts, zones, strict=True)]


def offset_text(minutes: int) -> str:
    """Return minutes ahead of UTC as in ISO-8601; nothing for none.

    >>> offset_text(120), offset_text(-210), offset_text(0)
    ('+02:00', '-03:30', '')
    """
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}" if minutes else ""


def _as_datetime64(moments: Sequence[datetime], *, zoned: bool) -> NDArray[np.datetime64]:
    """Return moments as numpy has them, in UTC if they name a zone; column by column, because numpy is slow at it.

    >>> str(_as_datetime64([datetime.fromisoformat("2024-05-01T12:00:00.5+02:00")], zoned=True)[0])
    '2024-05-01T10:00:00.500000000'
    """
    epoch = datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
    since = [moment - epoch for moment in moments]
    days, seconds, microseconds = (
        np.fromiter(map(attrgetter(part), since), np.int64, len(since)) for part in ("days", "seconds", "microseconds")
    )
    return (((86_400 * days + seconds) * 1_000_000 + microseconds) * 1_000).astype("datetime64[ns]")


def _minutes_ahead(moments: Sequence[datetime]) -> NDArray[np.int64]:
    """Return the minutes that the clocks of moments with a zone are ahead of UTC.

    >>> _minutes_ahead([datetime.fromisoformat("2024-05-01T12:00:00+02:00")])
    array([120])
    """
    ahead = (moment.utcoffset() or timedelta(0) for moment in moments)
    return np.array([delta // timedelta(minutes=1) for delta in ahead], dtype=np.int64)


def ticks_per_second(times: Times) -> int:
    """Return how many units of these times make a second; of plain numbers the last, largest one tells.

    >>> ticks_per_second(np.array([0.0, 0.5, 1.0])), ticks_per_second(np.array([0.0, 1_700_000_060_000.0]))
    (1, 1000)
    """
    return 1_000_000_000 if times.dtype.kind == "M" else epoch_ticks(float(times[-1]))
