"""When devices last polled the notice: those that are not called do not connect, so that Flower does not see them.

A device shows its public key once an hour, as it does for models. nginx, which alone sees these requests, writes them
into a log that the server reads and empties every few seconds. That is a line a second for 3,600 devices.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from fedkad.fleet.flower import proxy
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared.files import write_private
from fedkad.fleet.shared.notice import REPORT_EVERY

SAVED_EVERY = 300.0  # seconds; what was read since is lost if the server is killed, and reported again within an hour
MISSED = 2.0  # reports that a device may have missed until it counts as away


class LastSeen(NamedTuple):
    """When devices last polled the notice, in seconds since 1970, and since when one that is on has."""

    last: Mapping[str, float]
    since: float

    def seen(self, device: str) -> tuple[bool, str] | None:
        """Return whether a device that is not connected is on, and since when; None if it never reported."""
        if device not in self.last:
            return None
        moment = datetime.fromtimestamp(self.last[device], UTC).isoformat(timespec="seconds")
        return self.last[device] >= self.since, moment


def as_of_now(last: Mapping[str, float], period: float) -> LastSeen:
    """Return when devices last polled, where each polls once a period."""
    return LastSeen(last, time.time() - MISSED * (REPORT_EVERY + period))


def read(folder: ServerFolder) -> dict[str, float]:
    """Return when each device was last seen to poll, in seconds since 1970, without those that never reported."""
    try:
        moments = json.loads(folder.seen.read_text())
        return {str(name): _past(moment) for name, moment in moments.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):  # it fills again within an hour
        return {}


def _past(moment: str | float) -> float:
    # Not in the future, as it may be written where the clock was wrong or a line was cut off.
    return min(float(moment), time.time())


class LastSeenTracker:
    """Reads the log of nginx, and keeps for each device the last time."""

    def __init__(self, folder: ServerFolder, *, timer: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.timer = folder, timer
        self.poll_log, self.last = folder.root / proxy.POLL_LOG, read(folder)
        self._next_save, self._is_saved = timer(), True

    def take(self, devices: Mapping[str, object]) -> None:
        """Read what is new of these devices, and save it now and then."""
        if self.poll_log.exists() and self.poll_log.stat().st_size:
            lines = self.poll_log.read_text(errors="replace").splitlines()
            os.truncate(self.poll_log, 0)
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
