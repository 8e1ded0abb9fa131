"""The time column: which one it is, what its cells mean, its step and its gaps.

Times are either ``datetime64[ns]`` (ISO-8601 text, timestamps; zoned times are converted to UTC, others are
kept as they stand) or ``float64`` (plain numbers, in the unit of the file). They strictly increase.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.cells import is_iso_time, is_missing, is_number, shown
from fedkad.tables.errors import TableError, TableSource

Times = NDArray[np.datetime64] | NDArray[np.float64]

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "ts", "t"})
GAP_FACTOR = 1.5
# The years that fit whole into 64-bit nanoseconds around 1970.
YEARS = range(1678, 2262)
EPOCH_2000, EPOCH_2100 = 946_684_800, 4_102_444_800


def time_column(names: Sequence[str], time: str | None, first_cell: str, source: TableSource) -> int | None:
    """Return the position of the time column, None without one.

    The rule: the column called `time` if given; else the first column if its name is one of time,
    timestamp, date, datetime, ts, t (in any letter case), or if its first cell is ISO-8601 text.
    """
    if time is not None:
        if time not in names:
            listed = ", ".join(names)
            raise source.error(f"there is no time column {time!r}", f"choose one of its columns: {listed}")
        return list(names).index(time)
    return 0 if names[0].lower() in TIME_NAMES or is_iso_time(first_cell) else None


def times_from_text(cells: Sequence[str], column: str, source: TableSource) -> Times:
    """Read the cells of a time column: numbers if the first cell is one, ISO-8601 text otherwise.

    Text is read to the microsecond; numbers keep 53 bits, so nanosecond epochs are exact to 256 ns.
    """
    times = _numbers(cells, column, source) if is_number(cells[0]) else _datetimes(cells, column, source)
    return increasing(times, column, source)


def increasing(times: Times, column: str, source: TableSource) -> Times:
    """Return the times unchanged once every one is known, finite and later than the one before it."""
    where = f"time column {column!r}"
    unknown = ~np.isfinite(times)
    if unknown.any():
        raise source.error(
            "the time is missing or infinite",
            "write it in or remove the row",
            row=_first(unknown),
            where=where,
        )
    late = _steps(times) <= 0
    if late.any():
        row = _first(late) + 1
        now, before = (time_text(times[i : i + 1])[0] for i in (row, row - 1))
        raise source.error(
            f"the time {now} does not come after {before} of the row before it",
            "sort the rows and remove duplicates, or rename the column if it is a channel",
            row=row,
            where=where,
        )
    return times


def gap_starts(times: Times | None) -> NDArray[np.intp]:
    """Return the rows that follow a time gap: a step larger than 1.5 × the median step.

    Examples
    --------
    >>> gap_starts(np.array([0.0, 1.0, 2.0, 4.0, 5.0]))
    array([3])
    """
    if times is None or len(times) < 2:
        return np.empty(0, dtype=np.intp)
    steps = _steps(times)
    return np.flatnonzero(steps > GAP_FACTOR * np.median(steps)) + 1


def period_of(times: Times | None) -> float | None:
    """Return the median step in seconds; None without times or with a single one.

    Numbers below 1e11 are seconds. Larger ones can only be an epoch (1e11 s is the year 5138, while
    1e11 ms is 1973): milliseconds below 1e14, microseconds below 1e17, nanoseconds from there on. The last,
    largest time decides.

    Examples
    --------
    >>> period_of(np.array([0.0, 0.5, 1.0]))
    0.5
    >>> period_of(np.array([1_700_000_000_000.0, 1_700_000_060_000.0]))
    60.0
    """
    if times is None or len(times) < 2:
        return None
    return float(np.median(_steps(times))) / _ticks_per_second(times)


def looks_like_epoch(values: NDArray[np.float64]) -> bool:
    """Tell whether numbers strictly increase and, by the rule of :func:`period_of`, are times from 2000 to 2100.

    Examples
    --------
    >>> looks_like_epoch(np.array([1_700_000_000_000.0, 1_700_000_060_000.0])), looks_like_epoch(np.arange(9.0))
    (True, False)
    """
    if len(values) < 2 or not np.isfinite(values).all() or not (_steps(values) > 0).all():
        return False
    seconds = values / _ticks_per_second(values)
    return bool(seconds[0] >= EPOCH_2000 and seconds[-1] < EPOCH_2100)


def time_text(times: Times, *, utc: bool = False) -> list[str]:
    """Return each time as text: ISO-8601 in the coarsest unit that is exact for all, or the plain number.

    Dates and times that are `utc` end in Z.

    Examples
    --------
    >>> time_text(np.array(["2024-05-01T12:00:00.500"], dtype="datetime64[ns]"))
    ['2024-05-01T12:00:00.500']
    >>> time_text(np.array(["2024-05-01T12:00:00"], dtype="datetime64[ns]"), utc=True)
    ['2024-05-01T12:00:00Z']
    >>> time_text(np.array([1_700_000_000_000.0]))
    ['1700000000000']
    """
    if times.dtype.kind != "M":
        return [np.format_float_positional(time, trim="-") for time in times]
    zone = "Z" if utc else ""
    return [f"{time}{zone}" for time in _coarsened(times)]


def _coarsened(times: Times) -> Times:
    for unit in ("s", "ms", "us"):
        coarse = times.astype(f"datetime64[{unit}]")
        if ((coarse == times) | np.isnat(times)).all():
            return coarse
    return times


def _numbers(cells: Sequence[str], column: str, source: TableSource) -> Times:
    for row, cell in enumerate(cells):
        if not is_number(cell):
            raise _unusable(cell, "a number like the first time", row, column, source)
    return np.array(cells, dtype=np.float64)


def _datetimes(cells: Sequence[str], column: str, source: TableSource) -> Times:
    moments = []
    zoned = None
    for row, cell in enumerate(cells):
        try:
            moment = datetime.fromisoformat(cell.strip())
        except ValueError:
            raise _unusable(cell, "a number or ISO-8601 text", row, column, source) from None
        if moment.year not in YEARS:
            raise _unusable(cell, f"between {YEARS.start} and {YEARS.stop - 1}", row, column, source)
        if zoned is None:
            zoned = moment.tzinfo is not None
        elif zoned != (moment.tzinfo is not None):
            raise _unusable(cell, "written like the first time, with or without a zone", row, column, source)
        moments.append(moment.astimezone(UTC).replace(tzinfo=None) if zoned else moment)
    return np.array(moments, dtype="datetime64[us]").astype("datetime64[ns]")


def _unusable(cell: str, wanted: str, row: int, column: str, source: TableSource) -> TableError:
    what = "the time is missing" if is_missing(cell) else f"the time {shown(cell)} is not {wanted}"
    return source.error(what, "correct the cell or remove the row", row=row, where=f"time column {column!r}")


def _steps(times: Times) -> NDArray[np.float64]:
    return np.diff(times).astype(np.float64)


def _ticks_per_second(times: Times) -> float:
    if times.dtype.kind == "M":
        return 1e9
    for bound, ticks in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
        if times[-1] < bound:
            return ticks
    return 1e9


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))
