"""A report as one HTML page that needs nothing but itself, and its tables as Markdown. All text is escaped here."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import groupby

from fedkad.report.page import LIGHT_STYLE
from fedkad_bench.report.document import Block, Cell, Document, Figure, Items, Row, Section, Table, Text
from fedkad_bench.results import markdown


def as_html(document: Document, drawings: Mapping[str, str]) -> str:
    """The page; `drawings` has the SVG markup of every figure by name."""
    numbered = list(enumerate(document.sections, start=1))
    contents = "".join(f'<li><a href="#section-{k}">{escape(section.heading)}</a></li>' for k, section in numbered)
    sections = "\n".join(_section(k, section, drawings) for k, section in numbered)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>{escape(document.title)}</title>
<style>{LIGHT_STYLE}{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(document.title)}</h1>
<p class="lead">{escape(document.lead)}</p>
<nav aria-label="Sections"><ol>{contents}</ol></nav>
</header>
{sections}
<footer>{escape(document.footer)}</footer>
</main>
</body>
</html>
"""


def _section(number: int, section: Section, drawings: Mapping[str, str]) -> str:
    blocks = "\n".join(_block(block, drawings) for block in section.blocks)
    return f'<section id="section-{number}">\n<h2>{number}. {escape(section.heading)}</h2>\n{blocks}\n</section>'


def _block(block: Block, drawings: Mapping[str, str]) -> str:
    if isinstance(block, Text):
        return f"<h3>{escape(block.text)}</h3>" if block.heading else f"<p>{escape(block.text)}</p>"
    if isinstance(block, Items):
        return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in block.sentences)}</ul>"
    if isinstance(block, Table):
        return _table(block)
    return _figure(block, drawings[block.name])


def _figure(figure: Figure, svg: str) -> str:
    labelled = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(figure.alt)}" ', 1)
    return f"<figure>\n{labelled}\n<figcaption>{escape(figure.caption)}</figcaption>\n</figure>"


def _table(table: Table) -> str:
    width = len(table.columns) + 1
    kind = "many" if width > 9 else ""
    rows = "\n".join(_row(table, row, width) for row in table.rows)
    return (
        f'<div class="wide" role="region" aria-label="{escape(table.caption)}" tabindex="0">'
        f'<table class="{kind}">\n<caption>{escape(table.caption)}</caption>\n'
        f"<thead>{_head(table)}</thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _head(table: Table) -> str:
    parts = [(over, len(list(group))) for over, group in groupby(column.over for column in table.columns)]
    kinds = _kinds(table)
    names = "".join(
        f'<th scope="col"{kind}>{escape(column.title)}</th>' for column, kind in zip(table.columns, kinds, strict=True)
    )
    if not any(over for over, _ in parts):
        return f'<tr><th scope="col">{escape(table.first)}</th>{names}</tr>'
    above = "".join(
        f'<th scope="colgroup" class="over" colspan="{count}">{escape(over)}</th>'
        if over
        else f'<td colspan="{count}"></td>'
        for over, count in parts
    )
    return f'<tr><th scope="col" rowspan="2">{escape(table.first)}</th>{above}</tr><tr>{names}</tr>'


def _row(table: Table, row: Row, width: int) -> str:
    if not row.cells:
        return f'<tr class="group"><th scope="rowgroup" colspan="{width}">{escape(row.title)}</th></tr>'
    cells = "".join(f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(_kinds(table), row.cells, strict=True))
    return f'<tr><th scope="row">{escape(row.title)}</th>{cells}</tr>'


def _kinds(table: Table) -> list[str]:
    """The class of every column: numbers to the right, and some room before those with another heading above."""
    kinds, last = [], table.columns[0].over if table.columns else ""
    for column in table.columns:
        names = ["number"] * (not column.wide) + ["first"] * (column.over != last)
        kinds.append(f' class="{" ".join(names)}"' if names else "")
        last = column.over
    return kinds


def _cell(cell: Cell) -> str:
    # A number and its spread may part at the end of a line, but not inside of either.
    text = (
        escape(cell.text).replace(" ± ", " ±\N{NO-BREAK SPACE}").replace(" / ", "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}")
    )
    shown = f"<strong>{text}</strong>" if cell.best else text
    return f"{shown} <small>{escape(cell.small)}</small>" if cell.small else shown


def as_markdown(table: Table) -> str:
    """The same table in Markdown, the best of a column in bold."""
    header = [_safe(table.first), *(_safe(", ".join(filter(None, (c.over, c.title)))) for c in table.columns)]
    rows = [
        [_safe(row.title), *map(_marked, row.cells)]
        if row.cells
        else [f"*{_safe(row.title)}*", *[""] * len(table.columns)]
        for row in table.rows
    ]
    return f"{_safe(table.caption)}\n\n{markdown(header, rows)}"


def _marked(cell: Cell) -> str:
    text = f"**{_safe(cell.text)}**" if cell.best else _safe(cell.text)
    return f"{text} ({_safe(cell.small)})" if cell.small else text


def _safe(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


STYLE = """
nav ol { columns: 2; font-size: .9rem; padding-left: 1.4rem; }
a { color: var(--score); }
ul { padding-left: 1.2rem; max-width: 46rem; }
li { margin: .25rem 0; }
caption { caption-side: top; text-align: left; font-size: .85rem; color: var(--ink); padding: .9rem 0 .3rem;
  max-width: 52rem; }
th, td { padding: .25rem .6rem .25rem 0; }
td:nth-child(-n+3) { white-space: normal; }
th[scope="row"] { font-weight: 400; color: var(--ink); border-bottom: 1px solid var(--grid); }
th.number, th.over { text-align: right; vertical-align: bottom; }
th.over { border-bottom: 1px solid var(--line); }
td.number { overflow-wrap: normal; }
td:not(.number) { overflow-wrap: anywhere; }
tr.group th { padding-top: .6rem; border-bottom: 1px solid var(--line); }
strong { font-weight: 700; }
.first { padding-left: 1rem; }
small { color: var(--faint); font-size: .82em; }
table.many { font-size: .78rem; } table.many th, table.many td { padding-right: .4rem; }
figure svg { max-width: 60rem; }
@media print {
  @page { size: A4; margin: 14mm; }
  html { font-size: 12px; } body { font-size: 12px; }
  p, ul, caption, figcaption { max-width: none; }
  .wide { break-inside: avoid; }
  nav { display: none; }
  a { color: inherit; text-decoration: none; }
  .wide { overflow: visible; }
  table.many { font-size: .75rem; }
  thead { display: table-header-group; }
  caption, tr.group { break-after: avoid; }
  section { break-before: auto; }
  p, li { orphans: 3; widows: 3; }
}
"""
