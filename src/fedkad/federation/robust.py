"""Aggregation that a minority of poisoned clients cannot drag away: the geometric median.

The mean of n replies follows a single one of them anywhere. The geometric median, the point M with the smallest sum of
distances Σ ‖A_i − M‖, stays near the others: while the share α of poisoned replies is below ½ and the honest ones lie
within some distance of a point, M is within (1 − α)/√(1 − 2α) times that distance (Minsker 2015), whatever the
poisoned ones are.

It is found here from inner products alone, so that the same few lines serve replies (D × r matrices) and the warm
start (D × D matrices U Uᵀ that nobody has to form one by one). The server has to hold all n messages for it, where a
mean needs only their sum; and it has to see each of them, which secure aggregation prevents. Turn away a message
with numbers that are not finite, or so large that their products overflow, before it gets here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SAME = 1e-14
"""Squared distance, as a share of the squared norms, below which rounding alone may keep two points apart."""

ALONE = 2
"""So many devices that agree with each other and with nobody else may be liars."""

ROUNDING = 1e-12
"""Relative difference of two sums of distances that counts as none."""


def geometric_median_weights(gram: Array, *, tolerance: float = 1e-10, steps: int = 100) -> Array:
    """The weights w ≥ 0, Σ w_i = 1, of the geometric median M = Σ w_i A_i of points known by G_ij = ⟨A_i, A_j⟩.

    At the median Σ (A_i − M)/‖A_i − M‖ = 0, so M is the mean of the points weighted by 1/‖A_i − M‖. Weiszfeld's
    iteration of that never makes the sum of distances larger, but it can be slow; a step of Newton's method is taken
    instead wherever that leads lower.

    Neither may arrive at a point, where it would divide by zero and stay although the median is elsewhere; so the
    medoid A_k, the point with the smallest sum of distances, comes first (Vardi & Zhang 2000). With η points at that
    place and the pull R = ‖Σ (A_i − A_k)/‖A_i − A_k‖‖ of the others, it is the median if R ≤ η; otherwise
    (η/R) A_k + (1 − η/R) T, where T is Weiszfeld's mean of the others, has a smaller sum of distances than every A_i,
    and so has all that follows.

    Parameters
    ----------
    gram : (n, n)
        Inner products; at least one point.
    tolerance : float
        The iteration ends when Σ |Δw_i| of a step is no larger.
    steps : int
        Or after so many steps; some ten are usual.

    Examples
    --------
    Of three points on a line it is the middle one, however far the last is away.

    >>> points = np.array([0.0, 1.0, 1e9])
    >>> geometric_median_weights(np.outer(points, points))
    array([0., 1., 0.])
    """
    if not np.isfinite(gram).all():
        raise ValueError("The Gram matrix holds numbers that are not finite; leave out the points they come from.")
    norms = np.diagonal(gram)
    squared = norms[:, None] + norms - 2.0 * gram
    squared[squared <= SAME * (norms[:, None] + norms)] = 0.0
    costs = np.sqrt(squared).sum(axis=1)
    medoid = int(np.argmin(costs))
    # Seen from the medoid, near points have small inner products: a far point's norm does not drown their distances.
    seen = gram - gram[medoid] - gram[:, [medoid]] + norms[medoid]
    there = squared[medoid] == 0.0
    inverse = np.where(there, 0.0, 1.0 / np.sqrt(np.where(there, 1.0, squared[medoid])))
    pull, multiplicity = np.sqrt(max(float(inverse @ seen @ inverse), 0.0)), float(there.sum())
    if pull <= multiplicity * (1.0 + ROUNDING):
        # Every point of the same cost is a median too, and so is their mean: the middle of two points, for one.
        return _normalised((costs <= costs[medoid] * (1.0 + ROUNDING)).astype(np.float64))
    stay = multiplicity / pull
    weights = stay * there / multiplicity + (1.0 - stay) * _normalised(inverse)
    inverse = 1.0 / _distances(seen, weights)
    for _ in range(steps):
        weights = min(_candidates(seen, weights, inverse), key=lambda trial: float(_distances(seen, trial).sum()))
        before, inverse = inverse, 1.0 / _distances(seen, weights)
        if np.abs(_normalised(inverse) - _normalised(before)).sum() <= tolerance:
            break
    return _normalised(inverse)


def _distances(gram: Array, weights: Array) -> Array:
    """‖A_i − M‖ of all points from M = Σ w_i A_i; where rounding makes it zero, something that one may divide by."""
    squared = np.diagonal(gram) - 2.0 * (gram @ weights) + weights @ gram @ weights
    distances: Array = np.sqrt(np.maximum(squared, 1e-30 * np.median(np.diagonal(gram))))
    return distances


def _candidates(gram: Array, weights: Array, inverse: Array) -> Iterator[Array]:
    """The weights of Weiszfeld's step from M = Σ w_i A_i and of Newton's, given 1/‖A_i − M‖.

    With u_i = (A_i − M)/‖A_i − M‖ = Σ_j B_ij A_j the gradient of the sum of distances is −Σ u_i, and its Hessian
    H = Σ (I − u_i u_iᵀ)/‖A_i − M‖. Newton's step H⁻¹ Σ u_i is Σ c_i u_i for the c with
    (Σ_k 1/‖A_k − M‖) c_i − Σ_j ⟨u_i, u_j⟩ c_j/‖A_i − M‖ = 1: n unknowns, however many D r may be.
    """
    yield _normalised(inverse)
    towards = inverse[:, None] * (np.eye(len(weights)) - weights)  # B
    cosines = towards @ gram @ towards.T
    try:
        shares = np.linalg.solve(
            inverse.sum() * np.eye(len(weights)) - inverse[:, None] * cosines, np.ones_like(weights)
        )
    except np.linalg.LinAlgError:  # points in one line, but for rounding
        return
    yield weights + shares @ towards


def _normalised(values: Array) -> Array:
    normalised: Array = values / values.sum()
    return normalised


def combine_replies(replies: Sequence[Array]) -> Array:
    """The geometric median of replies P + Λ/ρ, each (D, r), in the Frobenius norm: in place of their mean.

    >>> honest, poisoned = np.array([[1.0], [0.0]]), np.array([[-1e6], [1e6]])
    >>> combine_replies([honest, honest, poisoned])
    array([[1.],
           [0.]])
    """
    stacked = np.stack(replies)
    flat = stacked.reshape(len(stacked), -1)
    weights = geometric_median_weights(flat @ flat.T)
    return np.asarray(np.tensordot(weights, stacked, axes=1), dtype=np.float64)


def combine_directions(messages: Sequence[Array]) -> Array:
    """The geometric median of U_i U_iᵀ, times n, for n warm messages U_i (D, r): in place of Σ U_i U_iᵀ.

    ⟨U_i U_iᵀ, U_j U_jᵀ⟩ = ‖U_iᵀ U_j‖², so no D × D matrix is formed but the result. The factor n gives it the scale
    of the sum, so that the two are the same if all messages are.

    It bounds the energy that poisoned messages bring in, not the number of directions. Devices that share their few
    strongest directions only leave little energy in the trailing ones, and there a colluding minority could put its
    own: `supported_directions` keeps them out.

    >>> honest, poisoned = np.array([[1.0], [0.0]]), np.array([[0.0], [1e3]])
    >>> combine_directions([honest, honest, poisoned])
    array([[3., 0.],
           [0., 0.]])
    """
    stacked = np.stack(messages)
    count, dimension, rank = stacked.shape
    beside = stacked.transpose(1, 0, 2).reshape(dimension, count * rank)  # [U_1 … U_n]
    gram = np.empty((count, count))
    for row, message in zip(gram, stacked, strict=True):  # row by row: memory for r × n r products, not for (n r)²
        row[:] = np.square(message.T @ beside).reshape(rank, count, rank).sum(axis=(0, 2))
    weights = geometric_median_weights((gram + gram.T) / 2.0)
    used = np.flatnonzero(weights)  # a message of no weight may still be of a norm that is best not multiplied
    scaled = (stacked[used] * np.sqrt(count * weights[used])[:, None, None]).transpose(1, 0, 2).reshape(dimension, -1)
    combined: Array = scaled @ scaled.T
    return combined


def supported_directions(messages: Sequence[Array], directions: Array, rank: int) -> Array:
    """The `rank` of these orthonormal directions (D, k) that most devices have energy in.

    With e_i(v) = ‖U_iᵀ v‖² what device i has in direction v, the largest `ALONE` of e_1 … e_n count no more than the
    next. So what only two devices have, be they liars or not, gives way to what three have. Devices lose little by it,
    because each has private directions of its own beside the shared ones.

    >>> common, rare = np.array([[0.5], [0.0]]), np.array([[0.0], [1.0]])
    >>> supported_directions([common, common, common, rare, rare], np.eye(2), 1)
    array([[1.],
           [0.]])
    """
    energies = np.stack([np.square(message.T @ directions).sum(axis=0) for message in messages])
    if len(messages) > 2 * ALONE:  # of fewer, two are nearly half
        energies = np.minimum(energies, np.sort(energies, axis=0)[-1 - ALONE])
    chosen = np.argsort(-energies.sum(axis=0), kind="stable")[:rank]
    return np.ascontiguousarray(directions[:, np.sort(chosen)])
