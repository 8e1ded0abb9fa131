"""What a device keeps in its folder: its detector and its side of the consensus, shared by the processes of the device.

    model.safetensors      the detector in use, with its statistics: the agent's, and what a training renews
    data-….safetensors     a detector prepared from a data file, where training reads one
    consensus.safetensors  P, Λ, Q̂, and what is pending, of the training under way
    delivered.json         the training whose result was put in use last
    given                  the model that an agent's configuration named when it was put in use
    releases.json          how often something with noise has left the device
    model.lock             held by whoever reads the model to write it anew
    round.lock             held while a request is answered

Every file is written whole or not at all. Readers need no lock: they see the old file or the new one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.modelfile import ModelFileError
from fedkad.locks import holding, waiting_for

LEFT_BEHIND = 3600.0
"""Seconds after which a part of a file is what a killed writer has left."""


class ReleaseError(ValueError):
    """A device has said as much with noise as it may."""


class DeviceState:
    """Where a device keeps what must outlive its processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.model = self.path / "model.safetensors"
        self.consensus = self.path / "consensus.safetensors"
        self._remove_parts()

    @contextmanager
    def locked(self, what: str = "model", *, wait: bool = True) -> Iterator[None]:
        """Hold the model, or the round: what is read inside is still true when it is written.

        Whoever must not `wait` gets a `HeldError` while somebody else holds it.
        """
        path = self.path / f"{what}.lock"
        with waiting_for(path) if wait else holding(path, f"{path}: somebody else is at work on it."):
            yield

    def count_release(self, most: int | None) -> None:
        """Count, before it leaves, what leaves the device with noise; refuse it beyond the `most` that were allowed."""
        path = self.path / "releases.json"
        count = json.loads(path.read_text())["releases"] if path.exists() else 0
        if most is not None and count >= most:
            raise ReleaseError(
                f"The device has said something with noise {count} times, all that most_releases in device.toml allows."
            )
        write_atomically(path, json.dumps({"releases": count + 1}).encode())

    def version(self) -> tuple[int, int] | None:
        """What changes when the model does: a running agent reloads it then, and keeps its window."""
        try:
            found = self.model.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def prepared(self, fingerprint: str) -> Path:
        """Where a detector prepared from data with that fingerprint lies; those of other data are removed."""
        path = self.path / f"data-{fingerprint}.safetensors"
        for other in self.path.glob("data-*.safetensors"):
            if other != path:
                other.unlink(missing_ok=True)
        return path

    def deliver(self, detector: KoopmanDetector, run: str) -> None:
        """Put the result of a training in use; the caller holds the model. A threshold set by hand stays."""
        if self.model.exists():
            with suppress(ModelFileError):  # a damaged one has nothing to keep
                used = KoopmanDetector.load(self.model)
                if used.by_hand_:
                    detector.threshold_ = used.threshold_
        detector.save(self.model)
        write_atomically(self.path / "delivered.json", json.dumps({"run": run}).encode())

    def _remove_parts(self) -> None:
        """Remove what writers that were killed have left; one that is only out of sight writes no hour at it."""
        for part in self.path.glob(".*.part"):
            with suppress(OSError, ValueError, IndexError):
                writer = int(part.name.split(".")[-2].split("-")[0])
                if not Path(f"/proc/{writer}").exists() and time.time() - part.stat().st_mtime > LEFT_BEHIND:
                    part.unlink()
