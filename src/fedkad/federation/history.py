"""The record of a round: the quantities of the convergence theorem, who took part, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.client import Client
from fedkad.koopman.stiefel import retract_polar


@dataclass(frozen=True)
class Round:
    """One exchange between server and participants; `record["objective"]` works as well as the attribute.

    Attributes
    ----------
    phase : {"warm", "admm"}
    participants : tuple of str
    objective : float
        Σ_i f_i(P_i, Q̂(P_i)) over the whole fleet; a client not heard yet counts with P_i = Z.
    lagrangian : float
        Σ_i [f_i + ⟨Λ_i, P_i − Z⟩ + ρ/2 ‖P_i − Z‖²].
    consensus_residual : float
        The mean of ‖P_i − Z‖ over the fleet.
    subspace_change : float
        ‖ΔZ‖.
    local_changes : mapping
        ‖ΔP_i‖ of every participant.
    refit_perturbation : float
        Δ_Q = Σ_i [f_i(P_i, Q̂_i) − f_i(P_i, Q̂_i of the client's round before)] over the participants.
    bytes_up, bytes_down : int
        Payload of the replies, and of Z to those who did not hold it yet.
    seconds : float
        Wall-clock time of the exchange, local computation included.
    """

    phase: Literal["warm", "admm"]
    participants: tuple[str, ...]
    objective: float
    lagrangian: float
    consensus_residual: float
    subspace_change: float
    local_changes: Mapping[str, float]
    refit_perturbation: float
    bytes_up: int
    bytes_down: int
    seconds: float

    def __getitem__(self, name: str) -> Any:
        try:
            return vars(self)[name]
        except KeyError:
            raise KeyError(f"{name!r}; a round records {', '.join(vars(self))}") from None


class FleetDiagnostics(NamedTuple):
    """The quantities of a round that need every client's state."""

    objective: float
    lagrangian: float
    consensus_residual: float


def fleet_diagnostics(clients: Iterable[Client], shared: NDArray[np.float64]) -> FleetDiagnostics:
    """Objective, augmented Lagrangian and consensus residual of a fleet at the consensus Z."""
    objective = lagrangian = residual = 0.0
    count = 0
    untouched = retract_polar(shared)
    for client in clients:
        count += 1
        local = client.objective(untouched if client.state is None else client.state.subspace)
        objective += local
        lagrangian += local
        if client.state is not None:
            apart = client.state.subspace - shared
            distance = float(np.linalg.norm(apart))
            residual += distance
            lagrangian += float(np.vdot(client.state.dual, apart)) + client.consensus.penalty / 2.0 * distance**2
    return FleetDiagnostics(objective, lagrangian, residual / count)
