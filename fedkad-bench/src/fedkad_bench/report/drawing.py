"""The look of the figures: printed at their own size, on white, and told apart without colour.

A method has a marker of its own and the colour of its group; the four colours differ in lightness, too. Everything of
matplotlib is imported inside the functions.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedkad.report.document import Columns, Drawing
from fedkad.report.palette import LIGHT
from fedkad_bench.methods.registry import GROUPS, METHODS

WIDTH = 7.1
"""Inches: the text of an A4 page, so that letters are printed in their own size."""

GROUP_COLOURS = {"fedkad": "#0f4c81", "neural": "#b5541c", "classical": "#6fa287", "naive": "#a3abb4"}
MARKERS = {
    "fedkad": "osD^vP",
    "neural": "X<>ph",
    "classical": "d*H8",
    "naive": "o^sDv",
}
FILLS = (("#0f4c81", ""), ("#7ba6cc", "////"), ("#d5e0ea", "...."), ("#ffffff", "xxxx"), ("#5b6670", "\\\\\\\\"))
"""Colours with hatches for datasets, from dark to light."""

LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

SMALL = 8.0
"""Points: nothing is smaller."""


class Style(NamedTuple):
    """How a method is drawn; `hollow` is without a filling."""

    marker: str
    colour: str
    hollow: bool


def style_of(method: str) -> Style:
    """Marker and colour of a method."""
    group = METHODS[method].group if method in METHODS else "naive"
    own = [name for name, entry in METHODS.items() if entry.group == group]
    place = own.index(method) if method in own else len(own)
    markers = MARKERS[group]
    return Style(markers[place % len(markers)], GROUP_COLOURS[group], group == "naive")


@contextmanager
def look() -> Iterator[None]:
    """Settings of matplotlib while a figure is made."""
    import matplotlib

    from fedkad.report.pictures import LOOK

    own = {
        "axes.edgecolor": LIGHT["faint"],
        "axes.labelcolor": LIGHT["ink"],
        "axes.labelsize": 9,
        "axes.titlesize": 9,
        "figure.facecolor": LIGHT["paper"],
        "font.size": SMALL,
        "hatch.linewidth": 0.6,
        "legend.fontsize": SMALL,
        "xtick.color": LIGHT["faint"],
        "xtick.labelcolor": LIGHT["ink"],
        "xtick.labelsize": SMALL,
        "ytick.color": LIGHT["faint"],
        "ytick.labelcolor": LIGHT["ink"],
        "ytick.labelsize": SMALL,
    }
    with matplotlib.rc_context({**LOOK, **own}):
        yield


def canvas(height: float, width: float = WIDTH) -> Any:
    """An empty figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def standalone(svg: str) -> str:
    """Markup of a drawing as a file of its own."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    begin = f'<svg {spaces} style="stroke-linejoin: round; stroke-linecap: butt" '
    return '<?xml version="1.0" encoding="utf-8"?>\n' + svg.replace("<svg ", begin, 1) + "\n"


def as_drawing(name: str, caption: str, alt: str, data: Columns, figure: Any) -> Drawing:
    """A figure of matplotlib as a block of the page."""
    from fedkad.report.pictures import bare_svg

    return Drawing(name, caption, bare_svg(figure, f"benchmark-{name}"), alt, data)


def folded(label: str, width: int = 18) -> str:
    r"""A label on several lines, the part in parentheses on its own.

    >>> folded("SMD (24 of 28 machines)")
    'SMD\n(24 of 28 machines)'
    """
    name, bracket, rest = label.partition(" (")
    lines = textwrap.wrap(name, width) + (textwrap.wrap(f"({rest}", width + 4) if bracket else [])
    return "\n".join(lines)


def plain_ticks(axis: Any) -> None:
    """Numbers of a logarithmic axis as people write them, and none between the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(numticks=7))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def group_key(figure: Any, groups: list[str]) -> None:
    """What the colours mean, below the figure."""
    from matplotlib.patches import Patch

    inverse = {heading: name for name, heading in GROUPS.items()}
    handles = [Patch(facecolor=GROUP_COLOURS[inverse.get(g, "naive")], label=g) for g in groups]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1.0, handleheight=0.8)
