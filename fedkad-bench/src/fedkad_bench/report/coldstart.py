"""A new device with few samples: alone, federated from the start, or admitted afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from fedkad.report.document import Block, DataTable, Section, TableCell, TableColumn, TableRow
from fedkad_bench.report.drawing import LINES, as_drawing, canvas, folded, look
from fedkad_bench.report.numbers import missing, number, plain
from fedkad_bench.report.selection import file_name
from fedkad_bench.report.studies import Rows, distinct, study_section
from fedkad_bench.results import tidy
from fedkad_bench.studies.study import FinishedStudy

HEADING = "A new device with few samples"

MEASURES = {"vus_pr": "VUS-PR", "normal_flagged": "normal rows flagged, %", "events_found": "events found, %"}
LOOKS = {"alone": ("#a3abb4", "s"), "federated": ("#b5541c", "^"), "admitted": ("#0f4c81", "o")}


def coldstart(folder: Path) -> Section:
    """The section, from the study."""
    return study_section(folder, "coldstart", HEADING, _blocks)


def _blocks(study: FinishedStudy, rows: Rows) -> list[Block]:
    means = list(mean_rows(rows))
    labels = distinct(rows, "dataset")
    few = [row for row in means if not row["all_rows"]]
    caption = (
        "Mean over devices and beginnings by the number of training samples: VUS-PR in points, normal test rows "
        "flagged and events found at the device's own threshold. A device that was refused has no part in it. "
        f"{'; '.join(labels)}."
    )
    alt = "Curves by number of samples for three ways; the numbers are in the tables below."
    figure = as_drawing("13-coldstart", caption, alt, tidy(means), draw_ways(few))
    return [figure, *(_table(label, [row for row in means if row["dataset"] == label]) for label in labels)]


def mean_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Means over devices and beginnings, in points; all rows of a device count as one length."""
    by: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        length = 0 if row["all_rows"] else row["samples"]
        by.setdefault((row["dataset"], row["all_rows"], length, row["way"]), []).append(row)
    for (label, all_rows, samples, way), own in by.items():
        found = {"dataset": label, "all_rows": all_rows, "samples": samples or None, "way": way}
        counts = {"fitted": sum(row["status"] == "fitted" for row in own), "tried": len(own)}
        yield {**found, **counts, **{measure: _mean(own, measure) for measure in MEASURES}}


def _mean(rows: Rows, measure: str) -> float:
    values = [100.0 * v for row in rows if not missing(v := number(row, measure))]
    return fmean(values) if values else float("nan")


def _table(label: str, rows: Rows) -> DataTable:
    shown: list[TableRow] = []
    for samples in dict.fromkeys((row["all_rows"], row["samples"]) for row in rows):
        shown.append(TableRow("All training rows" if samples[0] else f"{samples[1]} samples"))
        for row in rows:
            if (row["all_rows"], row["samples"]) == samples:
                numbers = (TableCell(plain(row[measure])) for measure in MEASURES)
                shown.append(TableRow(row["way"], (*numbers, TableCell(f"{row['fitted']} of {row['tried']}"))))
    columns = (*(TableColumn(title) for title in MEASURES.values()), TableColumn("fitted"))
    caption = f"A newcomer among {label}, mean over devices and beginnings; shares in percent."
    return DataTable(f"13-coldstart-{file_name(label)}", caption, "Way", columns, tuple(shown), tidy(rows))


def draw_ways(rows: Rows) -> Any:
    """A row of panels for each dataset."""
    with look():
        labels = distinct(rows, "dataset")
        figure = canvas(2.1 * len(labels) + 0.4)
        grid = figure.subplots(len(labels), len(MEASURES), squeeze=False)
        for line, label in zip(grid, labels, strict=True):
            own = [row for row in rows if row["dataset"] == label]
            for axes, (measure, title) in zip(line, MEASURES.items(), strict=True):
                _draw_measure(axes, own, measure)
                axes.set(title=f"{folded(label, 30)}\n{title}", xlabel="training samples")
                axes.set_ylim(0.0, 1.08 * max(axes.get_ylim()[1], 1e-9))
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, handlelength=3.0)
        return figure


def _draw_measure(axes: Any, rows: Rows, measure: str) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    lengths = sorted({row["samples"] for row in rows})
    axes.set_xscale("log")
    for k, way in enumerate(distinct(rows, "way")):
        colour, marker = LOOKS.get(way, ("#1f2933", "d"))
        own = sorted((row for row in rows if row["way"] == way), key=lambda row: row["samples"])
        axes.plot(
            [row["samples"] for row in own],
            [row[measure] for row in own],
            color=colour,
            marker=marker,
            linestyle=LINES[k % len(LINES)],
            markersize=4.5,
            linewidth=1.3,
            label=way,
        )
    axes.set_xticks(lengths, labels=list(map(str, lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
