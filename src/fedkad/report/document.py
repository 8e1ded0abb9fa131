"""A page as a value, and as HTML: a document has sections, a section has blocks.

The HTML is self-contained: no link, no font, no other file, and no script but the one that enlarges charts. All text is
escaped here and nowhere else; only drawings come as markup.

>>> alarms = DataTable("alarms", "", "Device", (TableColumn("Alarms"),), (TableRow("pump-1", (TableCell("3"),)),))
>>> document = Document("Pumps", "One week.", (Section("Alarms", (Paragraph("Few."), alarms)),))
>>> [table.name for table in document.tables()]
['alarms']
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedkad.atomicfile import write_atomically
from fedkad.report.palette import DARK, LIGHT, as_variables

Columns = Mapping[str, Sequence[Any]]
Tone = Literal["", "good", "bad", "quiet"]

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")

ZOOM = Path(__file__).with_name("zoom.js").read_text(encoding="utf-8")

HINT = "Drag across a picture to enlarge a part of it, and double-click to see all of it again."

MANY_COLUMNS = 9
"""A table with more columns has smaller letters."""


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
    """A table."""

    name: str  # unique in the document, and the name of its files
    caption: str  # what is shown, of which data; empty where the section says it
    first: str  # the heading of the first column, which holds the titles of the rows
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    data: Columns = field(default_factory=dict)  # the tidy columns behind the table, to be written beside the page
    cards: bool = False  # on a narrow screen every row is a card of its own, so that nothing scrolls out of sight


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
    """A whole page."""

    title: str
    lead: str  # one or two sentences below the title
    sections: tuple[Section, ...]
    footer: str = ""
    opening: tuple[Block, ...] = ()  # between the lead and the first section
    numbered: bool = False  # number the sections and list them at the top
    dark: bool = True  # follow a dark screen; False for drawings with colours of their own, which need white paper
    zoom: bool = False  # let a reader enlarge a part of the line charts; needs a script, without which all is there

    def tables(self) -> list[DataTable]:
        """Return all tables of the sections, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, DataTable)]

    def drawings(self) -> list[Drawing]:
        """Return all drawings of the sections, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Drawing)]


# -- as HTML ---------------------------------------------------------------------------------------------------


def write_page(path: Path, document: Document) -> None:
    """Write the page atomically: the file is either the old one or the whole new one."""
    write_atomically(path, render_page(document).encode())


def render_page(document: Document) -> str:
    """Render the page as HTML.

    >>> "<title>&lt;Pumps&gt;</title>" in render_page(Document("<Pumps>", "", ()))
    True
    """
    sections = "\n".join(_section(k, part, document.numbered) for k, part in enumerate(document.sections, start=1))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{"light dark" if document.dark else "light"}">
<title>{escape(document.title)}</title>
<style>{_colours(document.dark)}
{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(document.title)}</h1>
<p class="lead">{escape(document.lead)}</p>
{_blocks(document.opening)}{_contents(document.sections) if document.numbered else ""}
{_element("p", HINT, "hint") if document.zoom else ""}
</header>
{sections}
<footer>{escape(document.footer)}</footer>
</main>{f"{chr(10)}<script>{ZOOM}</script>" if document.zoom else ""}
</body>
</html>
"""


def _contents(sections: tuple[Section, ...]) -> str:
    items = (f'<li><a href="#section-{k}">{escape(part.heading)}</a></li>' for k, part in enumerate(sections, start=1))
    return f'<nav aria-label="Sections"><ol>{"".join(items)}</ol></nav>'


def _section(number: int, section: Section, numbered: bool) -> str:
    heading = f"{number}. {section.heading}" if numbered else section.heading
    return f'<section id="section-{number}">\n{_element("h2", heading)}\n{_blocks(section.blocks)}\n</section>'


def _blocks(blocks: tuple[Block, ...]) -> str:
    return "\n".join(map(_block, blocks))


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return _element("p", text)
        case Notice(text):
            return _element("p", text, "notice")
        case Subheading(text):
            return _element("h3", text)
        case Bullets(sentences):
            return f"<ul>{''.join(_element('li', sentence) for sentence in sentences)}</ul>"
        case KeyFigures(facts):
            entries = (
                f"<div>{_element('dt', fact.label)}{_element('dd', fact.value, 'timing' if fact.timing else '')}</div>"
                for fact in facts
            )
            return "\n".join(['<dl class="facts">', *entries, "</dl>"])
        case DataTable():
            return _table(block)
        case Drawing():
            svg = block.svg.replace("<svg", f'<svg role="img" aria-label="{escape(block.alt)}"', 1)
            return "\n".join(["<figure>", svg, _element("figcaption", block.caption), "</figure>"])


def _table(table: DataTable) -> str:
    region, caption = '<div class="wide">', ""
    if table.caption:
        region = f'<div class="wide" role="region" aria-label="{escape(table.caption)}" tabindex="0">'
        caption = _element("caption", table.caption)
    looks = ["cards"] if table.cards else ["many"] if len(table.columns) >= MANY_COLUMNS else []
    kind = f' class="{looks[0]}"' if looks else ""
    rows = "\n".join(_row(table, row) for row in table.rows)
    head = f"<thead>{_head(table)}</thead>"
    return f"{region}<table{kind}>\n{caption}\n{head}\n<tbody>\n{rows}\n</tbody>\n</table></div>"


def _head(table: DataTable) -> str:
    first = escape(table.first)
    names = "".join(
        f'<th scope="col" class="{kind}">{escape(column.title)}</th>'
        for column, kind in zip(table.columns, _classes(table), strict=True)
    )
    shared = [(over, len(list(group))) for over, group in groupby(column.over for column in table.columns)]
    if not any(over for over, _ in shared):
        return f'<tr><th scope="col">{first}</th>{names}</tr>'
    above = "".join(
        f'<th scope="colgroup" class="over" colspan="{count}">{escape(over)}</th>'
        if over
        else f'<td colspan="{count}"></td>'
        for over, count in shared
    )
    return f'<tr><th scope="col" rowspan="2">{first}</th>{above}</tr><tr>{names}</tr>'


def _row(table: DataTable, row: TableRow) -> str:
    title = escape(row.title)
    if not row.cells:
        return f'<tr class="group"><th scope="rowgroup" colspan="{len(table.columns) + 1}">{title}</th></tr>'
    cells = "".join(
        f'<td class="{f"{kind} {cell.tone}".strip()}"{_label(table, column)}>{_cell(cell)}</td>'
        for kind, column, cell in zip(_classes(table), table.columns, row.cells, strict=True)
    )
    return f'<tr><th scope="row">{title}</th>{cells}</tr>'


def _label(table: DataTable, column: TableColumn) -> str:
    """Return the heading of a cell, for a card that has no other."""
    return f' data-label="{escape(column.title)}"' if table.cards else ""


def _classes(table: DataTable) -> list[str]:
    """Return the class of every column; the first below another shared heading has some room before it."""
    columns = table.columns
    return [
        f"{column.kind} first" if k and column.over != columns[k - 1].over else column.kind
        for k, column in enumerate(columns)
    ]


def _cell(cell: TableCell) -> str:
    # A line may break between a number and its spread, but inside neither.
    text = escape(cell.text).replace(" ± ", " ±\xa0").replace(" / ", "\xa0/\xa0")
    shown = f"<strong>{text}</strong>" if cell.best else text
    return f"{shown} <small>{escape(cell.small)}</small>" if cell.small else shown


def _element(name: str, text: str, kind: str = "") -> str:
    """Return an element with escaped text and, optionally, a class of the style sheet."""
    return f'<{name} class="{kind}">{escape(text)}</{name}>' if kind else f"<{name}>{escape(text)}</{name}>"


def _colours(dark: bool) -> str:
    light = f"\n:root {{ color-scheme: {'light dark' if dark else 'light'}; {as_variables(LIGHT)} }}"
    if not dark:
        return light
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {as_variables(DARK)} }} }}"
