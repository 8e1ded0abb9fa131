"""When the app runs: trainings on request and at intervals, again after one broke off, and deliveries to latecomers.

A request for a training is a file. It exists from the request until a training has succeeded, so that neither a crash
of the app nor one of the server loses it. It names the training that was the last one done at the time: the request is
fulfilled once another one is, whatever the clock says. A request made while one is pending or under way adds nothing,
and the caller is told so; one made after a training is done, but before the server has noticed, asks for another.
Another file names the request that was cancelled last: the server ends the run that works on it, and closes it.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedkad.federation.model_archive import mend_delivered, read_delivered
from fedkad.federation.training_folder import STATUS, WAITS, abandon
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.locks import HeldError, holding, waiting_for

logger = logging.getLogger(__name__)

TRAIN, DELIVER = "train", "deliver"
WANTED, CANCELLED, ENDED = "wanted", "cancelled", "ended"
APP_LOCK = "app.lock"
"""Held by the app while it trains or delivers, and by whoever must not do so at the same time."""

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

    def stop(self) -> None:
        """Have the run that is under way end; its app follows within seconds."""


class TrainingRequest(NamedTuple):
    """The last run that was done at the time of the request, or an empty string, and a unique token."""

    after: str
    token: str


def request_training(training: Path) -> bool:
    """Ask for a training; False if one is already requested or under way, which then also answers this request."""
    with _locked(training):
        if is_requested(training):
            return False
        request = read_request(training)
        if request is not None and is_cancelled(training, request):
            raise FleetFileError(f"{training}: the training that was cancelled has not ended yet; try again.")
        _write_request(training)
        return True


def cancel_training(training: Path) -> TrainingRequest | None:
    """Ask for the end of the training that is requested or under way; None if there is none."""
    with _locked(training):
        if not is_requested(training):
            return None
        request = read_request(training)
        if request is None or not request.token:
            request = _write_request(training)
        write_private(training / CANCELLED, request.token.encode())
        return request


def is_cancelled(training: Path, request: TrainingRequest) -> bool:
    """Whether this request was cancelled."""
    try:
        return (training / CANCELLED).read_bytes() == request.token.encode()
    except FileNotFoundError:
        return False


def is_requested(training: Path) -> bool:
    """Whether a training is requested or under way, and not cancelled."""
    request = read_request(training)
    return request is not None and not is_fulfilled(training, request) and not is_cancelled(training, request)


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
    return _last_done(training) not in ("", request.after)


def read_status(training: Path) -> dict[str, Any] | None:
    """The app's report on the latest training; None if there is none."""
    path = training / STATUS
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("it holds no table")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FleetFileError(
            f"{path}: this is not the report of a training ({error}); remove it, the next round writes another."
        ) from None
    return found


def read_waits(training: Path) -> str | None:
    """What a training waits for, as the server or, during a run, its app has written it; None if none waits."""
    try:
        return (training / WAITS).read_text(errors="replace")
    except FileNotFoundError:
        return None


def read_result(training: Path) -> dict[str, Any] | None:
    """The app's report on the last training that was done, whatever has begun since; None if there is none."""
    return read_delivered(training) or None


def _last_done(training: Path) -> str:
    """The run of the last training that was done; empty if there is none."""
    return str((read_result(training) or {}).get("run", ""))


def _write_request(training: Path) -> TrainingRequest:
    request = TrainingRequest(_last_done(training), secrets.token_hex(8))
    write_private(training / WANTED, json.dumps(request._asdict()).encode())
    return request


@contextmanager
def _locked(training: Path) -> Iterator[None]:
    """Keep others from making a request between a look at the current one and its removal."""
    training.mkdir(mode=0o700, exist_ok=True)
    with waiting_for(training / f".{WANTED}.lock"):
        yield


@dataclass(frozen=True)
class RollCall:
    """The devices that a training has called, where they connect only when they are called.

    It calls as many as it needs, waits until they are there, and calls twice as many if not even half of those that it
    needs, or fewer than a round needs, have come in time.

    >>> call = RollCall("token", needed=64, least=3, called=64, since=0.0)
    >>> call.suffices(64, now=10.0, devices=1000), call.suffices(40, now=10.0, devices=1000)
    (True, False)
    >>> call.suffices(40, now=200.0, devices=1000), call.widened(31, now=200.0, devices=1000).called
    (True, 128)
    """

    token: str
    needed: int
    least: int
    called: int
    since: float
    patience: float = 180.0  # seconds in which a device that is on notices that it is called, and connects

    def suffices(self, present: int, *, now: float, devices: int) -> bool:
        """Whether the training may begin; once all have been called, with as few as a round needs."""
        if not self._is_over(now):
            return present >= max(self.needed, self.least)
        return present >= (self.least if self.called >= devices else self._fewest)

    def widened(self, present: int, *, now: float, devices: int) -> RollCall:
        """The call after this one, if too few have come in time."""
        if not self._is_over(now) or present >= self._fewest or self.called >= devices:
            return self
        return replace(self, called=min(2 * self.called, devices), since=now)

    def _is_over(self, now: float) -> bool:
        return now - self.since >= self.patience

    @property
    def _fewest(self) -> int:
        return max(math.ceil(PRESENT * self.needed), self.least)


class Trainings:
    """Decides at each step whether to start a run; there is never more than one.

    A training begins once `least` devices are online. Where devices connect only when they are called, `invite` of them
    are, and `call` says which training calls how many. `clock` is for times that outlive the server, `timer` for waits,
    which must not depend on changes of the clock.
    """

    def __init__(
        self,
        training: Path,
        runs: Runs,
        *,
        every: float | None,
        least: int = 1,
        invite: int = 64,
        patience: float = 180.0,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.training, self.runs, self.every, self.least = training, runs, every, least
        self.invite, self.patience = invite, patience
        self.call: RollCall | None = None
        self.clock, self.timer = clock, timer
        self.run: int | None = None
        self.job, self.request = "", TrainingRequest("", "")
        self.failures, self.not_before = 0, -math.inf
        self.reached = ("", 0)
        self.missing, self.delivery_pause, self.next_delivery = frozenset[str](), 0.0, -math.inf
        self.waits: str | None = None

    def step(self, online: Mapping[str, bool], *, by_call: bool = False) -> None:
        """Check on the current run, or start one; `online` says for every device whether it is connected.

        With `by_call`, devices connect only when a training calls them, and fetch its result by themselves.
        """
        if self.run is not None:
            self._follow(self.run)
            return
        if (mended := mend_delivered(self.training)) is not None:
            logger.warning("%s", mended)
        self._tidy()
        if self._is_ending():
            self._tell_waiting("is cancelled, and waits for its app to end")
            return
        present = {name for name, is_online in online.items() if is_online}
        waits = self._request_due(len(present), len(online), by_call=by_call) if self._is_due() else None
        request = read_request(self.training)
        self.call = self._next_call(request, len(present), len(online)) if by_call else None
        if request is not None:
            waits = self._lack(len(present), len(online))
            if waits is None and self.timer() >= self.not_before:
                self.request = request
                self._start(TRAIN)
        elif not by_call and self._has_latecomers(present):
            self._start(DELIVER)
        self._tell_waiting(waits)

    def resume(self, token: str, called: int, devices: int) -> None:
        """Go on with the call of an earlier server, if the training that it was for is still open."""
        request = read_request(self.training)
        if request is not None and request.token == token:
            needed = min(self.invite, devices)
            self.call = RollCall(token, needed, self.least, called, self.timer(), self.patience)

    @property
    def is_open(self) -> bool:
        """Whether a training is requested or a run is under way."""
        return self.run is not None or read_request(self.training) is not None

    def _next_call(self, request: TrainingRequest | None, present: int, devices: int) -> RollCall | None:
        """The call of the training that is requested: its first one, the last one, or a wider one."""
        if request is None:
            return None
        now, needed = self.timer(), min(self.invite, devices)
        if self.call is None or self.call.token != request.token:
            return RollCall(request.token, needed, self.least, needed, now, self.patience)
        widened = self.call.widened(present, now=now, devices=devices)
        if widened is not self.call:
            logger.info("%s: only %d of %d came; calls %d", TRAIN, present, self.call.called, widened.called)
        return widened

    def _request_due(self, present: int, devices: int, *, by_call: bool) -> str | None:
        """Request the training of the interval, or say what it waits for."""
        needed = 0 if by_call else max(1, math.ceil(PRESENT * devices))
        if present < needed:
            return f"is due, and waits for devices; {present} of {devices} online, {needed} needed"
        request_training(self.training)
        return None

    def _lack(self, present: int, devices: int) -> str | None:
        """What a training that is requested waits for; None if it may begin."""
        needed, enough = self.least, present >= self.least
        if self.call is not None:
            needed = self.call.needed
            enough = self.call.suffices(present, now=self.timer(), devices=devices)
        return None if enough else f"waits for devices; {present} online, {needed} needed"

    def _tell_waiting(self, waits: str | None) -> None:
        """Keep for `fedkad fleet status` what a training waits for, and log it."""
        if waits is None:
            (self.training / WAITS).unlink(missing_ok=True)
        elif waits != self.waits:
            write_private(self.training / WAITS, waits.encode())
        self._log_waiting(waits)

    def _log_waiting(self, waits: str | None) -> None:
        """Log once that a training waits."""
        if waits is not None and self.waits is None:
            logger.warning("%s: %s", TRAIN, waits)
        self.waits = waits

    def _start(self, job: str) -> None:
        self.run, self.job = self.runs.submit(job), job
        logger.info("%s: run %d started", job, self.run)

    def _follow(self, run: int) -> None:
        """Follow a run: end it if its training was cancelled, and say what its app waits for."""
        if self.runs.has_ended(run):
            self._settle(run)
            return
        if self.job == TRAIN and is_cancelled(self.training, self.request):
            self.runs.stop()
        self._log_waiting(read_waits(self.training))

    def _settle(self, run: int) -> None:
        """Draw the consequences of a run that is over."""
        self.run = None
        if self.job != TRAIN:
            logger.info("%s: run %d ended", self.job, run)
        elif is_fulfilled(self.training, self.request):
            if not self._tidy():  # there already is a new request
                self._close()
            logger.info("%s: run %d is done", TRAIN, run)
        elif is_cancelled(self.training, self.request):
            logger.info("%s: run %d is cancelled", TRAIN, run)
        else:
            self._retry(run)

    def _tidy(self) -> bool:
        """Close a request that is fulfilled or cancelled, maybe under an earlier server; rewrite an unreadable one."""
        with _locked(self.training):
            request = read_request(self.training)
            if request is not None and (is_fulfilled(self.training, request) or self._is_given_up(request)):
                self._close()
                (self.training / WANTED).unlink()
                return True
            if request is not None and not request.token:
                _write_request(self.training)
        return False

    def _is_given_up(self, request: TrainingRequest) -> bool:
        """Whether a request was cancelled, and nothing is left of its training; not while its app still ends."""
        if not is_cancelled(self.training, request):
            return False
        try:
            with holding(self.training / APP_LOCK, "held by the app"):
                abandon(self.training)
        except HeldError:
            return False
        return True

    def _is_ending(self) -> bool:
        """Whether the request is cancelled, and its app has not ended yet."""
        request = read_request(self.training)
        return request is not None and is_cancelled(self.training, request)

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
        try:
            status = read_status(self.training) or {}
        except FleetFileError as error:
            logger.warning("%s", error)
            status = {}
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
