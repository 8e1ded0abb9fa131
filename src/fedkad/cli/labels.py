"""Labels of recordings, as the spans of rows that they call abnormal."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fedkad.cli.failures import warn
from fedkad.intake import Switches, read_cells
from fedkad.report.chart import Span
from fedkad.tables import SeriesTable

SPAN = ("start", "end")


@dataclass(frozen=True)
class Labels:
    """A file of labels: its lines by column."""

    path: Path
    columns: tuple[str, ...]
    lines: tuple[dict[str, str], ...]

    @property
    def devices(self) -> set[str]:
        """The devices that it names."""
        return {line["device"] for line in self.lines if line.get("device")}

    def fails(self, line: int, what: str, remedy: str) -> ValueError:
        """Return an error about a line of the file, counted from 1 without the header."""
        return ValueError(f"{self.path}: line {line + 1}: {what}; {remedy}.")


def read_labels(path: Path, reading: Switches) -> Labels:
    """Read a table with columns start and end, and perhaps device, or with one 0 or 1 for every row of the data.

    Its text, separators and times may be written as those of the data may.
    """
    columns, rows = read_cells(path, reading, moments=SPAN)
    labels = Labels(path, columns, tuple(dict(zip(columns, row, strict=True)) for row in rows))
    if not _are_spans(labels) and _flag_column(labels) is None:
        raise ValueError(
            f"{path}: the columns are {', '.join(columns) or 'none'}; labels need columns start and end, or one column "
            "of 0 and 1."
        )
    if not _are_spans(labels) and (reading.sort or reading.resample):
        moved = "--sort" if reading.sort else "--resample"
        raise ValueError(f"{path}: a label for every row does not fit rows that {moved} moves; give starts and ends.")
    return labels


def _are_spans(labels: Labels) -> bool:
    return set(SPAN) <= set(labels.columns)


def _flag_column(labels: Labels) -> str | None:
    """Return the one column that holds nothing but 0 and 1."""
    flags = [
        name for name in labels.columns if {line[name].strip() for line in labels.lines} <= {"0", "1", "0.0", "1.0"}
    ]
    return flags[0] if len(flags) == 1 else None


def marks_of(labels: Labels, device: str, table: SeriesTable) -> tuple[Span, ...]:
    """Return the labelled spans of a table."""
    if not _are_spans(labels):
        return _from_flags(labels, table)
    marks = []
    for number, line in enumerate(labels.lines, start=1):
        if line.get("device", device) not in (device, ""):
            continue
        first, last = (_place(labels, number, line[name], table) for name in SPAN)
        if isinstance(first, int) != isinstance(last, int):
            what = f"{line['start']} and {line['end']} are a row and a time"
            raise labels.fails(number, what, "write two rows, or two times")
        if last < first:
            raise labels.fails(number, f"the end {line['end']} is before the start {line['start']}", "correct it")
        start, end = _rows(first, last, table)
        if start <= end and end >= 0 and start < len(table.values):  # others are of another time, or between two rows
            name = line.get("kind") or line.get("label") or ""
            marks.append(Span(max(start, 0), min(end + 1, len(table.values)), name))
    return tuple(marks)


def warn_of_unused(labels: Labels, devices: set[str], used: int) -> None:
    """Warn of labels of other devices than these, and of those that are in none of their recordings."""
    for name in sorted(labels.devices - devices):
        warn(f"{labels.path}: there is no recording of the device {name!r}, so its labels do not count.")
    given = sum(line.get("device", "") in ("", *devices) for line in labels.lines) if _are_spans(labels) else 0
    if used < given:
        what = "is not" if given - used == 1 else "are not"
        warn(f"{labels.path}: {given - used} of {given} labels {what} in the data and do not count; check their times.")


def _from_flags(labels: Labels, table: SeriesTable) -> tuple[Span, ...]:
    column = _flag_column(labels)
    flags = np.array([float(line[column]) for line in labels.lines if column is not None], dtype=np.int8)
    if len(flags) != len(table.values):
        raise ValueError(
            f"{labels.path}: there are {len(flags)} labels for {len(table.values)} rows of {table.name}; give one for "
            "every row, or the start and end of what is abnormal."
        )
    edges = np.flatnonzero(np.diff(flags, prepend=0, append=0)).reshape(-1, 2)
    return tuple(Span(int(start), int(end)) for start, end in edges)


def _rows(first: Any, last: Any, table: SeriesTable) -> tuple[int, int]:
    """Return the first row from a place on, and the last up to another."""
    if isinstance(first, int) or table.wall_times is None:
        return first, last
    times = table.wall_times
    return int(np.searchsorted(times, first)), int(np.searchsorted(times, last, side="right")) - 1


def _place(labels: Labels, number: int, cell: str, table: SeriesTable) -> Any:
    """Return the row, the time or the number that a cell names; a plain number is a row, unless times are numbers."""
    times, cell = table.wall_times, cell.strip()
    is_dated = times is not None and times.dtype.kind == "M"
    if cell.isdigit() and (times is None or is_dated):
        return int(cell)
    try:
        place = _moment(cell, table) if is_dated else float(cell)
    except ZonedLabelError:
        what = f"{cell!r} names a zone, and the times of the data do not"
        raise labels.fails(number, what, "write it as the clock of the data shows it") from None
    except ValueError:
        wanted = "a time such as 2024-05-01T12:00, or a row" if is_dated else "a row" if times is None else "a number"
        raise labels.fails(number, f"{cell!r} is not {wanted}", "correct it") from None
    if times is None:
        raise labels.fails(number, f"{cell!r} is not a row", "count rows from 0, because the data has no times")
    return place


class ZonedLabelError(Exception):
    """A time with a zone where the data has none."""


def _moment(cell: str, table: SeriesTable) -> np.datetime64:
    """Return a time in the zone of the data, which it has unless it names another."""
    moment = datetime.fromisoformat(cell)
    if moment.tzinfo is not None:
        if not table.utc:
            raise ZonedLabelError
        moment = moment.astimezone(UTC).replace(tzinfo=None)
        if table.times is not None and table.offsets is not None:
            ahead = int(
                table.offsets[min(int(np.searchsorted(table.times, np.datetime64(moment))), len(table.times) - 1)]
            )
            moment += timedelta(minutes=ahead)
    return np.datetime64(moment, "us")
