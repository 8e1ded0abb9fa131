"""Public datasets in their upstream layouts, one entity a client."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Entity(NamedTuple):
    """One monitored thing: a training series, a test series and the test labels, `(time, channel)`."""

    name: str
    train: Array
    test: Array
    labels: NDArray[np.bool_]


def data_folder() -> Path | None:
    """The folder of the datasets: `FEDKAD_DATA`, or `../shared/data` beside the repository; None if absent."""
    named = os.environ.get("FEDKAD_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"
    return folder if folder.is_dir() else None


def read_smd(folder: Path, only: str = "machine-*") -> Iterator[Entity]:
    """Machines of the Server Machine Dataset: `train`, `test` and `test_label`, plain or gzipped text."""
    for path in sorted((folder / "train").glob(f"{only}.txt*")):
        yield Entity(
            path.name.partition(".")[0],
            _read_numbers(path),
            _read_numbers(folder / "test" / path.name),
            _read_numbers(folder / "test_label" / path.name)[:, 0] > 0.5,
        )


def read_nasa(folder: Path, spacecraft: str) -> Iterator[Entity]:
    """Telemetry channels of one spacecraft, SMAP or MSL, as telemanom lays them out.

    A channel with several label rows is one entity with the union of the segments; segment ends are inclusive.
    """
    segments: dict[str, list[tuple[int, int]]] = {}
    with (folder / "labeled_anomalies.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["spacecraft"] == spacecraft:
                pairs = row["anomaly_sequences"].replace("[", " ").replace("]", " ").replace(",", " ").split()
                ends = [int(end) for end in pairs]
                segments.setdefault(row["chan_id"], []).extend(zip(ends[::2], ends[1::2], strict=True))
    for name in sorted(segments):
        train, test = (np.load(folder / part / f"{name}.npy").astype(np.float64) for part in ("train", "test"))
        labels = np.zeros(len(test), dtype=bool)
        for start, end in segments[name]:
            labels[start : end + 1] = True
        yield Entity(name, train, test, labels)


def _read_numbers(path: Path) -> Array:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2)
