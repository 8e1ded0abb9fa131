"""Differences with their intervals, and diagrams of critical differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkad.report.palette import LIGHT
from fedkad_bench.report.drawing import SMALL, canvas, look, style_of
from fedkad_bench.report.trust_figure import height, in_order, panels
from fedkad_bench.significance import RankComparison


def draw_differences(rows: Sequence[dict[str, Any]]) -> Any:
    """FedKAD minus each other method, a panel for each dataset and two marks for each method."""
    with look():
        figure = canvas(height(rows, 0.3, 0.7))
        methods = in_order(rows)
        axes_of = panels(figure, rows, methods)
        for row in rows:
            axes, first = axes_of[row["dataset"]], row["metric"] == "vus_pr"
            y = methods.index(row["method"]) + (-0.16 if first else 0.16)
            colour = LIGHT["ink"] if first else LIGHT["faint"]
            axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=1.5 if first else 1.0)
            filling = colour if first else LIGHT["paper"]
            axes.plot(row["difference"], y, "o" if first else "s", color=colour, markerfacecolor=filling, markersize=4)
        for axes in axes_of.values():
            axes.axvline(0.0, color=LIGHT["ink"], linewidth=0.8, zorder=1)
            axes.grid(False, axis="y")
            axes.set_xlabel("difference, points")
        return figure


def draw_ranks(found: RankComparison, titles: Mapping[str, str]) -> Any:
    """Demšar's diagram: ranks on a line, names to both sides, bars over what does not differ."""
    count = len(found.methods)
    left = (count + 1) // 2
    bars = 0.16 * len(found.cliques)
    with look():
        figure = canvas(0.9 + bars + 0.2 * left)
        axes = figure.subplots()
        axes.set(xlim=(-0.62 * count + 1, 1.62 * count), ylim=(-0.3 - bars - 0.2 * left, 0.5))
        axes.axis("off")
        axes.plot([1, count], [0, 0], color=LIGHT["ink"], linewidth=1.0)
        for rank in range(1, count + 1):
            axes.plot([rank, rank], [0, 0.07], color=LIGHT["ink"], linewidth=1.0)
            axes.text(rank, 0.1, str(rank), ha="center", va="bottom", fontsize=SMALL)
        reach = min(found.critical_difference, count - 1.0)
        axes.plot([1, 1 + reach], [0.36, 0.36], color=LIGHT["ink"], linewidth=1.5, marker="|", markersize=6)
        told = f"critical difference {found.critical_difference:.2f}"
        axes.text(1 + reach + 0.15, 0.36, told, ha="left", va="center", fontsize=SMALL)
        _draw_names(axes, found, titles, left, bars)
        place = dict(zip(found.methods, found.mean_ranks, strict=True))
        for k, clique in enumerate(found.cliques):
            y = -0.14 - 0.16 * k
            ends = [place[clique[0]] - 0.05, place[clique[-1]] + 0.05]
            axes.plot(ends, [y, y], color=LIGHT["ink"], linewidth=3.0, solid_capstyle="round")
        return figure


def _draw_names(axes: Any, found: RankComparison, titles: Mapping[str, str], left: int, bars: float) -> None:
    count = len(found.methods)
    for k, (method, rank) in enumerate(zip(found.methods, found.mean_ranks, strict=True)):
        best = k < left
        y = -0.35 - bars - 0.2 * (k if best else count - 1 - k)
        end = 0.7 if best else count + 0.3
        style = style_of(method)
        axes.plot([rank, rank, end], [0, y, y], color=LIGHT["faint"], linewidth=0.7)
        axes.plot(rank, 0, style.marker, color=style.colour, markersize=4.5, zorder=3)
        text = f"{titles[method]}  {rank:.2f}" if best else f"{rank:.2f}  {titles[method]}"
        axes.text(end + (-0.1 if best else 0.1), y, text, ha="right" if best else "left", va="center", fontsize=SMALL)
