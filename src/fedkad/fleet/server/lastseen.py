"""When devices last looked at the notice: who is not called is not connected, and would be missed by nobody.

A device says who it is once an hour, by the public key that it shows for models, too. nginx, which alone sees looks,
writes these into a book that the server reads and empties every few seconds. That is a line a second for 3,600 devices.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from fedkad.fleet.device.noticeclient import SAID_EVERY
from fedkad.fleet.flower import proxy
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared.files import write_private

SAVED_EVERY = 300.0  # seconds; what was read since is lost if the server is killed, and said again within an hour
MISSED = 2.0
"""Times that a device may not have said who it is, until it counts as away."""


def recently(period: float) -> float:
    """Seconds within which a device that is on has said who it is, where devices look once a period."""
    return MISSED * (SAID_EVERY + period)


def read(folder: ServerFolder) -> dict[str, float]:
    """When each device was last seen to look, in seconds since 1970; none of those that never said who they are."""
    try:
        found = json.loads(folder.seen.read_text())
        return {str(name): _past(moment) for name, moment in found.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):  # it fills again within an hour
        return {}


def _past(moment: str | float) -> float:
    """When a device looked: not in the future, as it is told where the clock was wrong or a line was cut off."""
    return min(float(moment), time.time())


class Attendance:
    """Reads the book of nginx, and keeps for each device the last time."""

    def __init__(self, folder: ServerFolder, *, timer: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.timer = folder, timer
        self.book, self.last = folder.root / proxy.LOOKS, read(folder)
        self._next_save, self._is_saved = timer(), True

    def take(self, devices: Mapping[str, object]) -> None:
        """Read what is new of these devices, and save it now and then."""
        if self.book.exists() and self.book.stat().st_size:
            lines = self.book.read_text(errors="replace").splitlines()
            os.truncate(self.book, 0)
            for line in lines:
                moment, _, name = line.partition(" ")
                with suppress(ValueError):  # cut off where the disk was full
                    if name in devices:
                        self.last[name] = _past(moment)
                        self._is_saved = False
        if not self._is_saved and self.timer() >= self._next_save:
            self.save(devices)

    def save(self, devices: Mapping[str, object]) -> None:
        """Save what was read of these devices; others were revoked."""
        self.last = {name: moment for name, moment in self.last.items() if name in devices}
        write_private(self.folder.seen, json.dumps(self.last).encode())
        self._next_save, self._is_saved = self.timer() + SAVED_EVERY, True
