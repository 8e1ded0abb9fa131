"""Line charts over time as SVG: sharp, as wide as their place, with letters that keep their size on a phone.

A chart is a column of panels over one axis of time. A panel's plot is stretched to the width of the page; its lines
keep their width, and labels stand beside it at positions in per cent. No library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.report.palette import LIGHT
from fedkad.timesteps import Times, gap_starts

Array = NDArray[np.float64]

WIDE, HIGH = 10_000, 1000
"""Units of a plot, from left to right and from bottom to top."""

MOST_COLUMNS = 1200
"""Columns of a line: of a longer recording each shows the least and the greatest of several rows."""

NEAR = 0.002
"""Spans that are less of the width than this apart look like one."""

PLOT, HEAD, FOOT = 110, 22, 22
"""Pixels of a plot, of the line above it and of the axis at the bottom."""

MOST_TICKS = 5
"""Labels of an axis that fit on a phone."""

LOG_TICKS = tuple(digit * 10.0**power for power in range(-6, 13) for digit in (1.0, 3.0))

MINUTE, HOUR, DAY = 60, 3600, 86_400
TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE * k for k in (1, 2, 5, 10, 15, 30)),
    *(HOUR * k for k in (1, 2, 3, 6, 12)),
    *(DAY * k for k in (1, 2, 7, 14, 28, 91, 182, 365)),
)
"""Seconds between two labels of an axis of time."""


class Curve(NamedTuple):
    """A line: its values, NaN where it breaks, its name and its colour."""

    name: str
    values: Array
    role: str
    dashed: bool = False


class Span(NamedTuple):
    """Rows `start`, …, `end` − 1 to shade, what happened there if it is to be written, and the colour."""

    start: int
    end: int
    label: str = ""
    role: str = "fault"


@dataclass(frozen=True)
class Panel:
    """A plot: its title, its lines, the range that is normal, and whether its axis is logarithmic."""

    title: str
    curves: tuple[Curve, ...]
    band: tuple[float, float] | None = None
    logarithmic: bool = False


def line_chart(panels: Sequence[Panel], times: Times, spans: Sequence[Span] = ()) -> str:
    """Draw the panels below one another, with an axis of time; times may be plain numbers, such as those of rows."""
    axis = TimeAxis.of(times)
    spans = joined(spans, axis.at)
    body, top = [], 0
    keys = [_key(panel) for panel in panels]
    for k, panel in enumerate(panels):
        key = keys[k] if k == 0 or keys[k] != keys[k - 1] else ""  # what stands above need not be said again
        body.append(_panel(panel, key, axis, spans, top, labelled=k == 0))
        top += HEAD + PLOT
    ticks = "".join(_tick(axis, position, text, top) for position, text in axis.ticks())
    first, last = axis.ends()
    zoom = f'data-clock="{axis.is_dated:d}" data-first="{first!r}" data-last="{last!r}"'
    return f'<svg class="chart" {zoom} style="height:{top + FOOT}px">{"".join(body)}{ticks}</svg>'


def joined(spans: Sequence[Span], at: Array) -> list[Span]:
    """Join spans of one colour that look like one, since there may be thousands; their order stays.

    >>> joined([Span(0, 3), Span(4, 6), Span(90, 95)], np.linspace(0.0, 0.1, 101))
    [Span(start=0, end=6, label='', role='fault'), Span(start=90, end=95, label='', role='fault')]
    """
    kept: list[Span] = []
    for span in spans:
        last = kept[-1] if kept else span
        is_near = abs(at[span.start] - at[last.end]) < NEAR and span.start >= last.start
        if kept and is_near and (span.label, span.role) == (last.label, last.role):
            kept[-1] = last._replace(end=max(last.end, span.end))
        else:
            kept.append(span)
    return kept


def standalone(svg: str, width: int) -> str:
    """Return a chart as a file of its own, of that width, on white, with the colours that a page gives it."""
    for role, colour in LIGHT.items():
        svg = svg.replace(f"var(--{role})", colour)
    height = svg.partition("height:")[2].partition("px")[0]
    letters = "text{font:12px system-ui,sans-serif}path{vector-effect:non-scaling-stroke;fill:none}"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
    paper = f'<style>{letters}</style><rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
    return opening + paper + svg.partition(">")[2] + "\n"


# -- along the axis of time ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TimeAxis:
    """Where rows stand, from 0 to 1, and what is written below them."""

    times: Times
    at: Array  # the beginning of each row, and the end of the last one

    @classmethod
    def of(cls, times: Times) -> TimeAxis:
        """Return the axis of rows with these times."""
        since = (times - times[0]).astype(np.float64)
        step = float(np.median(np.diff(since))) if len(times) > 1 else 1.0
        ends = np.append(since, since[-1] + step)
        return cls(times, ends / ends[-1])

    def breaks(self) -> NDArray[np.intp]:
        """Return rows that a line must not be drawn to from the one before."""
        return gap_starts(self.times)

    @property
    def is_dated(self) -> bool:
        """Tell whether positions are dates and times, not numbers."""
        return self.times.dtype.kind == "M"

    def ends(self) -> tuple[float, float]:
        """Return the beginning of the first row and the end of the last: seconds since 1970, or numbers."""
        unit = np.timedelta64(1, "s") if self.is_dated else 1.0
        epoch = np.datetime64(0, "s") if self.is_dated else 0.0
        first = float((self.times[0] - epoch) / unit)
        span = float((self.times[-1] - self.times[0]) / unit)
        return first, first + (span / float(self.at[-2]) if span else 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Return labels and their positions."""
        first, last = self.ends()
        if not self.is_dated:
            labels = {value: f"{value:g}" for value in linear_ticks(first, last, MOST_TICKS)}
        else:
            step = next((step for step in TIME_STEPS if (last - first) / step <= MOST_TICKS), TIME_STEPS[-1])
            labels = {
                k * step: time_label(k * step, step) for k in range(math.ceil(first / step), int(last // step) + 1)
            }
        return [((value - first) / (last - first), text) for value, text in labels.items()]


def time_label(moment: int, step: int) -> str:
    """Return a time, in seconds since 1970, as an axis writes it whose labels are `step` seconds apart.

    >>> time_label(1_700_000_100, 60), time_label(1_699_920_000, 3600), time_label(1_700_000_100, 5)
    ('22:15', '14 Nov', '22:15:00')
    """
    time = np.datetime64(moment, "s").item()
    if step >= 28 * DAY:
        return f"{time:%b %Y}"
    if step >= DAY or moment % DAY == 0:
        return f"{time.day} {time:%b}"
    return f"{time:%H:%M:%S}" if step < MINUTE else f"{time:%H:%M}"


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most so many round numbers from low to high.

    >>> linear_ticks(0.3, 10.2, 4)
    [5.0, 10.0]
    """
    if not high > low:
        return [low]
    unit = 10.0 ** np.floor(np.log10((high - low) / most))
    steps = (unit * k for k in (1.0, 2.0, 5.0, 10.0, 20.0))
    step = next(step for step in steps if np.floor(high / step) - np.ceil(low / step) < most)
    return [float(f"{k * step:.12g}") for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


# -- one panel -------------------------------------------------------------------------------------------------


def _panel(panel: Panel, key: str, axis: TimeAxis, spans: Sequence[Span], top: int, *, labelled: bool) -> str:
    scale = ValueScale.of(panel)
    shades = "".join(_shade(axis, span) for span in spans)
    band = ""
    if panel.band is not None:
        upper, lower = scale.heights(np.array(panel.band[::-1]))
        band = _box(0, WIDE, upper, lower, "good", 0.14)
    levels = [(float(scale.heights(np.array([value]))[0]), f"{value:.4g}") for value in scale.ticks()]
    grid = "".join(_path(f"M0 {height:.0f}H{WIDE}", "grid") for height, _ in levels)
    lines = "".join(
        _path(_points(axis, scale.heights(curve.values)), curve.role, curve.dashed) for curve in panel.curves
    )
    plot = (
        f'<svg class="plot" y="{top + HEAD}" width="100%" height="{PLOT}" viewBox="0 0 {WIDE} {HIGH}" '
        f'preserveAspectRatio="none">{shades}{band}{grid}{lines}</svg>'
    )
    labels = "".join(
        f'<text x="2" y="{top + HEAD + height / HIGH * PLOT - 2:.0f}" class="level" style="fill:var(--faint)">'
        f"{escape(text)}</text>"
        for height, text in levels
        if height > 12.0 / PLOT * HIGH
    )
    marks = "".join(_mark(axis, span, top + HEAD + 12) for span in spans if span.label) if labelled else ""
    title = f'<tspan style="font-weight:600">{escape(shortened(panel.title))}</tspan>'
    head = f'<text y="{top + 15}" style="fill:var(--ink)"><title>{escape(panel.title)}</title>{title}{key}</text>'
    return head + plot + labels + marks


def _key(panel: Panel) -> str:
    """Name the lines and the band."""
    names = [(curve.name, curve.role, "╌ " if curve.dashed else "— ") for curve in panel.curves]
    if panel.band is not None:
        names.append(("normal", "good", "▒ "))
    return "".join(
        f'<tspan dx="10" style="fill:var(--{role})">{sign}{escape(name)}</tspan>' for name, role, sign in names
    )


def shortened(name: str, most: int = 20) -> str:
    """Return a name cut to the room above a plot.

    >>> shortened("flow"), shortened("temperature of the outer bearing")
    ('flow', 'temperature of the …')
    """
    return name if len(name) <= most else name[: most - 1] + "…"


@dataclass(frozen=True)
class ValueScale:
    """From values to heights in a plot, which are counted from the top."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, panel: Panel) -> ValueScale:
        """Return the scale with room for all lines, and for the normal range as far as it does not press them flat."""
        drawn = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in panel.curves])
        low, high = (float(drawn.min()), float(drawn.max())) if len(drawn) else (0.0, 1.0)
        if panel.logarithmic:
            high = max(high, 1e-6)
            low = max(low, high / 1e4, 1e-6)
            return cls(low / 1.3, high * 1.3, True)
        if panel.band is not None:
            reach = 2.0 * (high - low) + 1e-12
            low, high = min(low, max(panel.band[0], low - reach)), max(high, min(panel.band[1], high + reach))
        room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - room, high + room, False)

    def heights(self, values: Array) -> Array:
        """Return the heights of values; NaN stays NaN, and what lies outside is drawn at the edge."""
        shown: Array = np.clip(values, self.low, self.high)
        if self.logarithmic:
            return np.asarray(HIGH * (1.0 - np.log(shown / self.low) / np.log(self.high / self.low)))
        return np.asarray(HIGH * (1.0 - (shown - self.low) / (self.high - self.low)))

    def ticks(self) -> list[float]:
        """Return round numbers along the axis."""
        if not self.logarithmic:
            return linear_ticks(self.low, self.high, 4)
        inside = [tick for tick in LOG_TICKS if self.low <= tick <= self.high]
        return inside if len(inside) <= 4 else inside[:: -(-len(inside) // 4)]


def _points(axis: TimeAxis, heights: Array) -> str:
    """Draw the path of a line; it breaks at NaN and at gaps in time."""
    across = WIDE * axis.at[:-1]
    width = -(-len(heights) // MOST_COLUMNS)
    if width > 2:
        across, heights, breaks = thinned(across, heights, axis.breaks(), width)
    else:
        breaks = axis.breaks()
    is_drawn = np.isfinite(heights)
    begins = is_drawn & ~np.append(False, is_drawn[:-1])
    breaks = breaks[breaks < len(begins)]
    begins[breaks] |= is_drawn[breaks]
    parts = []
    for x, y, drawn, begin in zip(across.tolist(), heights.tolist(), is_drawn.tolist(), begins.tolist(), strict=True):
        if drawn:
            parts.append(f"M{x:.0f} {y:.0f}h0" if begin else f"L{x:.0f} {y:.0f}")
    return "".join(parts)


def thinned(
    across: Array, heights: Array, breaks: NDArray[np.intp], width: int
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Return two points for every `width` rows, the least and the greatest of them; and where lines break.

    >>> thinned(np.arange(6.0), np.array([1.0, 5.0, 2.0, np.nan, 3.0, np.nan]), np.array([4]), 3)[:2]
    (array([0., 0., 3., 3.]), array([1., 5., 3., 3.]))
    """
    blocks = -(-len(heights) // width)
    padded = np.full(blocks * width, np.nan)
    padded[: len(heights)] = heights
    square = padded.reshape(blocks, width)
    pairs = np.stack([np.fmin.reduce(square, axis=1), np.fmax.reduce(square, axis=1)], axis=1).ravel()
    return np.repeat(across[::width], 2), pairs, np.unique(breaks // width * 2)


def _path(points: str, role: str, dashed: bool = False) -> str:
    dash = ";stroke-dasharray:4 3" if dashed else ""
    return f'<path d="{points}" style="stroke:var(--{role}){dash}"/>' if points else ""


def _shade(axis: TimeAxis, span: Span) -> str:
    left, right = WIDE * axis.at[span.start], WIDE * axis.at[min(span.end, len(axis.at) - 1)]
    return _box(left, max(right - left, WIDE / 400), 0, HIGH, span.role, 0.22)


def _box(x: float, width: float, upper: float, lower: float, role: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.0f}" y="{upper:.0f}" width="{width:.0f}" height="{max(lower - upper, 6):.0f}" '
        f'style="fill:var(--{role});opacity:{opacity}"/>'
    )


def _mark(axis: TimeAxis, span: Span, y: int) -> str:
    middle = (axis.at[span.start] + axis.at[min(span.end, len(axis.at) - 1)]) / 2.0
    where = f'x="{_per_cent(middle)}" y="{y}" {_anchor(middle)}'
    return f'<text class="mark" {where} style="fill:var(--ink)">{escape(span.label)}</text>'


def _tick(axis: TimeAxis, position: float, text: str, top: int) -> str:
    where = f'x="{_per_cent(position)}" y="{top + 15}" {_anchor(position)}'
    return f'<text class="tick" {where} style="fill:var(--faint)">{escape(text)}</text>'


def _per_cent(position: float) -> str:
    return f"{100.0 * position:.2f}%"


def _anchor(position: float) -> str:
    """Anchor a label so that it stays inside at the edges."""
    side = "start" if position < 0.03 else "end" if position > 0.97 else "middle"
    return f'text-anchor="{side}"'
