"""What travels until the shared subspace is as good as one found with all data in one place."""

from __future__ import annotations

from pathlib import Path

from fedkad.report.document import Block, DataTable, Section, TableCell, TableColumn, TableRow
from fedkad_bench.report.cost_figures import Panel, draw_bars
from fedkad_bench.report.drawing import as_drawing
from fedkad_bench.report.numbers import DASH, anything, missing, number, plain, ratio
from fedkad_bench.report.selection import file_name
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "Bytes to the optimum"
PANEL = Panel("bytes", "Exchanged in a whole training, the final model not counted", "MB", 1e-6)


def exchange(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "exchange", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    worst = [row for row in rows if row["seed"] is None]
    labels = distinct(worst, "dataset")
    caption = f"Megabytes both ways, logarithmic; of our methods the worst seed. {'; '.join(labels)}."
    alt = "Bars by method and dataset; the numbers are in the tables below."
    named = [{**row, "title": str(row["title"]).partition(", worst")[0]} for row in worst]
    figure = as_drawing("11-exchange", caption, alt, tidy(worst), draw_bars(named, (PANEL,), "dataset"))
    return [figure, *(_table(label, [row for row in rows if row["dataset"] == label]) for label in labels)]


def _table(label: str, rows: Rows) -> DataTable:
    shown = [
        TableRow(
            row["title"],
            (
                TableCell(anything(row["rounds"])),
                TableCell(f"{row['numbers']:,}"),
                TableCell(_mega(number(row, "bytes"))),
                TableCell(_mega(number(row, "delivery_bytes"))),
                TableCell(plain(number(row, "to_optimum"), 4)),
                TableCell(ratio(number(row, "times_near"))),
                TableCell(ratio(number(row, "times_near_delivered"))),
            ),
        )
        for row in rows
        if row["seed"] is None
    ]
    columns = (
        TableColumn("rounds"),
        TableColumn("numbers a message"),
        TableColumn("MB"),
        TableColumn("MB to deliver the model"),
        TableColumn("loss over the optimum's"),
        TableColumn("× the first row"),
        TableColumn("the same, delivered"),
    )
    caption = (
        f"Bytes exchanged on {label}; of our methods the worst seed. Ratios are to FedKAD until it is near the optimum."
    )
    return DataTable(f"11-exchange-{file_name(label)}", caption, "Method", columns, tuple(shown), tidy(rows))


def _mega(count: float) -> str:
    return DASH if missing(count) else anything(count / 1e6)
