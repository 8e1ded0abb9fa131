"""The layouts of datasets on disk: which files there are, what is missing, and how an entity is read.

A layout is first looked at, then read: :class:`Recording` says which files make up an entity, so that a cache can tell
whether they have changed, and a choice of entities costs nothing for the others.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkad.intake import Switches, read_recording
from fedkad.tables import SeriesTable as Table
from fedkad.tables import TableError
from fedkad.tables import read_table as read_plain
from fedkad.tables.cells import shown
from fedkad.tables.errors import TableSource as Source
from fedkad.tables.errors import reason_in
from fedkad.tables.reading import PLAIN, table_ending
from fedkad_bench.data.entity import Array, Entity, Labels
from fedkad_bench.data.numberfile import AGAIN, as_labels, read_numbers

SMD_MACHINES = tuple(
    f"machine-{group}-{number}" for group, count in ((1, 8), (2, 9), (3, 11)) for number in range(1, count + 1)
)
"""The 28 machines of SMD."""

MINUTE = 60.0
"""Seconds between samples of every public dataset."""

SMD_PARTS = ("train", "test", "test_label")
NASA_PARTS = ("train", "test")
NASA_LABELS = "labeled_anomalies.csv"
PSM_TIME = "timestamp_(min)"
LABEL = "label"

Segments = dict[str, list[list[tuple[int, int]]]]
"""By channel and label row: first and last entry of each segment."""


class MissingPartError(TableError):
    """An entity without one of its parts: it is left out, the others are not."""


class Recording(NamedTuple):
    """One entity on disk: its files, and how to read them."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Entity]


class Layout(NamedTuple):
    """What a folder holds: its entities, a sentence on each thing missing, and on each thing worth knowing."""

    recordings: tuple[Recording, ...]
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    sample_period: float | None = None


# -- SMD ------------------------------------------------------------------------------------------------------


def find_smd(folder: Path) -> Layout:
    """Machines of the Server Machine Dataset: `train`, `test` and `test_label`, plain or gzipped text."""
    found = {part: {path.name.partition(".")[0]: path for path in _texts(folder / part)} for part in SMD_PARTS}
    names, missing = _complete(found, folder)
    recordings = []
    for name in sorted(names):
        files = tuple(found[part][name] for part in SMD_PARTS)
        recordings.append(Recording(name, files, partial(_read_machine, name, *files)))
    return Layout(tuple(recordings), missing, sample_period=MINUTE)


def read_smd(folder: Path, only: str = "machine-*") -> Iterator[Entity]:
    """Machines of SMD whose name matches a pattern, read one after the other."""
    return (recording.read() for recording in find_smd(folder).recordings if fnmatchcase(recording.name, only))


def _texts(folder: Path) -> list[Path]:
    """Text files; a plain one comes last, so that it counts where both forms are there."""
    return sorted(folder.glob("machine-*.txt.gz")) + sorted(folder.glob("machine-*.txt"))


def _read_machine(name: str, train: Path, test: Path, labels: Path) -> Entity:
    column = read_numbers(labels)
    if column.shape[1] != 1:
        raise Source(labels).error(f"there are {column.shape[1]} values a line where one label belongs", AGAIN)
    return _checked(
        Entity(name, read_numbers(train), read_numbers(test), as_labels(column[:, 0], Source(labels))),
        train,
        test,
        labels,
    )


# -- SMAP and MSL ---------------------------------------------------------------------------------------------


def find_nasa(folder: Path, spacecraft: str) -> Layout:
    """Telemetry channels of one spacecraft, SMAP or MSL, as telemanom lays them out.

    A channel with several label rows, as P-2 has, is one entity with the union of the segments; segment ends are
    inclusive. A channel without a label row, as T-10 is, is left out.
    """
    labels = folder / NASA_LABELS
    every = _segments_in(labels, spacecraft)
    segments = every.get(spacecraft, {})
    found = {part: {path.stem: path for path in (folder / part).glob("*.npy")} for part in NASA_PARTS}
    wanted = {part: {name: path for name, path in found[part].items() if name in segments} for part in NASA_PARTS}
    names, missing = _complete({**wanted, NASA_LABELS: dict.fromkeys(segments, labels)}, folder)
    recordings = []
    for name in sorted(names):
        files = (found["train"][name], found["test"][name], labels)
        recordings.append(Recording(name, files, partial(_read_channel, name, *files, segments[name])))
    return Layout(tuple(recordings), missing, _nasa_remarks(every, spacecraft, found["train"]), MINUTE)


def _nasa_remarks(every: Mapping[str, Segments], spacecraft: str, trained: Iterable[str]) -> tuple[str, ...]:
    labelled = set().union(*every.values())
    unlabelled = sorted(name for name in trained if name not in labelled)
    repeated = {name: len(rows) for name, rows in every.get(spacecraft, {}).items() if len(rows) > 1}
    return (
        *(
            f"{name} has {rows} label rows and is one entity with all their segments."
            for name, rows in repeated.items()
        ),
        *(f"{name} has no label row and is left out." for name in unlabelled),
    )


def read_nasa(folder: Path, spacecraft: str) -> Iterator[Entity]:
    """Telemetry channels of one spacecraft, SMAP or MSL, read one after the other."""
    return (recording.read() for recording in find_nasa(folder, spacecraft).recordings)


def _segments_in(path: Path, spacecraft: str) -> dict[str, Segments]:
    """The labelled segments by spacecraft and channel."""
    found: dict[str, Segments] = {}
    if not path.is_file():
        remedy = f"fetch it with `fedkad datasets get {spacecraft} --data {path.parent.parent}`"
        raise Source(path).error("there is no such file", remedy)
    source = Source(path, lambda row: f"line {row + 2}")
    with path.open(newline="", errors="replace") as file:
        try:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or ()
        except csv.Error as error:
            raise source.error(f"the file is not CSV ({reason_in(error)})", AGAIN) from error
    for column in ("chan_id", "spacecraft", "anomaly_sequences"):
        if column not in columns:
            raise source.error(f"there is no column {column!r}", AGAIN)
    for at, row in enumerate(rows):
        ends = _ends_in(row["anomaly_sequences"] or "", source, at)
        found.setdefault(row["spacecraft"] or "", {}).setdefault(row["chan_id"] or "", []).append(ends)
    return found


def _ends_in(text: str, source: Source, row: int) -> list[tuple[int, int]]:
    pairs = re.findall(r"\[\s*(\d+)\s*,\s*(\d+)\s*\]", text)
    if not pairs or re.sub(r"[\s,\[\]\d]", "", text):
        what = f"{shown(text)} is not a list of segments such as [[10, 20], [30, 40]]"
        raise source.error(what, AGAIN, row=row)
    return [(int(start), int(end)) for start, end in pairs]


def _read_channel(name: str, train: Path, test: Path, labels: Path, rows: list[list[tuple[int, int]]]) -> Entity:
    series = _read_array(test)
    marks = np.zeros(len(series), dtype=bool)
    for start, end in chain.from_iterable(rows):
        if not start <= end < len(series):
            what = f"the segment [{start}, {end}] of {name} is not within the {len(series)} rows of {test}"
            raise Source(labels).error(what, "fetch both again")
        marks[start : end + 1] = True
    return _checked(Entity(name, _read_array(train), series, marks), train, test, labels)


def _read_array(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Source(path).error(f"the file cannot be read as an array ({reason_in(error)})", AGAIN) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not len(array):
        what = f"the array has shape {array.shape} and type {array.dtype} where rows of numbers belong"
        raise Source(path).error(what, AGAIN)
    if not np.isfinite(array).all():
        row, channel = np.argwhere(~np.isfinite(array))[0]
        raise Source(path).error("the value is not finite", AGAIN, row=int(row), where=f"channel {channel}")
    values: Array = array.astype(np.float64)
    return values


# -- PSM ------------------------------------------------------------------------------------------------------


def find_psm(folder: Path) -> Layout:
    """The one stream of Pooled Server Metrics: `train.csv`, `test.csv` and `test_label.csv`, plain or gzipped.

    A row with a missing value, of which the training file has some, stays a gap: nothing is filled. Where only the
    head of the test stream is there (`test_head.csv`), it is read with the labels of its rows; without
    `train.csv` the training series has no rows.
    """
    files = {stem: _csv_called(stem, folder) for stem in ("train", "test", "test_head", "test_label")}
    labels, test = files["test_label"], files["test"] or files["test_head"]
    if labels is None or test is None:
        absent = [f"{stem}.csv" for stem in ("test", "test_label") if files[stem] is None]
        return Layout((), (f"{folder} lacks {' and '.join(absent)}.",) if folder.is_dir() else ())
    missing = []
    if files["test"] is None:
        missing.append(f"test.csv is missing, and {test.name} with the first of its rows is read instead.")
    if files["train"] is None:
        missing.append("train.csv is missing: there is nothing to train on.")
    present = tuple(path for path in (files["train"], test, labels) if path is not None)
    read = partial(_read_stream, files["train"], test, labels, is_head=files["test"] is None)
    return Layout((Recording("PSM", present, read),), tuple(missing), sample_period=MINUTE)


def _csv_called(stem: str, folder: Path) -> Path | None:
    candidates = (folder / f"{stem}.csv", folder / f"{stem}.csv.gz")
    return next((path for path in candidates if path.is_file()), None)


class _Stretch(NamedTuple):
    """A file of PSM: its channels, and the minute of every row where upstream's first column is there."""

    channels: tuple[str, ...]
    values: Array
    minutes: Array | None


def _read_stream(train: Path | None, test: Path, labels: Path, *, is_head: bool) -> Entity:
    after, marks = _read_stretch(test), _read_stretch(labels)
    if marks.channels != (LABEL,):
        raise Source(labels).error(f"the columns are {', '.join(marks.channels)}", f"give one column {LABEL!r}")
    _require_same_minutes(after, marks, labels)
    rows = len(after.values) if is_head else len(marks.values)
    before = np.empty((0, len(after.channels))) if train is None else _read_stretch(train).values
    truth = as_labels(marks.values[:rows, 0], Source(labels))
    return _checked(Entity("PSM", before, after.values, truth), train or test, test, labels)


def _read_stretch(path: Path) -> _Stretch:
    table = read_table(path, max_fill=0)
    if table.channels[0] != PSM_TIME:
        return _Stretch(table.channels, table.values, None)
    return _Stretch(table.channels[1:], table.values[:, 1:].copy(), table.values[:, 0])


def _require_same_minutes(test: _Stretch, labels: _Stretch, path: Path) -> None:
    if test.minutes is None or labels.minutes is None:
        return
    common = min(len(test.minutes), len(labels.minutes))
    apart = np.flatnonzero(test.minutes[:common] != labels.minutes[:common])
    if len(apart):
        what = "the label is of another minute than the row of the test file"
        raise Source(path).error(what, "fetch both again", row=int(apart[0]))


# -- any other folder ------------------------------------------------------------------------------------


def find_tables(folder: Path) -> Layout:
    """Any tables, CSV or Parquet: `train/NAME`, `test/NAME`, and the labels.

    The labels, 0 or 1, are the column ``label`` of the test table or of a table ``labels/NAME``. A row with a missing
    value stays a gap, and a gap in time becomes a row of NaN that is labelled normal, so that no window spans it.
    """
    found = {part: _tables_in(folder / part) for part in ("train", "test", "labels")}
    names, missing = _complete({part: found[part] for part in ("train", "test")}, folder)
    recordings = []
    for name in sorted(names):
        train, test, labels = found["train"][name], found["test"][name], found["labels"].get(name)
        files = tuple(path for path in (train, test, labels) if path is not None)
        recordings.append(Recording(name, files, partial(_read_pair, name, train, test, labels)))
    period = read_table(recordings[0].files[0]).period if recordings else None
    return Layout(tuple(recordings), missing, sample_period=period)


def read_table(path: Path, *, max_fill: int = 3, allow_silent: bool = False) -> Table:
    """A table of a dataset: plain CSV strictly, and other formats with all their columns, labels included."""
    if table_ending(path) in PLAIN:
        return read_plain(path, max_fill=max_fill, allow_silent=allow_silent)
    return read_recording(path, Switches(max_fill=max_fill, keep_labels=True), allow_silent=allow_silent)


def _tables_in(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        ending = table_ending(path)
        if ending is not None and path.is_file() and not path.name.startswith("."):
            name = path.name[: -len(ending)]
            if name in found:
                raise Source(path).error(f"{name} is also in {found[name]}", "rename or remove one of them")
            found[name] = path
    return found


def _read_pair(name: str, train: Path, test: Path, labels: Path | None) -> Entity:
    before, after = read_table(train, max_fill=0), read_table(test, max_fill=0, allow_silent=True)
    marks = _labels_of(after, test, labels)
    kept = [at for at, channel in enumerate(after.channels) if channel != LABEL]
    channels = tuple(after.channels[at] for at in kept)
    if channels != before.channels:
        what = f"the channels are {', '.join(channels)}, and those of {train} {', '.join(before.channels)}"
        raise Source(test).error(what, "give both the same channels in the same order")
    series, rows = after.with_gaps()
    spread = np.zeros(len(series), dtype=bool)
    spread[rows >= 0] = marks
    return Entity(name, before.with_gaps()[0], series[:, kept], spread)


def _labels_of(test: Table, path: Path, labels: Path | None) -> Labels:
    if LABEL in test.channels:
        return as_labels(test.values[:, test.channels.index(LABEL)], Source(path))
    if labels is None:
        what = f"there is neither a column {LABEL!r} nor a table of labels"
        raise MissingPartError(f"{path}: {what}; add the column, or labels/{path.name}.")
    table = read_table(labels, max_fill=0)
    if LABEL not in table.channels:
        raise Source(labels).error(f"there is no column {LABEL!r}", "give the column of the labels this name")
    column = table.values[:, table.channels.index(LABEL)]
    _require_rows(len(column), labels, len(test.values), path)
    return as_labels(column, Source(labels))


# -- what all layouts have in common --------------------------------------------------------------------------


def _complete(found: Mapping[str, Mapping[str, Path]], folder: Path) -> tuple[set[str], tuple[str, ...]]:
    """The names that have every part, and a sentence on each of the others."""
    every: set[str] = set().union(*found.values())
    lacking = {name: [part for part in found if name not in found[part]] for name in sorted(every)}
    missing = tuple(
        f"{name} is left out, being absent from {' and '.join(str(folder / part) for part in parts)}."
        for name, parts in lacking.items()
        if parts
    )
    return {name for name, parts in lacking.items() if not parts}, missing


def _checked(entity: Entity, train: Path, test: Path, labels: Path) -> Entity:
    """The entity unchanged once its parts fit together."""
    _require_rows(len(entity.labels), labels, len(entity.test), test)
    if entity.train.shape[1] != entity.test.shape[1]:
        what = f"there are {entity.test.shape[1]} channels, and in {train} {entity.train.shape[1]}"
        raise Source(test).error(what, "fetch both again")
    return entity


def _require_rows(found: int, labels: Path, expected: int, test: Path) -> None:
    if found != expected:
        what = f"there are {found} labels for the {expected} rows of {test}"
        raise Source(labels).error(what, "give one label for each row of the test series")
