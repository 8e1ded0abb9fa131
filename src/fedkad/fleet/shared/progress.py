"""Detect a hung process: its loop touches a file, and a watcher checks that the file changes.

Flower's heartbeats come from threads of their own: they go on while the work hangs.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedkad.fleet.shared.files import identity

MARK = "progress"
EVERY = 10.0  # seconds between two marks at least, to spare the flash of a device
PATIENCE = 600.0
"""Seconds without a mark after which work hangs. No loop that marks its steps computes: it waits, asks and adds up."""


class ProgressMark:
    """The mark of one process, a file whose time of change is all that counts."""

    def __init__(self, path: Path, *, timer: Callable[[], float] = time.monotonic) -> None:
        self.path, self.timer = path, timer
        self._next = 0.0

    def step(self) -> None:
        """Say that the work goes on."""
        now = self.timer()
        if now >= self._next:
            self._next = now + EVERY
            with suppress(OSError):  # on a full disk other writers report it
                self.path.touch()


class ProgressWatch:
    """Notices that a mark has not changed for long; it compares marks, not times, because clocks are set at times."""

    def __init__(
        self, path: Path, *, patience: float | None = None, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self.path, self.timer = path, timer
        self.patience = PATIENCE if patience is None else patience
        self._seen: object = None
        self.restart()

    def restart(self) -> None:
        """Start the patience again: other work has begun, or nothing can be marked now."""
        self._since = self.timer()

    def is_stuck(self) -> bool:
        """Return whether nothing was marked for longer than patience lasts."""
        before, self._seen = self._seen, identity(self.path)
        if self._seen != before:
            self.restart()
        return self.timer() - self._since > self.patience
