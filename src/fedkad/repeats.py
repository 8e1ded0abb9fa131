"""Log a recurring trouble once, or a few times, instead of filling the log with it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable


class RepeatFilter:
    """Lets through the first `limit` messages about a subject in any `period` seconds.

    A message with another text than the last one about its subject is news, and is counted from one again.

    >>> repeats = RepeatFilter()
    >>> [repeats.allows("disk", text) for text in ("full", "full", "read-only", "full")]
    [True, False, True, True]
    >>> repeats.clear()  # the trouble is over
    >>> repeats.allows("disk", "full")
    True
    """

    def __init__(self, limit: int = 1, period: float = math.inf) -> None:
        self._limit, self._period = limit, period
        self._logged: dict[Hashable, tuple[str, list[float]]] = {}

    def allows(self, subject: Hashable, text: str = "") -> bool:
        """Return whether to log this message, and count it if so."""
        now = time.monotonic()
        last, moments = self._logged.get(subject, (text, []))
        recent = [moment for moment in moments if now - moment < self._period] if text == last else []
        is_allowed = len(recent) < self._limit
        self._logged[subject] = text, [*recent, now] if is_allowed else recent
        return is_allowed

    def is_spent(self, subject: Hashable) -> bool:
        """Return whether the last message about the subject was the last one to be let through."""
        return len(self._logged[subject][1]) >= self._limit

    def log(self, logger: logging.Logger, text: str, level: int = logging.WARNING, *, subject: Hashable = "") -> None:
        """Log a text, unless it repeats the last one about the subject too often."""
        if self.allows(subject, text):
            logger.log(level, "%s", text)

    def clear(self) -> None:
        """Begin again with every subject: the trouble is over."""
        self._logged.clear()
