"""The reduced operator Q of a device at a subspace P, and the loss that ties the two together.

Everything is a function of the sufficient statistics A = XXᵀ, B = YXᵀ and ‖Y‖².
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.snapshots import Statistics

Array = NDArray[np.float64]


class Reduced(NamedTuple):
    """The statistics reduced to a subspace P: all that the loss, its gradient and Q̂ need of A and B."""

    a: Array  # A P
    b: Array  # B P
    b_adjoint: Array  # Bᵀ P
    gram: Array  # PᵀA P
    cross: Array  # PᵀB P
    energy: float  # ‖Y‖²

    @classmethod
    def at(cls, statistics: Statistics, subspace: Array) -> Reduced:
        """Reduce the statistics to the subspace: three D × D × r products, nearly the whole cost of a local step.

        Only the coordinates that move take part; A and B are zero elsewhere.
        """
        moving, core = statistics.moving, statistics.core
        seen = subspace if core is statistics else subspace[moving]
        a, b = core.xx @ seen, core.yx @ seen
        gram, cross, b_adjoint = seen.T @ a, seen.T @ b, core.yx.T @ seen
        if core is not statistics:
            a, b, b_adjoint = (_among_zeros(part, moving, subspace.shape) for part in (a, b, b_adjoint))
        return cls(a, b, b_adjoint, gram, cross, statistics.energy)


def _among_zeros(rows: Array, places: NDArray[np.intp], shape: tuple[int, ...]) -> Array:
    whole = np.zeros(shape)
    whole[places] = rows
    return whole


def fit_operator(reduced: Reduced, ridge: float, *, always: bool = False) -> Array:
    """The minimiser Q̂(P) = PᵀBP (PᵀAP)⁻¹ of the loss over Q.

    If the Gram matrix PᵀAP has an eigenvalue below λ = `ridge`, λI is added to it first. With `always` it is added in
    any case, so that the operator does not jump when an eigenvalue passes λ.
    """
    gram = reduced.gram
    if always or np.linalg.eigvalsh(gram)[0] < ridge:
        gram = gram + ridge * np.eye(len(gram))
    try:
        return np.asarray(np.linalg.solve(gram, reduced.cross.T).T, dtype=np.float64)
    except np.linalg.LinAlgError:  # singular, and without a ridge: take the smallest minimiser
        return np.asarray(np.linalg.lstsq(gram, reduced.cross.T)[0].T, dtype=np.float64)


def relative_ridge(reduced: Reduced, ridge: float) -> float:
    """λ as a share of the mean eigenvalue trace(G)/r of the Gram matrix, so that it has no unit."""
    mean_eigenvalue = float(np.trace(reduced.gram)) / len(reduced.gram)
    return ridge * mean_eigenvalue if mean_eigenvalue > 0.0 else ridge  # no data in the subspace


def loss(reduced: Reduced, operator: Array) -> float:
    """f(P, Q) = ‖Y − P Q PᵀX‖² = ‖Y‖² − 2 tr(QᵀPᵀBP) + tr(QᵀQ PᵀAP) for an orthonormal P."""
    explained = 2.0 * np.vdot(operator, reduced.cross) - np.vdot(operator @ reduced.gram, operator)
    return reduced.energy - float(explained)


def loss_gradient(subspace: Array, reduced: Reduced, operator: Array) -> Array:
    """∇_P f at fixed Q, in the ambient space, for an orthonormal P.

    ∇f = −2 (B P Qᵀ + Bᵀ P Q) + 2 P Q (PᵀA P) Qᵀ + 2 A P QᵀQ
    """
    gradient: Array = (
        -2.0 * (reduced.b @ operator.T + reduced.b_adjoint @ operator)
        + 2.0 * subspace @ (operator @ reduced.gram @ operator.T)
        + 2.0 * reduced.a @ (operator.T @ operator)
    )
    return gradient


def cap_spectrum(operator: Array, cap: float) -> Array:
    """Q scaled by cap / (spectral radius) if the radius exceeds the cap: predictions must not grow.

    >>> cap_spectrum(np.diag([2.0, 0.5]), 0.5)
    array([[0.5  , 0.   ],
           [0.   , 0.125]])
    """
    radius = float(np.abs(np.linalg.eigvals(operator)).max())
    return operator * (cap / radius) if radius > cap else operator
