"""One choice changed at a time around the default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedkad.report.document import Block, DataTable, Paragraph, Section, TableCell, TableColumn, TableRow
from fedkad.report.palette import LIGHT
from fedkad_bench.report.drawing import GROUP_COLOURS, as_drawing, canvas, look
from fedkad_bench.report.numbers import anything, missing, number, spread
from fedkad_bench.report.selection import file_name
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.report.trust_figure import height, in_order, panels
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "What each choice is worth"


def ablation(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "ablations", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    means = list(mean_rows(rows))
    text = Paragraph("VUS-PR in points, one setting changed at a time. Nothing was chosen by these numbers.")
    labels = distinct(rows, "dataset")
    over = "untouched" if any(row["clients"] == "untouched" and not missing(row["mean"]) for row in means) else "all"
    drawn = [r for r in means if r["clients"] == over and r["smoothing"] == "causal" and not missing(r["mean"])]
    caption = (
        f"VUS-PR of the mean of the last five scores, {over} entities, mean over seeds with a bar to the least and the "
        f"most. Filled: the default; the line is its value where it comes first. {'; '.join(labels)}."
    )
    alt = "Dots by setting, a panel for each dataset; the numbers are in the tables below."
    blocks: list[Block] = [text]
    if drawn:
        blocks.append(as_drawing("12-ablations", caption, alt, tidy(drawn), draw_levels(drawn)))
    return [*blocks, *(_table(label, [row for row in means if row["dataset"] == label]) for label in labels)]


def mean_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Mean over seeds, in points, of every level of every factor."""
    by: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        by.setdefault(tuple(row[c] for c in ("dataset", "factor", "level", "clients", "smoothing")), []).append(row)
    for (label, factor, level, clients, smoothing), own in by.items():
        values = [100.0 * v for row in own if not missing(v := number(row, "vus_pr"))]
        yield {
            "dataset": label,
            "label": label,
            "factor": factor,
            "level": level,
            "method": f"{factor}: {level}",
            "title": f"{factor}: {level}",
            "default": own[0]["default"],
            "clients": clients,
            "smoothing": smoothing,
            "mean": fmean(values) if values else float("nan"),
            "std": stdev(values) if len(values) > 1 else float("nan"),
            "least": min(values, default=float("nan")),
            "most": max(values, default=float("nan")),
            "seeds": len(values),
            "bytes": fmean([number(row, "bytes") for row in own]),
        }


def _table(label: str, rows: Rows) -> DataTable:
    kinds = [(clients, smoothing) for clients in distinct(rows, "clients") for smoothing in distinct(rows, "smoothing")]
    shown: list[TableRow] = []
    for factor in distinct(rows, "factor"):
        shown.append(TableRow(factor))
        own = [row for row in rows if row["factor"] == factor]
        for level in distinct(own, "level"):
            here = {(r["clients"], r["smoothing"]): r for r in own if r["level"] == level}
            first = next(iter(here.values()))
            cells = [TableCell(spread(here[k]["mean"], here[k]["std"])) if k in here else TableCell("–") for k in kinds]
            title = f"{level}, the default" if first["default"] else str(level)
            shown.append(TableRow(title, (*cells, TableCell(anything(first["bytes"] / 1e6)))))
    columns = (
        *(TableColumn(smoothing, f"{clients} entities") for clients, smoothing in kinds),
        TableColumn("MB exchanged"),
    )
    caption = f"VUS-PR on {label} in points, mean over seeds, ± where there are several."
    return DataTable(f"12-ablations-{file_name(label)}", caption, "Setting", columns, tuple(shown), tidy(rows))


def draw_levels(rows: Rows) -> Any:
    """A dot for each level; the default's value as a line through all."""
    with look():
        figure = canvas(height(rows, 0.2, 0.7))
        levels = in_order(rows)
        axes_of = panels(figure, rows, levels)
        for row in rows:
            axes, y = axes_of[row["dataset"]], levels.index(row["method"])
            colour = GROUP_COLOURS["fedkad"]
            axes.plot([row["least"], row["most"]], [y, y], color=colour, linewidth=1.2)
            filling = colour if row["default"] else LIGHT["paper"]
            axes.plot(row["mean"], y, "o", color=colour, markerfacecolor=filling, markersize=4.5)
        for label, axes in axes_of.items():
            default = next((row["mean"] for row in rows if row["dataset"] == label and row["default"]), None)
            if default is not None:
                axes.axvline(default, color=GROUP_COLOURS["fedkad"], linewidth=0.6, zorder=1)
            axes.grid(False, axis="y")
            axes.set_xlabel("VUS-PR, points")
        return figure
