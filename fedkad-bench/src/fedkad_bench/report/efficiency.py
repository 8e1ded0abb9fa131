"""What training and detecting cost, beside the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedkad.report.document import Block, Bullets, DataTable, Section, TableCell, TableColumn, TableRow
from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report.cost_figures import Panel, draw_bars
from fedkad_bench.report.drawing import as_drawing
from fedkad_bench.report.numbers import DASH, anything, missing, number, ratio
from fedkad_bench.report.selection import OURS, file_name, is_neural
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "What training and detecting cost"

PANELS = (
    Panel("seconds_training", "Training", "seconds", 1.0),
    Panel("bytes_per_round", "Exchange a round", "MB", 1e-6),
    Panel("microseconds_per_step", "Detection", "µs a step", 1.0),
)


def efficiency(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "efficiency", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    rows = [{**row, "label": _longest(row), "round_bytes_ratio": _round_ratio(row, rows)} for row in rows]
    labels = distinct(rows, "label")
    caption = (
        "Seconds of a whole training, megabytes a round both ways, and microseconds a test step; every axis is "
        f"logarithmic. {'; '.join(labels)}."
    )
    alt = "Three panels of bars by method and dataset; the numbers are in the table below."
    return [
        Bullets(tuple(claim_sentences(rows))),
        as_drawing("8-efficiency", caption, alt, tidy(rows), draw_bars(rows, PANELS)),
        *(_table(label, [row for row in rows if row["label"] == label]) for label in labels),
    ]


def claim_sentences(rows: Rows) -> Iterator[str]:
    """The paper's factor, in both of its versions, and the range over networks and datasets that was measured here."""
    here = {
        "training_ratio": {"": "training_ratio"},
        "bytes_ratio": {"a round ": "round_bytes_ratio", "over a whole training ": "bytes_ratio"},
        "step_ratio": {"": "step_ratio"},
    }
    for name, claim in paper.CLAIMS.items():
        stated = f"the paper's abstract says {claim.abstract}, its text {claim.text} ({claim.numbers})"
        found = [f"{when}{told}" for when, column in here[name].items() if (told := _range(rows, column))]
        measured = f"here it is {' and '.join(found)}" if found else "no network was measured here"
        yield f"{claim.what.capitalize()} of the networks over that of FedKAD: {stated}; {measured}."


def _range(rows: Rows, column: str) -> str:
    found = [(v, r) for r in rows if is_neural(r["method"]) and not missing(v := number(r, column))]
    if not found:
        return ""
    ends = (min(found, key=lambda entry: entry[0]), max(found, key=lambda entry: entry[0]))
    low, high = (f"{ratio(value)} for {row['title']} on {row['label']}" for value, row in ends)
    return f"from {low} to {high}"


def _table(label: str, rows: Rows) -> DataTable:
    shown = [
        TableRow(
            row["title"],
            (
                TableCell(anything(row["seconds_training"])),
                TableCell(_times(row, "training_ratio")),
                TableCell(anything(row["rounds"])),
                TableCell(_mega(number(row, "bytes_per_round"))),
                TableCell(_times(row, "round_bytes_ratio")),
                TableCell(_mega(number(row, "bytes_total"))),
                TableCell(_times(row, "bytes_ratio")),
                TableCell(anything(row["microseconds_per_step"])),
                TableCell(_times(row, "step_ratio")),
                TableCell(anything(row["peak_megabytes"])),
                TableCell(anything(row["measured"])),
            ),
        )
        for row in rows
    ]
    columns = (
        TableColumn("s", "Training"),
        TableColumn("× FedKAD", "Training"),
        TableColumn("rounds", "Training"),
        TableColumn("MB a round", "Exchange"),
        TableColumn("× FedKAD", "Exchange"),
        TableColumn("MB in all", "Exchange"),
        TableColumn("× FedKAD", "Exchange"),
        TableColumn("µs a step", "Detection"),
        TableColumn("× FedKAD", "Detection"),
        TableColumn("peak MB", "Memory"),
        TableColumn("training was measured by", kind="text"),
    )
    caption = f"Cost on {label}, {rows[0]['clients']} clients; × FedKAD is the ratio to FedKAD's default."
    return DataTable(f"8-efficiency-{file_name(label)}", caption, "Method", columns, tuple(shown), tidy(rows))


def _longest(row: dict[str, Any]) -> str:
    """Of the dataset's two names the one that says what is missing."""
    return max(str(row["dataset"]), str(row.get("label") or ""), key=len)


def _round_ratio(row: dict[str, Any], rows: Rows) -> float:
    """Bytes a round over those of FedKAD on the same dataset."""
    ours = [number(r, "bytes_per_round") for r in rows if r["method"] == OURS and r["dataset"] == row["dataset"]]
    return number(row, "bytes_per_round") / ours[0] if ours and ours[0] > 0.0 else math.nan


def _times(row: dict[str, Any], column: str) -> str:
    return DASH if row["method"] == OURS else ratio(number(row, column))


def _mega(count: float) -> str:
    return DASH if missing(count) else anything(count / 1e6)
