"""One HTML page that needs nothing but itself: no script, no link, no font, no picture of another file.

All text is escaped here and nowhere else; only the drawings come as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from fedkad.atomicfile import write_atomically
from fedkad.report.palette import DARK, LIGHT, as_variables

Tone = Literal["", "good", "bad", "quiet"]


@dataclass(frozen=True)
class Fact:
    """A number of the summary; `timing` marks those that differ from run to run."""

    label: str
    value: str
    timing: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table; the tone colours its last cell."""

    cells: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True)
class Grid:
    """A table; `numbers` are the columns to align to the right."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A drawing as SVG markup, with the words that stand below it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading with text, a table and pictures below it; `inner` belongs to the section before it."""

    heading: str
    text: str = ""
    grid: Grid | None = None
    pictures: tuple[Picture, ...] = ()
    inner: bool = False


@dataclass(frozen=True)
class Page:
    """A page: what it is, what must be known before reading on, the summary, the sections."""

    title: str
    lead: str
    notice: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    footer: str


def write_page(path: Path, page: Page) -> None:
    """Write the page, so that the file is either the old one or the whole new one."""
    write_atomically(path, render_page(page).encode())


def render_page(page: Page) -> str:
    """The page as HTML.

    >>> page = Page("<Pumps>", "", "simulated", (), (), "")
    >>> "<title>&lt;Pumps&gt;</title>" in render_page(page)
    True
    """
    sections = "\n".join(map(_section, page.sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(page.title)}</h1>
<p class="lead">{escape(page.lead)}</p>
<p class="notice">{escape(page.notice)}</p>
<dl class="facts">
{_facts(page.facts)}
</dl>
</header>
{sections}
<footer>{escape(page.footer)}</footer>
</main>
</body>
</html>
"""


def _facts(facts: Sequence[Fact]) -> str:
    return "\n".join(
        f"<div><dt>{escape(fact.label)}</dt>{_element('dd', fact.value, 'timing' if fact.timing else '')}</div>"
        for fact in facts
    )


def _section(section: Section) -> str:
    parts = ["<section>", _element("h3" if section.inner else "h2", section.heading)]
    if section.text:
        parts.append(_element("p", section.text))
    if section.grid is not None:
        parts.append(_table(section.grid))
    for picture in section.pictures:
        parts += ["<figure>", picture.svg, _element("figcaption", picture.caption), "</figure>"]
    return "\n".join([*parts, "</section>"])


def _table(grid: Grid) -> str:
    head = "".join(_element("th", name, _aligned(grid, k)) for k, name in enumerate(grid.header))
    rows = [f"<thead><tr>{head}</tr></thead>", "<tbody>", *(_row(grid, row) for row in grid.rows), "</tbody>"]
    return "\n".join(['<div class="wide"><table>', *rows, "</table></div>"])


def _row(grid: Grid, row: Row) -> str:
    kinds = [_aligned(grid, k) for k in range(len(row.cells))]
    kinds[-1] = row.tone or kinds[-1]
    return f"<tr>{''.join(_element('td', cell, kind) for cell, kind in zip(row.cells, kinds, strict=True))}</tr>"


def _aligned(grid: Grid, column: int) -> str:
    return "number" if column in grid.numbers else ""


def _element(name: str, text: str, kind: str = "") -> str:
    """An element with escaped text, of a class of the style sheet if it has one."""
    return f'<{name} class="{kind}">{escape(text)}</{name}>' if kind else f"<{name}>{escape(text)}</{name}>"


RULES = """
@media print {
  :root { color-scheme: light; }
  main { max-width: none !important; padding: 0 !important; }
  figure, tr, .facts div { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 2rem 0 .25rem; }
p { margin: .5rem 0; max-width: 46rem; }
.lead { color: var(--faint); }
.notice { border-left: .25rem solid var(--fault); background: var(--tint); padding: .5rem .9rem; }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.5rem 0 0; }
.facts div { flex: 1 1 8rem; border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; }
.facts dt { color: var(--faint); font-size: .8rem; }
.facts dd { margin: .1rem 0 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; margin-top: .75rem;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--faint); font-weight: 600; border-bottom: 2px solid var(--line); }
th, td { padding: .35rem .75rem .35rem 0; vertical-align: top; }
td { border-bottom: 1px solid var(--grid); }
td:nth-child(-n+3) { white-space: nowrap; }
.number { text-align: right; }
.good { color: var(--good); } .bad { color: var(--alarm); } .quiet { color: var(--faint); }
figure { margin: 1rem 0 0; }
figure svg { width: 100%; height: auto; display: block; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { color: var(--faint); font-size: .85rem; max-width: 46rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .75rem; color: var(--faint);
  font-size: .85rem; }
"""

STYLE = f"""
:root {{ color-scheme: light dark; {as_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {as_variables(DARK)} }} }}
{RULES}"""

LIGHT_STYLE = f"""
:root {{ color-scheme: light; {as_variables(LIGHT)} }}
{RULES}"""
"""For a page that is on paper in the first place, and whose drawings have colours of their own."""
