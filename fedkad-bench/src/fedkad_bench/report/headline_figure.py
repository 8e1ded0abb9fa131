"""A matrix of methods and datasets: one hue from light to dark, and the numbers in the cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedkad.report.palette import LIGHT
from fedkad_bench.report.drawing import SMALL, canvas, folded, look
from fedkad_bench.report.numbers import plain

PALE, DEEP = "#f3f6f9", "#0f4c81"
WHITE_ABOVE = 68.0
"""Points from which the cell is so dark that its letters are white."""


def draw_matrix(rows: Sequence[dict[str, Any]]) -> Any:
    """The figure; every value is a row with `f1`, and with `random_f1` where there is one."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    hue = LinearSegmentedColormap.from_list("f1", [PALE, DEEP])
    with look():
        labels = {row["dataset"]: row["label"] for row in rows}
        titles = {row["method"]: row["title"] for row in rows}
        datasets, methods = list(labels), list(titles)
        figure = canvas(0.36 * len(methods) + 0.7)
        axes = figure.subplots()
        for row in rows:
            x, y = datasets.index(row["dataset"]), methods.index(row["method"])
            value = row["f1"]
            shade = LIGHT["paper"] if math.isnan(value) else hue(min(max(value, 0.0), 100.0) / 100.0)
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=shade, edgecolor=LIGHT["paper"], linewidth=1.5))
            _write(axes, row, x, y)
        _divide(axes, rows, methods, len(datasets))
        axes.set(xlim=(0, len(datasets)), ylim=(len(methods), 0))
        axes.set_xticks([k + 0.5 for k in range(len(datasets))], labels=[folded(label) for label in labels.values()])
        axes.set_yticks([k + 0.5 for k in range(len(methods))], labels=list(titles.values()))
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.grid(False)
        for side in axes.spines.values():
            side.set_visible(False)
        return figure


def _write(axes: Any, row: dict[str, Any], x: int, y: int) -> None:
    colour = LIGHT["paper"] if row["f1"] > WHITE_ABOVE else LIGHT["ink"]
    chance = row.get("random_f1")
    beside = chance is not None and not math.isnan(chance)
    middle = y + (0.3 if beside else 0.5)
    axes.text(x + 0.5, middle, plain(row["f1"]), ha="center", va="center", fontsize=9.5, color=colour)
    if beside:
        told = f"random {plain(chance)}"
        axes.text(x + 0.5, y + 0.74, told, ha="center", va="center", fontsize=SMALL, color=colour)


def _divide(axes: Any, rows: Sequence[dict[str, Any]], methods: list[str], width: int) -> None:
    """A line between groups."""
    groups = {row["method"]: row["group"] for row in rows}
    for k in range(1, len(methods)):
        if groups[methods[k]] != groups[methods[k - 1]]:
            axes.plot([0, width], [k, k], color=LIGHT["ink"], linewidth=0.8, clip_on=False)
