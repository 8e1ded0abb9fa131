"""A page as a value: a document has sections, a section has blocks. `page.render_page` turns it into HTML.

>>> alarms = DataTable("alarms", "", "Device", (TableColumn("Alarms"),), (TableRow("pump-1", (TableCell("3"),)),))
>>> document = Document("Pumps", "One week.", (Section("Alarms", (Paragraph("Few."), alarms)),))
>>> [table.name for table in document.tables()]
['alarms']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Columns = Mapping[str, Sequence[Any]]
Tone = Literal["", "good", "bad", "quiet"]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True)
class Notice:
    """A paragraph that must not be missed."""

    text: str


@dataclass(frozen=True)
class Subheading:
    """The heading of what follows, up to the next one, inside a section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """Sentences as a list."""

    sentences: tuple[str, ...]


class Fact(NamedTuple):
    """A value with its label; `timing` marks a value that differs from run to run."""

    label: str
    value: str
    timing: bool = False


@dataclass(frozen=True)
class KeyFigures:
    """The few values to see first."""

    facts: tuple[Fact, ...]


class TableCell(NamedTuple):
    """A cell: its text, whether it is the best of its column, what stands small beside it, and its colour."""

    text: str
    best: bool = False
    small: str = ""
    tone: Tone = ""


class TableColumn(NamedTuple):
    """A column: its heading, the heading it shares with its neighbours, and what it holds.

    Numbers are aligned right, a word is never broken, text may wrap.
    """

    title: str
    over: str = ""
    kind: Literal["number", "word", "text"] = "number"


@dataclass(frozen=True)
class TableRow:
    """A row; without cells it is the heading of the rows below it."""

    title: str
    cells: tuple[TableCell, ...] = ()


@dataclass(frozen=True)
class DataTable:
    """A table.

    Attributes
    ----------
    name
        Unique in the document, and the name of its files.
    caption
        What is shown, of which data; empty where the section says it.
    first
        The heading of the first column, which holds the titles of the rows.
    data
        The tidy columns behind the table, to be written beside the page.
    """

    name: str
    caption: str
    first: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    data: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing:
    """A drawing as SVG markup with its caption; `alt` describes it to a reader who does not see it.

    `name` and `data` are as in `DataTable`.
    """

    name: str
    caption: str
    svg: str
    alt: str
    data: Columns = field(default_factory=dict)


Block = Paragraph | Notice | Subheading | Bullets | KeyFigures | DataTable | Drawing


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A whole page.

    Attributes
    ----------
    lead
        One or two sentences below the title.
    opening
        Blocks between the lead and the first section.
    numbered
        Number the sections and list them at the top.
    dark
        Follow a dark screen. False for drawings with colours of their own, which need white paper.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    footer: str = ""
    opening: tuple[Block, ...] = ()
    numbered: bool = False
    dark: bool = True

    def tables(self) -> list[DataTable]:
        """All tables of the sections, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, DataTable)]

    def drawings(self) -> list[Drawing]:
        """All drawings of the sections, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Drawing)]
