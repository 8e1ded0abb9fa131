"""Devices and fleets: which files belong together, and that they measure the same channels."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.progress import Report, unheard
from fedkad.tables.errors import TableError, TableSource, reason_in
from fedkad.tables.reading import ENDINGS, read_table, table_ending
from fedkad.tables.table import SeriesTable

NOTES = frozenset({".txt", ".md", ".json"})


@dataclass(frozen=True, eq=False)
class DeviceTables:
    """One device and its tables, which all have the same channels in the same order; `path` is where they are.

    >>> first = SeriesTable("monday", ("flow",), np.array([[1.0], [2.0]]))
    >>> second = SeriesTable("friday", ("flow",), np.array([[3.0], [4.0], [5.0]]))
    >>> [series.shape for series in DeviceTables("pump-1", ("flow",), (first, second)).series()]
    [(2, 1), (3, 1)]
    """

    name: str
    channels: tuple[str, ...]
    tables: tuple[SeriesTable, ...]
    path: Path | None = None

    @property
    def filled(self) -> int:
        """Count the missing cells that were filled, over all tables."""
        return sum(table.filled for table in self.tables)

    @property
    def gap_rows(self) -> int:
        """Count the rows that remain gaps, over all tables."""
        return sum(table.gap_rows for table in self.tables)

    def series(self) -> list[NDArray[np.float64]]:
        """Return one ``(time, channel)`` array per table, with a row of NaN at each time gap."""
        return [table.with_gaps()[0] for table in self.tables]


ALMOST = 0.99  # of a file or a device, once its text is read: it is not checked yet

Progress = Callable[[float, int], None]
"""Told how many files, or devices, of how many are read; one that is being read counts in part."""


class Read(Protocol):
    """How a file is read: `read_table`, with its options, or the reader of the command line."""

    def __call__(self, path: Path, *, report: Report) -> SeriesTable:
        """Return the table of the file, and report how much of how much of it is read."""


class FleetTables(NamedTuple):
    """The devices of a fleet by name, and why others were left out."""

    devices: dict[str, DeviceTables]
    skipped: dict[str, str]


def read_device(path: str | os.PathLike[str], read: Read = read_table, progress: Progress = unheard) -> DeviceTables:
    r"""Read one device: a file, or a folder of files.

    If the files of a folder follow one another in time, as those of several days do, they are one recording; otherwise
    they are separate stretches, sorted by name. Hidden files, files whose name begins with README, and ``.txt``,
    ``.md`` and ``.json`` files are ignored; any other file that is not a table is an error, so that no data is left
    out unnoticed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for day in (2, 1):
    ...         _ = Path(folder, f"day-{3 - day}.csv").write_text(f"time,flow\n{day}0,1\n{day}1,2\n{day}2,3\n")
    ...     device = read_device(folder)
    >>> [(table.values.shape, table.times.tolist()) for table in device.tables]
    [((6, 1), [10.0, 11.0, 12.0, 20.0, 21.0, 22.0])]
    """
    path = Path(path)
    files = _tables_in(path) if os.path.isdir(path) else [path]
    folders = [file for file in files if os.path.isdir(file)]
    if folders:
        raise TableSource(folders[0]).error("a device's folder has a folder inside", "move its files one level up")
    tables = []
    for number, file in enumerate(files):
        progress(number, len(files))
        tables.append(read(file, report=_part_of(progress, number, len(files))))
    progress(len(files), len(files))
    first, *others = tables
    if files == [path]:
        return DeviceTables(first.name, first.channels, (first,), path)
    whose = f"the channels are not those of {files[0]}"
    others = [_with_channels(file, table, first.channels, whose) for file, table in zip(files[1:], others, strict=True)]
    # abspath, because the folder may be given as "." or "..".
    name = os.path.basename(os.path.abspath(path))
    return DeviceTables(name, first.channels, _in_sequence(name, (first, *others)), path)


def _part_of(progress: Progress, number: int, files: int) -> Progress:
    """Return the progress of one of several files."""
    if progress is unheard:
        return unheard
    return lambda done, of: progress(number + ALMOST * done / max(of, 1), files)


def _in_sequence(name: str, tables: tuple[SeriesTable, ...]) -> tuple[SeriesTable, ...]:
    """Return one table of all if they follow one another in time; otherwise the tables as they are."""
    timed = [(table.times, table) for table in tables if table.times is not None]
    kinds = {(times.dtype, table.utc) for times, table in timed}
    if len(tables) == 1 or len(timed) < len(tables) or len(kinds) > 1:
        return tables
    timed.sort(key=lambda each: each[0][0])
    if any(before[-1] >= after[0] for (before, _), (after, _) in pairwise(timed)):
        return tables
    offsets = [table.offsets for _, table in timed if table.offsets is not None]
    whole = replace(
        timed[0][1],
        name=name,
        values=np.concatenate([table.values for _, table in timed]),
        times=np.concatenate([times for times, _ in timed]),
        filled=sum(table.filled for _, table in timed),
        offsets=np.concatenate(offsets) if len(offsets) == len(timed) else None,
        notes=tuple(f"{table.name}: {note}" for _, table in timed for note in table.notes),
    )
    return (whole,)


def read_fleet(folder: str | os.PathLike[str], read: Read = read_table, progress: Progress = unheard) -> FleetTables:
    r"""Read a fleet: each table file or subfolder of `folder` is one device, by name and sorted by name.

    A device that cannot be read, or lacks a channel of the others, is left out with its reason. Channels are matched by
    name: the fleet has those that most devices have, in the order of the first of them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("pump-2", "pump-1"):
    ...         _ = Path(folder, f"{name}.csv").write_text("flow,heat\n1,20\n2,21\n")
    ...     fleet = read_fleet(folder)
    >>> list(fleet.devices), fleet.devices["pump-1"].channels
    (['pump-1', 'pump-2'], ('flow', 'heat'))
    """
    folder = Path(folder)
    if not os.path.isdir(folder):
        what = "expected a folder, found a file" if os.path.exists(folder) else "there is no such folder"
        remedy = "give the folder that holds one table or subfolder for each device"
        remedy += ", or pass --device COLUMN if the file holds several" if os.path.exists(folder) else ""
        raise TableSource(folder).error(what, remedy)
    devices: dict[str, DeviceTables] = {}
    skipped: dict[str, str] = {}
    paths = device_paths(folder)
    for number, (name, path) in enumerate(paths.items()):
        progress(number, len(paths))
        try:
            devices[name] = read_device(path, read, _part_of(progress, number, len(paths)))
        except TableError as error:
            skipped[name] = str(error)
    progress(len(paths), len(paths))
    return matched(devices, skipped)


def matched(devices: dict[str, DeviceTables], skipped: dict[str, str]) -> FleetTables:
    """Return the fleet of these devices with the channels of most of them; those that lack one are skipped as well."""
    usual = Counter(frozenset(device.channels) for device in devices.values())
    if not usual:
        raise TableError(next(iter(skipped.values())))
    [(channels, _)] = usual.most_common(1)
    first = next(device for device in devices.values() if frozenset(device.channels) == channels)
    for name, device in list(devices.items()):
        try:
            devices[name] = _like(device, first)
        except TableError as error:
            skipped[name] = str(error)
            del devices[name]
    return FleetTables(devices, skipped)


def _like(device: DeviceTables, first: DeviceTables) -> DeviceTables:
    """Return the device with the channels of another one; extra ones are left out and named."""
    whose = f"the channels of device {device.name!r} are not those of device {first.name!r} in {first.path}"
    extra = [name for name in device.channels if name not in first.channels]
    note = (f"left out because other devices do not have it: {', '.join(map(repr, extra))}",) if extra else ()
    tables = tuple(
        replace(
            _with_channels(device.path or Path(device.name), table, first.channels, whose, extra),
            notes=table.notes + note,
        )
        for table in device.tables
    )
    return replace(device, channels=first.channels, tables=tables)


def device_paths(folder: Path) -> dict[str, Path]:
    """Return where the data of each device of a fleet is, by name and sorted by name; nothing is read."""
    paths: dict[str, Path] = {}
    for path in _tables_in(folder):
        ending = "" if os.path.isdir(path) else table_ending(path) or ""
        name = path.name[: len(path.name) - len(ending)]
        if name in paths:
            raise TableSource(path).error(
                f"the device {name!r} is also in {paths[name]}", "rename or remove one of them"
            )
        paths[name] = path
    return dict(sorted(paths.items()))


def _tables_in(folder: Path) -> list[Path]:
    """Return the table files and the folders in a folder, sorted by name."""
    if folder.is_file():
        remedy = "name the folder that has a file or a folder for each device, or pass --device COLUMN"
        raise TableSource(folder).error("it is a file", remedy)
    try:
        entries = sorted(entry for entry in folder.iterdir() if not _is_note(entry))
    except OSError as error:
        what = f"the folder cannot be read ({error.strerror or reason_in(error)})"
        raise TableSource(folder).error(what, "check its permissions") from error
    for entry in entries:
        if not os.path.isdir(entry) and table_ending(entry) is None:
            remedy = "move it out of the folder, or hide it with a name that begins with a dot"
            raise TableSource(entry).error("the file is neither a table nor a note", remedy)
    if not entries:
        raise TableSource(folder).error(
            "there is no table in the folder", f"add files that end in {', '.join(ENDINGS)}"
        )
    return entries


def _is_note(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return hidden or (
        not os.path.isdir(path) and (path.suffix.lower() in NOTES or path.name.lower().startswith("readme"))
    )


def _with_channels(
    path: Path, table: SeriesTable, expected: Sequence[str], what: str, extra: Sequence[str] = ()
) -> SeriesTable:
    """Return the table with its channels in the expected order; others than the `extra` ones must be the same."""
    missing = [name for name in expected if name not in table.channels]
    unknown = [name for name in table.channels if name not in expected and name not in extra]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"extra {', '.join(unknown)}"] if unknown else []
    if parts:
        raise TableSource(path).error(f"{what} ({' and '.join(parts)})", "give every file the same channels")
    return table.with_channels(expected)
