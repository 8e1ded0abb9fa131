"""Devices and fleets: which files belong together, and that they measure the same channels."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.errors import TableSource, reason_in
from fedkad.tables.reading import read_table, table_ending
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
        """The number of missing cells that were filled, over all tables."""
        return sum(table.filled for table in self.tables)

    @property
    def gap_rows(self) -> int:
        """The number of rows that remain gaps, over all tables."""
        return sum(table.gap_rows for table in self.tables)

    def series(self) -> list[NDArray[np.float64]]:
        """Return one ``(time, channel)`` array per table, with a row of NaN at each time gap."""
        return [table.with_gaps()[0] for table in self.tables]


def read_device(
    path: str | os.PathLike[str], *, time: str | None = None, max_fill: int = 3, allow_silent: bool = False
) -> DeviceTables:
    r"""Read one device: a file, or a folder whose files, sorted by name, are separate stretches.

    In a folder, hidden files, files whose name begins with README, and ``.txt``, ``.md`` and ``.json`` files are
    ignored; any other file that is not a table is an error, so that no data is left out unnoticed. :func:`read_table`
    documents `time`, `max_fill` and `allow_silent`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for day in ("monday", "tuesday"):
    ...         _ = Path(folder, f"{day}.csv").write_text("flow,heat\n1,20\n2,21\n")
    ...     device = read_device(folder)
    >>> [table.name for table in device.tables]
    ['monday', 'tuesday']
    """
    path = Path(path)
    if not os.path.isdir(path):
        table = read_table(path, time=time, max_fill=max_fill, allow_silent=allow_silent)
        return DeviceTables(table.name, table.channels, (table,), path)
    files = _tables_in(path)
    folders = [file for file in files if os.path.isdir(file)]
    if folders:
        raise TableSource(folders[0]).error("a device's folder has a folder inside", "move its files one level up")
    tables = tuple(read_table(file, time=time, max_fill=max_fill, allow_silent=allow_silent) for file in files)
    for file, table in zip(files[1:], tables[1:], strict=True):
        whose = f"the channels are not those of {files[0]}"
        _require_same_channels(file, table.channels, tables[0].channels, whose)
    # abspath, because the folder may be given as "." or "..".
    return DeviceTables(os.path.basename(os.path.abspath(path)), tables[0].channels, tables, path)


def read_fleet(
    folder: str | os.PathLike[str], *, time: str | None = None, max_fill: int = 3, allow_silent: bool = False
) -> dict[str, DeviceTables]:
    r"""Read a fleet: each table file or subfolder of `folder` is one device, by name and sorted by name.

    All devices must have the same channels in the same order. :func:`read_device` documents what a folder may hold,
    and :func:`read_table` `time`, `max_fill` and `allow_silent`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("pump-2", "pump-1"):
    ...         _ = Path(folder, f"{name}.csv").write_text("flow,heat\n1,20\n2,21\n")
    ...     fleet = read_fleet(folder)
    >>> list(fleet), fleet["pump-1"].channels
    (['pump-1', 'pump-2'], ('flow', 'heat'))
    """
    folder = Path(folder)
    if not os.path.isdir(folder):
        what = "expected a folder, found a file" if os.path.exists(folder) else "there is no such folder"
        raise TableSource(folder).error(what, "give the folder that holds one table or subfolder for each device")
    found: dict[str, tuple[Path, DeviceTables]] = {}
    for path in _tables_in(folder):
        device = read_device(path, time=time, max_fill=max_fill, allow_silent=allow_silent)
        if device.name in found:
            what = f"the device {device.name!r} is also in {found[device.name][0]}"
            raise TableSource(path).error(what, "rename or remove one of them")
        found[device.name] = (path, device)
    (first_path, first), *others = found.values()
    for path, device in others:
        whose = f"the channels of device {device.name!r} are not those of device {first.name!r} in {first_path}"
        _require_same_channels(path, device.channels, first.channels, whose)
    return {name: found[name][1] for name in sorted(found)}


def device_paths(folder: Path) -> dict[str, Path]:
    """Where the data of each device of a fleet is, by name and sorted by name; nothing is read."""
    paths = {}
    for path in _tables_in(folder):
        ending = "" if os.path.isdir(path) else table_ending(path) or ""
        paths[path.name[: len(path.name) - len(ending)]] = path
    return dict(sorted(paths.items()))


def _tables_in(folder: Path) -> list[Path]:
    """Return the table files and the folders in a folder, sorted by name."""
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
        raise TableSource(folder).error("there is no table in the folder", "add .csv, .csv.gz or .parquet files")
    return entries


def _is_note(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return hidden or (
        not os.path.isdir(path) and (path.suffix.lower() in NOTES or path.name.lower().startswith("readme"))
    )


def _require_same_channels(path: Path, found: Sequence[str], expected: Sequence[str], what: str) -> None:
    if tuple(found) == tuple(expected):
        return
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"extra {', '.join(extra)}"] if extra else []
    if not parts:
        moved = [name for name, other in zip(found, expected, strict=True) if name != other]
        parts = [f"reordered {', '.join(moved)}"]
    remedy = "give every file the same channels in the same order"
    raise TableSource(path).error(f"{what} ({' and '.join(parts)})", remedy)
