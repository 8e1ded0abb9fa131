"""How a dataset as it lies in a folder differs from the paper's table, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedkad_bench.data.dataset import PAPER_TABLE, Dataset
from fedkad_bench.data.entity import Array

ROUNDING = 0.005
"""The paper gives percentages to two decimals."""


def is_partial(dataset: Dataset) -> bool:
    """Tell whether there are fewer clients or rows than in the paper's table."""
    here, paper = dataset.figures, PAPER_TABLE[dataset.name]
    return here.clients < paper.clients or here.train < paper.train or here.test < paper.test


def short_label(dataset: Dataset, noun: str) -> str:
    """The name with what is missing, as in ``SMD (24 of 28 machines)``."""
    here, paper = dataset.figures, PAPER_TABLE[dataset.name]
    parts = []
    if dataset.trainable and here.clients < paper.clients:
        parts.append(f"{here.clients} of {paper.clients} {noun}")
    elif is_partial(dataset):
        parts += _fewer(here.test, paper.test, "test") + _fewer(here.train, paper.train, "training")
    return f"{dataset.name} ({', '.join(parts)})" if parts else dataset.name


def differences(dataset: Dataset, noun: str, members: Sequence[str] = ()) -> tuple[str, ...]:
    """One sentence for each figure that is not the paper's; `members` are the names of all that should be there."""
    here, paper = dataset.figures, PAPER_TABLE[dataset.name]
    told = []
    if dataset.trainable and here.clients != paper.clients:
        names = {entity.name for entity in dataset.entities}
        absent = [name for name in members if name not in names]
        which = f"; missing: {', '.join(absent)}" if absent else ""
        told.append(f"{here.clients} of the paper's {paper.clients} {noun}{which}.")
    for what, ours, theirs in (("training", here.train, paper.train), ("test", here.test, paper.test)):
        if ours != theirs:
            told.append(f"{ours:,} {what} rows; the paper's table has {theirs:,}.")
    if abs(here.anomalous - paper.anomalous) > ROUNDING:
        told.append(
            f"{here.anomalous:.2f} % of the test rows are anomalous; the paper's table says {paper.anomalous} %."
        )
    if here.channels != paper.channels:
        told.append(f"{here.channels} channels; the paper's table has {paper.channels}.")
    return (*told, *_explained(dataset))


def gap_notes(dataset: Dataset) -> tuple[str, ...]:
    """Sentences on rows with missing values; those of a shared test series count once."""
    tested = dataset.entities[:1] if dataset.shared_test else dataset.entities
    train = sum(_gaps(entity.train) for entity in dataset.entities)
    test = sum(_gaps(entity.test) for entity in tested)
    return tuple(
        f"{count:,} {what} rows have a missing value and stay gaps; nothing is filled."
        for what, count in (("training", train), ("test", test))
        if count
    )


def _gaps(series: Array) -> int:
    return int(np.isnan(series).any(axis=1).sum())


def _fewer(ours: int, theirs: int, what: str) -> list[str]:
    if ours == 0:
        return [f"no {what} rows"]
    return [f"{ours:,} of {theirs:,} {what} rows"] if ours < theirs else []


def _explained(dataset: Dataset) -> tuple[str, ...]:
    """Name the one entity without which the counts of rows would be the paper's, if there is one."""
    here, paper = dataset.figures, PAPER_TABLE[dataset.name]
    surplus = here.train - paper.train, here.test - paper.test
    return tuple(
        f"The paper's counts of rows are those without {entity.name}, which its count of clients includes."
        for entity in dataset.entities
        if (len(entity.train), len(entity.test)) == surplus and here.clients == paper.clients
    )
