"""``fedkad detect``: what a model finds in new data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkad import KoopmanDetector
from fedkad.cli.coverage import check_coverage, check_period, scored_rows
from fedkad.cli.examination import Examined, event_document, events_in, examine_device, score_columns
from fedkad.cli.federate import MODEL_ENDING
from fedkad.cli.options import MaxFill, TimeColumn, above_zero
from fedkad.cli.output import AsJson, print_json, print_line, print_table
from fedkad.cli.recordings import load_device, load_fleet
from fedkad.cli.targets import check_score_target, is_model_file
from fedkad.report.wording import counted, moment, significant, top_channels
from fedkad.tables import Device, Table, write_table
from fedkad.tables.reading import table_ending

FAILED, ANOMALIES_FOUND = 1, 3

MARKS = {"row": "row, from 0", "utc": "UTC", "time": ""}
"""What the cells of an event's start, end and peak are, for the header."""


def detect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or a folder of models.")],
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A table or folder of one device; with a folder of models, of devices."),
    ],
    scores: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Write the score of every row to this file.")
    ] = None,
    shares: Annotated[bool, typer.Option("--shares", help="Add each channel's part of the score to --scores.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Add the score that looks ahead, for labelling, to --scores.")
    ] = False,
    fail_on_anomaly: Annotated[
        bool, typer.Option("--fail-on-anomaly", help="Leave with exit status 3 if there is an event.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(callback=above_zero, help="Judge by this score.", show_default="that of the model"),
    ] = None,
    time: TimeColumn = None,
    max_fill: MaxFill = 3,
    as_json: AsJson = False,
) -> None:
    """Find anomalies in new data, and say when they were and which channels to look at."""
    if scores is None and (shares or offline):
        raise typer.BadParameter("--shares and --offline add columns to the file of --scores; name one.")
    _refuse_swapped(model, data)
    if scores is not None:
        check_score_target(scores, model, data)
    skipped: dict[str, str] = {}
    if model.is_dir():
        examined = _examine_fleet(model, data, time, max_fill, threshold, skipped)
    else:
        device = load_device(data, time, max_fill, allow_silent=True)
        examined = _examine(model, device, data, threshold)
    if scores is not None and examined:
        scores.parent.mkdir(parents=True, exist_ok=True)
        write_table(scores, score_columns(examined, offline=offline, shares=shares))
    if as_json:
        print_json(_document(examined, skipped))
    elif examined:
        _print_events(examined)
    if skipped:
        for name, reason in skipped.items():
            typer.echo(f"skipped: {name}: {reason}", err=True)
        raise typer.Exit(FAILED)
    if fail_on_anomaly and any(True for _ in events_in(examined)):
        raise typer.Exit(ANOMALIES_FOUND)


def _refuse_swapped(model: Path, data: Path) -> None:
    order = "MODEL comes first, as in `fedkad detect MODEL DATA`."
    if model.is_file() and table_ending(model) is not None:
        raise ValueError(f"{model}: this is a table where a model belongs; {order}")
    if model.exists() and _holds_models(data) and not _holds_models(model):
        raise ValueError(f"{data}: this is a model, or a folder of models, where data belongs; {order}")


def _holds_models(path: Path) -> bool:
    return is_model_file(path) if path.is_file() else any(path.glob(f"*{MODEL_ENDING}"))


def _examine(model: Path, device: Device, path: Path, threshold: float | None) -> list[Examined]:
    """Judge a device by its model, and say how far the judgement can be relied on."""
    detector = KoopmanDetector.load(model)
    if threshold is not None:
        detector.threshold_ = threshold
    examined = examine_device(detector, device, path)
    check_period(detector, device, path)
    check_coverage(detector, device, examined, path)
    return examined


def _examine_fleet(
    folder: Path, data: Path, time: str | None, max_fill: int, threshold: float | None, skipped: dict[str, str]
) -> list[Examined]:
    """Judge the devices that can be judged; `skipped` takes the others with the reason for each."""
    models = {path.name.removesuffix(MODEL_ENDING): path for path in sorted(folder.glob(f"*{MODEL_ENDING}"))}
    if not models:
        raise ValueError(f"{folder}: there is no model in the folder; write some with `fedkad federate`.")
    fleet = load_fleet(data, time, max_fill, allow_silent=True)
    examined = []
    for name, device in fleet.items():
        if name not in models:
            skipped[name] = f"there is no model {name}{MODEL_ENDING} in {folder}; fit one or leave the device out."
            continue
        try:
            examined += _examine(models[name], device, device.path or data / name, threshold)
        except ValueError as error:
            skipped[name] = str(error)
    for name in sorted(models.keys() - fleet.keys()):
        skipped[name] = f"there is no data of it in {data}; add it or remove its model."
    return examined


def _print_events(examined: Sequence[Examined]) -> None:
    kinds = {_kind(entry.table) for entry in examined}
    mark = MARKS[kinds.pop()] if len(kinds) == 1 else ""
    mixed = bool(kinds)
    rows: list[tuple[str, ...]] = []
    for entry, event in events_in(examined):
        places = (_place(entry.table, entry.row(k), marked=mixed) for k in (event.start, event.end, event.peak))
        numbers = significant(event.peak_score), significant(event.threshold)
        rows.append((entry.device, entry.table.name, *places, *numbers, top_channels(event)))
    spans = (f"{name} ({mark})" if mark else name for name in ("Start", "End", "Peak"))
    header: tuple[str, ...] = ("Device", "Table", *spans, "Score", "Threshold", "Top channels")
    if all(entry.table.name == entry.device for entry in examined):
        header, rows = header[:1] + header[2:], [row[:1] + row[2:] for row in rows]
    if rows:
        score = header.index("Score")
        print_table(header, rows, numbers=[score, score + 1])
        print_line()
    scored, total = scored_rows(examined)
    judged = counted(scored, "has a score", "have a score")
    print_line(f"{counted(len(rows), 'event')} in {counted(total, 'row')}, of which {judged}.")


def _kind(table: Table) -> str:
    if table.times is None:
        return "row"
    return "utc" if table.utc else "time"


def _place(table: Table, row: int, *, marked: bool) -> str:
    """A row's time or number, `marked` where the header cannot say for all tables which of them it is."""
    text = moment(table.times, row)
    mark = MARKS[_kind(table)] if marked else ""
    return f"{text} ({mark})" if mark else text


def _document(examined: Sequence[Examined], skipped: dict[str, str]) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = {}
    for entry in examined:
        device = devices.setdefault(
            entry.device,
            {"device": entry.device, "rows": 0, "scored_rows": 0, "filled_cells": 0, "gap_rows": 0, "events": []},
        )
        scored, rows = scored_rows([entry])
        device["rows"] += rows
        device["scored_rows"] += scored
        device["filled_cells"] += entry.table.filled
        device["gap_rows"] += entry.table.gap_rows
        device["events"] += [event_document(entry, event) for event in entry.findings.events]
    return {
        "events": sum(len(device["events"]) for device in devices.values()),
        "devices": list(devices.values()),
        "skipped": [{"device": name, "reason": reason} for name, reason in skipped.items()],
    }
