"""Bars on logarithmic axes, and bubbles: what methods cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedkad.report.palette import LIGHT
from fedkad_bench.report.drawing import FILLS, SMALL, canvas, look, plain_ticks, style_of
from fedkad_bench.report.numbers import missing, number
from fedkad_bench.report.studies import Rows, distinct


class Panel(NamedTuple):
    """One panel of bars: a column, its title, its unit, and what the column is multiplied with."""

    column: str
    title: str
    unit: str
    factor: float


def draw_bars(rows: Rows, panels: Sequence[Panel], label: str = "label") -> Any:
    """A group of bars for each method, one for each dataset, told apart by lightness and hatch."""
    titles = {row["method"]: row["title"] for row in rows}
    datasets = distinct(rows, label)
    with look():
        figure = canvas(0.55 + (0.14 * len(datasets) + 0.14) * len(titles) + 0.35)
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, rows, panel, list(titles), datasets, label)
            axes.set(title=panel.title, xlabel=panel.unit)
        grid[0].set_yticks(range(len(titles)), labels=list(titles.values()))
        grid[0].set_ylim(len(titles) - 0.4, -0.6)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2 if len(datasets) > 3 else len(datasets))
        return figure


def _draw_panel(axes: Any, rows: Rows, panel: Panel, methods: list[str], datasets: list[str], label: str) -> None:
    each = 0.8 / len(datasets)
    known = [panel.factor * number(row, panel.column) for row in rows]
    positive = [value for value in known if value > 0.0]
    axes.set_xscale("log")
    if positive:
        floor = 10.0 ** math.floor(math.log10(min(positive)) - 0.3)
        axes.set_xlim(floor, max(positive) * 2.0)
    for k, dataset in enumerate(datasets):
        colour, hatch = FILLS[k % len(FILLS)]
        own = [row for row in rows if row[label] == dataset]
        axes.barh(
            [methods.index(row["method"]) + (k - (len(datasets) - 1) / 2.0) * each for row in own],
            [panel.factor * number(row, panel.column) for row in own],
            height=each,
            color=colour,
            hatch=hatch,
            edgecolor=LIGHT["ink"],
            linewidth=0.5,
            label=dataset,
        )
    plain_ticks(axes.xaxis)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.tick_params(axis="y", length=0)


LARGEST = 34.0
"""Points across the largest bubble."""


def draw_bubbles(rows: Rows) -> Any:
    """Seconds a round against microseconds a step, the area as the message; the paper's points are hollow."""
    sizes = [number(row, f"{of}kilobytes_up") for row in rows for of in ("", "paper_")]
    most = max((size for size in sizes if not missing(size)), default=1.0)
    with look():
        figure = canvas(4.3)
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="seconds of training a round", ylabel="µs a step")
        for row in rows:
            _draw_point(axes, row, "", most)
            _draw_point(axes, row, "paper_", most)
        axes.margins(0.16)
        plain_ticks(axes.xaxis)
        plain_ticks(axes.yaxis)
        axes.grid(True, axis="both")
        return figure


def _draw_point(axes: Any, row: dict[str, Any], of: str, most: float) -> None:
    x, y = number(row, f"{of}seconds_per_round"), number(row, f"{of}microseconds_per_step")
    if missing(x) or missing(y):
        return
    size, colour = number(row, f"{of}kilobytes_up"), style_of(row["method"]).colour
    across = 5.0 if missing(size) else max(LARGEST * math.sqrt(size / most), 5.0)
    filling = "none" if of else colour
    axes.plot(
        x,
        y,
        "o",
        markersize=across,
        markerfacecolor=filling,
        markeredgecolor=colour if of else LIGHT["ink"],
        alpha=1.0 if of else 0.75,
        markeredgewidth=1.0,
        linestyle="none",
    )
    told = f"{row['title']}, paper" if of else row["title"]
    kilobytes = "" if missing(size) else f"\n{size:,.0f} KB"
    axes.annotate(
        f"{told}{kilobytes}",
        (x, y),
        xytext=(across / 2.0 + 2.0, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=LIGHT["ink"],
        style="italic" if of else "normal",
    )
