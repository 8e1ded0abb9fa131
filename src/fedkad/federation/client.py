"""A client's steps: the warm message, the local round, the dual update. Its statistics never leave it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation import wire
from fedkad.federation.settings import Consensus, Encoding
from fedkad.koopman.operator import Reduced, fit_operator, loss, loss_gradient, relative_ridge
from fedkad.koopman.snapshots import Statistics
from fedkad.koopman.stiefel import (
    project_grassmann,
    project_stiefel,
    random_point,
    retract_polar,
    retract_qr,
)
from fedkad.koopman.subspace import leading_directions, own_subspace, predicted_directions

Array = NDArray[np.float64]


class LocalState(NamedTuple):
    """A client's side of the consensus: its subspace P_i, its dual Λ_i, and the operator Q̂_i it last used.

    `unsent` is what the rounding to 8 bits left out of the last reply; the next one makes up for it.
    """

    subspace: Array
    dual: Array
    operator: Array
    unsent: Array | float = 0.0


class Move(NamedTuple):
    """What one round did to a client: ‖ΔP‖, and what refitting Q̂ did to its loss."""

    name: str
    change: float
    refit_perturbation: float


@dataclass
class Client:
    """One device in the federation.

    `state` is None until the first round. A round leaves its result in `pending`; only `commit`, with the consensus
    that the server made of it, moves the state on. A reply that the server never took is dropped with `pending`.
    """

    name: str
    statistics: Statistics
    consensus: Consensus
    state: LocalState | None = None
    pending: LocalState | None = None
    _reduced: tuple[Array, Reduced] | None = field(default=None, repr=False)

    def warm_message(self) -> Array:
        """The directions that this device predicts along, each as long as the root of its share of ‖Y‖².

        U Uᵀ of the message U is the covariance of the device's own predictions over ‖Y‖²; the server adds these up.
        """
        directions = predicted_directions(self.statistics, own_subspace(self.statistics, self.consensus.rank))
        message: Array = directions.vectors * np.sqrt(directions.values)
        return message

    def begin(self, shared: Array) -> LocalState:
        """The state before the first round: Λ = 0, and P the orthonormal factor of Z or (random start) one's own."""
        if self.state is None:
            subspace = retract_polar(shared)
            if self.consensus.start == "random":
                drawn = np.random.default_rng([self.consensus.seed, *self.name.encode()])
                subspace = random_point(shared.shape[0], shared.shape[1], drawn)
            operator = self._fit_operator(self.reduced_at(subspace))
            self.state = LocalState(subspace, np.zeros_like(shared), operator)
        return self.state

    def local_round(self, shared: Array) -> Array:
        """Refit Q̂, take C gradient steps on the augmented loss, and answer P + Λ/ρ.

        The augmented loss is f(P, Q̂) + ρ/2 ‖P − Z + Λ/ρ‖², its gradient ∇f + Λ + ρ (P − Z).
        """
        point, dual, _, unsent = self.begin(shared)
        rho = self.consensus.penalty
        operator = self._fit_operator(self.reduced_at(point))
        for _ in range(self.consensus.local_steps):
            gradient = self.scale * loss_gradient(point, self.reduced_at(point), operator)
            gradient += dual + rho * (point - shared)
            point = self._step(point, gradient)
        self.pending = LocalState(point, dual, operator, unsent)
        return point + dual / rho

    def send(self, reply: Array, shared: Array, encoding: Encoding) -> bytes:
        """The reply of a local round as bytes; in 8 bits with error feedback.

        What is encoded is m = reply − Z + e, and what the server does not get of it becomes e ← m − decode(encode(m)).
        """
        message = reply - wire.reference(shared, encoding)
        if encoding != "int8" or self.pending is None:
            return wire.encode(message, encoding)
        message = message + self.pending.unsent
        payload = wire.encode(message, encoding)
        left = message - wire.decode(payload, (reply.shape[0], reply.shape[1]), encoding)
        self.pending = self.pending._replace(unsent=left)
        return payload

    def commit(self, shared: Array) -> Move:
        """Update the dual with the consensus of the round taken part in: Λ ← Λ + ρ (P − Z)."""
        if self.pending is None or self.state is None:
            raise RuntimeError(f"Client {self.name} has no reply to commit; it did not take part in a round.")
        before, (subspace, dual, operator, unsent) = self.state, self.pending
        self.state = LocalState(subspace, dual + self.consensus.penalty * (subspace - shared), operator, unsent)
        self.pending = None
        perturbation = self.objective(subspace, operator) - self.objective(subspace, before.operator)
        return Move(self.name, float(np.linalg.norm(subspace - before.subspace)), perturbation)

    def objective(self, subspace: Array, operator: Array | None = None) -> float:
        """f(P, Q) as scaled in this federation, at Q̂(P) unless an operator is given."""
        reduced = self.reduced_at(subspace)
        return self.scale * loss(reduced, self._fit_operator(reduced) if operator is None else operator)

    def reduced_at(self, subspace: Array) -> Reduced:
        """The statistics seen from a subspace; the last one is kept, since rounds begin where rounds end."""
        if self._reduced is None or self._reduced[0] is not subspace:
            self._reduced = subspace, Reduced.at(self.statistics, subspace)
        return self._reduced[1]

    def _step(self, point: Array, gradient: Array) -> Array:
        if self.consensus.grassmann:
            return retract_qr(point - self._step_size * project_grassmann(point, gradient))
        return retract_polar(point - self._step_size * project_stiefel(point, gradient))

    def _fit_operator(self, reduced: Reduced) -> Array:
        if self.consensus.ridge_is_absolute:
            return fit_operator(reduced, self.consensus.ridge / self.scale)
        return fit_operator(reduced, relative_ridge(reduced, self.consensus.ridge))

    @cached_property
    def scale(self) -> float:
        """What f is multiplied by, one over what `Consensus.loss` names."""
        pairs = self.statistics.count
        return {
            "energy": 1.0 / (self.statistics.energy or 1.0),
            "entry": 1.0 / (pairs * len(self.statistics.yy)),
            "pair": 1.0 / pairs,
            "sum": 1.0,
        }[self.consensus.loss]

    @cached_property
    def _step_size(self) -> float:
        """η, or one over the curvature: 2 λ_max(XXᵀ) as scaled, plus ρ."""
        if self.consensus.step_size is not None:
            return self.consensus.step_size
        largest = float(leading_directions(self.statistics.core.xx, 1).values[0])
        return 1.0 / (2.0 * self.scale * largest + self.consensus.penalty)
