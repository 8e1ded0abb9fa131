"""Child processes that are kept running, end with their parent, and log into files of bounded size."""

import contextlib
import ctypes
import logging
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedkad.fleet.shared.logs import TimedLog

logger = logging.getLogger(__name__)

LARGEST_LOG = 4_000_000
STEADY = 60.0  # seconds after which a process counts as healthy, and its next failure as the first
LONGEST_WAIT = 60.0
GRACE = 10.0  # seconds between asking a process to end and killing it
OFFSPRING_GRACE = 3.0  # seconds that descendants have to end after it, as an app with something to report
PR_SET_PDEATHSIG = 1
FIRST_PASSED = 3  # the first descriptor that systemd passes on


class Stopped(BaseException):
    """SIGINT or SIGTERM arrived."""


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the block cleanly on SIGINT or SIGTERM: the first raises `Stopped`, caught here; further ones are ignored.

    An exception rather than a flag, so that no wait for a network delays it.
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


class LogFile:
    """A file that a process appends to; when it grows too long, its content moves to a second file."""

    def __init__(self, path: Path, largest: int = LARGEST_LOG) -> None:
        self.path, self.largest = path, largest

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def open(self) -> int:
        """Return a handle for appending, which lets the file be truncated while a process writes to it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, text: str) -> None:
        """Append text."""
        with os.fdopen(self.open(), "w") as file:
            file.write(text)

    def read(self, start: int) -> bytes:
        """Return the bytes from `start` on."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read()

    def bound(self) -> None:
        """Move the content to a second file if it is too long; if the disk is full, drop it."""
        if self.size > self.largest:
            with contextlib.suppress(OSError):
                shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
            os.truncate(self.path, 0)


class ChildProcess:
    """A process that ends together with its descendants, and with its parent."""

    def __init__(
        self, command: Sequence[str], log: LogFile, environment: Mapping[str, str], sockets: Sequence[int] = ()
    ) -> None:
        self.started = time.monotonic()
        target = log.open()
        printed, handle = os.pipe()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=environment,
                pass_fds=sockets,
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid(), signal.SIGTERM),
            )
        except OSError:
            os.close(target)
            os.close(printed)
            raise
        finally:
            os.close(handle)
        self.log = TimedLog(printed, target)

    @property
    def status(self) -> int | None:
        """The exit status, or None while the process runs; once it has one, its descendants are killed."""
        status = self.process.poll()
        if status is not None:
            self._signal(signal.SIGKILL)
            self.log.finish()  # the caller may want to read why
        return status

    def end(self, grace: float = GRACE) -> None:
        """Ask the process and its descendants to end, wait for them, and kill those that have not."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        last = time.monotonic() + OFFSPRING_GRACE
        while self.process.returncode is not None and self._signal(0) and time.monotonic() < last:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.log.finish()

    def reload(self) -> None:
        """Ask the process itself to read its configuration again."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGHUP)

    def _signal(self, number: int) -> bool:
        """Send a signal to the process and its descendants; False if none of them is left."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


class Backoff:
    """Waits that double from one to the next: 1, 2, 4, … seconds up to a minute, unless chosen otherwise."""

    def __init__(
        self, first: float = 1.0, longest: float = LONGEST_WAIT, timer: Callable[[], float] | None = None
    ) -> None:
        self._first, self._longest, self._timer = first, longest, timer
        self.clear()

    def clear(self) -> None:
        """Begin again with the shortest wait."""
        self.failures, self.until = 0, -math.inf

    @property
    def over(self) -> bool:
        """Whether the last wait has passed."""
        return self._now() >= self.until

    def lengthen(self) -> float:
        """Begin the next wait; returns its length."""
        delay = min(self._first * 2.0**self.failures, self._longest)
        self.failures += 1
        self.pause(delay)
        return delay

    def pause(self, delay: float) -> None:
        """Wait this long once, without lengthening the next wait."""
        self.until = self._now() + delay

    def _now(self) -> float:
        return (self._timer or time.monotonic)()


class SupervisedProcess:
    """A process that is restarted whenever it ends, after a wait that grows with each early end."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: LogFile,
        environment: Mapping[str, str],
        sockets: Sequence[int] = (),
    ) -> None:
        self.name, self.command, self.log, self.environment = name, command, log, environment
        self.sockets = sockets
        self.child: ChildProcess | None = None
        self.wait = Backoff()

    def tend(self) -> None:
        """Start the process if it is not running and its wait is over; keep its log short."""
        self.log.bound()
        if self.child is not None and (status := self.child.status) is not None:
            if time.monotonic() - self.child.started > STEADY:
                self.wait.clear()
            delay, path = self.wait.lengthen(), self.log.path
            logger.warning("%s: ended with status %d, restarts in %g s; see %s", self.name, status, delay, path)
            self.child = None
        if self.child is None and self.wait.over:
            self._start()

    def _start(self) -> None:
        """Start the process; if the machine lacks disk space or memory for it, try again later."""
        try:
            self.child = ChildProcess(self.command, self.log, self.environment, self.sockets)
        except OSError as error:
            delay = self.wait.lengthen()
            logger.warning("%s: cannot be started (%s), tries again in %g s", self.name, error, delay)
        else:
            logger.info("%s: started (process %d)", self.name, self.child.process.pid)


@contextmanager
def ending_all(processes: Sequence[SupervisedProcess]) -> Iterator[None]:
    """End all processes at the end of the block, in reverse order because later ones may need earlier ones."""
    try:
        yield
    finally:
        for supervised in reversed(processes):
            if supervised.child is not None:
                supervised.child.end()


def passed_sockets() -> tuple[int, ...]:
    """Return the listening sockets that systemd has opened for this process; none if it was started otherwise."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return ()
    return tuple(range(FIRST_PASSED, FIRST_PASSED + int(os.environ.get("LISTEN_FDS", "0"))))


def end_with_parent(parent: int, number: signal.Signals) -> Callable[[], None]:
    """Return what a child runs first: have the system send it a signal when its parent ends, even by SIGKILL."""
    library = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, after which little is safe

    def prepare() -> None:
        library.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # it has already ended

    return prepare
