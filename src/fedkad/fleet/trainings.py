"""When the app runs: trainings on demand and at intervals, again when one breaks off, and deliveries to latecomers.

A wish for a training is a file. It is there from the wish until a training has ended well, so that neither the death
of the app nor that of the server forgets it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedkad.fleet.private import write_private
from fedkad.fleet.processes import Say

TRAIN, DELIVER, DONE = "train", "deliver", "done"
WANTED, ENDED, STATUS = "wanted", "ended", "status.json"

ATTEMPTS = 5
FIRST_WAIT = 5.0
"""Seconds until a training that broke off is tried again; twice as many each time."""

PRESENT = 0.5
"""Share of the devices that must be there for a training at its time; one on demand takes whoever is there."""

DELIVERY_PAUSE = 60.0
"""Seconds until a delivery that did not reach the same devices is tried again."""


class Runs(Protocol):
    """Who starts runs of the app and knows whether they are over."""

    def submit(self, job: str) -> int:
        """Start one; its number."""

    def has_ended(self, run: int) -> bool:
        """Tell whether it is over."""


def ask(training: Path) -> None:
    """Wish for a training; a wish that is there already stays as it is."""
    if not (training / WANTED).exists():
        write_private(training / WANTED, b"")


def is_wanted(training: Path) -> bool:
    """Tell whether a training is wished for or under way."""
    return (training / WANTED).exists()


def read_status(training: Path) -> dict[str, Any] | None:
    """What the app says about the last training, None where it has said nothing that can be read."""
    try:
        status = json.loads((training / STATUS).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return status if isinstance(status, dict) else None


class Trainings:
    """Decides, each time it is asked, whether a run is to be started; there is never more than one."""

    def __init__(
        self,
        training: Path,
        runs: Runs,
        say: Say,
        *,
        every: float | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.training, self.runs, self.say, self.every = training, runs, say, every
        self.clock = clock
        self.run: int | None = None
        self.job = ""
        self.failures, self.not_before = 0, 0.0
        self.delivered_to: tuple[frozenset[str], float] = (frozenset(), -math.inf)

    def step(self, online: Mapping[str, bool]) -> None:
        """Look at the run there is, or start one; `online` tells of every device whether it is there."""
        if self.run is not None:
            if self.runs.has_ended(self.run):
                self._settle()
            return
        present = {name for name, there in online.items() if there}
        if self._due() and len(present) >= max(1.0, PRESENT * len(online)):
            ask(self.training)
        if is_wanted(self.training):
            if present and self.clock() >= self.not_before:
                self._start(TRAIN)
        elif self._latecomers(present):
            self._start(DELIVER)

    def _start(self, job: str) -> None:
        self.run, self.job = self.runs.submit(job), job
        self.say(f"{job}: run {self.run} started")

    def _settle(self) -> None:
        """Draw the consequences of a run that is over."""
        run, self.run = self.run, None
        if self.job != TRAIN:
            self.say(f"{self.job}: run {run} ended")
        elif self._is_done():
            self.say(f"{TRAIN}: run {run} is done")
            self._close()
        else:
            self._retry(run)

    def _retry(self, run: int | None) -> None:
        self.failures += 1
        if self.failures >= ATTEMPTS:
            self.say(f"{TRAIN}: run {run} broke off, the {self.failures}th in a row; see the logs, then ask again")
            self._close()
            return
        delay = FIRST_WAIT * 2.0 ** (self.failures - 1)
        self.not_before = self.clock() + delay
        self.say(f"{TRAIN}: run {run} broke off, goes on in {delay:g} s")

    def _close(self) -> None:
        """Forget the wish, and remember when it ended, for the interval."""
        self.failures, self.not_before = 0, 0.0
        write_private(self.training / ENDED, f"{self.clock()}\n".encode())
        (self.training / WANTED).unlink(missing_ok=True)

    def _is_done(self) -> bool:
        """Tell whether the app says so, and said it after the wish: what it says may be about an earlier training."""
        status = read_status(self.training)
        if status is None or status.get("state") != DONE:
            return False
        wish = self.training / WANTED
        return not wish.exists() or (self.training / STATUS).stat().st_mtime_ns >= wish.stat().st_mtime_ns

    def _due(self) -> bool:
        if self.every is None:
            return False
        try:
            return self.clock() >= float((self.training / ENDED).read_text()) + self.every
        except (FileNotFoundError, ValueError):
            return True

    def _latecomers(self, present: set[str]) -> bool:
        """Tell whether somebody is here whom the last training has not reached, and was not tried for just now."""
        status = read_status(self.training)
        if status is None or status.get("state") != DONE:
            return False
        missing = frozenset(present - set(status.get("delivered", ())))
        before, moment = self.delivered_to
        if not missing or (missing == before and self.clock() < moment + DELIVERY_PAUSE):
            return False
        self.delivered_to = (missing, self.clock())
        return True
