"""The record of a round: the quantities of the convergence theorem, who took part, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.client import Client, LocalState
from fedkad.federation.protocol import Phase
from fedkad.koopman.stiefel import retract_polar


@dataclass(frozen=True)
class Round:
    """One exchange between server and participants; `record["objective"]` works as well as the attribute.

    In one process everything is known. Over a network the server knows only what the participants report: what needs
    the state of every device is NaN there.

    Attributes
    ----------
    phase : {"warm", "admm"}
    participants : tuple of str
    objective : float
        Σ_i f_i(P_i, Q̂(P_i)) over the whole fleet; a client not heard yet counts with P_i = Z. Over a network, the mean
        of f_i over those participants that report it.
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
    computing : float
        The longest computation among the participants, in seconds.
    """

    phase: Phase
    participants: tuple[str, ...]
    objective: float
    subspace_change: float
    bytes_up: int
    bytes_down: int
    seconds: float
    computing: float
    lagrangian: float = math.nan
    consensus_residual: float = math.nan
    refit_perturbation: float = math.nan
    local_changes: Mapping[str, float] = field(default_factory=dict)

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


def fleet_diagnostics(
    clients: Iterable[Client], states: Mapping[str, LocalState], shared: NDArray[np.float64]
) -> FleetDiagnostics:
    """Objective, augmented Lagrangian and consensus residual of a fleet at the consensus Z."""
    objective = lagrangian = residual = 0.0
    count = 0
    untouched = retract_polar(shared)
    for client in clients:
        count += 1
        state = states.get(client.name)
        if state is None:
            local = client.objective(untouched)
        else:
            local = client.objective(state.subspace, reduced=state.reduced)
        objective += local
        lagrangian += local
        if state is not None:
            apart = state.subspace - shared
            distance = float(np.linalg.norm(apart))
            residual += distance
            lagrangian += float(np.vdot(state.dual, apart)) + client.consensus.penalty / 2.0 * distance**2
    return FleetDiagnostics(objective, lagrangian, residual / count)
