"""What the server remembers of each device: a few small facts, and the refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHOWN = 200
"""Refusals that are kept with their reasons; all are counted."""

LONGEST = 300
"""Characters of a reason that are kept: it may come from the device that is refused."""

STRIKES = 3
"""Unusable answers after which a device is not asked again in a training."""


@dataclass
class Ledger:
    """What the server knows of the devices; nothing else of it grows with their number."""

    accepted: dict[str, int] = field(default_factory=dict)
    tickets: dict[str, str] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0

    def refuse(self, device: str, number: int, reason: str, *, strike: bool) -> None:
        """Count an answer that is not taken; with a strike if it is the device's own fault."""
        if strike:
            self.strikes[device] = self.strikes.get(device, 0) + 1
        self.refusals += 1
        plain = "".join(letter if letter.isprintable() else " " for letter in reason[:LONGEST])
        self.refused.append({"device": device, "round": number, "reason": plain})
        del self.refused[:-SHOWN]

    def is_out(self, device: str) -> bool:
        """Whether a device has sent unusable answers too often."""
        return self.strikes.get(device, 0) >= STRIKES
