"""What travels until the shared subspace is as good as one found with all data in one place."""

from __future__ import annotations

from pathlib import Path

from fedkad_bench.report.cost_figures import Panel, draw_bars
from fedkad_bench.report.document import Block, Cell, Column, Figure, Row, Section, Table, tidy
from fedkad_bench.report.numbers import DASH, anything, missing, number, plain, ratio
from fedkad_bench.report.selection import file_name
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.studies.study import Table as Study

HEADING = "Bytes to the optimum"
PANEL = Panel("bytes", "Exchanged in a whole training, the final model not counted", "MB", 1e-6)


def exchange(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "exchange", HEADING, _blocks)


def _blocks(study: Study, rows: Rows) -> list[Block]:
    worst = [row for row in rows if row["seed"] is None]
    labels = distinct(worst, "dataset")
    caption = f"Megabytes both ways, logarithmic; of our methods the worst seed. {'; '.join(labels)}."
    alt = "Bars by method and dataset; the numbers are in the tables below."
    named = [{**row, "title": str(row["title"]).partition(", worst")[0]} for row in worst]
    figure = Figure("11-exchange", caption, alt, tidy(worst), lambda: draw_bars(named, (PANEL,), "dataset"))
    return [figure, *(_table(label, [row for row in rows if row["dataset"] == label]) for label in labels)]


def _table(label: str, rows: Rows) -> Table:
    shown = [
        Row(
            row["title"],
            (
                Cell(anything(row["rounds"])),
                Cell(f"{row['numbers']:,}"),
                Cell(_mega(number(row, "bytes"))),
                Cell(_mega(number(row, "delivery_bytes"))),
                Cell(plain(number(row, "to_optimum"), 4)),
                Cell(ratio(number(row, "times_near"))),
                Cell(ratio(number(row, "times_near_delivered"))),
            ),
        )
        for row in rows
        if row["seed"] is None
    ]
    columns = (
        Column("rounds"),
        Column("numbers a message"),
        Column("MB"),
        Column("MB to deliver the model"),
        Column("loss over the optimum's"),
        Column("× the first row"),
        Column("the same, delivered"),
    )
    caption = (
        f"Bytes exchanged on {label}; of our methods the worst seed. Ratios are to FedKAD until it is near the optimum."
    )
    return Table(f"11-exchange-{file_name(label)}", caption, "Method", columns, tuple(shown), tidy(rows))


def _mega(count: float) -> str:
    return DASH if missing(count) else anything(count / 1e6)
