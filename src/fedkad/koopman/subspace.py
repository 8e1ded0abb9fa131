"""Subspaces for known statistics: the leading directions of a Gram matrix, and a descent on the loss."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.koopman.operator import Reduced, fit_operator, loss, loss_gradient, relative_ridge
from fedkad.koopman.snapshots import Statistics
from fedkad.koopman.stiefel import project_grassmann, retract_polar

Array = NDArray[np.float64]

OWN_STEPS = 8  # descent steps of a device on its own loss: the first few do nearly all of the work


class Directions(NamedTuple):
    """Leading eigenvectors of a Gram matrix as columns, and their eigenvalues in falling order."""

    vectors: Array
    values: Array


def leading_directions(gram: Array, rank: int, *, tolerance: float = 1e-6, most: int = 60) -> Directions:
    """The `rank` leading eigenpairs of a symmetric positive matrix by block subspace iteration.

    Iterates on a block slightly wider than `rank` and stops when the captured energy Σλ no longer grows by more than
    `tolerance` of the trace: much cheaper than all D eigenpairs, and accurate enough for a start.
    """
    size = len(gram)
    width = min(size, rank + max(8, rank // 2))
    if width > size // 3:
        values, vectors = np.linalg.eigh(gram)
        return Directions(vectors[:, ::-1][:, :rank], np.maximum(values[::-1][:rank], 0.0))
    # The columns with the largest diagonal entries are a deterministic start close to the leading directions.
    block = gram[:, np.argsort(-np.diagonal(gram), kind="stable")[:width]]
    trace, captured = float(np.trace(gram)), -np.inf
    for _ in range(most):
        basis, _ = np.linalg.qr(block)
        image = gram @ basis
        values, turn = np.linalg.eigh(basis.T @ image)
        total = float(values[-rank:].sum())
        if total - captured <= tolerance * trace:
            break
        captured, block = total, image
    return Directions((basis @ turn)[:, ::-1][:, :rank], np.maximum(values[::-1][:rank], 0.0))


class Descent(NamedTuple):
    """Where a descent ended: the subspace, the mean relative loss there and the norm of its gradient."""

    subspace: Array
    loss: float
    gradient_norm: float
    steps: int


def relative_loss(devices: Sequence[Statistics], subspace: Array) -> float:
    """Relative unexplained energy: the mean over devices of f_i/‖Y_i‖², each with its own best operator."""
    total = 0.0
    for statistics in devices:
        reduced = Reduced.at(statistics, subspace)
        total += loss(reduced, fit_operator(reduced, _numerical_ridge(reduced))) / (statistics.energy or 1.0)
    return total / len(devices)


@single_threaded()
def descend(
    devices: Sequence[Statistics],
    start: Array,
    *,
    most: int,
    tolerance: float = 0.0,
) -> Descent:
    """Minimise the mean relative loss over subspaces by Riemannian L-BFGS with Armijo backtracking.

    Steps and changes of the gradient are carried from one tangent space to the next by projection. The statistics of
    one device give its own best subspace; those of a whole fleet give the centralised solution that a federation is
    measured against.
    """
    point = start
    value, gradient = _loss_and_gradient(devices, point)
    curvature = _Curvature()
    for taken in range(most):
        if np.linalg.norm(gradient) <= tolerance:
            return Descent(point, value, float(np.linalg.norm(gradient)), taken)
        direction = project_grassmann(point, -curvature.solve(gradient))
        slope = float(np.vdot(gradient, direction))
        if slope >= 0.0:  # the remembered curvature is misleading: restart along the gradient
            curvature = _Curvature()
            direction, slope = -gradient, -float(np.vdot(gradient, gradient))
        step = 1.0
        while True:
            trial = retract_polar(point + step * direction)
            trial_value, trial_gradient = _loss_and_gradient(devices, trial)
            if trial_value <= value + 1e-4 * step * slope:
                break
            step /= 2.0
            if step < 1e-10:  # as low as rounding lets it go
                return Descent(point, value, float(np.linalg.norm(gradient)), taken)
        curvature.carry_to(trial)
        curvature.add(project_grassmann(trial, step * direction), trial_gradient - project_grassmann(trial, gradient))
        point, value, gradient = trial, trial_value, trial_gradient
    return Descent(point, value, float(np.linalg.norm(gradient)), most)


class _Curvature:
    """The inverse Hessian estimated from the last few pairs (step, change of the gradient): two-loop L-BFGS."""

    REMEMBERED = 12

    def __init__(self) -> None:
        self._pairs: list[tuple[Array, Array, float]] = []

    def solve(self, gradient: Array) -> Array:
        """An estimate of H⁻¹ g; the gradient itself as long as no pair is known."""
        rest, shares = gradient.copy(), []
        for step, change, inverse in reversed(self._pairs):
            shares.append(inverse * np.vdot(step, rest))
            rest -= shares[-1] * change
        if self._pairs:
            _, change, inverse = self._pairs[-1]
            rest /= inverse * np.vdot(change, change)
        for (step, change, inverse), share in zip(self._pairs, reversed(shares), strict=True):
            rest += step * (share - inverse * np.vdot(change, rest))
        return rest

    def carry_to(self, point: Array) -> None:
        """Project the remembered pairs on the tangent space of a new point."""
        self._pairs = [
            (project_grassmann(point, step), project_grassmann(point, change), inverse)
            for step, change, inverse in self._pairs
        ]

    def add(self, step: Array, change: Array) -> None:
        """Remember a pair, unless the curvature along it is not clearly positive."""
        product = float(np.vdot(step, change))
        if product > 1e-10 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self._pairs = [*self._pairs, (step, change, 1.0 / product)][-self.REMEMBERED :]


def own_subspace(statistics: Statistics, rank: int) -> Array:
    """The subspace that one device would choose alone: its leading directions, then a short descent.

    It is sought among the coordinates that move, if there are enough of them for its rank.
    """
    core = statistics.core
    if len(core.yy) < rank:
        core = statistics
    start = leading_directions(core.xx, rank).vectors
    found = descend([core], start, most=OWN_STEPS).subspace
    if core is statistics:
        return found
    subspace = np.zeros((len(statistics.yy), rank))
    subspace[statistics.moving] = found
    return subspace


def predicted_directions(statistics: Statistics, subspace: Array) -> Directions:
    """Principal directions of what a device predicts, Ŷ = P Q̂ PᵀX, with their shares of ‖Y‖² as values.

    A summary of the device's dynamics in D × r numbers: P rotated so that cov(Ŷ) = P Q̂ (PᵀAP) Q̂ᵀ Pᵀ is diagonal.
    """
    reduced = Reduced.at(statistics, subspace)
    operator = fit_operator(reduced, _numerical_ridge(reduced))
    values, turn = np.linalg.eigh(operator @ reduced.gram @ operator.T / (statistics.energy or 1.0))
    return Directions(subspace @ turn[:, ::-1], np.maximum(values[::-1], 0.0))


def _loss_and_gradient(devices: Sequence[Statistics], point: Array) -> tuple[float, Array]:
    """Value and Grassmann gradient; Q̂ may be held fixed in the gradient because it minimises the loss."""
    value, gradient = 0.0, np.zeros_like(point)
    for statistics in devices:
        reduced = Reduced.at(statistics, point)
        operator = fit_operator(reduced, _numerical_ridge(reduced))
        energy = statistics.energy or 1.0  # a device that only ever read zero
        value += loss(reduced, operator) / energy
        gradient += loss_gradient(point, reduced, operator) / energy
    return value / len(devices), project_grassmann(point, gradient / len(devices))


def _numerical_ridge(reduced: Reduced) -> float:
    """Just enough to solve a singular system: the loss itself is minimised, without regularisation."""
    return relative_ridge(reduced, 1e-10)
