"""When the app runs: trainings on request and at intervals, again after one broke off, and deliveries to latecomers.

A request for a training is a file. It exists from the request until a training has succeeded, so that neither a crash
of the app nor one of the server loses it. It names the training that was the last one done at the time: the request is
fulfilled once another one is, whatever the clock says. A request made while one is pending or under way adds nothing,
and the caller is told so; one made after a training is done, but before the server has noticed, asks for another.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedkad.federation.coordinator import STATUS
from fedkad.federation.shelf import HOLDERS
from fedkad.fleet.files import write_private
from fedkad.locks import waiting_for

logger = logging.getLogger(__name__)

TRAIN, DELIVER = "train", "deliver"
WANTED, ENDED = "wanted", "ended"

ATTEMPTS = 5  # failures in a row, without a round completed, before a request is dropped
FIRST_WAIT = 5.0  # seconds until a training that broke off is tried again; doubled each time
PRESENT = 0.5  # share of the devices that a scheduled training needs online; one on request takes any
DELIVERY_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # seconds until the same devices are tried again: at first, at most


class Runs(Protocol):
    """Starts runs of the app."""

    def submit(self, job: str) -> int:
        """Start a run; returns its number."""

    def has_ended(self, run: int) -> bool:
        """Whether a run is over."""


class TrainingRequest(NamedTuple):
    """The last run that was done at the time of the request, or an empty string, and a unique token."""

    after: str
    token: str


def request_training(training: Path) -> bool:
    """Ask for a training; False if one is already requested or under way, which then also answers this request."""
    with _locked(training):
        if is_requested(training):
            return False
        _write_request(training)
        return True


def is_requested(training: Path) -> bool:
    """Whether a training is requested or under way."""
    request = read_request(training)
    return request is not None and not is_fulfilled(training, request)


def read_request(training: Path) -> TrainingRequest | None:
    """The current request; an unreadable one, such as an empty file, asks for a training after the last one done."""
    try:
        found = json.loads((training / WANTED).read_text())
        return TrainingRequest(str(found["after"]), str(found["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return TrainingRequest(_last_done(training), "")


def is_fulfilled(training: Path, request: TrainingRequest) -> bool:
    """Whether another training has been done since the request."""
    return _last_done(training) != request.after


def read_status(training: Path) -> dict[str, Any] | None:
    """The app's report on the latest training; None if there is none that can be read."""
    return _read(training / STATUS)


def read_result(training: Path) -> dict[str, Any] | None:
    """The app's report on the last training that was done, whatever has begun since; None if there is none."""
    return _read(training / HOLDERS)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _last_done(training: Path) -> str:
    """The run of the last training that was done; empty if there is none."""
    return str((read_result(training) or {}).get("run", ""))


def _write_request(training: Path) -> None:
    request = TrainingRequest(_last_done(training), secrets.token_hex(8))
    write_private(training / WANTED, json.dumps(request._asdict()).encode())


@contextmanager
def _locked(training: Path) -> Iterator[None]:
    """Keep others from making a request between a look at the current one and its removal."""
    training.mkdir(mode=0o700, exist_ok=True)
    with waiting_for(training / f".{WANTED}.lock"):
        yield


class Trainings:
    """Decides at each step whether to start a run; there is never more than one.

    A training begins once `least` devices are online. `clock` is for times that outlive the server, `timer` for waits,
    which must not depend on changes of the clock.
    """

    def __init__(
        self,
        training: Path,
        runs: Runs,
        *,
        every: float | None,
        least: int = 1,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.training, self.runs, self.every, self.least = training, runs, every, least
        self.clock, self.timer = clock, timer
        self.run: int | None = None
        self.job, self.request = "", TrainingRequest("", "")
        self.failures, self.not_before = 0, -math.inf
        self.reached = ("", 0)
        self.missing, self.delivery_pause, self.next_delivery = frozenset[str](), 0.0, -math.inf
        self.is_waiting = self.is_overdue = False

    def step(self, online: Mapping[str, bool]) -> None:
        """Check on the current run, or start one; `online` says for every device whether it is connected."""
        if self.run is not None:
            if self.runs.has_ended(self.run):
                self._settle(self.run)
            return
        self._tidy()
        present = {name for name, is_online in online.items() if is_online}
        if self._is_due():
            self._request_due(len(present), len(online))
        request = read_request(self.training)
        if request is not None:
            if self._are_enough(len(present)) and self.timer() >= self.not_before:
                self.request = request
                self._start(TRAIN)
        elif self._has_latecomers(present):
            self._start(DELIVER)

    def _request_due(self, present: int, devices: int) -> None:
        """Request the training of the interval, or log once that it waits for more devices."""
        needed = max(1, math.ceil(PRESENT * devices))
        if present >= needed:
            self.is_overdue = False
            request_training(self.training)
        elif not self.is_overdue:
            self.is_overdue = True
            logger.warning(
                "%s: is due, and waits for devices; %d of %d online, %d needed", TRAIN, present, devices, needed
            )

    def _are_enough(self, present: int) -> bool:
        """Whether this many devices can hold a round; logs once that a training waits for more."""
        waits = present < self.least
        if waits and not self.is_waiting:
            logger.info("%s: waits for devices; %d online, %d needed", TRAIN, present, self.least)
        self.is_waiting = waits
        return not waits

    def _start(self, job: str) -> None:
        self.run, self.job = self.runs.submit(job), job
        logger.info("%s: run %d started", job, self.run)

    def _settle(self, run: int) -> None:
        """Draw the consequences of a run that is over."""
        self.run = None
        if self.job != TRAIN:
            logger.info("%s: run %d ended", self.job, run)
        elif is_fulfilled(self.training, self.request):
            if not self._tidy():  # there already is a new request
                self._close()
            logger.info("%s: run %d is done", TRAIN, run)
        else:
            self._retry(run)

    def _tidy(self) -> bool:
        """Close a request that is fulfilled, possibly under an earlier server; rewrite one that cannot be read."""
        with _locked(self.training):
            request = read_request(self.training)
            if request is not None and is_fulfilled(self.training, request):
                self._close()
                (self.training / WANTED).unlink()
                return True
            if request is not None and not request.token:
                _write_request(self.training)
        return False

    def _retry(self, run: int) -> None:
        """Wait before the next attempt, or drop the request after the last one."""
        self.failures = 1 if self._has_advanced() else self.failures + 1
        if self.failures >= ATTEMPTS:
            with _locked(self.training):
                if read_request(self.training) == self.request:  # and not a newer one
                    (self.training / WANTED).unlink()
            self._close()
            again = "see the logs, then ask again"
            logger.warning("%s: run %d broke off, the %dth in a row; %s", TRAIN, run, ATTEMPTS, again)
            return
        delay = FIRST_WAIT * 2.0 ** (self.failures - 1)
        self.not_before = self.timer() + delay
        logger.warning("%s: run %d broke off, continues in %g s", TRAIN, run, delay)

    def _has_advanced(self) -> bool:
        """Whether a round was closed since the last failure; a training that restarts each time gains nothing."""
        status = read_status(self.training) or {}
        run, number = str(status.get("run", "")), status.get("round")
        before, self.reached = self.reached, (run, number if isinstance(number, int) else 0)
        return self.reached[1] > (before[1] if before[0] == run else 0)

    def _close(self) -> None:
        """Reset the count of failures, and record the time for the interval."""
        self.failures, self.not_before, self.reached = 0, -math.inf, ("", 0)
        write_private(self.training / ENDED, f"{self.clock()}\n".encode())

    def _is_due(self) -> bool:
        """Whether the interval is over; an end in the future was recorded while the clock was wrong."""
        if self.every is None:
            return False
        try:
            passed = self.clock() - float((self.training / ENDED).read_text())
        except (FileNotFoundError, ValueError):
            return True
        return not 0.0 <= passed < self.every

    def _has_latecomers(self, present: set[str]) -> bool:
        """Whether a device is online that lacks the last result and was not tried for just now."""
        result = read_result(self.training)
        if result is None:
            return False
        missing, before, now = frozenset(present - set(result.get("delivered", ()))), self.missing, self.timer()
        if not missing or (missing == before and now < self.next_delivery):
            return False
        self.delivery_pause = min(2.0 * self.delivery_pause, LONGEST_PAUSE) if missing == before else DELIVERY_PAUSE
        self.missing, self.next_delivery = missing, now + self.delivery_pause
        return True
