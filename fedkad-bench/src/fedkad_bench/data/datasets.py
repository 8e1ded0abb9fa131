"""Load the public datasets and other folders, each with notes on what is missing compared with the paper's table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from fedkad.tables.errors import TableSource as Source
from fedkad_bench.data.cache import read_cached
from fedkad_bench.data.dataset import PAPER_TABLE, Dataset, Figures, PartialDatasetWarning
from fedkad_bench.data.differences import differences, gap_notes, is_partial, short_label
from fedkad_bench.data.entity import Entity
from fedkad_bench.data.layouts import (
    SMD_MACHINES,
    Layout,
    MissingPartError,
    Recording,
    find_nasa,
    find_psm,
    find_smd,
    find_tables,
    read_nasa,
    read_smd,
)
from fedkad_bench.data.partition import partition

__all__ = [
    "KNOWN",
    "PAPER_TABLE",
    "Choice",
    "Dataset",
    "Entity",
    "Figures",
    "PartialDatasetWarning",
    "data_folder",
    "load",
    "load_folder",
    "read_nasa",
    "read_smd",
]

Choice = str | int | Callable[[str], bool]
"""Which entities: a pattern such as ``machine-1-*``, how many from the first on, or a function of the name."""

Entities = tuple[Entity, ...]
Named = TypeVar("Named", Recording, Entity)


class Known(NamedTuple):
    """A public dataset: its place in the data folder, and what is special about it."""

    folder: str
    find: Callable[[Path], Layout]
    noun: str
    scaling: Literal["device", "global"] = "device"
    chosen_on: str = ""
    members: tuple[str, ...] = ()
    one_stream: bool = False


KNOWN = {
    "SMD": Known("SMD", find_smd, "machines", chosen_on="machine-1-*", members=SMD_MACHINES),
    "PSM": Known("PSM", find_psm, "clients", scaling="global", one_stream=True),
    "SMAP": Known("NASA", partial(find_nasa, spacecraft="SMAP"), "channels"),
    "MSL": Known("NASA", partial(find_nasa, spacecraft="MSL"), "channels"),
}


def data_folder() -> Path | None:
    """The folder of the datasets: `FEDKAD_DATA`, or `../shared/data` beside the repository; None if absent."""
    named = os.environ.get("FEDKAD_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[5] / "shared" / "data"
    return folder if folder.is_dir() else None


def load(
    name: str, folder: Path | None = None, *, entities: Choice | None = None, cache: bool = True, seed: int = 0
) -> Dataset:
    """Load a public dataset.

    Parameters
    ----------
    name
        ``SMD``, ``PSM``, ``SMAP`` or ``MSL``, in any letter case.
    folder
        The folder that holds ``SMD``, ``PSM`` and ``NASA``; by default that of :func:`data_folder`.
    entities
        Which entities to load: a pattern such as ``machine-1-*``, how many from the first on, or a function that tells
        by the name. Only these are read.
    cache
        Whether a copy in binary form is used and kept; see :mod:`fedkad_bench.data.cache`.
    seed
        Of the cut of PSM into clients (:mod:`fedkad_bench.data.partition`); the other datasets come in entities.

    Warns
    -----
    PartialDatasetWarning
        If something of the dataset is missing; the notes say the same.
    """
    name = known_name(name)
    known, root = KNOWN[name], folder or data_folder()
    if root is None:
        raise ValueError(f"{name}: there is no data folder; name it in FEDKAD_DATA.")
    if not Path(root).is_dir():
        raise ValueError(
            f"{name}: there is no data folder {root}; name another, or fetch with "
            f"`fedkad datasets get {name} --data {root}`."
        )
    place = Path(root) / known.folder
    layout = known.find(place)
    if not layout.recordings:
        reason = layout.missing[0].rstrip(".") if layout.missing else f"there is nothing of it in {place}"
        raise ValueError(f"{name}: {reason}; fetch it with `fedkad datasets get {name} --data {root}`.")
    found = _read_known(name, layout, place, entities, cache=cache, seed=seed)
    made = Dataset(
        name,
        found,
        label=name,
        sample_period=layout.sample_period,
        scaling=known.scaling,
        chosen_on=tuple(entity.name for entity in found if fnmatchcase(entity.name, known.chosen_on)),
        shared_test=known.one_stream,
        root=Path(root),
    )
    if entities is not None:
        return replace(
            made, label=f"{name} ({len(found)} {known.noun} selected)", notes=(*layout.remarks, *gap_notes(made))
        )
    return _compared(made, known, layout)


def load_folder(folder: Path, *, entities: Choice | None = None, cache: bool = True) -> Dataset:
    """Load a dataset from any folder: ``train/NAME.csv``, ``test/NAME.csv`` and the labels, CSV or Parquet.

    :func:`fedkad_bench.data.layouts.find_tables` says what the folder holds. All entities count as untouched.
    `entities` and `cache` are those of :func:`load`.

    Warns
    -----
    PartialDatasetWarning
        If an entity is left out because one of its parts is missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; give one, or a name: {', '.join(KNOWN)}.")
    name, layout = folder.resolve().name, find_tables(folder)
    recordings = _chosen(layout.recordings, entities, name) if layout.recordings else ()
    found, unlabelled = _read(recordings, name, folder, cache=cache)
    missing = (*unlabelled, *layout.missing)
    if not found:
        reason = (*missing, f"{folder}: there are no tables in train and test.")[0].rstrip(".")
        raise ValueError(f"{reason}; lay out train/NAME.csv, test/NAME.csv and labels/NAME.csv in {folder}.")
    if missing:
        warnings.warn(f"{name}: {' '.join(missing)}", PartialDatasetWarning, stacklevel=2)
    label = f"{name} ({len(found)} of {len(found) + len(missing)} entities)" if missing else name
    made = Dataset(name, found, label, layout.sample_period)
    return replace(made, notes=(*missing, *gap_notes(made)))


def known_name(name: str) -> str:
    """The name of a public dataset in its own letter case; any other is refused."""
    if name.upper() not in KNOWN:
        raise ValueError(f"{name}: this is not a known dataset; choose from {', '.join(KNOWN)}.")
    return name.upper()


def _compared(made: Dataset, known: Known, layout: Layout) -> Dataset:
    """The whole dataset with its notes and label; a partial one warns."""
    told = differences(made, known.noun, known.members)
    notes = (*layout.missing, *told, *layout.remarks, *gap_notes(made))
    labelled = replace(made, label=short_label(made, known.noun), notes=notes)
    if is_partial(made) or layout.missing:
        warnings.warn(f"{labelled.label}: {' '.join((*layout.missing, *told))}", PartialDatasetWarning, stacklevel=3)
    return labelled


def _read_known(name: str, layout: Layout, place: Path, entities: Choice | None, *, cache: bool, seed: int) -> Entities:
    if not KNOWN[name].one_stream:
        return _read(_chosen(layout.recordings, entities, name), name, place, cache=cache)[0]
    (stream,), _ = _read(layout.recordings, name, place, cache=cache)
    return _chosen(partition(stream, seed=seed), entities, name) if len(stream.train) else (stream,)


def _read(recordings: Iterable[Recording], dataset: str, folder: Path, *, cache: bool) -> tuple[Entities, list[str]]:
    """The entities, and a sentence on each that lacks its labels."""
    found: list[Entity] = []
    unlabelled = []
    for recording in recordings:
        try:
            entity = read_cached(recording, dataset, folder) if cache else recording.read()
        except MissingPartError as error:
            unlabelled.append(str(error))
            continue
        if found and entity.test.shape[1] != found[0].test.shape[1]:
            what = f"there are {entity.test.shape[1]} channels, and {found[0].name} has {found[0].test.shape[1]}"
            raise Source(recording.files[0]).error(what, "give every entity the same channels")
        found.append(entity)
    return tuple(found), unlabelled


def _chosen(items: Sequence[Named], entities: Choice | None, dataset: str) -> tuple[Named, ...]:
    """The recordings or entities that were asked for; to ask for none is refused."""
    if entities is None:
        return tuple(items)
    if isinstance(entities, int):
        chosen = tuple(items[: max(entities, 0)])
    elif isinstance(entities, str):
        chosen = tuple(item for item in items if fnmatchcase(item.name, entities))
    else:
        chosen = tuple(item for item in items if entities(item.name))
    if not chosen:
        names = ", ".join(item.name for item in items)
        raise ValueError(f"{dataset}: no entity was chosen; choose among {names}.")
    return chosen
