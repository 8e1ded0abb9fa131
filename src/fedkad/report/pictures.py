"""Pictures: scores against their threshold, their causes, and how a fleet came to agree.

They use matplotlib's figures directly, without pyplot and its global state.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from fedkad.detect.events import Findings
from fedkad.federation.history import Round
from fedkad.report.palette import LIGHT

Array = NDArray[np.float64]

MOST_COLUMNS = 900
"""Columns of a heat map; in a longer recording several entries share a column, which shows the largest."""

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


class Span(NamedTuple):
    """Entries `start`, …, `end` − 1 of a recording to shade, and what happened there."""

    start: int
    end: int
    label: str


def device_figure(
    findings: Findings, times: NDArray[np.datetime64] | None = None, spans: Sequence[Span] = ()
) -> Figure:
    """Scores above, causes below, on one axis of time (UTC), or of rows where there are no times."""
    with matplotlib.rc_context(LOOK):
        figure = _figure(9.4, 2.6 + 0.22 * len(findings.channels))
        rows = figure.add_gridspec(
            2, 2, width_ratios=(60, 1), height_ratios=(2.2, 0.22 * len(findings.channels)), wspace=0.03
        )
        above = figure.add_subplot(rows[0, 0])
        below = figure.add_subplot(rows[1, 0], sharex=above)
        at = np.arange(len(findings.scores), dtype=np.float64) if times is None else np.asarray(date2num(times))
        draw_scores(above, findings, at, spans)
        draw_causes(below, figure.add_subplot(rows[1, 1]), findings, at)
        above.tick_params(labelbottom=False)
        below.set_xlabel("row" if times is None else "time (UTC)")
        if times is not None:
            locator = AutoDateLocator(minticks=4, maxticks=9)
            below.xaxis.set_major_locator(locator)
            below.xaxis.set_major_formatter(ConciseDateFormatter(locator))
            below.xaxis.get_offset_text().set_color(LIGHT["faint"])
        return figure


def draw_scores(axes: Any, findings: Findings, at: Array, spans: Sequence[Span] = ()) -> None:
    """Scores on a logarithmic axis with the threshold, the alarms as dots, and shaded spans."""
    step = float(at[1] - at[0]) if len(at) > 1 else 1.0
    for k, span in enumerate(spans):
        label = "injected fault" if k == 0 else None
        begin, end = at[span.start], at[span.end - 1] + step
        axes.axvspan(begin, end, color=LIGHT["fault"], alpha=0.25, linewidth=0, label=label)
        axes.annotate(
            span.label,
            xy=((begin + end) / 2.0, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -3),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=8,
            color=LIGHT["ink"],
        )
    axes.plot(at, findings.scores, color=LIGHT["score"], linewidth=1.0, label="score")
    axes.plot(at, findings.thresholds, color=LIGHT["alarm"], linewidth=1.0, linestyle="--", label="threshold")
    flagged = np.flatnonzero(findings.alarms)
    axes.plot(at[flagged], findings.scores[flagged], ".", color=LIGHT["alarm"], markersize=4, label="alarm")
    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.15)  # room for the labels on top
    axes.set_xlim(at[0], at[-1] + step)
    axes.set_ylabel("score")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.2, handlelength=1.6)


def draw_causes(axes: Any, bar: Any, findings: Findings, at: Array) -> None:
    """A heat map, channel by time, of each channel's part of the score in units of the threshold."""
    limit = np.where(findings.thresholds > 0.0, findings.thresholds, 1.0)
    parts, width = largest_of_columns((findings.shares / limit[:, None]).T, MOST_COLUMNS)
    step = float(at[1] - at[0]) if len(at) > 1 else 1.0
    image = axes.imshow(
        np.ma.masked_invalid(parts),
        aspect="auto",
        interpolation="none",
        extent=(at[0], at[0] + step * width * parts.shape[1], len(parts) - 0.5, -0.5),
        cmap=LinearSegmentedColormap.from_list("cause", [to_rgba(LIGHT["alarm"], alpha) for alpha in (0.0, 1.0)]),
        vmin=0.0,
        vmax=1.0,
    )
    axes.set_yticks(range(len(findings.channels)), labels=list(map(shortened, findings.channels)))
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    axes.set_xlim(at[0], at[-1] + step)
    legend = axes.figure.colorbar(image, cax=bar, extend="max")
    legend.outline.set_edgecolor(LIGHT["line"])
    legend.set_ticks([0.0, 0.5, 1.0])
    legend.set_label("part of the score\n÷ threshold")


def convergence_figure(history: Sequence[Round]) -> Figure:
    """Objective and augmented Lagrangian, and the consensus residual, after each round; warm rounds are shaded."""
    with matplotlib.rc_context(LOOK):
        figure = _figure(9.4, 2.9)
        left, right = figure.subplots(1, 2)
        rounds = np.arange(1, len(history) + 1)
        _draw_rounds(left, rounds, [r.objective for r in history], "score", "objective")
        _draw_rounds(left, rounds, [r.lagrangian for r in history], "second", "augmented Lagrangian", dashed=True)
        _draw_rounds(right, rounds, [r.consensus_residual for r in history], "score", "consensus residual")
        left.set(title="Objective, summed over the devices", ylabel="objective")
        right.set(title="Consensus residual, mean over the devices", ylabel="‖P − Z‖")
        warm = sum(record.phase == "warm" for record in history)
        for axes in (left, right):
            if warm:
                axes.axvspan(0.5, warm + 0.5, color=LIGHT["fault"], alpha=0.2, linewidth=0, label="warm rounds")
            axes.set(xlabel="round", xlim=(0.5, len(history) + 0.5))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.legend(loc="best")
        return figure


def as_svg(figure: Figure, name: str) -> str:
    """The figure as deterministic SVG for an HTML page, in the colours of the page.

    The `name`, unique on its page, keeps the identifiers of several drawings apart.
    """
    svg = bare_svg(figure, name).replace("'DejaVu Sans'", "inherit")
    for role, colour in LIGHT.items():
        svg = svg.replace(colour, f"var(--{role})")
    return svg


def bare_svg(figure: Figure, name: str) -> str:
    """The figure as SVG with nothing but the drawing: no date, version or vocabulary addresses."""
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


def largest_of_columns(values: Array, most: int) -> tuple[Array, int]:
    """Reduce to at most `most` columns, each the largest known value of its neighbours; also return how many these are.

    >>> largest_of_columns(np.array([[1.0, 5.0, np.nan, 2.0, np.nan]]), 3)
    (array([[ 5.,  2., nan]]), 2)
    """
    width = max(-(-values.shape[1] // most), 1)
    blocks = -(-values.shape[1] // width)
    padded = np.full((len(values), blocks * width), np.nan)
    padded[:, : values.shape[1]] = values
    return np.asarray(np.fmax.reduce(padded.reshape(len(values), blocks, width), axis=2)), width


def shortened(name: str, most: int = 24) -> str:
    """A channel's name, cut to the room on an axis.

    >>> shortened("flow"), shortened("temperature of the outer bearing")
    ('flow', 'temperature of the oute…')
    """
    return name if len(name) <= most else name[: most - 1] + "…"


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_rounds(axes: Any, rounds: Any, values: list[float], role: str, label: str, *, dashed: bool = False) -> None:
    style = "--" if dashed else "-"
    axes.plot(rounds, values, color=LIGHT[role], linestyle=style, linewidth=1.4, marker="o", markersize=4, label=label)
