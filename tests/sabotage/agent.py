"""The agent of a device, without Flower: `watch` follows a live series, `learn` adds what is new to the statistics."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.federation.devicestate import DeviceState


def watch(state: DeviceState, rows: Path, told: Path) -> None:
    """Stream the rows over and over, and tell the state of every reading and the subspace in use."""
    values = np.load(rows)
    version, detector = state.version(), KoopmanDetector.load(state.model)
    stream = detector.stream()
    with told.open("w") as file:
        for step in range(10**9):
            if (found := state.version()) != version:
                version, detector = found, KoopmanDetector.load(state.model)
                stream.adopt(detector.model_)
            reading = stream.update(values[step % len(values)])
            line = {"state": reading.state, "score": reading.score, "subspace": float(detector.subspace_[0, 0])}
            file.write(json.dumps(line) + "\n")
            file.flush()
            time.sleep(0.02)


def learn(state: DeviceState, rows: Path, told: Path) -> None:
    """Learn the rows and save the model; tell that this begins, and that it is done."""
    values = np.load(rows)
    told.write_text("waits")
    with state.locked():
        KoopmanDetector.load(state.model).learn(Series(values, ("a", "b", "c"))).save(state.model)
    told.write_text("done")


if __name__ == "__main__":
    task, folder, rows, told = sys.argv[1:]
    {"watch": watch, "learn": learn}[task](DeviceState(folder), Path(rows), Path(told))
