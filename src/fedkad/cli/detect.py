"""``fedkad detect``: what a model finds in new data, and how far its judgement can be relied on."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedkad.cli.examining import DetectOptions, examine_device, examine_fleet, write_findings
from fedkad.cli.failures import fail_if_skipped, skipped_documents
from fedkad.cli.federate import MODEL_ENDING
from fedkad.cli.labels import Labels, read_labels, warn_of_unused
from fedkad.cli.options import above_zero, budget_rate, duration, with_reading_options
from fedkad.cli.output import AsJson, print_json, print_line, print_table, shown_progress
from fedkad.cli.targets import check_page_target, check_score_target, is_model_file, made_folder
from fedkad.detect.events import Event
from fedkad.intake import Switches
from fedkad.progress import Report
from fedkad.report.agreement import Agreement, agreement
from fedkad.report.eventtext import BY_RULE, clock, is_by_rule, marked, top_channels
from fedkad.report.examination import Examination
from fedkad.report.findings_page import agreement_sentences, summary
from fedkad.tables.reading import table_ending
from fedkad.tables.writing import write_blocks
from fedkad.wording import significant

ANOMALIES_FOUND = 3
SCORE_BLOCK = 16_384  # rows of scores that are written at once


@with_reading_options("channels")
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
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            callback=budget_rate,
            help="Flag as many false alarms as this, such as 1/week, by the scores of the training data.",
            show_default="that of the model",
        ),
    ] = None,
    merge: Annotated[
        Any,
        typer.Option(
            metavar="TIME",
            parser=duration,
            help="Alarms at most this far apart are one event: a time such as 10m, or rows.",
            show_default="a window",
        ),
    ] = None,
    min_duration: Annotated[
        Any,
        typer.Option(metavar="TIME", parser=duration, help="Leave out shorter events: a time such as 3m, or rows."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Write a page with pictures of what was found.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Compare events with labels: columns start and end (times, or rows from 0) and device, or 0 and 1 for "
            "every row.",
        ),
    ] = None,
    *,
    reading: Switches,
    as_json: AsJson = False,
) -> None:
    """Find anomalies in new data, with their times and the channels to look at."""
    if scores is None and (shares or offline):
        raise typer.BadParameter("--shares and --offline add columns to the file of --scores; name one.")
    if threshold is not None and budget is not None:
        raise typer.BadParameter("--threshold and --budget exclude each other; give one.")
    _refuse_swapped(model, data)
    if scores is not None:
        check_score_target(scores, model, data, *([labels] if labels is not None else []))
    if report is not None:
        check_page_target(report, model, data)
    options = DetectOptions(
        reading=reading,
        labels=None if labels is None else read_labels(labels, reading),
        threshold=threshold,
        budget=budget,
        merge=merge,
        min_duration=min_duration,
        offline=offline,
        shares=shares,
        overwrite_ok=report is None,
    )
    if model.is_dir():
        examined, skipped = examine_fleet(model, data, options)
    else:
        examined, skipped = examine_device(model, data, options), {}
    if scores is not None and examined:
        _write_scores(scores, examined)
    agreed = None if options.labels is None else _compare(options.labels, examined)
    if report is not None and examined:
        notices = [f"{name} was skipped: {reason}" for name, reason in skipped.items()]
        write_findings(report, examined, f"What was found in {data.name}", notices, agreed)
    if as_json:
        print_json(_document(examined, skipped, agreed))
    elif examined:
        _print_events(examined)
        for sentence in [] if agreed is None else agreement_sentences(agreed):
            print_line(sentence)
    fail_if_skipped(skipped)
    if fail_on_anomaly and any(entry.findings.events for entry in examined):
        raise typer.Exit(ANOMALIES_FOUND)


def _refuse_swapped(model: Path, data: Path) -> None:
    order = "MODEL comes first, as in `fedkad detect MODEL DATA`."
    if model.is_file() and table_ending(model) is not None:
        raise ValueError(f"{model}: expected a model, found a table; {order}")
    if model.exists() and _holds_models(data) and not _holds_models(model):
        raise ValueError(f"{data}: expected data, found a model or a folder of models; {order}")


def _holds_models(path: Path) -> bool:
    return is_model_file(path) if path.is_file() else any(path.glob(f"*{MODEL_ENDING}"))


def _compare(labels: Labels, examined: Sequence[Examination]) -> Agreement | None:
    """Compare what was found with the labels, and warn of labels that do not count."""
    warn_of_unused(labels, {entry.device for entry in examined}, sum(len(entry.marks) for entry in examined))
    agreements = [
        agreement(
            entry.findings.events,
            entry.marks,
            ~np.isnan(entry.findings.scores),
            entry.model.settings.window,
            entry.table.period,
        )
        for entry in examined
    ]
    return sum(agreements[1:], start=agreements[0]) if agreements else None


def _print_events(examined: Sequence[Examination]) -> None:
    clocks = {clock(entry.table) for entry in examined}
    # One kind of time for all tables is named in the header; otherwise every cell names its own.
    header_clock = clocks.pop() if len(clocks) == 1 else None
    rows: list[tuple[str, ...]] = []
    for entry in examined:
        for event in entry.findings.events:
            places = [entry.moment(row) for row in (event.start, event.end, event.peak)]
            if header_clock is None:
                places = [marked(place, clock(entry.table)) for place in places]
            numbers = significant(event.peak_score), significant(event.threshold)
            rows.append((entry.device, entry.table.name, *places, *numbers, event.sentence or top_channels(event)))
    spans = (marked(name, header_clock) for name in ("Start", "End", "Peak"))
    header: tuple[str, ...] = ("Device", "Table", *spans, "Score", "Threshold", "What it is")
    if all(entry.table.name == entry.device for entry in examined):
        header, rows = header[:1] + header[2:], [row[:1] + row[2:] for row in rows]
    if rows:
        score = header.index("Score")
        print_table(header, rows, numbers=[score, score + 1])
        print_line()
    if any(is_by_rule(event) for entry in examined for event in entry.findings.events):
        print_line(BY_RULE)
    print_line(summary(examined))


def _document(examined: Sequence[Examination], skipped: dict[str, str], agreed: Agreement | None) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = {}
    for entry in examined:
        device = devices.setdefault(
            entry.device,
            {"device": entry.device, "rows": 0, "scored_rows": 0, "filled_cells": 0, "gap_rows": 0, "events": []},
        )
        device["rows"] += len(entry.findings.scores)
        device["scored_rows"] += entry.scored
        device["filled_cells"] += entry.table.filled
        device["gap_rows"] += entry.table.gap_rows
        device["events"] += [_event_document(entry, event) for event in entry.findings.events]
    document: dict[str, Any] = {
        "events": sum(len(device["events"]) for device in devices.values()),
        "brief_events": sum(entry.findings.brief for entry in examined),
        "devices": list(devices.values()),
        "skipped": skipped_documents(skipped),
    }
    if agreed is not None:
        numbers = ("labelled", "found", "false_alarms", "precision", "recall", "false_alarms_per_day")
        unit = "rows" if agreed.healthy_days is None else "seconds"
        document["labels"] = {name: getattr(agreed, name) for name in numbers} | {f"delay_{unit}": agreed.delay}
    return document


def _event_document(entry: Examination, event: Event) -> dict[str, Any]:
    """Describe an event: rows count from 0, `end` is the last flagged row, and rows stand in for missing times."""
    places = {name: getattr(event, name) for name in ("start", "end", "peak")}
    return {
        "table": entry.table.name,
        **{f"{name}_row": row for name, row in places.items()},
        **{
            name: row if entry.table.times is None else entry.table.time_texts(slice(row, row + 1))[0]
            for name, row in places.items()
        },
        "peak_score": event.peak_score,
        "threshold": event.threshold,
        "kind": event.kind,
        "sentence": event.sentence,
        "channels": [{"channel": cause.channel, "share": cause.share} for cause in event.causes],
    }


def _write_scores(path: Path, examined: Sequence[Examination]) -> None:
    made_folder(path.parent)
    with shown_progress(brief=True) as progress:
        write_blocks(path, _score_blocks(examined, partial(progress, "writing scores")))


def _score_blocks(examined: Sequence[Examination], report: Report) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield blocks of rows with where each is, its score, its threshold, and whether it is an alarm."""
    dated = any(entry.table.times is not None for entry in examined)
    done, of = 0, sum(len(entry.findings.scores) for entry in examined)
    for entry in examined:
        for start in range(0, len(entry.findings.scores), SCORE_BLOCK):
            rows = range(start, min(start + SCORE_BLOCK, len(entry.findings.scores)))
            yield _score_block(entry, rows, dated)
            done += len(rows)
            report(done, of)


def _score_block(entry: Examination, rows: range, dated: bool) -> dict[str, Sequence[Any]]:
    findings, these = entry.findings, slice(rows.start, rows.stop)
    columns: dict[str, Any] = {"device": [entry.device] * len(rows), "table": [entry.table.name] * len(rows)}
    columns["row"] = rows
    if dated:
        columns["time"] = [None] * len(rows) if entry.table.times is None else entry.table.time_texts(these)
    columns["score"], columns["threshold"] = findings.scores[these], findings.thresholds[these]
    # A row without a score is neither normal nor not, so its cell stays empty.
    columns["is_anomaly"] = np.where(np.isnan(findings.scores[these]), np.nan, findings.alarms[these])
    if findings.offline_scores is not None:
        columns["offline_score"] = findings.offline_scores[these]
    if findings.shares is not None:
        columns |= {f"share of {name}": findings.shares[these, at] for at, name in enumerate(findings.channels)}
    return columns
