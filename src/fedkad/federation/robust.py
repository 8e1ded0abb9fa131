"""Aggregation that a minority of poisoned clients cannot drag away.

The mean of n replies follows a single one of them anywhere. So does the sum of warm messages: there each direction
counts by its energy, and a client may claim all of its energy in directions that no other device has.

**Replies** P + Λ/ρ are put together by their geometric median, the point M with the smallest sum of distances
Σ ‖A_i − M‖. It stays near the others: while the share α of poisoned replies is below ½ and the honest ones lie within
some distance of a point, M is within (1 − α)/√(1 − 2α) times that distance (Minsker 2015), whatever the poisoned ones
are. It is found from inner products alone.

**Warm messages** are added up, unless one or two clients pull alone: `pulling_alone` compares what the others lose with
and without them. These are left out.

The server has to hold all n messages for both, where a mean needs only their sum; and it has to see each of them, which
secure aggregation prevents. Turn away a message with numbers that are not finite, or so large that their products
overflow, before it gets here.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.subspace import leading_directions

Array = NDArray[np.float64]

SAME = 1e-14
"""Squared distance, as a share of the squared norms, below which rounding alone may keep two points apart."""

ALONE = 2
"""So many devices that agree with each other and with no other may be liars."""

MOST_PULL = 1.0
"""What a device may cost all others together, in units of what one of them loses on average. Among eight honest devices
the largest pull is 0.31, among five 0.74 (`python -m measurements.liars`)."""

LEAST_LOSS = 1e-3
"""A device that loses less of its energy counts as losing so much: none is left out for next to nothing."""

SUSPECTS = 8
"""Devices of which every set is tried; in a larger fleet they are those that hold most of the directions alone."""

TOLERANCE, MOST_STEPS = 1e-10, 100
"""The iteration for a median ends when Σ |Δw_i| of a step is no larger, or after so many steps; some ten are usual."""

ROUNDING = 1e-12
"""Relative difference of two sums of distances that counts as none."""


def geometric_median_weights(gram: Array) -> Array:
    """Find the weights w ≥ 0, Σ w_i = 1, of the geometric median M = Σ w_i A_i of points known by G_ij = ⟨A_i, A_j⟩.

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
    for _ in range(MOST_STEPS):
        weights = min(_candidates(seen, weights, inverse), key=lambda trial: float(_distances(seen, trial).sum()))
        before, inverse = inverse, 1.0 / _distances(seen, weights)
        if np.abs(_normalised(inverse) - _normalised(before)).sum() <= TOLERANCE:
            break
    return _normalised(inverse)


def _distances(gram: Array, weights: Array) -> Array:
    """Compute ‖A_i − M‖ of all points from M = Σ w_i A_i; where rounding makes it zero, a little more."""
    squared = np.diagonal(gram) - 2.0 * (gram @ weights) + weights @ gram @ weights
    distances: Array = np.sqrt(np.maximum(squared, 1e-30 * np.median(np.diagonal(gram))))
    return distances


def _candidates(gram: Array, weights: Array, inverse: Array) -> Iterator[Array]:
    """Yield the weights of Weiszfeld's step from M = Σ w_i A_i and of Newton's, given 1/‖A_i − M‖.

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
    """Return the geometric median of replies P + Λ/ρ, each (D, r), in the Frobenius norm: in place of their mean.

    >>> honest, poisoned = np.array([[1.0], [0.0]]), np.array([[-1e6], [1e6]])
    >>> combine_replies([honest, honest, poisoned])
    array([[1.],
           [0.]])
    """
    stacked = np.stack(replies)
    flat = stacked.reshape(len(stacked), -1)
    weights = geometric_median_weights(flat @ flat.T)
    return np.asarray(np.tensordot(weights, stacked, axes=1), dtype=np.float64)


def pull(messages: Sequence[Array], chosen: Collection[int], rank: int) -> float:
    """Measure what each of these clients costs all others together, in units of what one of them loses on average.

    A warm message U_j holds the directions in which device j predicts, and ‖U_j‖² is the share of its energy that it
    predicts at all. In a subspace Z device j therefore loses about ℓ_j(Z) = 1 − ‖Zᵀ U_j‖². With Z the leading
    directions of Σ U_j U_jᵀ over all clients, and Z' those over the clients R that are not in the chosen set S,

        pull(S) = [Σ_R ℓ_j(Z) − Σ_R ℓ_j(Z')] / |S|  ÷  Σ_R ℓ_j(Z') / |R|.

    The others lose 1 + pull(S) |S| / |R| times as much because S takes part. What S itself claims to lose or to gain
    does not matter.

    Examples
    --------
    Two clients agree, and a third brings twice their energy in another direction. One direction is shared: the two
    lose 0.64 each because of the third, where they would lose 0.36 without it.

    >>> common, other = np.array([[0.8], [0.0]]), np.array([[0.0], [1.0]])
    >>> round(pull([common, common, 2.0 * other], [2], 1), 3) == round(2 * 0.64 / 0.36, 3)
    True
    """
    rest = [message for k, message in enumerate(messages) if k not in chosen]
    among_all = leading_directions(_energy(messages), rank).vectors
    return _pull(_energy(rest), rest, among_all, len(chosen), rank)


def _energy(messages: Sequence[Array]) -> Array:
    """Compute Σ U_j U_jᵀ."""
    beside = np.concatenate(messages, axis=1)
    energy: Array = beside @ beside.T
    return energy


def _pull(energy: Array, rest: Sequence[Array], among_all: Array, chosen: int, rank: int) -> float:
    """Compute the pull of so many clients on the rest of this energy, away from their own leading directions."""
    own = float(leading_directions(energy, rank).values.sum())
    kept = float(np.vdot(among_all, energy @ among_all))
    whole = sum(max(1.0, float(np.vdot(message, message))) for message in rest)
    usual = max((whole - own) / len(rest), LEAST_LOSS)
    return (own - kept) / chosen / usual


def pulling_alone(messages: Sequence[Array], rank: int) -> list[int]:
    """Find the clients whose warm messages are to be left out because they pull alone, in rising order.

    All sets of one or two suspects are tried. If the set with the largest pull exceeds `MOST_PULL` it is left out, and
    those that remain are looked at again. Two devices that pull the same way count together, so they cannot cover for
    each other; three that agree are taken for what the fleet is like. Less than half of the devices are left out.

    >>> common, other = np.diag([0.9, 0.3, 0.0]), np.diag([0.0, 0.0, 1.0])
    >>> pulling_alone([common, common, other, common, common, other], 2)
    [2, 5]
    """
    # Of [U_1 … U_n] = Q R only R is needed: Q turns coordinates, which changes no energy.
    turned = np.split(np.linalg.qr(np.concatenate(messages, axis=1), mode="r"), len(messages), axis=1)
    kept = list(range(len(messages)))
    most = (len(messages) - 1) // 2
    while len(messages) - len(kept) < most:
        room = min(ALONE, most - (len(messages) - len(kept)))
        liars = _strongest([turned[k] for k in kept], rank, room)
        if not liars:
            break
        kept = [k for place, k in enumerate(kept) if place not in liars]
    return sorted(set(range(len(messages))).difference(kept))


def _strongest(messages: Sequence[Array], rank: int, most: int) -> tuple[int, ...]:
    """Find the set of at most so many clients that pulls most; empty if that is no more than a client may."""
    energy = _energy(messages)
    among_all = leading_directions(energy, rank).vectors
    pulls: dict[tuple[int, ...], float] = {}
    for size in range(1, most + 1):
        for chosen in itertools.combinations(_suspects(messages, among_all), size):
            rest = [message for k, message in enumerate(messages) if k not in chosen]
            without = energy - _energy([messages[k] for k in chosen])
            pulls[chosen] = _pull(without, rest, among_all, size, rank)
    chosen = max(pulls, key=lambda each: pulls[each])
    return chosen if pulls[chosen] > MOST_PULL else ()


def _suspects(messages: Sequence[Array], among_all: Array) -> list[int]:
    """Find the clients that hold most of the leading directions by themselves.

    With e_i(v) = ‖U_iᵀ v‖² what client i has in direction v, it holds alone what exceeds the third largest of
    e_1(v) … e_n(v), as a share of Σ e_i(v).
    """
    if len(messages) <= SUSPECTS:
        return list(range(len(messages)))
    energies = np.stack([np.square(message.T @ among_all).sum(axis=0) for message in messages])
    alone = np.maximum(energies - np.sort(energies, axis=0)[-1 - ALONE], 0.0)
    held = (alone / np.maximum(energies.sum(axis=0), np.finfo(np.float64).tiny)).sum(axis=1)
    return sorted(int(k) for k in np.argsort(-held, kind="stable")[:SUSPECTS])
