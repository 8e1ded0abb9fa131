"""What detection found in the files of a device: findings for each table, in the table's own rows and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.cli.failures import naming
from fedkad.detect.events import Event, Findings, examine
from fedkad.detect.series import Series
from fedkad.tables import Device, Table
from fedkad.tables.times import time_text


@dataclass(frozen=True, eq=False)
class Examined:
    """A table with what was found in it; `rows` are the entries of the findings that are rows of the table."""

    device: str
    table: Table
    findings: Findings
    offline_scores: NDArray[np.float64]
    rows: NDArray[np.intp]

    def row(self, entry: int) -> int:
        """The row of the table that an entry of the findings is; entries of gaps in time are none and not asked for."""
        return int(np.searchsorted(self.rows, entry))


def examine_device(detector: KoopmanDetector, device: Device, path: Path) -> list[Examined]:
    """Judge every table of a device by itself."""
    found = []
    for table in device.tables:
        values, rows = table.with_gaps()
        series = Series(values, table.channels)
        with naming(path if table.name == device.name else path / table.name):
            findings, offline = examine(detector, series), detector.score_series(series)
        found.append(Examined(device.name, table, findings, offline, np.flatnonzero(rows >= 0)))
    return found


def events_in(examined: Sequence[Examined]) -> Iterator[tuple[Examined, Event]]:
    """All events with the tables that they are in."""
    return ((entry, event) for entry in examined for event in entry.findings.events)


def event_document(entry: Examined, event: Event) -> dict[str, Any]:
    """An event for programs: rows count from 0, `end` is the last flagged one, and times are rows without times."""
    start, end, peak = (entry.row(k) for k in (event.start, event.end, event.peak))
    times = entry.table.times
    return {
        "table": entry.table.name,
        "start_row": start,
        "end_row": end,
        "peak_row": peak,
        **{
            name: row if times is None else time_text(times[row : row + 1], utc=entry.table.utc)[0]
            for name, row in (("start", start), ("end", end), ("peak", peak))
        },
        "peak_score": event.peak_score,
        "threshold": event.threshold,
        "channels": [{"channel": cause.channel, "share": cause.share} for cause in event.causes],
    }


def score_columns(examined: Sequence[Examined], *, offline: bool, shares: bool) -> dict[str, list[Any]]:
    """One row for each row of each table: where it is, its score, the threshold, the alarm, and what else is asked."""
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
        add("is_anomaly", found.alarms[rows].tolist())
        if offline:
            add("offline_score", entry.offline_scores[rows].tolist())
        if shares:
            for channel, part in zip(found.channels, found.shares[rows].T, strict=True):
                add(f"share of {channel}", part.tolist())
    return columns
