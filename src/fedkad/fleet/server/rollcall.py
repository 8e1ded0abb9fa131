"""Which devices a training calls, where devices connect only on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

PRESENT = 0.5  # share of the devices that a scheduled training needs online, and a call of those that it needs


@dataclass(frozen=True)
class RollCall:
    """The devices that a training has called, where they connect only when they are called.

    It calls as many as it needs, waits until they are there, and calls twice as many if not even half of those that it
    needs, or fewer than a round needs, have come in time.

    >>> call = RollCall("token", needed=64, min_devices=3, called=64, since=0.0)
    >>> call.suffices(64, now=10.0, devices=1000), call.suffices(40, now=10.0, devices=1000)
    (True, False)
    >>> call.suffices(40, now=200.0, devices=1000), call.widened(31, now=200.0, devices=1000).called
    (True, 128)
    """

    token: str
    needed: int
    min_devices: int
    called: int
    since: float
    patience: float = 180.0  # seconds in which a device that is on notices that it is called, and connects

    def suffices(self, present: int, *, now: float, devices: int) -> bool:
        """Return whether the training may begin; once all have been called, with as few as a round needs."""
        if not self._is_over(now):
            return present >= max(self.needed, self.min_devices)
        return present >= (self.min_devices if self.called >= devices else self._fewest)

    def widened(self, present: int, *, now: float, devices: int) -> RollCall:
        """Return the call after this one: a wider one if too few have come in time."""
        if not self._is_over(now) or present >= self._fewest or self.called >= devices:
            return self
        return replace(self, called=min(2 * self.called, devices), since=now)

    def _is_over(self, now: float) -> bool:
        return now - self.since >= self.patience

    @property
    def _fewest(self) -> int:
        return max(math.ceil(PRESENT * self.needed), self.min_devices)
