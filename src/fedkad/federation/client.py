"""A client's steps: the warm message, the local round, the dual update. Its statistics never leave it."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.settings import Consensus
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

    `unsent` is what the rounding to 8 bits left out of the last reply; the next one makes up for it. `reduced` are the
    statistics seen from P_i where they are known already, since rounds begin where rounds end.
    """

    subspace: Array
    dual: Array
    operator: Array
    unsent: Array | float = 0.0
    reduced: Reduced | None = None


@dataclass(frozen=True)
class Client:
    """One device in the federation: what its data say, and what it computes from a state and the consensus Z.

    A local round leads to a new state, which is the client's only once the server has accepted the reply made of it:
    `commit` then moves its dual on. A reply that the server never took leaves the state before it as it was.
    """

    name: str
    statistics: Statistics
    consensus: Consensus

    def warm_message(self) -> Array:
        """Return the directions that this device predicts along, each as long as the root of its share of ‖Y‖².

        U Uᵀ of the message U is the covariance of the device's own predictions over ‖Y‖²; the server adds these up.
        """
        directions = predicted_directions(self.statistics, own_subspace(self.statistics, self.consensus.rank))
        message: Array = directions.vectors * np.sqrt(directions.values)
        return message

    def begin(self, shared: Array) -> LocalState:
        """Make the state before the first round: Λ = 0, and P the orthonormal factor of Z or (random start) its own."""
        subspace = retract_polar(shared)
        if self.consensus.start == "random":
            drawn = np.random.default_rng([self.consensus.seed, *self.name.encode()])
            subspace = random_point(shared.shape[0], shared.shape[1], drawn)
        reduced = Reduced.at(self.statistics, subspace)
        return LocalState(subspace, np.zeros_like(shared), self._fit_operator(reduced), reduced=reduced)

    def local_round(self, state: LocalState, shared: Array) -> LocalState:
        """Refit Q̂, and take C gradient steps on the augmented loss; `reply` makes the answer.

        The augmented loss is f(P, Q̂) + ρ/2 ‖P − Z + Λ/ρ‖², its gradient ∇f + Λ + ρ (P − Z).
        """
        point, dual, rho = state.subspace, state.dual, self.consensus.penalty
        reduced = Reduced.at(self.statistics, point) if state.reduced is None else state.reduced
        operator = self._fit_operator(reduced)
        for _ in range(self.consensus.local_steps):
            gradient = self.scale * loss_gradient(point, reduced, operator)
            gradient += dual + rho * (point - shared)
            point = self._step(point, gradient)
            reduced = Reduced.at(self.statistics, point)
        return LocalState(point, dual, operator, state.unsent, reduced)

    def reply(self, state: LocalState) -> Array:
        """Return what a local round answers: P + Λ/ρ."""
        return state.subspace + state.dual / self.consensus.penalty

    def commit(self, state: LocalState, shared: Array) -> LocalState:
        """Update the dual with the consensus of the round that led to this state: Λ ← Λ + ρ (P − Z)."""
        return state._replace(dual=state.dual + self.consensus.penalty * (state.subspace - shared))

    def objective(self, subspace: Array, operator: Array | None = None, *, reduced: Reduced | None = None) -> float:
        """Compute f(P, Q) as scaled in this federation, at Q̂(P) unless an operator is given."""
        if reduced is None:
            reduced = Reduced.at(self.statistics, subspace)
        return self.scale * loss(reduced, self._fit_operator(reduced) if operator is None else operator)

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
