"""Child processes that are kept running, end with their keeper, and say what they do into bounded files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]

LARGEST_LOG = 4_000_000
STEADY = 60.0
"""Seconds after which a process that ran counts as sound, and its next failure as the first."""

LONGEST_WAIT = 60.0
GRACE = 10.0
"""Seconds between asking a process to end and ending it."""

OFFSPRING_GRACE = 3.0
"""Seconds for what a process started to end after it, as an app does that has something to report."""

PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """SIGINT or SIGTERM arrived."""


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let SIGINT and SIGTERM end what is inside, tidily: the first raises `Stopped`, which ends here; more are ignored.

    An exception and not a flag, so that no wait for a network delays it.
    """

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.suppress(Stopped):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Log:
    """A file that a process appends to; what is too long is moved aside once and then forgotten."""

    def __init__(self, path: Path, largest: int = LARGEST_LOG) -> None:
        self.path, self.largest = path, largest

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def open(self) -> int:
        """A handle for appending; only so can the file be cut while it is written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, text: str) -> None:
        """Write something of our own."""
        with os.fdopen(self.open(), "w") as file:
            file.write(text)

    def read(self, start: int) -> bytes:
        """The bytes from `start` on."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read()

    def bound(self) -> None:
        """Move the content aside when it is too long; where the disk has no room for that, forget it."""
        if self.size > self.largest:
            with contextlib.suppress(OSError):
                shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
            os.truncate(self.path, 0)


class Tally:
    """Counts how often a process has said certain words, and reads every byte of its log only once."""

    def __init__(self, log: Log, start: int, words: Sequence[str]) -> None:
        self.log, self.offset = log, start
        self.counts = dict.fromkeys(words, 0)
        self.tail = b""

    @property
    def heard(self) -> set[str]:
        """The words that were said at all."""
        return {word for word, count in self.counts.items() if count}

    def listen(self) -> None:
        """Take in what is new; a word may lie across two looks, and the file may have been cut in between."""
        if self.log.size < self.offset:
            self.offset, self.tail = 0, b""
        fresh = self.log.read(self.offset)
        self.offset += len(fresh)
        for word in self.counts:
            sought = word.encode()
            self.counts[word] += (self.tail[1 - len(sought) :] + fresh).count(sought)
        self.tail = (self.tail + fresh)[-max(map(len, self.counts)) :]


class Child:
    """One process: started, watched, ended together with all that it started itself."""

    def __init__(self, name: str, command: Sequence[str], log: Log, environment: Mapping[str, str]) -> None:
        self.name, self.command, self.log, self.environment = name, list(command), log, dict(environment)
        self.log_start = log.size
        self.started = time.monotonic()
        handle = log.open()
        try:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=self.environment,
                start_new_session=True,
                preexec_fn=_end_with_parent(os.getpid()),
            )
        finally:
            os.close(handle)

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs; what it left behind is ended as soon as it has one."""
        status = self.process.poll()
        if status is not None:
            self._signal(signal.SIGKILL)
        return status

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def end(self, grace: float = GRACE) -> None:
        """Ask the process and its offspring to end, wait for them, and end them otherwise."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        last = time.monotonic() + OFFSPRING_GRACE
        while self.process.returncode is not None and self._signal(0) and time.monotonic() < last:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: int) -> bool:
        """Send a signal to the process and its offspring; False if there is none of them."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


class Kept:
    """A process that is started again whenever it ends, after a wait that grows with each early end."""

    def __init__(self, name: str, command: Sequence[str], log: Log, environment: Mapping[str, str], say: Say) -> None:
        self.name, self.command, self.log, self.environment, self.say = name, command, log, environment, say
        self.child: Child | None = None
        self.wait = Backoff()

    def tend(self) -> None:
        """Start the process if it does not run and its time has come; keep its log short."""
        self.log.bound()
        if self.child is not None and (status := self.child.status) is not None:
            if self.child.age > STEADY:
                self.wait.clear()
            delay = self.wait.lengthen()
            self.say(f"{self.name}: ended with status {status}, starts again in {delay:g} s; see {self.log.path}")
            self.child = None
        if self.child is None and self.wait.over:
            self._start()

    def _start(self) -> None:
        """Start the process; a machine without room or memory for it may have some later."""
        try:
            self.child = Child(self.name, self.command, self.log, self.environment)
        except OSError as error:
            delay = self.wait.lengthen()
            self.say(f"{self.name}: cannot be started ({error}), tried again in {delay:g} s")
        else:
            self.say(f"{self.name}: started (process {self.child.process.pid})")


class Backoff:
    """Waits of 1, 2, 4, … seconds, up to a minute."""

    def __init__(self) -> None:
        self.failures, self.until = 0, 0.0

    @property
    def over(self) -> bool:
        """Whether the last wait has passed."""
        return time.monotonic() >= self.until

    def lengthen(self) -> float:
        """Begin the next wait; its length."""
        delay = min(2.0**self.failures, LONGEST_WAIT)
        self.failures += 1
        self.pause(delay)
        return delay

    def pause(self, delay: float) -> None:
        """Wait for so long this time; the next wait is no longer for it."""
        self.until = time.monotonic() + delay

    def clear(self) -> None:
        """Begin again with the shortest wait."""
        self.failures, self.until = 0, 0.0


@contextmanager
def kept_running(processes: Sequence[Kept]) -> Iterator[Sequence[Kept]]:
    """End all processes when leaving, whatever the reason; the last first, for it may need the others."""
    try:
        yield processes
    finally:
        for kept in reversed(processes):
            if kept.child is not None:
                kept.child.end()


def _end_with_parent(parent: int) -> Callable[[], None]:
    """What a child does first: have the system send it SIGTERM when its parent is gone, even by SIGKILL."""
    library = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, where little is safe

    def prepare() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)  # gone already

    return prepare
