"""What a line of a fleet's log looks like, on the server and on devices, and a file of bounded size that keeps them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path


def stamp(seconds: float) -> str:
    """The time in front of a line, in UTC.

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
        """One line."""
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
