"""The strict reader of plain CSV, gzipped or not, which needs numpy only: what a fleet's device has.

All cells are turned into numbers at once; only if that fails is the offending cell searched for.
"""

import csv
import gzip
import io
import re
import zlib
from itertools import chain
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.cells import (
    channels_beside,
    is_iso_time,
    is_missing,
    is_number,
    names_zone,
    no_rows,
    shown,
    time_column,
)
from fedkad.tables.errors import TableError, TableSource, reason_in
from fedkad.tables.table import SeriesTable
from fedkad.tables.times import offsets_in_text, times_from_text

if TYPE_CHECKING:
    import _csv

Rows = list[list[str]]

DELIMITERS = (",", ";", "\t")


def read_csv(path: Path, name: str, time: str | None) -> tuple[SeriesTable, TableSource]:
    """Read a CSV file: UTF-8, one header line that names the channels, one line for each sample.

    The separator is the comma, semicolon or tab that cuts the header line into the most cells. Blank lines at the
    end are ignored; elsewhere they are an error, because their meaning is unclear.
    """
    delimiter = _delimiter_in(text := _text_in(path))
    source = TableSource(path, lambda row: f"line {_line_of(row, text, delimiter)}")
    names, rows = _names_and_rows(text, delimiter, source)
    time_at = time_column(names, time, rows[0][0], source)
    channels = channels_beside(time_at, names, source)
    times, time_name, utc, offsets = None, None, False, None
    if time_at is not None:
        time_name, utc = names[time_at], names_zone(rows[0][time_at])
        cells = [row[time_at] for row in rows]
        times = times_from_text(cells, time_name, source)
        offsets = offsets_in_text(cells) if utc else None
        rows = [row[:time_at] + row[time_at + 1 :] for row in rows]
    # Python reads 1_000 as a number, so underscores beyond those of the header need a closer look.
    underscores = text.count("_") > sum(name.count("_") for name in names)
    values = _numbers(rows, channels, source, underscores)
    return SeriesTable(name, channels, values, times, time_column=time_name, utc=utc, offsets=offsets), source


def _text_in(path: Path) -> str:
    source = TableSource(path)
    try:
        data = path.read_bytes()
        if path.suffix.lower() == ".gz":
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise source.error(f"the gzip data is damaged ({reason_in(error)})", "fetch or compress it again") from error
    except OSError as error:
        reason = error.strerror or reason_in(error)
        raise source.error(f"the file cannot be read ({reason})", "check its permissions") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        line = data.count(b"\n", 0, error.start) + 1
        raise source.error(what, "save the file as UTF-8", where=f"line {line}") from error
    if not text.strip():
        raise source.error("the file is empty", "add a header line that names the channels and rows of values")
    return text


def _delimiter_in(text: str) -> str:
    unquoted = re.sub('"[^"]*"', "", next(io.StringIO(text, newline="")))
    return max(DELIMITERS, key=unquoted.count)


def _reader(text: str, delimiter: str) -> "_csv.Reader":
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)


def _line_of(row: int, text: str, delimiter: str) -> int:
    """Return the line on which a data row begins: not row + 2, as quoted cells may contain line ends."""
    reader = _reader(text, delimiter)
    for _ in range(row + 1):
        next(reader)
    return reader.line_num + 1


def _names_and_rows(text: str, delimiter: str, source: TableSource) -> tuple[list[str], Rows]:
    reader = _reader(text, delimiter)
    try:
        names, *rows = list(reader)
    except csv.Error as error:
        what, remedy = f"the line is not CSV ({reason_in(error)})", "correct the quotes and the separators"
        raise source.error(what, remedy, where=f"line {reader.line_num}") from error
    names = [name.strip() for name in names]
    if not names or all(is_number(name) or is_iso_time(name) for name in names):
        what = f"the first line {'holds values' if names else 'is blank'} where the names of the channels belong"
        raise source.error(what, "add a header line that names the channels", where="line 1")
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise no_rows(source)
    for row, cells in enumerate(rows):
        if len(cells) != len(names):
            what = f"the row has {len(cells)} cells where the header names {len(names)}"
            raise source.error(what, "write one cell for each name, empty where the value is missing", row=row)
    return names, rows


def _numbers(rows: Rows, channels: tuple[str, ...], source: TableSource, suspect: bool) -> NDArray[np.float64]:
    try:
        cells = chain.from_iterable(map(_floats, rows))
        values = np.fromiter(cells, np.float64, len(rows) * len(channels)).reshape(len(rows), -1)
    except ValueError:
        suspect = True
    if suspect:
        for row, at in ((row, at) for row, cells in enumerate(rows) for at in range(len(cells))):
            if not (is_number(rows[row][at]) or is_missing(rows[row][at])):
                raise _not_a_number(rows[row][at], row, channels[at], source)
    return values


def _floats(cells: list[str]) -> list[float]:
    try:
        return list(map(float, cells))
    except ValueError:
        return [nan if is_missing(cell) else float(cell) for cell in cells]


def _not_a_number(cell: str, row: int, channel: str, source: TableSource) -> TableError:
    remedy = "write a number with a decimal point, or leave the cell empty where the value is missing"
    if is_iso_time(cell):
        remedy = f"remove the column, or name it as the time column (time={channel!r})"
    return source.error(f"expected a number, found {shown(cell)}", remedy, row=row, where=f"channel {channel!r}")
