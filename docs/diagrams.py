"""Diagrams of boxes and arrows, and badges, as SVG: no script is needed to look at them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from math import hypot
from typing import NamedTuple

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 190, 96, 150, 52, 12
"""Pixels from one place to the next, of a box, and around all of them."""
BESIDE = 9
"""Pixels between a line and the middle of two boxes that have arrows in both directions."""
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933}.note{font-size:11px;fill:#52606d}"
    ".label{font-size:11px;fill:#1f5fa8;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    "rect{fill:#f5f7f9;stroke:#9aa5b1}.paper{fill:#fff;stroke:none}path{fill:none;stroke:#52606d;stroke-width:1.4}"
)
HEAD = (
    '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0 0 8 4 0 8"/></marker></defs>'
)


class Box(NamedTuple):
    """A box with a name and a note of a few words, at a column and a row; halves are between two."""

    name: str
    column: float
    row: float
    note: str = ""


class Arrow(NamedTuple):
    """An arrow from one box to another, by their names; lines of the label are separated by newlines."""

    start: str
    end: str
    label: str = ""


class Point(NamedTuple):
    """A place in the picture."""

    x: float
    y: float


def diagram(title: str, boxes: Sequence[Box], arrows: Collection[Arrow]) -> str:
    """Draw boxes at their places, and straight arrows between them.

    >>> svg = diagram("A round", [Box("device", 0, 0), Box("server", 1, 0)], [Arrow("device", "server", "P")])
    >>> svg.count("<rect"), svg.count("marker-end")
    (3, 1)
    """
    middles = {
        box.name: Point(MARGIN + WIDTH / 2 + COLUMN * box.column, MARGIN + HEIGHT / 2 + ROW * box.row) for box in boxes
    }
    width = max(middle.x for middle in middles.values()) + WIDTH / 2 + MARGIN
    height = max(middle.y for middle in middles.values()) + HEIGHT / 2 + MARGIN
    pairs = {(arrow.start, arrow.end) for arrow in arrows}
    drawn = [_arrow(arrow, middles, beside=(arrow.end, arrow.start) in pairs) for arrow in arrows]
    lines, labels = [line for line, _ in drawn], [label for _, label in drawn]
    parts = [HEAD, '<rect class="paper" width="100%" height="100%"/>', *lines, *labels]
    parts += [_box(box, middles[box.name]) for box in boxes]
    return _svg(title, width, height, STYLE, parts)


def _box(box: Box, middle: Point) -> str:
    rows = [
        f'<text x="{middle.x:g}" y="{middle.y + (-3 if box.note else 5):g}" font-weight="600">{escape(box.name)}</text>'
    ]
    if box.note:
        rows.append(f'<text class="note" x="{middle.x:g}" y="{middle.y + 14:g}">{escape(box.note)}</text>')
    corner = f'x="{middle.x - WIDTH / 2:g}" y="{middle.y - HEIGHT / 2:g}"'
    return f'<rect {corner} width="{WIDTH}" height="{HEIGHT}" rx="6"/><g text-anchor="middle">{"".join(rows)}</g>'


def _arrow(arrow: Arrow, middles: dict[str, Point], *, beside: bool) -> tuple[str, str]:
    """The line of an arrow from edge to edge, and its label on the line."""
    start, end = middles[arrow.start], middles[arrow.end]
    length = hypot(end.x - start.x, end.y - start.y)
    along = Point((end.x - start.x) / length, (end.y - start.y) / length)
    aside = BESIDE if beside else 0  # to the right of its direction, so that the way back has the other side
    first, last = _leave(start, along, aside), _leave(end, Point(-along.x, -along.y), -aside)
    line = f'<path d="M{first.x:.1f} {first.y:.1f} {last.x:.1f} {last.y:.1f}" marker-end="url(#head)"/>'
    rows = arrow.label.split("\n")
    part = 0.35 if beside else 0.5  # so that the labels of two arrows between the same boxes are apart
    x, y = first.x + part * (last.x - first.x), first.y + part * (last.y - first.y) + 4 - 6.5 * (len(rows) - 1)
    at = f'class="label" text-anchor="middle" x="{x:.1f}"'
    spans = [f'<text {at} y="{y + 13 * k:.1f}">{escape(row)}</text>' for k, row in enumerate(rows)]
    return line, "".join(spans) if arrow.label else ""


def _leave(middle: Point, along: Point, aside: float) -> Point:
    """Where a line in this direction, moved aside, leaves the box around a middle."""
    x, y = middle.x - along.y * aside, middle.y + along.x * aside
    reach = []
    if along.x:
        reach.append(((WIDTH / 2 if along.x > 0 else -WIDTH / 2) - (x - middle.x)) / along.x)
    if along.y:
        reach.append(((HEIGHT / 2 if along.y > 0 else -HEIGHT / 2) - (y - middle.y)) / along.y)
    return Point(x + along.x * min(reach), y + along.y * min(reach))


def badge(label: str, value: str) -> str:
    """Draw a badge of two words or so, as the row at the top of a README has them."""
    left, right = 10 + 6.4 * len(label), 10 + 6.4 * len(value)
    style = "text{font:11px Verdana,DejaVu Sans,sans-serif;fill:#fff}"
    parts = [
        f'<rect width="{left:.0f}" height="20" fill="#52606d"/>',
        f'<rect x="{left:.0f}" width="{right:.0f}" height="20" fill="#1f5fa8"/>',
        f'<text x="5" y="14">{escape(label)}</text><text x="{left + 5:.0f}" y="14">{escape(value)}</text>',
    ]
    return _svg(f"{label}: {value}", left + right, 20, style, parts)


def _svg(title: str, width: float, height: float, style: str, parts: Sequence[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    body = "\n".join(part for part in parts if part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">\n'
        f"<style>{style}</style>\n{body}\n</svg>\n"
    )
