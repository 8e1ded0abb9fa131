"""The agent's log: one line per event on standard error, through the loggers below ``fedkad.edge``."""

from __future__ import annotations

import logging
import time

MAX_REPEATS = 3
"""How many messages of one kind are logged before they are only counted: one broken sensor must not fill the log."""


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """A log that cannot be written must not stop the agent."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop the line."""


def log_to_stderr() -> None:
    """Print what the agent logs, each line prefixed with its program name."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("fedkad-agent: %(message)s"))
    logger = logging.getLogger("fedkad.edge")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


class HourlyLimit:
    """Lets a few messages of each kind through per hour."""

    def __init__(self) -> None:
        self._logged: dict[str, list[float]] = {}

    def allows(self, kind: str) -> bool:
        """Whether another message of this kind may be logged now; counts it if so."""
        now = time.monotonic()
        recent = [moment for moment in self._logged.get(kind, []) if now - moment < 3600.0]
        allowed = len(recent) < MAX_REPEATS
        self._logged[kind] = [*recent, now] if allowed else recent
        return allowed
