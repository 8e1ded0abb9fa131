"""``fedkad fit``: one device, one model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkad.cli.failures import few_rows_noted, naming, warn
from fedkad.cli.options import DetectOnly, complete_period, with_detector_options, with_reading_options
from fedkad.cli.output import AsJson, print_facts, print_json, shown_progress
from fedkad.cli.recordings import load_device, named_series, report_reading, usual_period
from fedkad.cli.targets import check_model_target, check_page_target, made_folder
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.events import Gathering
from fedkad.detect.model import Model
from fedkad.intake import Switches
from fedkad.report.document import write_page
from fedkad.report.examination import examine_table
from fedkad.report.findings_page import findings_page
from fedkad.tables import DeviceTables
from fedkad.wording import counted, significant


@with_reading_options()
@with_detector_options
def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table, a folder of tables of one device, or - for standard input.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="The model file to write.")],
    detector: dict[str, Any],
    reading: Switches,
    detect_only: DetectOnly = False,
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Write a page with pictures of what was learned.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a detector to the normal data of one device and write it to a model file."""
    check_model_target(output, data)
    if report is not None:
        check_page_target(report, output, data)
    with shown_progress(brief=True) as progress:
        device = load_device(data, reading, progress=progress)
    period = usual_period([device])
    complete_period(detector, period)
    report_reading([device], period)
    rows = sum(len(table.values) for table in device.tables)
    read = {
        "device": device.name,
        "tables": len(device.tables),
        "time": device.tables[0].time_column,
        "sample_period": detector["sample_period"],
        "rows": rows,
        "channels": list(device.channels),
        "filled_cells": device.filled,
        "gap_rows": device.gap_rows,
    }
    series, shown = named_series(device, spare=report is None), None if report is None else device
    del device  # with gaps the series is a copy, and there is no room for both while the detector learns
    with naming(data), few_rows_noted(data), shown_progress(brief=True) as progress:
        fitted = KoopmanDetector(**detector).fit(series, progress=partial(progress, "learning"))
    made_folder(output.parent)
    fitted.save(output, statistics=not detect_only)
    found = fitted.model_.found
    if found is not None and found.note:
        warn(f"{data}: {found.note}")
    if report is not None and shown is not None:
        _write_report(report, fitted.model_, shown, data.name)
    result = {
        "model": str(output),
        "bytes": output.stat().st_size,
        **read,
        "threshold": fitted.threshold_,
        "few_rows": fitted.model_.few_rows,
        "false_alarms_expected": fitted.model_.expectation,
    }
    if as_json:
        print_json(result)
        return
    print_facts(
        {
            "model": f"{output} ({output.stat().st_size / 1000:.0f} KB)",
            "data": f"{counted(rows, 'row')} of {counted(len(read['channels']), 'channel')}",
            "threshold": significant(fitted.threshold_),
            "false alarms": fitted.model_.expectation,
        }
    )


def _write_report(path: Path, model: Model, device: DeviceTables, name: str) -> None:
    """The page of the training data."""
    notice = (
        "This is the data that the model learned from, so its scores are lower than those of new data. An event here "
        "is something unusual in training: leave it out if it was not normal."
    )
    made_folder(path.parent)
    with shown_progress(brief=True) as progress:
        look = partial(examine_table, gathering=Gathering(), report=partial(progress, "judging"))
        examined = [look(model, device.name, table) for table in device.tables]
        title, drawing = f"What was learned from {name}", partial(progress, "drawing")
        write_page(path, findings_page(examined, title, notices=[notice], report=drawing))
