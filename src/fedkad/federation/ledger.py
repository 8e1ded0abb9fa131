"""What the server remembers: the rounds it closed, and of each device only a few small facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SHOWN = 200
"""Refusals that are kept with their reasons; all are counted."""

LONGEST = 300
"""Characters of a reason that are kept: it may come from the device that is refused."""

STRIKES = 3
"""Answers that cannot be used after which a device is not asked again in a training."""


@dataclass
class Record:
    """What a closed round was."""

    phase: Literal["warm", "admm"]
    participants: list[str]
    objective: float
    subspace_change: float
    bytes_up: int
    bytes_down: int
    seconds: float
    computing: float  # the longest computation among the participants


@dataclass
class Ledger:
    """What the server knows of the devices; the only thing that grows with their number."""

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
        """Whether a device has sent what cannot be used too often."""
        return self.strikes.get(device, 0) >= STRIKES
