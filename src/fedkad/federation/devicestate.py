"""What a device keeps in its folder: its detector and its side of the consensus, shared by the processes of the device.

    model.safetensors      the detector in use, with its statistics: the agent's, replaced by each delivery
    data-….safetensors     a detector prepared from a data file, if training reads one
    consensus.safetensors  P, Λ, Q̂, and what is pending, of the training in progress
    masking.json           the secrets of secure aggregation, in the middle of a round
    delivered.json         the training whose result was put in use last
    given                  the model that the agent's configuration named when it was put in use
    previous.safetensors   the agent's detector before an operator called something normal, to take that back
    undone                 the agent's mark of the command that took it back
    anew                   the agent's mark of the command to relearn, until there is a first model
    releases.json          how many replies have left the device
    model.lock             held by a process that reads the model to rewrite it
    round.lock             held while a request is answered

Every file is written whole or not at all. Readers need no lock: they see the old file or the new one.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.model import Model
from fedkad.detect.modelfile import ModelFileError, load_model
from fedkad.locks import holding, waiting_for

LEFT_BEHIND = 3600.0
"""Seconds after which a partial file must be what a killed writer left."""


class DeviceState:
    """Where a device keeps what must outlive its processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.model = self.path / "model.safetensors"
        self.consensus = self.path / "consensus.safetensors"
        self.masking = self.path / "masking.json"
        self._releases = self.path / "releases.json"
        for part in self.path.glob(".*.part"):  # of killed writers; one that is merely invisible here takes less time
            with suppress(OSError, ValueError, IndexError):
                writer = int(part.name.split(".")[-2].split("-")[0])
                if not Path(f"/proc/{writer}").exists() and time.time() - part.stat().st_mtime > LEFT_BEHIND:
                    part.unlink()

    @contextmanager
    def locked(self, what: str = "model", *, wait: bool = True) -> Iterator[None]:
        """Hold the model, or the round: what is read inside is still true when it is written.

        Without `wait`, a lock that another process holds raises a `HeldError`.
        """
        self.path.mkdir(parents=True, exist_ok=True)  # it may have been removed
        path = self.path / f"{what}.lock"
        with waiting_for(path) if wait else holding(path, f"{path}: another process is at work on it."):
            yield

    def read_releases(self) -> int:
        """Return how many replies have left the device."""
        try:
            return int(json.loads(self._releases.read_text())["releases"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._releases}: this does not say how many replies have left the device; restore it, or remove it "
                "to count from 0."
            ) from None

    def write_releases(self, count: int) -> None:
        """Note how many replies have left the device."""
        write_atomically(self._releases, json.dumps({"releases": count}).encode())

    def version(self) -> tuple[int, int] | None:
        """Return what changes when the model does: a running agent then reloads it, and keeps its window."""
        try:
            file = self.model.stat()
        except FileNotFoundError:
            return None
        return file.st_ino, file.st_mtime_ns

    def prepared(self, fingerprint: str) -> Path:
        """Return where a detector prepared from data with that fingerprint is kept; those of other data are removed."""
        path = self.path / f"data-{fingerprint}.safetensors"
        for other in self.path.glob("data-*.safetensors"):
            if other != path:
                other.unlink(missing_ok=True)
        return path

    def read_used(self) -> Model | None:
        """Return the model in use; None if there is none, or a damaged one."""
        try:
            return load_model(self.model, memory=False)[0]
        except ModelFileError:
            return None

    @property
    def has_delivery(self) -> bool:
        """Whether the model in use, or the one it was learned from, came from the fleet."""
        return (self.path / "delivered.json").exists()

    def deliver(self, detector: KoopmanDetector, run: str) -> None:
        """Put the result of a training in use; the caller holds the model."""
        detector.save(self.model)
        write_atomically(self.path / "delivered.json", json.dumps({"run": run}).encode())
