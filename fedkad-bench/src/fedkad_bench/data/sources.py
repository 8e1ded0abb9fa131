"""Where the data of a run comes from: small descriptions that travel to the processes, and what they load there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedkad_bench.data.dataset import Dataset, PartialDatasetWarning
from fedkad_bench.data.datasets import KNOWN, load, load_folder


@dataclass(frozen=True)
class Source:
    """Some entities of a dataset, and how much of their training rows.

    Attributes
    ----------
    dataset
        A public name, or the name of a folder of one's own.
    folder
        The data folder, or that folder itself.
    names
        The entities, in the dataset's order.
    train_rows
        At most so many training rows of each, from the first on; None for all.
    """

    dataset: str
    folder: Path | None
    names: tuple[str, ...]
    train_rows: int | None = None


@dataclass(frozen=True)
class Facts:
    """What a run needs to know of a dataset before it trains: no series, no labels.

    `size` is the count of the numbers to learn from, `test_rows` has one number for each entity of the source.
    """

    source: Source
    label: str
    notes: tuple[str, ...]
    test_rows: tuple[int, ...]
    size: int


def look(name: str, folder: Path | None, *, clients: int | None = None, train_rows: int | None = None) -> Facts:
    """Load a dataset once, for what a run needs to know of it; one without training rows is refused.

    `name` is that of a public dataset in `folder`, or the path of a folder of one's own. Of `clients` entities, the
    choice is spread evenly over all of them.
    """
    public = name.upper() in KNOWN
    place = folder if public else Path(name)
    if not public and Path(name).resolve().name in KNOWN:
        raise ValueError(f"{name}: a folder of one's own cannot have the name of a public dataset; rename it.")
    dataset = _load(name.upper() if public else str(name), place)
    dataset.training()
    chosen = spread([entity.name for entity in dataset.entities], clients)
    kept = [entity for entity in dataset.entities if entity.name in chosen]
    label, notes = dataset.label, dataset.notes
    if len(kept) < len(dataset.entities):
        noun = KNOWN[dataset.name].noun if public else "entities"
        label = f"{dataset.name} ({len(kept)} {noun} selected)"
    if train_rows is not None:
        notes = (*notes, f"Only the first {train_rows} training rows of each entity are used.")
    return Facts(
        Source(dataset.name, place, chosen, train_rows),
        label,
        notes,
        tuple(len(entity.test) for entity in kept),
        sum(entity.train[:train_rows].size for entity in kept),
    )


def spread(names: Sequence[str], count: int | None) -> tuple[str, ...]:
    """`count` names at equal steps from the first to the last; all, if there are no more or none is given.

    >>> spread(["a", "b", "c", "d", "e"], 3)
    ('a', 'c', 'e')
    """
    if count is None or count >= len(names):
        return tuple(names)
    places = np.rint(np.linspace(0, len(names) - 1, count)).astype(int)
    return tuple(names[place] for place in places)


@lru_cache(maxsize=2)
def fetch(source: Source) -> Dataset:
    """The entities of a source; the last two sources stay in memory, for the cells that come next."""
    wanted = set(source.names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialDatasetWarning)  # told once, by `look`
        if source.dataset in KNOWN:
            found = load(source.dataset, source.folder, entities=wanted.__contains__)
        else:
            found = load_folder(source.folder or Path(source.dataset), entities=wanted.__contains__)
    lacking = wanted - {entity.name for entity in found.entities}
    if lacking:
        raise ValueError(f"{source.dataset}: there is no {', '.join(sorted(lacking))} in {source.folder}.")
    cut = tuple(entity._replace(train=entity.train[: source.train_rows]) for entity in found.entities)
    return replace(found, entities=cut)


def _load(name: str, folder: Path | None) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialDatasetWarning)  # the notes say the same
        return load(name, folder) if name in KNOWN else load_folder(Path(name))
