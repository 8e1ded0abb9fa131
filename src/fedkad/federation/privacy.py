"""Differential privacy of what a device sends: clipping, Gaussian noise, and what they guarantee together.

A device clips each message to norm C and adds noise of deviation σ C to every entry before anything leaves it. Its
messages then tell no one, not even the server, much about whether its whole data set was this one or any other:
replacing the data moves a clipped message by at most 2 C. The guarantee is per device and covers all `releases`
messages it ever sends, warm and ADMM, however later ones depend on earlier ones, and anything made of them.

It does not cover what is sent without noise, such as a row count or channel moments for a common scaling.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SENSITIVITY = 2.0
"""The largest distance between two messages of norm at most C, in units of C."""


def clip(matrix: Array, bound: float) -> Array:
    """Scale a matrix down to Frobenius norm `bound` if its norm is larger: M · min(1, C/‖M‖), up to rounding.

    >>> clip(np.array([[3.0, 4.0]]), 1.0)
    array([[0.6, 0.8]])
    """
    if not 0.0 < bound < math.inf:
        raise ValueError(f"bound={bound!r} must be positive and finite.")
    values = np.asarray(matrix, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("The matrix to clip has entries that are not finite; find the step that made them.")
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return values.copy()
    relative = float(np.linalg.norm(values / largest))  # so that no square overflows
    return values if relative <= bound / largest else values / largest * (bound / relative)


def add_noise(matrix: Array, deviation: float, generator: np.random.Generator) -> Array:
    """Add independent Gaussian noise of this standard deviation to every entry.

    The noise protects nothing from anyone who can draw it again: in production pass a generator seeded by the
    operating system, `np.random.default_rng()`, never one with a known seed. Two limits remain. numpy's generators
    are not cryptographic. And the noise is a floating-point number, whose lowest bits betray something of what it
    was added to (Mironov 2012); the accounting in this module is for real numbers.

    >>> add_noise(np.zeros((2, 3)), 0.5, np.random.default_rng()).shape
    (2, 3)
    """
    if not 0.0 <= deviation < math.inf:
        raise ValueError(f"deviation={deviation!r} must be non-negative and finite.")
    noisy: Array = matrix + deviation * generator.standard_normal(np.shape(matrix))
    return noisy


def release(message: Array, bound: float, noise: float) -> Array:
    """Clip a message to a norm, and add Gaussian noise of `noise` times that norm, which cannot be drawn again."""
    return add_noise(clip(message, bound), noise * bound, np.random.default_rng())


def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Compute the smallest ε for which `releases` noisy messages together are (ε, δ)-differentially private.

    Other data move a message by s = 2 clipping norms at most. So one message is exactly as private as telling N(0, 1)
    from N(s/σ, 1), and k messages as telling N(0, 1) from N(μ, 1) with μ = s √k / σ (Dong, Roth & Su 2019): no loss in
    composition. For that, ε solves

        δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)    (Balle & Wang 2018).

    Parameters
    ----------
    noise_multiplier : float
        σ, the deviation of the noise in units of the clipping norm; without noise ε is infinite.
    releases : int
        Messages that the device sends in all, k.
    delta : float
        δ, between 0 and 1; well below one over the number of devices.

    Examples
    --------
    >>> round(epsilon(20.0, releases=8, delta=1e-5), 3)
    1.061
    """
    if int(releases) != releases or releases < 1:
        raise ValueError(f"releases={releases!r} must be a positive integer.")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta={delta!r} must be between 0 and 1.")
    if not 0.0 <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier={noise_multiplier!r} must be non-negative and finite.")
    separation = SENSITIVITY * math.sqrt(releases) / noise_multiplier if noise_multiplier > 0.0 else math.inf
    if not math.isfinite(separation * separation):
        return math.inf
    goal = math.log(delta)
    if log_delta(0.0, separation) <= goal:
        return 0.0
    # δ(ε) < Φ(−t) ≤ ½ e^(−t²/2) with t = ε/μ − μ/2 ≥ 0: enough at t = √(2 log 1/δ).
    low, high = 0.0, separation * (math.sqrt(-2.0 * goal) + separation / 2.0)
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if log_delta(middle, separation) <= goal else (middle, high)
    return high


def log_delta(target_epsilon: float, separation: float) -> float:
    """Compute the log δ at which N(0, 1) and N(μ, 1) are ε apart: log [Φ(−t) − e^ε Φ(−t − μ)] with t = ε/μ − μ/2.

    e^ε φ(t + μ) = φ(t), so that with Mills' ratio m(t) = Φ(−t)/φ(t) it is log φ(t) + log [m(t) − m(t + μ)]: neither
    e^ε nor the far tails appear, and nothing overflows or vanishes.
    """
    t = target_epsilon / separation - separation / 2.0
    beyond = _mills_ratio(t + separation)  # t + μ = ε/μ + μ/2 > 0
    log_density = -t * t / 2.0 - 0.5 * math.log(2.0 * math.pi)
    if t > 0.0:
        return log_density + math.log(_mills_ratio(t) - beyond)
    return math.log(math.erfc(t / math.sqrt(2.0)) / 2.0 - math.exp(log_density) * beyond)


def _mills_ratio(t: float) -> float:
    """Compute m(t) = Φ(−t)/φ(t) for t ≥ 0; far out by Laplace's continued fraction 1/(t + 1/(t + 2/(t + 3/…)))."""
    if t < 5.0:
        return math.sqrt(math.pi / 2.0) * math.erfc(t / math.sqrt(2.0)) * math.exp(t * t / 2.0)
    tail = t
    for k in range(60, 0, -1):
        tail = t + k / tail
    return 1.0 / tail
