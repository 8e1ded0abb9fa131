"""When the app runs: trainings on demand and at intervals, again when one breaks off, and deliveries to latecomers.

A wish for a training is a file. It is there from the wish until a training has ended well, so that neither the death
of the app nor that of the server forgets it. It names the training that was done when it was made: it is fulfilled
when another one is, whatever the clock says. A wish made while one is wanted or under way asks for nothing more, and
who makes it is told so; one made after a training is done, but before the server has noticed, asks for another.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedkad.federation.trainingfolder import HOLDERS, STATUS
from fedkad.fleet.private import write_private
from fedkad.fleet.processes import Say
from fedkad.locks import waiting_for

TRAIN, DELIVER = "train", "deliver"
WANTED, ENDED = "wanted", "ended"

ATTEMPTS = 5
"""Trainings that break off in a row without a round gained, after which the wish is given up."""

FIRST_WAIT = 5.0
"""Seconds until a training that broke off is tried again; twice as many each time."""

PRESENT = 0.5
"""Share of the devices that must be there for a training at its time; one on demand takes whoever is there."""

DELIVERY_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds until a delivery that did not reach the same devices is tried again; twice as many each time, up to these."""


class Runs(Protocol):
    """Who starts runs of the app and knows whether they are over."""

    def submit(self, job: str) -> int:
        """Start one; its number."""

    def has_ended(self, run: int) -> bool:
        """Tell whether it is over."""


class Wish(NamedTuple):
    """The run that was done when the wish was made, empty for none, and what tells it from any other wish."""

    after: str
    token: str


def ask(training: Path) -> bool:
    """Wish for a training; False where one is wanted or under way already, which then answers this wish too."""
    with _wishing(training):
        wish = read_wish(training)
        if wish is not None and not is_fulfilled(training, wish):
            return False
        _write_wish(training)
        return True


def is_wanted(training: Path) -> bool:
    """Tell whether a training is wished for or under way."""
    wish = read_wish(training)
    return wish is not None and not is_fulfilled(training, wish)


def read_wish(training: Path) -> Wish | None:
    """The wish there is; an unreadable one, such as an empty file, asks for a training after what is done now."""
    try:
        found = json.loads((training / WANTED).read_text())
        return Wish(str(found["after"]), str(found["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return Wish(last_done(training), "")


def is_fulfilled(training: Path, wish: Wish) -> bool:
    """Tell whether the last training that was done is another than when the wish was made."""
    return last_done(training) != wish.after


def last_done(training: Path) -> str:
    """The run of the last training that was done; empty if there was none."""
    return _run(read_result(training) or {})


def read_status(training: Path) -> dict[str, Any] | None:
    """What the app says about the last training, None where it has said nothing that can be read."""
    return _read(training / STATUS)


def read_result(training: Path) -> dict[str, Any] | None:
    """What the app says about the last training that was done, whatever has begun since; None without any."""
    return _read(training / HOLDERS)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _run(said: Mapping[str, Any]) -> str:
    return str(said.get("run", ""))


def _write_wish(training: Path) -> None:
    wish = Wish(last_done(training), secrets.token_hex(8))
    write_private(training / WANTED, json.dumps(wish._asdict()).encode())


@contextmanager
def _wishing(training: Path) -> Iterator[None]:
    """Keep others from wishing while a wish is looked at and then removed: theirs would go with it."""
    training.mkdir(mode=0o700, exist_ok=True)
    with waiting_for(training / f".{WANTED}.lock"):
        yield


class Trainings:
    """Decides, each time it is asked, whether a run is to be started; there is never more than one.

    A training begins when `least` devices are there. `clock` is for what must outlive the server, `timer` for waits,
    which no setting of the clock may lengthen.
    """

    def __init__(
        self,
        training: Path,
        runs: Runs,
        say: Say,
        *,
        every: float | None,
        least: int = 1,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.training, self.runs, self.say, self.every, self.least = training, runs, say, every, least
        self.clock, self.timer = clock, timer
        self.run: int | None = None
        self.job, self.wish = "", Wish("", "")
        self.failures, self.not_before = 0, -math.inf
        self.reached = ("", 0)
        self.missing, self.delivery_pause, self.next_delivery = frozenset[str](), 0.0, -math.inf
        self.is_waiting = False

    def step(self, online: Mapping[str, bool]) -> None:
        """Look at the run there is, or start one; `online` tells of every device whether it is there."""
        if self.run is not None:
            if self.runs.has_ended(self.run):
                self._settle()
            return
        self._tidy()
        present = {name for name, there in online.items() if there}
        if self._due() and len(present) >= max(1.0, PRESENT * len(online)):
            ask(self.training)
        wish = read_wish(self.training)
        if wish is not None:
            if self._are_enough(len(present)) and self.timer() >= self.not_before:
                self.wish = wish
                self._start(TRAIN)
        elif self._latecomers(present):
            self._start(DELIVER)

    def _are_enough(self, present: int) -> bool:
        """Tell whether a round can be held with so many, and say once that a training waits for more."""
        waits = present < self.least
        if waits and not self.is_waiting:
            self.say(f"{TRAIN}: waits for devices; {present} there, {self.least} needed")
        self.is_waiting = waits
        return not waits

    def _start(self, job: str) -> None:
        self.run, self.job = self.runs.submit(job), job
        self.say(f"{job}: run {self.run} started")

    def _settle(self) -> None:
        """Draw the consequences of a run that is over."""
        run, self.run = self.run, None
        if self.job != TRAIN:
            self.say(f"{self.job}: run {run} ended")
        elif is_fulfilled(self.training, self.wish):
            if not self._tidy():  # there is a new wish already
                self._close()
            self.say(f"{TRAIN}: run {run} is done")
        else:
            self._retry(run)

    def _tidy(self) -> bool:
        """Close a wish that is fulfilled, perhaps under an earlier server; make one that cannot be read whole."""
        with _wishing(self.training):
            wish = read_wish(self.training)
            if wish is not None and is_fulfilled(self.training, wish):
                self._close()
                (self.training / WANTED).unlink()
                return True
            if wish is not None and not wish.token:
                _write_wish(self.training)
        return False

    def _retry(self, run: int | None) -> None:
        self.failures = 1 if self._has_advanced() else self.failures + 1
        if self.failures >= ATTEMPTS:
            self._give_up()
            self.say(f"{TRAIN}: run {run} broke off, the {ATTEMPTS}th in a row; see the logs, then ask again")
            return
        delay = FIRST_WAIT * 2.0 ** (self.failures - 1)
        self.not_before = self.timer() + delay
        self.say(f"{TRAIN}: run {run} broke off, goes on in {delay:g} s")

    def _has_advanced(self) -> bool:
        """Tell whether a round was closed since the last failure; one that begins anew each time gains nothing."""
        status = read_status(self.training) or {}
        run, number = _run(status), status.get("round")
        before, self.reached = self.reached, (run, number if isinstance(number, int) else 0)
        return self.reached[1] > (before[1] if before[0] == run else 0)

    def _give_up(self) -> None:
        """Forget the wish that this was about, and no other."""
        with _wishing(self.training):
            if read_wish(self.training) == self.wish:
                (self.training / WANTED).unlink()
        self._close()

    def _close(self) -> None:
        """Begin to count anew, and remember the moment, for the interval."""
        self.failures, self.not_before, self.reached = 0, -math.inf, ("", 0)
        write_private(self.training / ENDED, f"{self.clock()}\n".encode())

    def _due(self) -> bool:
        """Tell whether the interval is over; an end in the future was written while the clock was wrong."""
        if self.every is None:
            return False
        try:
            passed = self.clock() - float((self.training / ENDED).read_text())
        except (FileNotFoundError, ValueError):
            return True
        return not 0.0 <= passed < self.every

    def _latecomers(self, present: set[str]) -> bool:
        """Tell whether somebody is here whom the last result has not reached, and was not tried for just now."""
        result = read_result(self.training)
        if result is None:
            return False
        missing, before, now = frozenset(present - set(result.get("delivered", ()))), self.missing, self.timer()
        if not missing or (missing == before and now < self.next_delivery):
            return False
        self.delivery_pause = min(2.0 * self.delivery_pause, LONGEST_PAUSE) if missing == before else DELIVERY_PAUSE
        self.missing, self.next_delivery = missing, now + self.delivery_pause
        return True
