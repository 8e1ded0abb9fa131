"""What a report consists of, before it becomes HTML, Markdown, SVG and CSV: sections of sentences, tables, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Columns = Mapping[str, Sequence[Any]]


class Cell(NamedTuple):
    """A cell of a table: its text, whether it is the best of its column, and what stands small beside it."""

    text: str
    best: bool = False
    small: str = ""


class Column(NamedTuple):
    """A heading, and the heading that it shares with its neighbours."""

    title: str
    over: str = ""
    wide: bool = False  # text that may wrap, to the left


@dataclass(frozen=True)
class Row:
    """A row of a table; one without cells is the heading of those below it."""

    title: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table with the tidy data behind it.

    Attributes
    ----------
    name
        Of its files.
    caption
        What is shown, of which data.
    first
        The heading of the first column, that of the titles of the rows.
    data
        Columns for the CSV file.
    """

    name: str
    caption: str
    first: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    data: Columns


@dataclass(frozen=True)
class Figure:
    """A drawing with the data behind it.

    `alt` says for those who do not see it what it shows; `draw` answers with a figure of matplotlib.
    """

    name: str
    caption: str
    alt: str
    data: Columns
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Text:
    """A paragraph, or the heading of a part of a section."""

    text: str
    heading: bool = False


@dataclass(frozen=True)
class Items:
    """Sentences as a list."""

    sentences: tuple[str, ...]


Block = Text | Items | Table | Figure


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    footer: str

    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Table)]

    def figures(self) -> list[Figure]:
        """All figures, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def tidy(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns; a row without a value has None there.

    >>> tidy([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [None, 3]}
    """
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    return {name: [row.get(name) for row in listed] for name in names}


def absent(heading: str, sentence: str) -> Section:
    """A section that has no data, and says so."""
    return Section(heading, (Text(sentence),))
