"""A document as one self-contained HTML page: no script, no link, no font, no other file.

All text is escaped here and nowhere else; only drawings come as markup.
"""

from __future__ import annotations

from html import escape
from itertools import groupby
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.report.document import (
    Block,
    Bullets,
    DataTable,
    Document,
    Drawing,
    KeyFigures,
    Notice,
    Paragraph,
    Section,
    Subheading,
    TableCell,
    TableRow,
)
from fedkad.report.palette import DARK, LIGHT, as_variables

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")

MANY_COLUMNS = 9
"""A table with more columns has smaller letters."""


def write_page(path: Path, document: Document) -> None:
    """Write the page atomically: the file is either the old one or the whole new one."""
    write_atomically(path, render_page(document).encode())


def render_page(document: Document) -> str:
    """The page as HTML.

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
{_contents(document) if document.numbered else _blocks(document.opening)}
</header>
{sections}
<footer>{escape(document.footer)}</footer>
</main>
</body>
</html>
"""


def _contents(document: Document) -> str:
    items = "".join(
        f'<li><a href="#section-{k}">{escape(section.heading)}</a></li>'
        for k, section in enumerate(document.sections, start=1)
    )
    return f'{_blocks(document.opening)}<nav aria-label="Sections"><ol>{items}</ol></nav>'


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
        case KeyFigures():
            return _key_figures(block)
        case DataTable():
            return _table(block)
        case Drawing():
            return _drawing(block)


def _key_figures(block: KeyFigures) -> str:
    entries = (
        f"<div>{_element('dt', fact.label)}{_element('dd', fact.value, 'timing' if fact.timing else '')}</div>"
        for fact in block.facts
    )
    return "\n".join(['<dl class="facts">', *entries, "</dl>"])


def _drawing(block: Drawing) -> str:
    svg = block.svg.replace("<svg", f'<svg role="img" aria-label="{escape(block.alt)}"', 1)
    return "\n".join(["<figure>", svg, _element("figcaption", block.caption), "</figure>"])


def _table(table: DataTable) -> str:
    region, caption = '<div class="wide">', ""
    if table.caption:
        region = f'<div class="wide" role="region" aria-label="{escape(table.caption)}" tabindex="0">'
        caption = _element("caption", table.caption)
    kind = ' class="many"' if len(table.columns) >= MANY_COLUMNS else ""
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
        f'<td class="{kind} {cell.tone}">{_cell(cell)}</td>' if cell.tone else f'<td class="{kind}">{_cell(cell)}</td>'
        for kind, cell in zip(_classes(table), row.cells, strict=True)
    )
    return f'<tr><th scope="row">{title}</th>{cells}</tr>'


def _classes(table: DataTable) -> list[str]:
    """The class of every column; the first below another shared heading has some room before it."""
    before = [table.columns[0].over, *(column.over for column in table.columns)] if table.columns else []
    return [
        f"{column.kind} first" if column.over != last else column.kind
        for column, last in zip(table.columns, before, strict=False)
    ]


def _cell(cell: TableCell) -> str:
    # A line may break between a number and its spread, but inside neither.
    text = (
        escape(cell.text).replace(" ± ", " ±\N{NO-BREAK SPACE}").replace(" / ", "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}")
    )
    shown = f"<strong>{text}</strong>" if cell.best else text
    return f"{shown} <small>{escape(cell.small)}</small>" if cell.small else shown


def _element(name: str, text: str, kind: str = "") -> str:
    """An element with escaped text and, optionally, a class of the style sheet."""
    return f'<{name} class="{kind}">{escape(text)}</{name}>' if kind else f"<{name}>{escape(text)}</{name}>"


def _colours(dark: bool) -> str:
    light = f"\n:root {{ color-scheme: {'light dark' if dark else 'light'}; {as_variables(LIGHT)} }}"
    if not dark:
        return light
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {as_variables(DARK)} }} }}"
