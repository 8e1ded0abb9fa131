"""What training and detecting cost, beside the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report.cost_figures import Panel, draw_bars
from fedkad_bench.report.document import Block, Cell, Column, Figure, Items, Row, Section, Table, tidy
from fedkad_bench.report.numbers import DASH, anything, missing, number, ratio
from fedkad_bench.report.selection import OURS, file_name, is_neural
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.studies.study import Table as Study

HEADING = "What training and detecting cost"

PANELS = (
    Panel("seconds_training", "Training", "seconds", 1.0),
    Panel("bytes_per_round", "Exchange a round", "MB", 1e-6),
    Panel("microseconds_per_step", "Detection", "µs a step", 1.0),
)


def efficiency(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "efficiency", HEADING, _blocks)


def _blocks(study: Study, rows: Rows) -> list[Block]:
    rows = [{**row, "label": _longest(row), "round_bytes_ratio": _round_ratio(row, rows)} for row in rows]
    labels = distinct(rows, "label")
    caption = (
        "Seconds of a whole training, megabytes a round both ways, and microseconds a test step; every axis is "
        f"logarithmic. {'; '.join(labels)}."
    )
    alt = "Three panels of bars by method and dataset; the numbers are in the table below."
    return [
        Items(tuple(claim_sentences(rows))),
        Figure("8-efficiency", caption, alt, tidy(rows), lambda: draw_bars(rows, PANELS)),
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


def _table(label: str, rows: Rows) -> Table:
    shown = [
        Row(
            row["title"],
            (
                Cell(anything(row["seconds_training"])),
                Cell(_times(row, "training_ratio")),
                Cell(anything(row["rounds"])),
                Cell(_mega(number(row, "bytes_per_round"))),
                Cell(_times(row, "round_bytes_ratio")),
                Cell(_mega(number(row, "bytes_total"))),
                Cell(_times(row, "bytes_ratio")),
                Cell(anything(row["microseconds_per_step"])),
                Cell(_times(row, "step_ratio")),
                Cell(anything(row["peak_megabytes"])),
                Cell(anything(row["measured"])),
            ),
        )
        for row in rows
    ]
    columns = (
        Column("s", "Training"),
        Column("× FedKAD", "Training"),
        Column("rounds", "Training"),
        Column("MB a round", "Exchange"),
        Column("× FedKAD", "Exchange"),
        Column("MB in all", "Exchange"),
        Column("× FedKAD", "Exchange"),
        Column("µs a step", "Detection"),
        Column("× FedKAD", "Detection"),
        Column("peak MB", "Memory"),
        Column("training was measured by", wide=True),
    )
    caption = f"Cost on {label}, {rows[0]['clients']} clients; × FedKAD is the ratio to FedKAD's default."
    return Table(f"8-efficiency-{file_name(label)}", caption, "Method", columns, tuple(shown), tidy(rows))


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
