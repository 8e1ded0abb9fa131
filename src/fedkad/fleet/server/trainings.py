"""When the app runs: trainings on request and at intervals, again after one broke off, and deliveries to latecomers."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedkad.federation.model_archive import mend_delivered
from fedkad.federation.training_files import (
    WAITS,
    TrainingFileError,
    TrainingPhase,
    TrainingRequest,
    is_cancelled,
    is_fulfilled,
    last_end,
    phase_of,
    read_delivered,
    read_request,
    read_status,
    read_waits,
)
from fedkad.fleet.server.requests import ATTEMPTS, close_request, drop_request, note_end, request_training
from fedkad.fleet.server.rollcall import PRESENT, RollCall
from fedkad.fleet.shared.files import write_private
from fedkad.fleet.shared.processes import Backoff
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

TRAIN, DELIVER = "train", "deliver"
FIRST_WAIT = 5.0  # seconds until a training that broke off is tried again; doubled each time
DELIVERY_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # seconds until the same devices are tried again: at first, at most


class Runs(Protocol):
    """Starts runs of the app."""

    def submit(self, job: str) -> int:
        """Start a run; returns its number."""

    def has_ended(self, run: int) -> bool:
        """Return whether a run is over."""

    def stop(self) -> None:
        """Have the run that is under way end; its app follows within seconds."""


@dataclass(frozen=True)
class TrainingRules:
    """When a training may begin."""

    every: float | None = None  # seconds between trainings; None for those on request alone
    min_devices: int = 1  # devices that must be online
    devices_per_training: int = 64  # devices that are called, where devices connect on demand
    patience: float = 180.0  # seconds in which a device that is called connects


class Attempts:
    """Counts the runs of a training that broke off in a row, and says when the next one may start."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.wait, self._reached = Backoff(FIRST_WAIT, math.inf, timer), ("", 0)

    def clear(self) -> None:
        """Begin again: a training is over."""
        self.wait.clear()
        self._reached = ("", 0)

    def next_wait(self, run: str, closed: object) -> float | None:
        """Return the seconds until the next attempt, after this many closed rounds of a run; None after the last one.

        A round closed since the last failure makes this failure the first one again; a training that restarts each time
        gains nothing.
        """
        before, self._reached = self._reached, (run, closed if isinstance(closed, int) else 0)
        if self._reached[1] > (before[1] if before[0] == run else 0):
            self.wait.clear()
        return None if self.wait.failures + 1 >= ATTEMPTS else self.wait.lengthen()


class Latecomers:
    """Paces deliveries to the devices that lack the current model: the same ones are tried less and less often."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._tried, self._wait = frozenset[str](), Backoff(DELIVERY_PAUSE, LONGEST_PAUSE, timer)

    def are_due(self, missing: frozenset[str]) -> bool:
        """Return whether to try these devices now, and count that as an attempt."""
        if not missing:
            return False
        if missing != self._tried:
            self._wait.clear()
        if not self._wait.over:
            return False
        self._tried = missing
        self._wait.lengthen()
        return True


class Trainings:
    """Decides at each step whether to start a run of the app; there is never more than one.

    `call` says which training calls how many devices, where devices connect on demand. `clock` is for times that
    outlive the server, `timer` for waits, which must not depend on changes of the clock.
    """

    def __init__(
        self,
        training: Path,
        runs: Runs,
        rules: TrainingRules,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.training, self.runs, self.rules, self.clock, self.timer = training, runs, rules, clock, timer
        self.call: RollCall | None = None
        self.run: int | None = None
        self._job, self._request = "", TrainingRequest("", "")
        self._attempts, self._latecomers = Attempts(timer), Latecomers(timer)
        self._repeats = RepeatFilter()

    def step(self, online: Mapping[str, bool], *, on_demand: bool = False) -> None:
        """Check on the current run, or start one; `online` says for every device whether it is connected.

        With `on_demand`, devices connect only when a training calls them, and fetch its result by themselves.
        """
        if self.run is not None:
            self._follow(self.run)
            return
        if (sentence := mend_delivered(self.training)) is not None:
            logger.warning("%s", sentence)
        if close_request(self.training, self.clock()):
            self._attempts.clear()
        if phase_of(self.training) is TrainingPhase.CANCELLED:
            self._show_waiting("is cancelled, and waits for its app to end")
            return
        present = {name for name, is_online in online.items() if is_online}
        waits = self._request_due(len(present), len(online), on_demand=on_demand) if self._is_due() else None
        request = read_request(self.training)
        self.call = self._next_call(request, len(present), len(online)) if on_demand else None
        if request is not None:
            waits = self._lack(len(present), len(online))
            if waits is None and self._attempts.wait.over:
                self._request = request
                self._start(TRAIN)
        elif not on_demand and self._latecomers.are_due(self._missing(present)):
            self._start(DELIVER)
        self._show_waiting(waits)

    def resume(self, token: str, called: int, devices: int) -> None:
        """Go on with the call of an earlier server, if the training that it was for is still open."""
        request = read_request(self.training)
        if request is not None and request.token == token:
            self.call = self._first_call(token, devices, called)

    @property
    def is_open(self) -> bool:
        """Whether a training is requested or a run is under way."""
        return self.run is not None or read_request(self.training) is not None

    def _first_call(self, token: str, devices: int, called: int | None = None) -> RollCall:
        needed, rules = min(self.rules.devices_per_training, devices), self.rules
        return RollCall(
            token, needed, rules.min_devices, needed if called is None else called, self.timer(), rules.patience
        )

    def _next_call(self, request: TrainingRequest | None, present: int, devices: int) -> RollCall | None:
        """Return the call of the training that is requested: its first one, the last one, or a wider one."""
        if request is None:
            return None
        if self.call is None or self.call.token != request.token:
            return self._first_call(request.token, devices)
        widened = self.call.widened(present, now=self.timer(), devices=devices)
        if widened is not self.call:
            logger.info("%s: only %d of %d came; calls %d", TRAIN, present, self.call.called, widened.called)
        return widened

    def _request_due(self, present: int, devices: int, *, on_demand: bool) -> str | None:
        """Request the training of the interval, or return what it waits for."""
        needed = 0 if on_demand else max(1, math.ceil(PRESENT * devices))
        if present < needed:
            return f"is due, and waits for devices; {present} of {devices} online, {needed} needed"
        request_training(self.training)
        return None

    def _lack(self, present: int, devices: int) -> str | None:
        """Return what a training that is requested waits for; None if it may begin."""
        needed, is_enough = self.rules.min_devices, present >= self.rules.min_devices
        if self.call is not None:
            needed = self.call.needed
            is_enough = self.call.suffices(present, now=self.timer(), devices=devices)
        return None if is_enough else f"waits for devices; {present} online, {needed} needed"

    def _missing(self, present: set[str]) -> frozenset[str]:
        """Return the devices that lack the current model, if there is one."""
        delivered = read_delivered(self.training)
        return frozenset(present.difference(delivered.get("delivered", ()))) if delivered else frozenset()

    def _show_waiting(self, waits: str | None) -> None:
        """Keep for `fedkad fleet status` what a training waits for, and log it."""
        if waits is None:
            (self.training / WAITS).unlink(missing_ok=True)
        elif waits != read_waits(self.training):
            write_private(self.training / WAITS, waits.encode())
        self._log_waiting(waits)

    def _log_waiting(self, waits: str | None) -> None:
        if waits is None:
            self._repeats.clear()
        elif self._repeats.allows("waits"):
            logger.warning("%s: %s", TRAIN, waits)

    def _start(self, job: str) -> None:
        self.run, self._job = self.runs.submit(job), job
        logger.info("%s: run %d started", job, self.run)

    def _follow(self, run: int) -> None:
        """Follow a run: end it if its training was cancelled, and log what its app waits for."""
        if self.runs.has_ended(run):
            self.run = None
            self._conclude(run)
            return
        if self._job == TRAIN and is_cancelled(self.training, self._request):
            self.runs.stop()
        self._log_waiting(read_waits(self.training))

    def _conclude(self, run: int) -> None:
        """Close the request of a run that is over, or plan the next attempt."""
        if self._job != TRAIN:
            logger.info("%s: run %d ended", self._job, run)
        elif is_fulfilled(self.training, self._request):
            if not close_request(self.training, self.clock()):  # there already is a new one
                note_end(self.training, self.clock())
            self._attempts.clear()
            logger.info("%s: run %d is done", TRAIN, run)
        elif is_cancelled(self.training, self._request):
            logger.info("%s: run %d is cancelled", TRAIN, run)
        else:
            self._retry(run)

    def _retry(self, run: int) -> None:
        """Wait before the next attempt, or drop the request after the last one."""
        try:
            status = read_status(self.training) or {}
        except TrainingFileError as error:
            logger.warning("%s", error)
            status = {}
        delay = self._attempts.next_wait(str(status.get("run", "")), status.get("round"))
        if delay is not None:
            logger.warning("%s: run %d broke off, continues in %g s", TRAIN, run, delay)
            return
        drop_request(self.training, self._request, self.clock())
        self._attempts.clear()
        again = "see the logs, then ask again"
        logger.warning("%s: run %d broke off, attempt %d of %d; %s", TRAIN, run, ATTEMPTS, ATTEMPTS, again)

    def _is_due(self) -> bool:
        """Return whether the interval is over; an end in the future was recorded while the clock was wrong."""
        if self.rules.every is None:
            return False
        end = last_end(self.training)
        return end is None or not 0.0 <= self.clock() - end < self.rules.every
