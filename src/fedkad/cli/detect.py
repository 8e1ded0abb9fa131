"""``fedkad detect``: what a model finds in new data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedkad import KoopmanDetector
from fedkad.cli.examination import Examined, event_document, events_in, examine_device, score_columns
from fedkad.cli.federate import MODEL_ENDING
from fedkad.cli.options import MaxFill, TimeColumn
from fedkad.cli.output import AsJson, print_json, print_line, print_table
from fedkad.cli.recordings import load_device, load_fleet
from fedkad.report.wording import moment, significant, top_channels
from fedkad.tables import write_table

ANOMALIES_FOUND = 3


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
    time: TimeColumn = None,
    max_fill: MaxFill = 3,
    as_json: AsJson = False,
) -> None:
    """Find anomalies in new data, and say when they were and which channels to look at."""
    if scores is None and (shares or offline):
        raise typer.BadParameter("--shares and --offline add columns to the file of --scores; name one.")
    examined = (
        _examine_fleet(model, data, time, max_fill) if model.is_dir() else _examine_one(model, data, time, max_fill)
    )
    if scores is not None:
        scores.parent.mkdir(parents=True, exist_ok=True)
        write_table(scores, score_columns(examined, offline=offline, shares=shares))
    if as_json:
        print_json(_document(examined))
    else:
        _print_events(examined)
    if fail_on_anomaly and any(True for _ in events_in(examined)):
        raise typer.Exit(ANOMALIES_FOUND)


def _examine_one(model: Path, data: Path, time: str | None, max_fill: int) -> list[Examined]:
    detector = KoopmanDetector.load(model)
    return examine_device(detector, load_device(data, time, max_fill), data)


def _examine_fleet(folder: Path, data: Path, time: str | None, max_fill: int) -> list[Examined]:
    models = {path.name.removesuffix(MODEL_ENDING): path for path in sorted(folder.glob(f"*{MODEL_ENDING}"))}
    if not models:
        raise ValueError(f"{folder}: there is no model in the folder; write some with `fedkad federate`.")
    fleet = load_fleet(data, time, max_fill)
    for name in fleet:
        if name not in models:
            raise ValueError(
                f"{data / name}: there is no model {name}{MODEL_ENDING} in {folder}; fit one or leave it out."
            )
    for name, path in models.items():
        if name not in fleet:
            raise ValueError(f"{path}: there is no device {name!r} in {data}; add its data or leave the model out.")
    examined = []
    for name, device in fleet.items():
        examined += examine_device(KoopmanDetector.load(models[name]), device, data / name)
    return examined


def _print_events(examined: Sequence[Examined]) -> None:
    rows: list[tuple[str, ...]] = []
    for entry, event in events_in(examined):
        times = entry.table.times
        start, end, peak = (moment(times, entry.row(k)) for k in (event.start, event.end, event.peak))
        numbers = significant(event.peak_score), significant(event.threshold)
        rows.append((entry.device, entry.table.name, start, end, peak, *numbers, top_channels(event)))
    header: tuple[str, ...] = ("Device", "Table", "Start", "End", "Peak", "Score", "Threshold", "Top channels")
    if all(entry.table.name == entry.device for entry in examined):
        header, rows = header[:1] + header[2:], [row[:1] + row[2:] for row in rows]
    if rows:
        score = header.index("Score")
        print_table(header, rows, numbers=[score, score + 1])
        print_line()
    judged = sum(int((~np.isnan(entry.findings.scores)).sum()) for entry in examined)
    total = sum(len(entry.rows) for entry in examined)
    print_line(f"{len(rows)} event{'s' * (len(rows) != 1)} in {total} rows, of which {judged} have a score.")


def _document(examined: Sequence[Examined]) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = {}
    for entry in examined:
        device = devices.setdefault(
            entry.device,
            {"device": entry.device, "rows": 0, "scored_rows": 0, "filled_cells": 0, "gap_rows": 0, "events": []},
        )
        device["rows"] += len(entry.rows)
        device["scored_rows"] += int((~np.isnan(entry.findings.scores)).sum())
        device["filled_cells"] += entry.table.filled
        device["gap_rows"] += entry.table.gap_rows
        device["events"] += [event_document(entry, event) for event in entry.findings.events]
    return {"events": sum(len(device["events"]) for device in devices.values()), "devices": list(devices.values())}
