"""A data folder with a small dataset in the layout of SMD, for tests of the benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np

MACHINES = ("machine-1-1", "machine-2-1", "machine-3-2")


def write_data(folder: Path, *, permuted: bool = False, train_rows: int = 900) -> Path:
    """Three machines of four channels with one anomaly each; `permuted` changes nothing but the labels."""
    for place, name in enumerate(MACHINES):
        generator = np.random.default_rng(place)
        t = np.arange(train_rows + 500)[:, None]
        series = 0.5 + 0.2 * np.sin(t / np.array([[5.0, 7.0, 11.0, 13.0 + place]]))
        series += 0.02 * generator.normal(size=series.shape)
        train, test = series[:train_rows], series[train_rows:].copy()
        labels = np.zeros(500, dtype=int)
        labels[200 + 20 * place : 240 + 20 * place] = 1
        test[labels == 1, 0] = 0.9
        if permuted:
            labels = generator.permutation(labels)
        for part, values in (("train", train), ("test", test), ("test_label", labels[:, None])):
            path = folder / "SMD" / part / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(path, values, fmt="%d" if part == "test_label" else "%.6f", delimiter=",")
    return folder
