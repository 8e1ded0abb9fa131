"""What a connected device notices of files that other processes replace: a delivery, or why it could not answer."""

import time
from pathlib import Path

from fedkad.fleet.flower.supernodelog import COLLECTED
from fedkad.fleet.shared.files import identity

SETTLE = 60.0  # seconds that a client waits at most until a reply that is due is sent


class FileWatch:
    """Notices that a file was replaced."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.before = identity(file)

    def is_replaced(self) -> bool:
        """Return whether the file was replaced since the last call."""
        before, self.before = self.before, identity(self.file)
        return self.before not in (None, before)


class Delivery:
    """Notices that a delivery replaced a file, and that the server had time to learn of it."""

    def __init__(self, file: Path) -> None:
        self.watch = FileWatch(file)
        self.seen: float | None = None
        self.sent: float | None = None

    def is_settled(self, owes_reply: bool) -> bool:
        """Return whether something was delivered, the reply to it was sent, and the server had time to collect that."""
        now = time.monotonic()
        if self.seen is None:
            if not self.watch.is_replaced():
                return False
            self.seen = now
        if self.sent is None and (not owes_reply or now - self.seen > SETTLE):
            self.sent = now
        return self.sent is not None and now - self.sent >= COLLECTED
