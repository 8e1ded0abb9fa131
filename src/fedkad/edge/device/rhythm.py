"""How long the channels of a device are silent when all is well.

Many sensors send when a value changes, and otherwise only now and then, as a sign of life. Between two messages the
last value stands. How long that may be, a channel shows itself: by silences that it repeats. An outage is not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any

REPEATED = 3
"""A silence is the rhythm of a channel if so many were as long, today or yesterday."""

MARGIN = 1.25
"""A silence may be longer by this factor than those before."""

DAY = 86400.0

MOST = 1500
"""Slots that a silence may have: a day of minutes; a longer one means that the grid is too fine."""


class Rhythm:
    """The silences of each channel, in slots of a grid; `state` is what `state()` returned, to continue from there.

    >>> rhythm = Rhythm(1, 60.0)
    >>> for hour in range(1, 4):
    ...     rhythm.note(0, 3600.0 * hour, 60)
    >>> rhythm.slots
    [75]
    """

    def __init__(self, channels: int, period: float, state: Mapping[str, Any] | None = None) -> None:
        self._most = min(floor(DAY / period), MOST)
        state = state or {}
        self._day = state.get("day", 0)
        self._today: list[list[int]] = [list(each) for each in state.get("today", [[]] * channels)]
        self._yesterday: list[list[int]] = [list(each) for each in state.get("yesterday", [[]] * channels)]
        self.slots = [0] * channels  # for which the last value of each channel stands; 0 if it repeats no silence
        for k in range(channels):
            self._look(k)

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {"day": self._day, "today": self._today, "yesterday": self._yesterday}

    def note(self, k: int, time: float, silence: int) -> None:
        """A channel was measured at that time, so many slots after the last one; one or too many tell nothing."""
        if not 1 < silence <= self._most:
            return
        if (day := floor(time / DAY)) != self._day:
            is_next = day == self._day + 1
            self._yesterday = self._today if is_next else [[] for _ in self.slots]
            self._today, self._day = [[] for _ in self.slots], day
            for channel in range(len(self.slots)):
                self._look(channel)
        self._today[k] = sorted([*self._today[k], silence])[-REPEATED:]
        self._look(k)

    def _look(self, k: int) -> None:
        longest = sorted(self._today[k] + self._yesterday[k])[-REPEATED:]
        self.slots[k] = floor(MARGIN * longest[0]) if len(longest) == REPEATED else 0
