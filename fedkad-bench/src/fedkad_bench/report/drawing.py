"""The look of the figures: printed at their own size, on white, and readable without colour.

Each method has its own marker and the colour of its group; the four colours also differ in lightness. matplotlib is
imported inside the functions.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedkad.report.document import Columns, Drawing
from fedkad.report.palette import LIGHT
from fedkad_bench.methods.registry import GROUPS, METHODS

WIDTH = 7.1
"""Inches: the text width of an A4 page, so that letters are printed at their own size."""

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

LOOK: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["line"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": LIGHT["faint"],
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": LIGHT["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": LIGHT["ink"],
    "svg.fonttype": "none",
    "text.parse_math": False,  # a channel may be called $x
    "xtick.color": LIGHT["line"],
    "xtick.labelcolor": LIGHT["faint"],
    "xtick.labelsize": 9,
    "ytick.color": LIGHT["line"],
    "ytick.labelcolor": LIGHT["faint"],
    "ytick.labelsize": 9,
}
"""Settings of matplotlib that all figures share."""

SMALL = 8.0
"""Points: nothing is smaller."""


class Style(NamedTuple):
    """How a method is drawn; `hollow` markers are not filled."""

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
    """An empty figure, sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def standalone(svg: str) -> str:
    """The markup of a drawing as a standalone file."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    begin = f'<svg {spaces} style="stroke-linejoin: round; stroke-linecap: butt" '
    return '<?xml version="1.0" encoding="utf-8"?>\n' + svg.replace("<svg ", begin, 1) + "\n"


def as_drawing(name: str, caption: str, alt: str, data: Columns, figure: Any) -> Drawing:
    """A figure of matplotlib as a block of the page."""
    return Drawing(name, caption, bare_svg(figure, f"benchmark-{name}"), alt, data)


def bare_svg(figure: Any, name: str) -> str:
    """The figure as SVG with nothing but the drawing: no date, version or vocabulary addresses."""
    import matplotlib

    with matplotlib.rc_context({**LOOK, "svg.hashsalt": name}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # The style would apply to the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return svg.replace("\n", " ")


def folded(label: str, width: int = 18) -> str:
    r"""A label on several lines, the part in parentheses on its own.

    >>> folded("SMD (24 of 28 machines)")
    'SMD\n(24 of 28 machines)'
    """
    name, bracket, rest = label.partition(" (")
    lines = textwrap.wrap(name, width) + (textwrap.wrap(f"({rest}", width + 4) if bracket else [])
    return "\n".join(lines)


def plain_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis, and none between the powers of ten."""
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
