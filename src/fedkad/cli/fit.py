"""``fedkad fit``: one device, one model."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkad.cli.examining import write_findings
from fedkad.cli.failures import few_rows_noted, naming, warn
from fedkad.cli.options import DetectOnly, complete_period, with_detector_options, with_reading_options
from fedkad.cli.output import AsJson, print_facts, print_json, shown_progress
from fedkad.cli.recordings import load_device, named_series, report_reading, usual_period
from fedkad.cli.targets import check_model_target, check_page_target, made_folder
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.model import Model
from fedkad.intake import Switches
from fedkad.report.examination import examine_table
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
    read = _description(device, detector["sample_period"])
    series, drawn = named_series(device, overwrite_ok=report is None), None if report is None else device
    del device  # with gaps the series is a copy, and there is no room for both while the detector learns
    with naming(data), few_rows_noted(data), shown_progress(brief=True) as progress:
        fitted = KoopmanDetector(**detector).fit(series, progress=partial(progress, "learning"))
    model = fitted.model_
    made_folder(output.parent)
    fitted.save(output, statistics=not detect_only)
    if model.found is not None and model.found.note:
        warn(f"{data}: {model.found.note}")
    if report is not None and drawn is not None:
        _write_report(report, model, drawn, data.name)
    size, rows, channels = output.stat().st_size, read["rows"], len(read["channels"])
    if as_json:
        learned = {"threshold": model.threshold, "few_rows": model.few_rows, "false_alarms_expected": model.expectation}
        print_json({"model": str(output), "bytes": size, **read, **learned})
        return
    print_facts(
        {
            "model": f"{output} ({size / 1000:.0f} KB)",
            "data": f"{counted(rows, 'row')} of {counted(channels, 'channel')}",
            "threshold": significant(model.threshold),
            "false alarms": model.expectation,
        }
    )


def _description(device: DeviceTables, sample_period: float | None) -> dict[str, Any]:
    return {
        "device": device.name,
        "tables": len(device.tables),
        "time": device.tables[0].time_column,
        "sample_period": sample_period,
        "rows": sum(len(table.values) for table in device.tables),
        "channels": list(device.channels),
        "filled_cells": device.filled,
        "gap_rows": device.gap_rows,
    }


def _write_report(path: Path, model: Model, device: DeviceTables, name: str) -> None:
    """Write the page of the training data."""
    notice = (
        "This is the data that the model learned from, so its scores are lower than those of new data. An event here "
        "is something unusual in training: leave it out if it was not normal."
    )
    with shown_progress(brief=True) as progress:
        judging = partial(progress, "judging")
        examined = [examine_table(model, device.name, table, report=judging) for table in device.tables]
    write_findings(path, examined, f"What was learned from {name}", [notice])
