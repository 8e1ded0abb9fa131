"""The methods on a small device, beside the paper's Raspberry Pi."""

from __future__ import annotations

from pathlib import Path

from fedkad.report.document import Block, DataTable, Paragraph, Section, TableCell, TableColumn, TableRow
from fedkad_bench.report.cost_figures import draw_bubbles
from fedkad_bench.report.drawing import as_drawing
from fedkad_bench.report.numbers import anything
from fedkad_bench.report.studies import Rows, study_section
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "On a small device"


def ondevice(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "ondevice", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    text = Paragraph(
        "Filled bubbles were measured here, on the machine named below; hollow ones are the paper's, on a Raspberry Pi "
        "4, where its text gives both coordinates. The two are not the same hardware: compare the methods, not the "
        "seconds."
    )
    caption = (
        "Seconds of training a round, microseconds a test step and, as the area, kilobytes sent a round; both axes are "
        f"logarithmic. {study.title}."
    )
    alt = "Bubbles by method; the numbers are in the table below."
    return [text, as_drawing("9-ondevice", caption, alt, tidy(rows), draw_bubbles(rows)), _table(study, rows)]


def _table(study: FinishedStudy, rows: Rows) -> DataTable:
    shown = {
        "seconds_per_round": TableColumn("s a round", "Here"),
        "seconds_first_round": TableColumn("s in the first", "Here"),
        "microseconds_per_step": TableColumn("µs a step", "Here"),
        "microseconds_per_streamed_step": TableColumn("µs a streamed step", "Here"),
        "kilobytes_up": TableColumn("KB up", "Here"),
        "peak_megabytes": TableColumn("peak MB", "Here"),
        "paper_seconds_per_round": TableColumn("s a round", "The paper"),
        "paper_microseconds_per_step": TableColumn("µs a step", "The paper"),
        "paper_kilobytes_up": TableColumn("KB up", "The paper"),
    }
    lines = tuple(TableRow(row["title"], tuple(TableCell(anything(row.get(name))) for name in shown)) for row in rows)
    limits = sorted({str(row["limit_megabytes"]) for row in rows if row.get("limit_megabytes")})
    limited = f" Memory was limited to {', '.join(limits)} MB." if limits else ""
    of = ", ".join(sorted({str(row["dataset"]) for row in rows if row.get("dataset")}))
    caption = f"{study.title}{f', {of}' if of else ''}.{limited} The paper's numbers where its text has them."
    return DataTable("9-ondevice-numbers", caption, "Method", tuple(shown.values()), lines, tidy(rows))
