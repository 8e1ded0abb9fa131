"""The strict reader of plain CSV, gzipped or not, which needs numpy only: what a fleet's device has.

A file is read in blocks, so that its text is never in memory as a whole. The cells of a block are turned into numbers
at once; only if that fails is the offending cell searched for.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice
from math import nan
from pathlib import Path
from sys import maxsize
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedkad.progress import Report, unheard
from fedkad.tables.cells import channels_beside, is_iso_time, is_missing, is_number, no_rows, shown, time_column
from fedkad.tables.csvrows import delimiter_of, numbered_rows_of, strict_reader
from fedkad.tables.errors import TableError, TableSource, reason_in
from fedkad.tables.table import SeriesTable
from fedkad.tables.textfile import opened_text
from fedkad.tables.times import TimesInText

if TYPE_CHECKING:
    import _csv

Rows = list[list[str]]

BLOCK = 4096  # rows


def read_csv(path: Path, name: str, time: str | None, report: Report = unheard) -> tuple[SeriesTable, TableSource]:
    """Read a CSV file: UTF-8, one header line that names the channels, one line for each sample.

    The separator is the comma, semicolon or tab that cuts the header line into the most cells. Blank lines at the
    end are ignored; elsewhere they are an error, because their meaning is unclear. `report` is told how many bytes of
    how many are read.
    """
    source = TableSource(path, lambda row: f"line {_line_of(row, path)}")
    with opened_text(path) as (raw, text):
        size, reader = path.stat().st_size, _reader(text, source)
        names = _names(_taken(reader, 1, source)[0], source)
        blocks = _blocks(reader, len(names), source)
        first = next(blocks, None)
        if first is None:
            raise no_rows(source)
        time_at = time_column(names, time, first[0][0], source)
        channels = channels_beside(time_at, names, source)
        clock = None if time_at is None else TimesInText(names[time_at], first[0][time_at], source)
        values: list[NDArray[np.float64]] = []
        for block in chain([first], blocks):
            row = BLOCK * len(values)
            if clock is not None and time_at is not None:
                clock.add([cells.pop(time_at) for cells in block], row)
            values.append(_numbers(block, channels, source, row))
            report(raw.tell(), size)
    table = SeriesTable(name, channels, np.concatenate(values))
    if clock is not None:
        table = replace(table, times=clock.times(), time_column=clock.column, utc=clock.zoned, offsets=clock.offsets())
    return table, source


def _reader(text: IO[str], source: TableSource) -> "_csv.Reader":
    if not any(map(str.strip, text)):
        raise source.error("the file is empty", "add a header line that names the channels and rows of values")
    text.seek(0)
    delimiter = delimiter_of(text.readline())
    text.seek(0)
    return strict_reader(text, delimiter)


def _line_of(row: int, path: Path) -> int:
    """Return the line on which a data row begins: not row + 2, as quoted cells may contain line ends."""
    with opened_text(path) as (_, text):
        return next(islice(numbered_rows_of(text), row + 1, None)).line


def _taken(reader: "_csv.Reader", most: int, source: TableSource) -> Rows:
    """Take the next rows, at most so many."""
    try:
        return list(islice(reader, most))
    except csv.Error as error:
        what, remedy = f"the line is not CSV ({reason_in(error)})", "correct the quotes and the separators"
        raise source.error(what, remedy, where=f"line {reader.line_num}") from error


def _names(header: list[str], source: TableSource) -> list[str]:
    names = [name.strip() for name in header]
    if not names or all(is_number(name) or is_iso_time(name) for name in names):
        what = f"the first line {'holds values' if names else 'is blank'} where the names of the channels belong"
        raise source.error(what, "add a header line that names the channels", where="line 1")
    return names


def _blocks(reader: "_csv.Reader", width: int, source: TableSource) -> Iterator[Rows]:
    """Yield the rows in blocks, checked to have so many cells; blank lines at the end are left out."""
    for first in count(0, BLOCK):
        block = _taken(reader, BLOCK, source)
        odd = [row for row, cells in enumerate(block) if len(cells) != width] if {*map(len, block)} - {width} else []
        rows = block[: odd[0]] if odd else block
        if rows:
            yield rows
        if odd and (any(block[odd[0] :]) or any(_taken(reader, maxsize, source))):
            what = f"the row has {len(block[odd[0]])} cells where the header names {width}"
            remedy = "write one cell for each name, empty where the value is missing"
            raise source.error(what, remedy, row=first + odd[0])
        if len(rows) < BLOCK:
            return


def _numbers(rows: Rows, channels: tuple[str, ...], source: TableSource, first: int) -> NDArray[np.float64]:
    # Python reads 1_000 as a number, so underscores need a closer look.
    suspect, size = "_" in "".join(chain.from_iterable(rows)), len(rows) * len(channels)
    try:
        try:
            values = np.fromiter(map(float, chain.from_iterable(rows)), np.float64, size)
        except ValueError:  # some cells are missing
            values = np.fromiter(chain.from_iterable(map(_floats, rows)), np.float64, size)
    except ValueError:
        suspect = True
    if suspect:
        for row, at in ((row, at) for row in range(len(rows)) for at in range(len(channels))):
            if not (is_number(rows[row][at]) or is_missing(rows[row][at])):
                raise _not_a_number(rows[row][at], first + row, channels[at], source)
    return values.reshape(len(rows), -1)


def _floats(cells: list[str]) -> list[float]:
    try:
        return list(map(float, cells))
    except ValueError:
        return [nan if is_missing(cell) else float(cell) for cell in cells]


def _not_a_number(cell: str, row: int, channel: str, source: TableSource) -> TableError:
    remedy = "write a number with a decimal point, or leave the cell empty where the value is missing"
    if is_iso_time(cell):
        remedy = f"remove the column, or name {channel!r} as the time column"
    return source.error(f"expected a number, found {shown(cell)}", remedy, row=row, where=f"channel {channel!r}")
