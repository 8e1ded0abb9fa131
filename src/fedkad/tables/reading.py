"""Reading one file into a table."""

import os
from collections.abc import Callable
from pathlib import Path

from fedkad.tables.content import Content, checked
from fedkad.tables.csvfile import read_csv
from fedkad.tables.errors import TableSource
from fedkad.tables.filling import fill_forward
from fedkad.tables.parquetfile import read_parquet
from fedkad.tables.table import SeriesTable
from fedkad.tables.times import gap_starts

READERS: dict[str, Callable[[Path, str | None], Content]] = {
    ".csv": read_csv,
    ".csv.gz": read_csv,
    ".parquet": read_parquet,
}


def read_table(
    path: str | os.PathLike[str], *, time: str | None = None, max_fill: int = 3, allow_silent: bool = False
) -> SeriesTable:
    r"""Read a ``.csv``, ``.csv.gz`` or ``.parquet`` file.

    Parameters
    ----------
    path
        The file. Its first line (the columns of a Parquet file) names the channels.
    time
        The time column. By default the first column if it is called time, timestamp, date, datetime, ts or t,
        or if it holds ISO-8601 text; in a Parquet file also a single column of timestamps. Times must
        strictly increase.
    max_fill
        The longest hole, in rows, over which a channel's last value is carried; 0 leaves every hole.
    allow_silent
        Whether a channel may be missing throughout, as that of a dead sensor is; in training data it may not.

    Returns
    -------
    SeriesTable
        Cells that are empty or say NA, NaN, null or None are missing. A missing cell takes the previous value
        of its channel for at most `max_fill` rows in a row, never across a time gap (a step larger than
        1.5 × the median step) and never in or across a row that is missing as a whole. ``filled`` counts
        those cells; what stays NaN makes its row a gap, and ``gap_rows`` counts these.

    Raises
    ------
    TableError
        If the file is not such a table; the message names the file, the row, the channel and the remedy.

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
    if max_fill < 0:
        raise ValueError(f"max_fill is {max_fill}; give 0 or more rows.")
    path = Path(path)
    ending = table_ending(path)
    # os.path, because the methods of Path raise where a folder may not be entered.
    if os.path.isdir(path):
        raise TableSource(path).error("this is a folder where one file belongs", "give the path of a table")
    if not os.path.exists(path):
        raise TableSource(path).error("there is no such file", "check the path")
    if ending is None:
        endings = ", ".join(READERS)
        raise TableSource(path).error("files with this ending are not tables", f"give a file that ends in {endings}")
    content = checked(READERS[ending](path, time), allow_silent=allow_silent)
    values, filled = fill_forward(content.values, gap_starts(content.times), max_fill)
    return SeriesTable(
        path.name[: -len(ending)],
        content.channels,
        values,
        content.times,
        filled,
        time_column=content.time_column,
        utc=content.utc,
    )


def table_ending(path: Path) -> str | None:
    """Return the ending that says how to read a file, None if it is none of ours.

    Examples
    --------
    >>> table_ending(Path("pump.1.CSV.gz")), table_ending(Path("notes.txt"))
    ('.csv.gz', None)
    """
    return next((ending for ending in READERS if path.name.lower().endswith(ending)), None)
