"""What a device keeps in its folder: its detector and its side of the consensus, shared by the processes of the device.

    model.safetensors      the detector in use, with its statistics: the agent's, and what a training renews
    data-….safetensors     a detector prepared from a data file, where training reads one
    consensus.safetensors  P, Λ, Q̂, and what is pending, of the training under way
    .lock                  held by whoever reads one of these files to write it anew

Every file is written whole or not at all. Readers need no lock: they see the old file or the new one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkad.detect.detector import KoopmanDetector


class DeviceState:
    """Where a device keeps what must outlive its processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.model = self.path / "model.safetensors"
        self.consensus = self.path / "consensus.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: what is read inside is still true when it is written."""
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # which lets go of the lock, as the end of the process does

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

    def renew(self, detector: KoopmanDetector) -> None:
        """Put a detector in use; the caller holds the lock."""
        detector.save(self.model)
