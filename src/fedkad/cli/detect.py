"""``fedkad detect``: what a model finds in new data, and how far its judgement can be relied on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from fedkad.cli.failures import fail_if_skipped, naming, skipped_documents, warn
from fedkad.cli.federate import MODEL_ENDING
from fedkad.cli.options import above_zero, with_reading_options
from fedkad.cli.output import AsJson, print_json, print_line, print_table, shown_progress
from fedkad.cli.recordings import load_device, time_gaps
from fedkad.cli.targets import check_score_target, is_model_file
from fedkad.detect.bridging import longest_hole
from fedkad.detect.events import Event, Findings, examine
from fedkad.detect.model import Model
from fedkad.detect.modelfile import load_model
from fedkad.detect.series import Series
from fedkad.intake import Switches
from fedkad.koopman.snapshots import Report, unheard
from fedkad.report.wording import counted, moment, significant, top_channels
from fedkad.tables import DeviceTables, SeriesTable, write_table
from fedkad.tables.fleet import device_paths
from fedkad.tables.reading import table_ending
from fedkad.tables.times import time_text

ANOMALIES_FOUND = 3
LEAST_SCORED = 0.5  # share of the rows that must have a score; below it there is a warning
MOST_APART = 1.5  # factor between the sample periods of model and data beyond which there is a warning


@with_reading_options("channels", "ignore")
def detect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or a folder of models.")],
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A table or folder of one device; with a folder of models, of devices."),
    ],
    scores: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Write the score of every row to this file.")
    ] = None,
    shares: Annotated[
        bool, typer.Option("--shares", help="Add each channel's share of the score to --scores.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Add the score that looks ahead, for labelling, to --scores.")
    ] = False,
    fail_on_anomaly: Annotated[
        bool, typer.Option("--fail-on-anomaly", help="Exit with status 3 if there is an event.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(callback=above_zero, help="Flag scores above this one.", show_default="that of the model"),
    ] = None,
    *,
    reading: Switches,
    as_json: AsJson = False,
) -> None:
    """Find anomalies in new data, with their times and the channels to look at."""
    if scores is None and (shares or offline):
        raise typer.BadParameter("--shares and --offline add columns to the file of --scores; name one.")
    _refuse_swapped(model, data)
    if scores is not None:
        check_score_target(scores, model, data)

    def judge(file: Path, path: Path) -> list[Examined]:
        loaded, _ = load_model(file, memory=False)
        judging = loaded if threshold is None else loaded.with_threshold(threshold)
        with shown_progress(brief=True) as progress:
            device = load_device(path, reading, wanted=loaded.setup.names, allow_silent=True, progress=progress)
            return examine_device(judging, device, path, shares=shares, report=partial(progress, "judging"))

    examined: list[Examined] = []
    skipped: dict[str, str] = {}
    if model.is_dir():
        models, paths = _models_in(model), device_paths(data)
        for name, path in paths.items():
            if name not in models:
                skipped[name] = f"there is no model {name}{MODEL_ENDING} in {model}; fit one or leave the device out."
                continue
            try:
                examined += judge(models[name], path)
            except ValueError as error:
                skipped[name] = str(error)
        for name in sorted(models.keys() - paths.keys()):
            skipped[name] = f"there is no data for it in {data}; add some or remove its model."
    else:
        examined = judge(model, data)

    if scores is not None and examined:
        scores.parent.mkdir(parents=True, exist_ok=True)
        write_table(scores, _score_columns(examined, offline=offline, shares=shares))
    if as_json:
        print_json(_document(examined, skipped))
    elif examined:
        _print_events(examined)
    fail_if_skipped(skipped)
    if fail_on_anomaly and any(entry.findings.events for entry in examined):
        raise typer.Exit(ANOMALIES_FOUND)


@dataclass(frozen=True, eq=False)
class Examined:
    """A table and what was found in it; `rows` holds, for each row of the table, its entry in the findings."""

    device: str
    table: SeriesTable
    findings: Findings
    rows: NDArray[np.intp]

    @property
    def scored(self) -> int:
        """The number of rows with a score."""
        return int((~np.isnan(self.findings.scores)).sum())

    def row(self, entry: int) -> int:
        """The row of the table at an entry of the findings; the entry must not be that of a time gap."""
        return int(np.searchsorted(self.rows, entry))


def examine_device(
    model: Model, device: DeviceTables, path: Path, *, shares: bool, report: Report = unheard
) -> list[Examined]:
    """Judge every table of a device, and warn where the judgement is less than it seems."""
    found = []
    for table in device.tables:
        values, rows = table.with_gaps(longest_hole(model.settings.window) + 1)
        with naming(path if table.name == device.name else path / table.name):
            findings = examine(model, Series(values, table.channels), shares=shares, report=report)
        found.append(Examined(device.name, table, findings, np.flatnonzero(rows >= 0)))
    _check_period(model.settings.sample_period, device, path)
    _check_coverage(model.settings.lead + 1, device, sum(entry.scored for entry in found), path)
    for table in device.tables:
        for channel in table.silent:
            warn(
                f"{path if len(device.tables) == 1 else path / table.name}: channel {channel!r} has no value in this "
                "file, so the device is judged by the other channels; check the sensor."
            )
    return found


def _check_period(fitted: float | None, device: DeviceTables, path: Path) -> None:
    if fitted is None:
        return
    for period in (table.period for table in device.tables if table.period is not None):
        if not 1.0 / MOST_APART <= period / fitted <= MOST_APART:
            warn(
                f"{path}: there is a sample every {period:g} s, but the model was fitted to one every {fitted:g} s; "
                "resample the data or fit a model to data of this rate."
            )
            return


def _check_coverage(needed: int, device: DeviceTables, scored: int, path: Path) -> None:
    """Refuse a device none of whose rows could be scored; warn if only a few could. A score needs `needed` rows."""
    rows = sum(len(table.values) for table in device.tables)
    gaps = [(time_gaps(device), "gap in time", "gaps in time"), (device.gap_rows, "gap row", "gap rows")]
    interruptions = " and ".join(counted(*gap) for gap in gaps if gap[0])
    interruptions = interruptions and f" ({interruptions})"
    if scored == 0:
        for table in device.tables:
            if table.silent:
                raise ValueError(
                    f"{path if len(device.tables) == 1 else path / table.name}: channel {table.silent[0]!r} has no "
                    "value in this file, so the device cannot be judged; check the sensor."
                )
        raise ValueError(
            f"{path}: no row could be scored: a window needs {needed} consecutive complete rows, and the longest run "
            f"has {_longest_run(device.series())}{interruptions}; pass a longer recording or fit a model with a "
            "shorter window."
        )
    if scored < LEAST_SCORED * rows:
        warn(
            f"{path}: only {scored} of {rows} rows could be scored{interruptions}; "
            f"at the start and after every gap the first {counted(needed - 1, 'row')} have no score."
        )


def _longest_run(stretches: Iterable[NDArray[np.float64]]) -> int:
    """The most consecutive complete rows."""
    longest = 0
    for series in stretches:
        gaps = np.flatnonzero(np.isnan(series).any(axis=1))
        longest = max(longest, int(np.diff([-1, *gaps, len(series)]).max()) - 1)
    return longest


def _refuse_swapped(model: Path, data: Path) -> None:
    order = "MODEL comes first, as in `fedkad detect MODEL DATA`."
    if model.is_file() and table_ending(model) is not None:
        raise ValueError(f"{model}: expected a model, found a table; {order}")
    if model.exists() and _holds_models(data) and not _holds_models(model):
        raise ValueError(f"{data}: expected data, found a model or a folder of models; {order}")


def _holds_models(path: Path) -> bool:
    return is_model_file(path) if path.is_file() else any(path.glob(f"*{MODEL_ENDING}"))


def _models_in(folder: Path) -> dict[str, Path]:
    models = {path.name.removesuffix(MODEL_ENDING): path for path in sorted(folder.glob(f"*{MODEL_ENDING}"))}
    if not models:
        raise ValueError(f"{folder}: there is no model in the folder; write some with `fedkad federate`.")
    return models


def _print_events(examined: Sequence[Examined]) -> None:
    clocks = {_clock(entry.table) for entry in examined}
    # One kind of time for all tables is named in the header; otherwise every cell names its own.
    header_clock = clocks.pop() if len(clocks) == 1 else None
    rows: list[tuple[str, ...]] = []
    for entry in examined:
        for event in entry.findings.events:
            places = [moment(entry.table.times, entry.row(k)) for k in (event.start, event.end, event.peak)]
            if header_clock is None:
                places = [_marked(place, _clock(entry.table)) for place in places]
            numbers = significant(event.peak_score), significant(event.threshold)
            rows.append((entry.device, entry.table.name, *places, *numbers, event.sentence or top_channels(event)))
    spans = (_marked(name, header_clock) for name in ("Start", "End", "Peak"))
    header: tuple[str, ...] = ("Device", "Table", *spans, "Score", "Threshold", "What it is")
    if all(entry.table.name == entry.device for entry in examined):
        header, rows = header[:1] + header[2:], [row[:1] + row[2:] for row in rows]
    if rows:
        score = header.index("Score")
        print_table(header, rows, numbers=[score, score + 1])
        print_line()
    total = sum(len(entry.rows) for entry in examined)
    blind = total - sum(entry.scored for entry in examined)
    unscored = f"{counted(blind, 'row')} could not be judged" if blind else "all of them were judged"
    print_line(f"{counted(len(rows), 'event')} in {counted(total, 'row')}; {unscored}.")


def _clock(table: SeriesTable) -> str:
    """What places in a table are: row numbers, times in UTC, or times without a zone, which need no mark."""
    if table.times is None:
        return "row, from 0"
    return "UTC" if table.utc else ""


def _marked(text: str, mark: str | None) -> str:
    return f"{text} ({mark})" if mark else text


def _document(examined: Sequence[Examined], skipped: dict[str, str]) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = {}
    for entry in examined:
        device = devices.setdefault(
            entry.device,
            {"device": entry.device, "rows": 0, "scored_rows": 0, "filled_cells": 0, "gap_rows": 0, "events": []},
        )
        device["rows"] += len(entry.rows)
        device["scored_rows"] += entry.scored
        device["filled_cells"] += entry.table.filled
        device["gap_rows"] += entry.table.gap_rows
        device["events"] += [_event_document(entry, event) for event in entry.findings.events]
    return {
        "events": sum(len(device["events"]) for device in devices.values()),
        "devices": list(devices.values()),
        "skipped": skipped_documents(skipped),
    }


def _event_document(entry: Examined, event: Event) -> dict[str, Any]:
    """An event as JSON: rows count from 0, `end` is the last flagged row, and rows stand in for missing times."""
    places = {name: entry.row(getattr(event, name)) for name in ("start", "end", "peak")}
    times = entry.table.times
    return {
        "table": entry.table.name,
        **{f"{name}_row": row for name, row in places.items()},
        **{
            name: row if times is None else time_text(times[row : row + 1], utc=entry.table.utc)[0]
            for name, row in places.items()
        },
        "peak_score": event.peak_score,
        "threshold": event.threshold,
        "kind": event.kind,
        "sentence": event.sentence,
        "channels": [{"channel": cause.channel, "share": cause.share} for cause in event.causes],
    }


def _score_columns(examined: Sequence[Examined], *, offline: bool, shares: bool) -> dict[str, list[Any]]:
    """One row per row of each table: where it is, its score, its threshold, and whether it is an alarm."""
    columns: dict[str, list[Any]] = {}

    def add(name: str, values: Sequence[Any]) -> None:
        columns.setdefault(name, []).extend(values)

    dated = any(entry.table.times is not None for entry in examined)
    for entry in examined:
        times, found, rows = entry.table.times, entry.findings, entry.rows
        add("device", [entry.device] * len(rows))
        add("table", [entry.table.name] * len(rows))
        add("row", range(len(rows)))
        if dated:
            add("time", [None] * len(rows) if times is None else time_text(times, utc=entry.table.utc))
        add("score", found.scores[rows].tolist())
        add("threshold", found.thresholds[rows].tolist())
        # A row without a score is neither normal nor not, so its cell stays empty.
        judged = ~np.isnan(found.scores[rows])
        add("is_anomaly", [int(a) if known else None for a, known in zip(found.alarms[rows], judged, strict=True)])
        if offline:
            add("offline_score", found.offline_scores[rows].tolist())
        if shares:
            for channel, part in zip(found.channels, found.shares[rows].T, strict=True):
                add(f"share of {channel}", part.tolist())
    return columns
