"""What a cell means (missing, a number or a time), and a column (the times, or a channel with a name)."""

from collections.abc import Sequence
from datetime import datetime

from fedkad.tables.errors import TableError, TableSource

MISSING = frozenset({"", "na", "nan", "null", "none"})
TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "ts", "t"})


def is_missing(cell: str) -> bool:
    """Tell whether a cell is empty or says NA, NaN, null or None, in any letter case.

    >>> [is_missing(cell) for cell in ("", " NA ", "NaN", "null", "None", "0", "n/a")]
    [True, True, True, True, True, False, False]
    """
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number; Python's ``1_000`` is not one outside of Python.

    >>> [is_number(cell) for cell in ("1.5", " -2e3", "1_000", "1,5", "")]
    [True, True, False, False, False]
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def is_iso_time(cell: str) -> bool:
    """Tell whether a cell is an ISO-8601 date or date and time; plain digits count as a number instead.

    >>> [is_iso_time(cell) for cell in ("2024-05-01", "2024-05-01T12:00:00Z", "12:00", "20240501")]
    [True, True, False, False]
    """
    if is_number(cell):
        return False
    try:
        datetime.fromisoformat(cell.strip())
    except ValueError:
        return False
    return True


def names_zone(cell: str) -> bool:
    """Tell whether a cell is an ISO-8601 time with a zone.

    >>> [names_zone(cell) for cell in ("2024-05-01T12:00:00Z", "2024-05-01T12:00+02:00", "2024-05-01T12:00", "7")]
    [True, True, False, False]
    """
    return is_iso_time(cell) and datetime.fromisoformat(cell.strip()).tzinfo is not None


def shown(cell: str) -> str:
    """Return a cell as an error quotes it: one line, at most 40 characters.

    >>> print(shown("a" * 50))
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'
    """
    return repr(cell if len(cell) <= 40 else cell[:40] + "...")


def time_column(names: Sequence[str], time: str | None, first_cell: str, source: TableSource) -> int | None:
    """Return the position of the time column, or None if there is none.

    The time column is the one called `time` if given; otherwise the first column if its name is time, timestamp,
    date, datetime, ts or t (in any letter case), or if its first cell is ISO-8601 text.
    """
    if time is not None:
        if time not in names:
            listed = ", ".join(names)
            raise source.error(f"there is no time column {time!r}", f"choose one of its columns: {listed}")
        return list(names).index(time)
    return 0 if names[0].lower() in TIME_NAMES or is_iso_time(first_cell) else None


def channels_beside(time_at: int | None, names: Sequence[str], source: TableSource) -> tuple[str, ...]:
    """Return the names of the channels, checked to be present and unique; only the time column may lack a name.

    >>> from pathlib import Path
    >>> channels_beside(0, ["", "flow", "heat"], TableSource(Path("pump-1.csv")))
    ('flow', 'heat')
    """
    channels = tuple(name for at, name in enumerate(names) if at != time_at)
    if not channels:
        raise source.error("there is no channel beside the time", "add a column for each channel")
    for at, name in enumerate(names):
        if name == "" and at != time_at:
            raise source.error(f"column {at + 1} has no name", "name the channel in the header or remove the column")
    for at, name in enumerate(names):
        if name in names[:at]:
            what = f"columns {names.index(name) + 1} and {at + 1} have the same name"
            raise source.error(what, "give each channel its own name", where=f"channel {name!r}")
    return channels


def no_rows(source: TableSource) -> TableError:
    """Return the error for a file that names channels but holds no sample."""
    return source.error("there are no rows below the names of the channels", "add at least one row of values")
