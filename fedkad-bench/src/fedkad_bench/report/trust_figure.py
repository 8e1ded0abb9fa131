"""Dots with intervals: a row for each method, a panel for each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkad.report.palette import LIGHT
from fedkad_bench.report.drawing import WIDTH, canvas, folded, group_key, look, style_of
from fedkad_bench.report.selection import OURS, PRIMARY

ACROSS = 4
"""Panels beside one another; more go below."""


def panels(figure: Any, rows: Sequence[dict[str, Any]], methods: Sequence[str]) -> dict[str, Any]:
    """Axes by dataset, methods from top to bottom, with names at the left."""
    labels = {row["dataset"]: row["label"] for row in rows}
    across = min(len(labels), ACROSS)
    down = -(-len(labels) // across)
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    titles = {row["method"]: row["title"] for row in rows}
    for axes in grid.flat[len(labels) :]:
        axes.set_visible(False)
    for axes, label in zip(grid.flat, labels.values(), strict=False):
        axes.set_title(folded(label))
        axes.set_yticks(range(len(methods)), labels=[titles[m] for m in methods])
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
    grid[0, 0].set_ylim(len(methods) - 0.4, -0.6)
    return dict(zip(labels, grid.flat, strict=False))


def in_order(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The methods, as they come."""
    return list(dict.fromkeys(row["method"] for row in rows))


def height(rows: Sequence[dict[str, Any]], each: float, rest: float) -> float:
    """Inches of a figure with so many for each method."""
    down = -(-len({row["dataset"] for row in rows}) // ACROSS)
    return down * (each * len(in_order(rows)) + rest) + 0.2


def draw_dots(rows: Sequence[dict[str, Any]]) -> Any:
    """The figure; values and intervals in points."""
    with look():
        figure = canvas(height(rows, 0.26, 0.7), WIDTH)
        methods = in_order(rows)
        axes_of = panels(figure, rows, methods)
        for row in rows:
            axes, style, main = axes_of[row["dataset"]], style_of(row["method"]), row["smoothing"] == PRIMARY
            y = methods.index(row["method"]) + (-0.14 if main else 0.2)
            axes.plot([row["low"], row["high"]], [y, y], color=style.colour, linewidth=1.6 if main else 0.8, zorder=2)
            filling = LIGHT["paper"] if style.hollow or not main else style.colour
            axes.plot(
                row["mean"],
                y,
                style.marker,
                color=style.colour,
                markerfacecolor=filling,
                markersize=5.5 if main else 3.5,
                markeredgewidth=0.9,
                zorder=3,
            )
            if main and row["method"] == OURS:
                axes.axvline(row["mean"], color=style.colour, linewidth=0.7, zorder=1)
        for axes in axes_of.values():
            axes.set_xlim(left=0.0)
            axes.grid(False, axis="y")
            axes.set_xlabel("VUS-PR, points")
        group_key(figure, list(dict.fromkeys(row["group"] for row in rows)))
        return figure
