"""How the consensus comes about for several ρ, beside the paper's end points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkad.report.document import Block, DataTable, Paragraph, Section, TableCell, TableColumn, TableRow
from fedkad.report.palette import LIGHT
from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report.drawing import LINES, as_drawing, canvas, look, plain_ticks
from fedkad_bench.report.numbers import DASH, anything, missing, number
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "Convergence"

PANELS = {
    "residual": ("consensus_residual", "A  Consensus residual", "mean of ‖P − Z‖", False),
    "lagrangian": ("lagrangian_per_entry", "B  Augmented Lagrangian", "f per entry", True),
    "objective": ("objective_per_entry", "C  Local objective Σ f", "f per entry", True),
}
"""By the paper's name: the column of the study, the title, the unit, and whether it is a sum over the clients."""

SHADES = ("#9fb7cd", "#6d93b8", "#3b70a2", "#0f4c81", "#b5541c")


def convergence(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "convergence", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    clients = _clients(study)
    own = [row for row in rows if row["series"] != "paper"]
    scale = clients / paper.CONVERGENCE_CLIENTS if clients else 1.0
    scaled = (
        f" Its sums are scaled from {paper.CONVERGENCE_CLIENTS} to {clients} machines."
        if clients not in (0, paper.CONVERGENCE_CLIENTS)
        else ""
    )
    label = ", ".join(distinct(own, "dataset"))
    caption = (
        f"Residual, Lagrangian and objective by round on {label}. Crosses: the paper's text at ρ = 1, before the first "
        f"and after {paper.CONVERGENCE_ROUNDS} rounds; a bar where it gives a range.{scaled}"
    )
    ends = ", ".join(f"{s}: {_ends(own, s, 'consensus_residual')}" for s in distinct(own, "series"))
    alt = f"Three panels of curves by round. Consensus residual, first to last round: {ends}."
    text = Paragraph(
        "The paper shows that the residual falls at ρ = 1 and stagnates below; here are the same three curves."
    )
    return [
        text,
        as_drawing("10-convergence", caption, alt, tidy(rows), draw_curves(own, scale)),
        _table(label, own, scale),
    ]


def _clients(study: FinishedStudy) -> int:
    known = list(study.settings.get("datasets", {}).values())
    return int(known[0].get("clients", 0)) if known else 0


def _table(label: str, rows: Rows, scale: float) -> DataTable:
    columns = tuple(TableColumn(title.partition("  ")[2]) for _, title, _, _ in PANELS.values())
    shown = [
        TableRow(series, tuple(TableCell(_ends(rows, series, column)) for column, *_ in PANELS.values()))
        for series in distinct(rows, "series")
    ]
    shown.append(
        TableRow(
            "the paper's text, ρ = 1",
            tuple(TableCell(_stated(name, scale if p[3] else 1.0)) for name, p in PANELS.items()),
        )
    )
    caption = f"From before the first round to after the last, on {label}; the paper's sums scaled to as many machines."
    data = [{"scale_of_the_papers_sums": scale, **row} for row in _first_and_last(rows)]
    return DataTable("10-convergence-ends", caption, "Series", columns, tuple(shown), tidy(data))


def _first_and_last(rows: Rows) -> Rows:
    own = [[row for row in rows if row["series"] == series] for series in distinct(rows, "series")]
    return [row for series in own for row in (series[0], series[-1])]


def _ends(rows: Rows, series: str, column: str) -> str:
    own = [number(row, column) for row in rows if row["series"] == series]
    return f"{anything(own[0])} → {anything(own[-1])}" if own else DASH


def _stated(name: str, scale: float) -> str:
    known = paper.CONVERGENCE[name]
    low, high = (scale * end for end in known.last)
    last = anything(low) if low == high else f"{anything(low)} to {anything(high)}"
    return f"{anything(scale * known.first)} → {last}"


def draw_curves(rows: Rows, scale: float) -> Any:
    """Three panels; the paper's end points are crosses and a bar."""
    with look():
        figure = canvas(3.0)
        series = distinct(rows, "series")
        grid = figure.subplots(1, 3)
        for axes, (name, (column, title, unit, summed)) in zip(grid, PANELS.items(), strict=True):
            for k, each in enumerate(series):
                own = [row for row in rows if row["series"] == each]
                axes.plot(
                    [row["round"] for row in own],
                    [number(row, column) for row in own],
                    color=SHADES[k % len(SHADES)],
                    linestyle=LINES[(len(series) - 1 - k) % len(LINES)],
                    linewidth=1.4,
                    label=each,
                )
            _mark(axes, paper.CONVERGENCE[name], scale if summed else 1.0)
            if name == "lagrangian" and all(not missing(number(r, column)) and number(r, column) > 0 for r in rows):
                axes.set_yscale("log")
                plain_ticks(axes.yaxis)
            axes.set(title=title, xlabel="round", ylabel=unit)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, handlelength=3.0)
        return figure


def _mark(axes: Any, stated: paper.EndPoints, scale: float) -> None:
    low, high = (scale * end for end in stated.last)
    rounds = paper.CONVERGENCE_ROUNDS
    axes.plot([0], [scale * stated.first], "x", color=LIGHT["ink"], markersize=6, label="the paper's text, ρ = 1")
    axes.plot([rounds, rounds], [low, high], "x-", color=LIGHT["ink"], markersize=6, linewidth=1.2)
