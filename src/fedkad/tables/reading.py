"""Reading one file into a table: its values are checked, and short holes are filled."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.progress import Report, unheard
from fedkad.tables.csvfile import read_csv
from fedkad.tables.errors import TableSource
from fedkad.tables.table import SeriesTable
from fedkad.timesteps import gap_starts

PLAIN = (".csv", ".csv.gz")
ENDINGS = (*PLAIN, ".tsv", ".xlsx", ".parquet")  # the last three are read by fedkad.intake only


def read_table(
    path: str | os.PathLike[str],
    *,
    time: str | None = None,
    max_fill: int = 3,
    allow_silent: bool = False,
    report: Report = unheard,
) -> SeriesTable:
    r"""Read a plain ``.csv`` or ``.csv.gz`` file strictly; `fedkad.intake.read_recording` reads other exports.

    Parameters
    ----------
    path
        The file. Its first line names the channels.
    time
        The time column. By default the first column if it is called time, timestamp, date, datetime, ts or t,
        or if it holds ISO-8601 text. Times must strictly increase.
    max_fill
        The longest hole, in rows, over which a channel's last value is carried; 0 leaves every hole.
    allow_silent
        Whether a channel may have no value at all, as a dead sensor has; training data may not have one.
    report
        Told how many bytes of how many are read.

    Notes
    -----
    Cells that are empty or say NA, NaN, null or None are missing. A missing cell takes the previous value of its
    channel for at most `max_fill` rows in a row, never across a time gap (a step larger than 1.5 × the median step) and
    never in or across a row that is missing as a whole. ``filled`` counts those cells; what stays NaN makes its row a
    gap, and ``gap_rows`` counts these.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pump-1.csv")
    ...     _ = path.write_text("time,flow,heat\n0,1.5,20\n10,,21\n20,1.7,22\n")
    ...     table = read_table(path)
    >>> table.name, table.channels, table.period, table.filled, table.gap_rows
    ('pump-1', ('flow', 'heat'), 10.0, 1, 0)
    >>> table.values.tolist()
    [[1.5, 20.0], [1.5, 21.0], [1.7, 22.0]]
    """
    path = Path(path)
    require_file(path)
    ending = table_ending(path)
    if ending not in PLAIN:
        remedy = f"give a file that ends in {' or '.join(PLAIN)}"
        raise TableSource(path).error("files with this ending are not plain CSV", remedy)
    table, source = read_csv(path, path.name[: -len(ending)], time, report)
    return completed(table, source, max_fill=max_fill, allow_silent=allow_silent)


def require_file(path: Path) -> None:
    """Refuse what is not there, or a folder."""
    # os.path, because the methods of Path raise where a folder may not be entered.
    if os.path.isdir(path):
        raise TableSource(path).error("expected a file, found a folder", "give the path of a table")
    if not os.path.exists(path):
        raise TableSource(path).error("there is no such file", "check the path")


def completed(table: SeriesTable, source: TableSource, *, max_fill: int, allow_silent: bool) -> SeriesTable:
    """Return the table with short holes filled in place, once its values are checked; `read_table` gives the rules."""
    if max_fill < 0:
        raise ValueError(f"max_fill is {max_fill}; give 0 or more rows.")
    _check_values(table, source, allow_silent)
    return replace(table, filled=fill_forward(table.values, gap_starts(table.times), max_fill))


def table_ending(path: Path) -> str | None:
    """Return the ending that tells how to read a file, or None if it is not a table.

    >>> table_ending(Path("pump.1.CSV.gz")), table_ending(Path("notes.txt"))
    ('.csv.gz', None)
    """
    return next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)


def _check_values(table: SeriesTable, source: TableSource, allow_silent: bool) -> None:
    infinite = np.isinf(table.values)
    if infinite.any():
        row, at = np.argwhere(infinite)[0]
        remedy = "correct it, or leave the cell empty if the value is missing"
        raise source.error("the value is infinite", remedy, row=int(row), where=f"channel {table.channels[at]!r}")
    if table.silent and not allow_silent:
        where = f"channel {table.silent[0]!r}"
        raise source.error("every value is missing", "remove the channel from every file (--ignore)", where=where)


def fill_forward(values: NDArray[np.float64], gap_starts: NDArray[np.intp], max_fill: int) -> int:
    """Fill short holes in place, since a long recording has no room beside it, and return the number of cells filled.

    A missing cell of row t and channel c takes the channel's last known value, of row s < t, if

    - t - s <= `max_fill`: of a longer hole only the first `max_fill` cells are filled;
    - no time gap lies between s and t (`gap_starts` holds the rows that follow one);
    - none of the rows s + 1, ..., t is missing as a whole: such a row is itself a gap.

    >>> holes = np.array([[1.0, 5.0], [2.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    >>> fill_forward(holes, np.array([], dtype=np.intp), max_fill=3)
    1
    >>> holes.tolist()
    [[1.0, 5.0], [2.0, 5.0], [nan, nan], [3.0, nan]]
    """
    missing = np.isnan(values)
    if not missing.any() or max_fill == 0:
        return 0
    row = np.arange(len(values))
    whole: NDArray[np.bool_] = np.asarray(missing.all(axis=1))

    # The first row that a value may be carried from: values never cross a gap. In a row that is missing as a
    # whole it is the row itself, so that nothing is near enough.
    barrier = np.where(whole, row, 0)
    barrier[gap_starts] = gap_starts
    barrier = np.maximum.accumulate(barrier)

    cells = 0
    for channel in np.flatnonzero(missing.any(axis=0)).tolist():
        hole = missing[:, channel]
        last_known = np.maximum.accumulate(np.where(hole, -1, row))
        rows = np.flatnonzero(hole & (last_known >= barrier) & (row - last_known <= max_fill))
        values[rows, channel] = values[last_known[rows], channel]
        cells += len(rows)
    return cells
