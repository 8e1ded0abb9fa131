"""A cell of the benchmark, one (dataset, method, seed), and the two files it leaves: its scores and its record."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad_bench.methods.interface import Cost, Covers, Fitted

Array = NDArray[np.float64]


class Scores(NamedTuple):
    """Raw scores of one client: of its held-out training rows, and of its test series."""

    validation: Array
    test: Array


@dataclass(frozen=True, order=True)
class Cell:
    """One training: a dataset, a method and a seed."""

    dataset: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.dataset}/{self.method}/{self.seed}"

    def scores_file(self, folder: Path) -> Path:
        """Where its scores lie."""
        return folder / "scores" / self.dataset / self.method / f"{self.seed}.npz"

    def record_file(self, folder: Path) -> Path:
        """Where its record lies."""
        return folder / "cells" / self.dataset / self.method / f"{self.seed}.json"


@dataclass(frozen=True)
class Training:
    """What one training was and what it took, apart from its scores.

    `settings` decide what is trained; `facts` are worth knowing afterwards, as how many clients had few rows.
    """

    title: str
    covers: Covers
    cost: Cost
    seconds: float
    settings: Mapping[str, Any]
    provenance: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Training:
        """The inverse of `as_record`."""
        return cls(**{**record, "cost": Cost(**record["cost"])})


def score_all(fitted: Fitted, tests: Mapping[str, Array]) -> dict[str, Scores]:
    """Raw scores of every client."""
    return {name: Scores(fitted.validation(name), fitted.score(name, series)) for name, series in tests.items()}


def timed_seconds(began: float) -> float:
    """Seconds since `began`, to the millisecond."""
    return round(time.perf_counter() - began, 3)


def pack_scores(scores: Mapping[str, Scores], training: Training) -> bytes:
    """Scores as single-precision numbers, with the training's record, in one compressed file."""
    arrays = {
        f"{part}/{name}": np.asarray(getattr(of, part), np.float32)
        for name, of in scores.items()
        for part in Scores._fields
    }
    text = np.frombuffer(json.dumps(training.as_record()).encode(), dtype=np.uint8)
    memory = io.BytesIO()
    np.savez_compressed(memory, allow_pickle=False, record=text, **arrays)
    return memory.getvalue()


def unpack_scores(content: bytes) -> tuple[dict[str, Scores], Training]:
    """The inverse of `pack_scores`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        record = json.loads(file["record"].tobytes())
        names = [key.partition("/")[2] for key in file.files if key.startswith("test/")]
        scores = {
            name: Scores(*(file[f"{part}/{name}"].astype(np.float64) for part in Scores._fields)) for name in names
        }
    return scores, Training.from_record(record)


def write_scores(folder: Path, cell: Cell, scores: Mapping[str, Scores], training: Training) -> None:
    """Keep the scores of a cell."""
    path = cell.scores_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, pack_scores(scores, training))


def read_scores(folder: Path, cell: Cell, *, clear: bool = True) -> tuple[dict[str, Scores], Training] | None:
    """The kept scores of a cell; None if there are none, or if the file is damaged and has to be made again.

    A damaged file is removed, unless `clear` is False because the folder is somebody else's.
    """
    path = cell.scores_file(folder)
    try:
        return unpack_scores(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile, EOFError):
        if clear:
            path.unlink(missing_ok=True)
        return None


def cells_of(datasets: Iterable[str], methods: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """All combinations, seed by seed, so that an unfinished run has whole columns."""
    methods, datasets = list(methods), list(datasets)
    return [Cell(dataset, method, seed) for seed in seeds for dataset in datasets for method in methods]
