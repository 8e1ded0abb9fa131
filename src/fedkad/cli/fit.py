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
from fedkad.cli.targets import check_model_target, check_page_target
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.events import Gathering
from fedkad.detect.model import Model
from fedkad.intake import Switches
from fedkad.report.document import write_page
from fedkad.report.examination import examine_table
from fedkad.report.findings_page import findings_page
from fedkad.report.wording import counted, significant
from fedkad.tables import DeviceTables


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
    with naming(data), few_rows_noted(data), shown_progress(brief=True) as progress:
        fitted = KoopmanDetector(**detector).fit(named_series(device), progress=partial(progress, "learning"))
    output.parent.mkdir(parents=True, exist_ok=True)
    fitted.save(output, statistics=not detect_only)
    found = fitted.model_.found
    if found is not None and found.note:
        warn(f"{data}: {found.note}")
    if report is not None:
        _write_report(report, fitted.model_, device, data.name)
    rows = sum(len(table.values) for table in device.tables)
    result = {
        "model": str(output),
        "bytes": output.stat().st_size,
        "device": device.name,
        "tables": len(device.tables),
        "time": device.tables[0].time_column,
        "sample_period": detector["sample_period"],
        "rows": rows,
        "channels": list(device.channels),
        "filled_cells": device.filled,
        "gap_rows": device.gap_rows,
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
            "data": f"{counted(rows, 'row')} of {counted(len(device.channels), 'channel')}",
            "threshold": significant(fitted.threshold_),
            "false alarms": fitted.model_.expectation,
        }
    )


def _write_report(path: Path, model: Model, device: DeviceTables, name: str) -> None:
    """The page of the training data."""
    examined = [examine_table(model, device.name, table, Gathering()) for table in device.tables]
    notice = (
        "This is the data that the model learned from, so its scores are lower than those of new data. An event here "
        "is something unusual in training: leave it out if it was not normal."
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, findings_page(examined, f"What was learned from {name}", notices=[notice]))
