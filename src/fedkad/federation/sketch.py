"""The warm start as plain sums, for secure aggregation.

The server wants the leading directions of A = Σ U_i U_iᵀ, and under secure aggregation learns nothing but a sum of
what clients send. The D × D matrices U_i U_iᵀ would do, at D/r times the bytes of U_i. Instead each client sends
its sketch U_i (U_iᵀ Ω) with a test matrix Ω (D, r + p) that all draw from one seed: these add up to A Ω, which
determines A if its rank is at most r + p, and nearly so if its spectrum falls fast.

The spectrum of a real fleet does not fall fast. With p = 2 r the fleet's objective at the directions so found is within
about one per cent of that at the exact ones; `python -m measurements.privacy` prints it. A smaller p is no saving: the
rounds that follow do not make up for a start that misses directions.
"""

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.lifting import normal_deviates

Array = NDArray[np.float64]

OVERSAMPLING = 2
"""Columns of the test matrix beyond the rank, as a multiple of it: p = 2 r."""

STREAM = 2
"""Beside the seed of a run, so that Ω shares no numbers with the lifting, which draws from `seed` and `[seed, 1]`."""


def width(dimension: int, rank: int) -> int:
    """Columns of a probe matrix, and so of a sketch: k = min(3 r, D)."""
    return min(rank + OVERSAMPLING * rank, dimension)


def probe_matrix(dimension: int, rank: int, seed: int) -> Array:
    """Ω of shape (D, k), k = min(3 r, D), normal, the same to the bit on every side that has the seed.

    Entries have the deviation 1/√k, so that ‖Ωᵀv‖ is near 1 for a unit vector v that was not chosen after Ω, and a
    sketch about as long as U Uᵀ. Its entries are at most (‖ω_j‖ + |Ω_ij|)/2, near √(D/k)/2, where ‖U‖ ≤ 1: the range
    that a quantised sum needs.

    >>> probe_matrix(100, 24, seed=0).shape
    (100, 72)
    """
    if not 1 <= rank <= dimension:
        raise ValueError(f"rank={rank} must be at least 1 and at most the dimension, {dimension}.")
    columns = width(dimension, rank)
    drawn = normal_deviates(np.random.PCG64([seed, STREAM]), dimension * columns).reshape(dimension, columns)
    scaled: Array = drawn / np.sqrt(columns)
    return scaled


def sketch(message: Array, Omega: Array) -> Array:
    """Return what a client sends in place of its warm message U: (U Uᵀ) Ω, of the shape of Ω."""
    sketched: Array = message @ (message.T @ Omega)
    return sketched


def leading_from_sketch(total: Array, Omega: Array, rank: int) -> Array:
    """Find the leading eigenvectors (D, rank) of a symmetric positive A, orthonormal, from Y = A Ω alone.

    They are those of the Nyström approximation Y (ΩᵀY)⁻¹ Yᵀ, the largest matrix below A that gives the same Y. To
    compute it stably (Tropp, Yurtsever, Udell & Cevher 2017), A is shifted to A + ν I, Y to Y_ν = Y + ν Ω; with
    the Cholesky factor ΩᵀY_ν = CᵀC, the left singular vectors of Y_ν C⁻¹ are the eigenvectors.

    ΩᵀAΩ is symmetric. How far ΩᵀY is from that tells how large the errors of Y are, by rounding or by quantisation, and
    the shift is made large enough that C⁻¹ does not blow them up to directions of their own.

    Parameters
    ----------
    total : (D, k)
        Y, the sum of all sketches.
    Omega : (D, k)
        The test matrix they were made with.
    rank : int
        Directions asked for, at most k.

    Examples
    --------
    >>> Omega = probe_matrix(6, 1, seed=0)
    >>> message = np.array([[0.0, 0.6, 0.0, 0.8, 0.0, 0.0]]).T
    >>> np.abs(leading_from_sketch(sketch(message, Omega), Omega, 1)).T.round(9)
    array([[0. , 0.6, 0. , 0.8, 0. , 0. ]])
    """
    inner = Omega.T @ total
    singular = np.linalg.svd(Omega, compute_uv=False)
    error = float(np.linalg.norm(inner - inner.T, 2)) / singular[-1] ** 2
    shift = max(error, np.sqrt(len(Omega)) * np.spacing(np.linalg.norm(total) or 1.0))
    while True:
        shifted = total + shift * Omega
        inner = Omega.T @ shifted
        try:
            factor = np.linalg.cholesky((inner + inner.T) / 2.0)  # Cᵀ
            break
        except np.linalg.LinAlgError:  # the symmetric part of the errors is larger, or A is not positive
            shift *= 10.0
    left, _, _ = np.linalg.svd(np.linalg.solve(factor, shifted.T).T, full_matrices=False)
    leading: Array = left[:, :rank]
    return leading
