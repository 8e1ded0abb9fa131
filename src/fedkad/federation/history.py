"""What is kept of a training: the record of each round, and what the server remembers of each device."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedkad.federation.protocol import Phase

SHOWN = 200
"""Refusals that are kept with their reasons; all are counted."""

LONGEST = 300
"""Characters of a reason that are kept: it may come from the device that is refused."""

STRIKES = 3
"""Unusable answers after which a device is not asked again in a training."""


@dataclass(frozen=True)
class Round:
    """One exchange between server and participants; `record["objective"]` works as well as the attribute.

    In one process everything is known. Over a network the server knows only what the participants report: what needs
    the state of every device is NaN there.
    """

    phase: Phase
    participants: tuple[str, ...]
    # Σ_i f_i(P_i, Q̂(P_i)) over the whole fleet, a client not heard yet with P_i = Z. Over a network, the mean of f_i
    # over those participants that report it.
    objective: float
    subspace_change: float  # ‖ΔZ‖
    bytes_up: int  # payload of the replies
    bytes_down: int  # and of Z, to those who did not hold it yet
    seconds: float  # of the exchange, local computation included
    computing: float  # the longest computation among the participants
    left_out: tuple[str, ...] = ()  # whose directions, of all warm rounds so far, are not in Z because they pull alone
    lagrangian: float = math.nan  # Σ_i [f_i + ⟨Λ_i, P_i − Z⟩ + ρ/2 ‖P_i − Z‖²]
    consensus_residual: float = math.nan  # the mean of ‖P_i − Z‖ over the fleet
    # Σ_i [f_i(P_i, Q̂_i) − f_i(P_i, Q̂_i of the client's round before)] over the participants
    refit_perturbation: float = math.nan
    local_changes: Mapping[str, float] = field(default_factory=dict)  # ‖ΔP_i‖ of every participant

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return a record from a file, where names are in lists; those of earlier releases left no device out."""
        names = {kind: tuple(stored.get(kind, ())) for kind in ("participants", "left_out")}
        return cls(**{**stored, **names})

    def __getitem__(self, name: str) -> Any:
        try:
            return vars(self)[name]
        except KeyError:
            raise KeyError(f"{name!r}; a round records {', '.join(vars(self))}") from None


@dataclass
class Ledger:
    """What the server knows of the devices; nothing else of it grows with their number."""

    accepted: dict[str, int] = field(default_factory=dict)
    tickets: dict[str, str] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    shapes: dict[str, float] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0

    def refuse(self, device: str, number: int, reason: str, *, strike: bool) -> None:
        """Count an answer that is not taken, with a strike if it is the device's own fault."""
        if strike:
            self.strikes[device] = self.strikes.get(device, 0) + 1
        self.refusals += 1
        plain = "".join(letter if letter.isprintable() else " " for letter in reason[:LONGEST])
        self.refused.append({"device": device, "round": number, "reason": plain})
        del self.refused[:-SHOWN]

    def is_out(self, device: str) -> bool:
        """Return whether a device has sent unusable answers too often."""
        return self.strikes.get(device, 0) >= STRIKES
