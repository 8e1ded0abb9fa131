"""A dataset: its entities, its figures beside those of the paper, and what nobody has looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedkad_bench.data.entity import Array, Entity


class Figures(NamedTuple):
    """What the paper's table says about a dataset; `anomalous` is a percentage of the test rows."""

    train: int
    test: int
    anomalous: float
    channels: int
    clients: int


PAPER_TABLE = {
    "SMD": Figures(708_405, 708_420, 4.16, 38, 28),
    "PSM": Figures(132_481, 87_841, 27.75, 25, 24),
    "SMAP": Figures(135_183, 427_617, 12.85, 25, 54),
    "MSL": Figures(58_317, 73_729, 10.53, 55, 27),
}


class PartialDatasetWarning(UserWarning):
    """A dataset is not there as a whole: numbers on it are not those of the whole dataset."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset as it lies in a folder: one entity a client, and notes on how it differs from the paper's.

    Parameters
    ----------
    name
        ``SMD``, ``PSM``, ``SMAP``, ``MSL``, or the name of a folder.
    entities
        The clients, sorted by name.
    scaling
        Whether z-scores are those of each device alone or those of the whole fleet; for `federate`.
    sample_period
        Seconds between samples, None where unknown.
    label
        The name with what is missing, as in ``SMD (24 of 28 machines)``: what a table should show.
    notes
        One sentence for each thing that is missing, left out or different from the paper's table.
    chosen_on
        The names of the entities that defaults were chosen on; numbers on these are optimistic.
    shared_test
        Whether all entities are scored on one and the same test series, as on PSM.
    root
        The data folder of a public dataset, where it was read from one.

    Examples
    --------
    >>> x = np.arange(8.0).reshape(4, 2)
    >>> entity = Entity("pump-1", x, x, np.array([False, True, False, False]))
    >>> dataset = Dataset("pumps", (entity,), label="pumps", sample_period=60.0)
    >>> dataset.figures
    Figures(train=4, test=4, anomalous=25.0, channels=2, clients=1)
    >>> dataset.untouched, list(dataset.training())
    (('pump-1',), ['pump-1'])
    """

    name: str
    entities: tuple[Entity, ...]
    label: str
    sample_period: float | None = None
    scaling: Literal["device", "global"] = "device"
    notes: tuple[str, ...] = ()
    chosen_on: tuple[str, ...] = ()
    shared_test: bool = False
    root: Path | None = None

    @property
    def untouched(self) -> tuple[str, ...]:
        """The names of the entities that nothing was chosen on."""
        return tuple(entity.name for entity in self.entities if entity.name not in self.chosen_on)

    @property
    def channels(self) -> int:
        """Channels of every entity."""
        return int(self.entities[0].test.shape[1])

    @property
    def trainable(self) -> bool:
        """Whether every entity has training rows."""
        return all(len(entity.train) for entity in self.entities)

    @property
    def figures(self) -> Figures:
        """The numbers of the paper's table, for what is here.

        A shared test series counts once, and entities that cannot be trained are no clients.
        """
        tested = self.entities[:1] if self.shared_test else self.entities
        labels = np.concatenate([entity.labels for entity in tested])
        return Figures(
            sum(len(entity.train) for entity in self.entities),
            len(labels),
            100.0 * float(labels.mean()),
            self.channels,
            len(self.entities) if self.trainable else 0,
        )

    def training(self) -> dict[str, Array]:
        """The training series by entity, as `federate` takes them; refused where there are none."""
        if not self.trainable:
            where = "" if self.root is None else f" --data {self.root}"
            fetched = f"fetch them with `fedkad datasets get {self.name}{where}`"
            remedy = fetched if self.name in PAPER_TABLE else "add rows to the tables in train"
            raise ValueError(f"{self.label}: there are no training rows; {remedy}.")
        return {entity.name: entity.train for entity in self.entities}
