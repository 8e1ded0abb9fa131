"""The lines of a fleet's logs, each with its time, also those of other programs: Flower's own have none."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

TIMED = re.compile(rb"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d")  # as we and nginx begin a line
OUR_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
LONGEST_LINE = 65_536  # bytes; a longer one is written in pieces
LAST_WORDS = 5.0  # seconds in which what an ended process has printed is in the file


def stamp(seconds: float) -> str:
    """Return the time in front of a line, in UTC.

    >>> stamp(0.0)
    '1970-01-01T00:00:00Z '
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime(seconds))


class LogLine(logging.Formatter):
    """The time in UTC, the level if it is a warning or worse, and the message."""

    def __init__(self, *, timed: bool = True) -> None:
        super().__init__()
        self.timed = timed

    @classmethod
    def on_stderr(cls) -> LogLine:
        """Without the time where the journal of systemd adds it."""
        return cls(timed="JOURNAL_STREAM" not in os.environ)

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{stamp(record.created) if self.timed else ''}{level}{record.getMessage()}"


class KeptLog(RotatingFileHandler):
    """A log in a file, and one before it; on a full disk the same lines are still on stderr."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Go on without this line."""


@contextmanager
def kept_in(path: Path, largest: int) -> Iterator[None]:
    """Keep what `fedkad` logs inside the block in a file too."""
    handler = KeptLog(path, maxBytes=largest, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(LogLine())
    logger = logging.getLogger("fedkad")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def timed(text: str, now: float) -> str:
    r"""Return what a process that has ended had printed, with a time in every line.

    A line without a time has that of the line before; the first ones have that of the first line with a time.

    >>> print(timed("Start\n2026-01-02T03:04:05Z Round 1\n\nThe end", 0.0), end="")
    2026-01-02T03:04:05Z Start
    2026-01-02T03:04:05Z Round 1
    2026-01-02T03:04:05Z The end
    """
    lines = [line for line in text.splitlines() if line]
    last = next((match[0] for line in lines if (match := OUR_TIME.match(line))), stamp(now))
    done = []
    for line in lines:
        last = match[0] if (match := OUR_TIME.match(line)) else last
        done.append(f"{last}{line.removeprefix(last)}\n")
    return "".join(done)


class TimedLog:
    """Copies lines from one descriptor to another until the first ends, and closes both.

    A thread reads what the process prints, line by line, so that a supervisor that is busy holds it up nowhere.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._thread = threading.Thread(target=self._run, name="fedkad-log", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all that was printed is written; call this once the process has ended."""
        self._thread.join(LAST_WORDS)

    def _run(self) -> None:
        rest = b""
        while piece := os.read(self._source, LONGEST_LINE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._write(lines)
        self._write([rest] if rest else [])
        os.close(self._source)
        os.close(self._target)

    def _write(self, lines: list[bytes]) -> None:
        now = stamp(time.time()).encode()
        text = b"".join((b"" if not line or TIMED.match(line) else now) + line + b"\n" for line in lines)
        with suppress(OSError):  # on a full disk the process goes on, and its lines are lost
            while text:
                text = text[os.write(self._target, text) :]
