"""At which interval a device sends, seen from the times of its samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan, nan
from statistics import median
from typing import Any

BLOCK = 20
"""Intervals that are looked at together."""

AGREEING = 0.8
"""They agree if so large a share of them"""

NEAR = 0.2
"""is so near to their median."""


class Pace:
    """The intervals between samples of one channel, the first one that is in a block.

    `state` is what `state()` returned, to continue from there.

    >>> pace = Pace()
    >>> for k in range(21):
    ...     if pace.note(300.4 * k, ["power"]):
    ...         print(pace.interval, pace.agreed)
    300.0 300.0
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._channel: str = state.get("channel", "")
        self._last: float = nan if state.get("last") is None else state["last"]
        self._intervals: list[float] = list(state.get("intervals", []))
        self.interval: float | None = state.get("interval")  # of the last whole block: the median, to three digits
        self.agreed: float | None = state.get("agreed")  # the same, if the intervals of that block agree

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {
            "channel": self._channel,
            "last": None if isnan(self._last) else self._last,
            "intervals": self._intervals,
            "interval": self.interval,
            "agreed": self.agreed,
        }

    def note(self, time: float, channels: Collection[str]) -> bool:
        """Take the time of a sample with values of these channels; True if it fills a block."""
        if self._channel not in channels:
            if self._channel:
                return False
            self._channel = next(iter(channels))
        step, self._last = time - self._last, time
        if not step > 0.0:  # the first one, or a clock that was set back
            return False
        self._intervals.append(step)
        if len(self._intervals) < BLOCK:
            return False
        middle = median(self._intervals)
        near = sum(abs(each - middle) <= NEAR * middle for each in self._intervals)
        self.interval = float(f"{middle:.3g}")
        self.agreed = self.interval if near >= AGREEING * BLOCK else None
        self._intervals, self._channel, self._last = [], "", nan
        return True
