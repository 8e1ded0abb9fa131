"""What the columns of a file must be: at most one of times, the others channels with names and finite values."""

from collections.abc import Sequence

import numpy as np

from fedkad.tables.cells import is_iso_time
from fedkad.tables.errors import TableError, TableSource, channel_called
from fedkad.tables.table import SeriesTable

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "ts", "t"})


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
    if "" in channels:
        at = next(at for at, name in enumerate(names) if name == "" and at != time_at)
        raise source.error(f"column {at + 1} has no name", "name the channel in the header or remove the column")
    for at, name in enumerate(names):
        if name in names[:at]:
            what = f"columns {names.index(name) + 1} and {at + 1} have the same name"
            raise source.error(what, "give each channel its own name", where=channel_called(name))
    return channels


def no_rows(source: TableSource) -> TableError:
    """Return the error for a file that names channels but holds no sample."""
    return source.error("there are no rows below the names of the channels", "add at least one row of values")


def check_values(table: SeriesTable, source: TableSource, *, allow_silent: bool) -> None:
    """Refuse infinite values and, unless they are allowed, channels without any value."""
    infinite = np.isinf(table.values)
    if infinite.any():
        row, at = np.argwhere(infinite)[0]
        remedy = "correct it, or leave the cell empty if the value is missing"
        raise source.error("the value is infinite", remedy, row=int(row), where=channel_called(table.channels[at]))
    if table.silent and not allow_silent:
        where = channel_called(table.silent[0])
        raise source.error("every value is missing", "remove the channel from every file", where=where)
