"""The rows of CSV text: what separates the cells, what quotes mean, and on which line a row begins.

The library, the agent and the reader of plants' exports all cut their rows here; they differ in what they make of the
cells and in how they say what is wrong with them.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import _csv

DELIMITERS = (",", ";", "\t")


class NumberedRow(NamedTuple):
    """The cells of a row, and the line that it begins on."""

    line: int
    cells: list[str]


def delimiter_of(header: str) -> str:
    r"""Return the comma, semicolon or tab that cuts a header line into the most cells, whatever its quotes hold.

    >>> delimiter_of("time;flow, cold;heat"), delimiter_of('"flow; cold; warm",heat'), delimiter_of("flow")
    (';', ',', ',')
    """
    return max(DELIMITERS, key=re.sub('"[^"]*"', "", header).count)


def strict_reader(lines: Iterable[str], delimiter: str) -> "_csv.Reader":
    """Return the reader of rows; quotes that are not closed, or followed by other text, raise `csv.Error`.

    >>> next(strict_reader(['1.5,"a ""b"",c",'], ","))
    ['1.5', 'a "b",c', '']
    """
    return csv.reader(lines, delimiter=delimiter, strict=True)


def numbered_rows_of(text: IO[str]) -> Iterator[NumberedRow]:
    """Yield the rows of a text, by the delimiter of its header line."""
    delimiter = delimiter_of(text.readline())
    text.seek(0)
    return numbered_rows(enumerate(text, 1), delimiter)


def numbered_rows(lines: Iterable[tuple[int, str]], delimiter: str) -> Iterator[NumberedRow]:
    r"""Yield the rows of numbered lines, of which one row may span several, up to a quote that is never closed.

    >>> list(numbered_rows([(3, '1,"a\n'), (4, 'b"\n'), (6, "2,c\n")], ","))
    [NumberedRow(line=3, cells=['1', 'a\nb']), NumberedRow(line=6, cells=['2', 'c'])]
    """
    begun: list[int] = []  # lines of the row that is being read

    def unnumbered() -> Iterator[str]:
        for number, line in lines:
            begun.append(number)
            yield line

    try:
        for cells in csv.reader(unnumbered(), delimiter=delimiter):
            yield NumberedRow(begun[0], cells)
            begun.clear()
    except csv.Error:
        return
