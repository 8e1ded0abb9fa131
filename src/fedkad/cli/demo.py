"""``fedkad demo``: a simulated fleet from the first sample to the page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkad.cli.failures import few_rows_noted
from fedkad.cli.output import AsJson, print_json, print_line, print_table, shown_progress
from fedkad.report.demonstration import (
    DISCLAIMER,
    HEADER,
    Demonstration,
    Line,
    comparison,
    demonstrate,
    line_cells,
    summary,
)
from fedkad.report.demonstration_page import demonstration_page
from fedkad.report.document import write_page
from fedkad.simulate import simulate_fleet, write_fleet
from fedkad.tables.times import time_text

EVENT_FIELDS = ("start_row", "end_row", "start", "end", "peak_score", "threshold", "kind", "sentence", "channels")


def demo(
    devices: Annotated[int, typer.Option(min=1, help="Pumps in the fleet.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the page.")] = Path("demo"),
    keep_data: Annotated[bool, typer.Option("--keep-data", help="Write the simulated series there as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a fleet, federate it, detect its faults, and write a page with pictures.

    Simulated data is not evidence of detection quality.
    """
    out.mkdir(parents=True, exist_ok=True)
    with few_rows_noted(None), shown_progress() as progress:
        progress("simulation", 0, 1)
        fleet = simulate_fleet(devices, seed=seed)
        progress("simulation", 1, 1)
        if keep_data:
            write_fleet(fleet, out / "data")
        shown = demonstrate(fleet, seed=seed, progress=progress)
        progress("page", 0, 1)
        write_page(out / "index.html", demonstration_page(shown))
        progress("page", 1, 1)
    typer.echo(f"learned and detected in {shown.seconds:.1f} s", err=True)
    if as_json:
        print_json(_document(shown, out / "index.html"))
        return
    print_table(HEADER, (line_cells(shown, line) for line in shown.lines), numbers=[5, 6])
    print_line(f"\n{DISCLAIMER} Faults are matched with events by time alone.")
    print_line(summary(shown))
    print_line(comparison(shown))
    print_line(f"The page with the pictures: {out / 'index.html'}")


def _document(shown: Demonstration, page: Path) -> dict[str, Any]:
    federation = shown.federation
    return {
        "notice": DISCLAIMER,
        "seed": shown.seed,
        "page": str(page),
        "devices": len(shown.findings),
        "faults": len(shown.fleet.faults),
        "found": shown.found,
        "false_alarms": shown.count("false alarm"),
        "false_alarms_per_device_day": shown.false_alarms_per_day,
        "others": {name: {"found": found, "false_alarms": false} for name, (found, false) in shown.others.items()},
        "rounds": len(federation.history),
        "bytes_up": sum(record.bytes_up for record in federation.history),
        "bytes_down": sum(record.bytes_down for record in federation.history) + federation.delivery_bytes,
        "lines": [_line_document(shown, line) for line in shown.lines],
    }


def _line_document(shown: Demonstration, line: Line) -> dict[str, Any]:
    event, described = line.event, dict[str, Any].fromkeys(EVENT_FIELDS)
    if event is not None:
        start, end = time_text(shown.fleet.test_times(line.device)[[event.start, event.end]], utc=True)
        channels = [{"channel": cause.channel, "share": cause.share} for cause in event.causes]
        numbers = event.peak_score, event.threshold
        values = (event.start, event.end, start, end, *numbers, event.kind, event.sentence, channels)
        described = dict(zip(EVENT_FIELDS, values, strict=True))
    faults = [
        {"kind": fault.kind, "channels": list(fault.channels), "start_row": fault.start, "end_row": fault.end - 1}
        for fault in line.faults
    ]
    return {"device": line.device, "outcome": line.outcome, **described, "faults": faults}
