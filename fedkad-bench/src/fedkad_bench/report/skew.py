"""How unlike the clients are: three skews of every client, with the paper's ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkad.report.document import Block, DataTable, Paragraph, Section, TableCell, TableColumn, TableRow
from fedkad.report.palette import LIGHT
from fedkad_bench.report.drawing import GROUP_COLOURS, as_drawing, canvas, folded, look, plain_ticks
from fedkad_bench.report.numbers import DASH, anything, missing, number
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "How unlike the clients are"

KINDS = {
    "feature": ("Feature skew", "spread of channel means"),
    "label": ("Label skew", "anomalous test rows, %"),
    "quantity": ("Quantity skew", "training rows"),
}


def skew(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "heterogeneity", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    text = Paragraph(
        "Each point is a client. The bracket beside the points is the range that the paper's text states; of quantity "
        "it states the longest over the shortest training series, which stands below the names, ours first."
    )
    labels = distinct(rows, "dataset")
    caption = f"Feature, label and quantity skew of every client: {'; '.join(labels)}. Brackets: the paper's ranges."
    alt = "Three panels of points by dataset; the ranges are in the table below."
    return [text, as_drawing("7-heterogeneity", caption, alt, tidy(rows), draw_skews(rows)), _table(rows)]


def _table(rows: Rows) -> DataTable:
    ranges = [row for row in rows if row["client"] is None]
    shown = []
    for label in distinct(ranges, "dataset"):
        cells: list[TableCell] = []
        for kind in KINDS:
            found = next((r for r in ranges if r["dataset"] == label and r["kind"] == kind), {})
            cells += [TableCell(_range(found, "low", "high")), TableCell(_range(found, "paper_low", "paper_high"))]
        shown.append(TableRow(label, tuple(cells)))
    columns = tuple(TableColumn(t, f"{title} ({unit})") for title, unit in _units() for t in ("here", "the paper"))
    caption = f"Ranges over the clients of {', '.join(distinct(ranges, 'dataset'))}, and those of the paper's text."
    return DataTable("7-heterogeneity-ranges", caption, "Dataset", columns, tuple(shown), tidy(ranges))


def _units() -> list[tuple[str, str]]:
    return [("Feature", "spread"), ("Label", "%"), ("Quantity", "longest over shortest")]


def _range(row: dict[str, Any], low: str, high: str) -> str:
    ends = number(row, low), number(row, high)
    if missing(ends[0]):
        return DASH
    return anything(ends[0]) if ends[0] == ends[1] else f"{anything(ends[0])} to {anything(ends[1])}"


def draw_skews(rows: Rows) -> Any:
    """Points by dataset in three panels."""
    with look():
        figure = canvas(3.1)
        labels = distinct(rows, "dataset")
        for axes, (kind, (title, unit)) in zip(figure.subplots(1, 3), KINDS.items(), strict=True):
            axes.set(title=title, ylabel=unit, xlim=(-0.5, len(labels) - 0.5))
            axes.set_xticks(range(len(labels)), labels=[_tick(rows, label, kind) for label in labels])
            if kind == "quantity":
                axes.set_xlabel("longest over shortest:\nhere, then the paper")
            if kind != "label":
                axes.set_yscale("log")
                plain_ticks(axes.yaxis)
            for place, label in enumerate(labels):
                own = [row for row in rows if row["dataset"] == label and row["kind"] == kind]
                _draw_column(axes, place, own, bracket=kind != "quantity")
        return figure


def _tick(rows: Rows, label: str, kind: str) -> str:
    """The dataset, and of the quantity both ratios below it."""
    name = label.partition(" (")[0]
    found = next((r for r in rows if r["dataset"] == label and r["kind"] == kind and r["client"] is None), None)
    if kind != "quantity" or found is None:
        return folded(name)
    ratios = (number(found, "low"), number(found, "paper_low"))
    return "\n".join([folded(name), *(DASH if missing(ratio) else f"{ratio:.3g}×" for ratio in ratios)])


def _draw_column(axes: Any, place: int, rows: Rows, *, bracket: bool) -> None:
    values = sorted(number(row, "value") for row in rows if row["client"] is not None)
    # Neighbours in size stand beside one another, so that equal values do not hide.
    at = [place - 0.12 + 0.09 * (k % 3 - 1) for k in range(len(values))]
    axes.plot(at, values, "o", color=GROUP_COLOURS["fedkad"], markersize=3, markerfacecolor="none", markeredgewidth=0.7)
    stated = next((row for row in rows if row["client"] is None), {})
    low, high = number(stated, "paper_low"), number(stated, "paper_high")
    if bracket and not missing(low):
        axes.plot([place + 0.27] * 2, [low, high], "_-", color=LIGHT["ink"], linewidth=1.2, markersize=7)
