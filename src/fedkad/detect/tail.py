"""The generalised Pareto law of excesses over a high level, and how it is fitted to few of them.

The excesses of independent values over a high level follow it, whatever the values' own law (Pickands, Balkema, de
Haan). Its shape ξ says how heavy the tail is: −1/ξ is an end if ξ < 0, ξ = 0 is the exponential law. A few dozen
excesses say little about the shape, and far beyond the largest of them the shape is what matters, so it is drawn
towards what is expected without them.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PRIOR_PEAKS = 50  # the expected shape counts as much as this many excesses


class Tail(NamedTuple):
    """A generalised Pareto law of excesses: P(Y > y) = (1 + ξ y/σ)^(−1/ξ)."""

    shape: float  # ξ
    scale: float  # σ

    def log_likelihood(self, excesses: Array) -> float:
        """Σ log density of the excesses."""
        if abs(self.shape) < 1e-12:
            return float(-len(excesses) * math.log(self.scale) - excesses.sum() / self.scale)
        inner = 1.0 + self.shape * excesses / self.scale
        if inner.min() <= 0.0:
            return -math.inf
        return float(-len(excesses) * math.log(self.scale) - (1.0 / self.shape + 1.0) * np.log(inner).sum())

    def exceeded_with(self, probability: float) -> float:
        """The excess y with P(Y > y) = `probability`."""
        if abs(self.shape) < 1e-12:
            return -self.scale * math.log(probability)
        return self.scale / self.shape * math.expm1(-self.shape * math.log(probability))


def fit_tail(excesses: Array) -> Tail:
    """Maximum likelihood of a generalised Pareto law, by Grimshaw's reduction to one unknown.

    With θ = ξ/σ the likelihood is largest at ξ(θ) = mean log(1 + θ y), which leaves a function of θ alone,

        ℓ(θ) = −n (log(ξ(θ)/θ) + ξ(θ) + 1),

    searched on a grid over its domain θ > −1/max(y) and refined around the best. Shapes below −½ are left out,
    because there the maximum of the likelihood is not an estimate.

    >>> tail = fit_tail(np.random.default_rng(0).exponential(2.0, 5000))
    >>> abs(tail.shape) < 0.05 and abs(tail.scale - 2.0) < 0.1
    True
    """
    largest, mean = float(excesses.max()), float(excesses.mean())
    if largest <= 0.0:
        return Tail(0.0, np.finfo(float).tiny)
    grid = ratio_grid(largest, mean)
    best = Tail(0.0, mean)
    for _ in range(4):
        shapes = np.log1p(grid[:, None] * excesses).mean(axis=1)
        k = int(np.argmax(profile_likelihood(grid, shapes)))
        candidate = Tail(float(shapes[k]), float(shapes[k] / grid[k]))
        best = max(best, candidate, key=lambda tail: tail.log_likelihood(excesses))
        grid = np.linspace(grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)], 60)
        grid = grid[grid != 0.0]
    return best


def ratio_grid(largest: float, mean: float) -> Array:
    """Values of θ = ξ/σ over the domain of the likelihood, none of them zero."""
    steps = np.geomspace(1e-6, 1.0, 60)
    return np.concatenate([-(1.0 - 1e-9) / largest * steps[::-1], 50.0 / mean * steps])


def profile_likelihood(ratios: Array, shapes: Array) -> Array:
    """ℓ(θ)/n at the ratios θ, given ξ(θ); −∞ for shapes below −½."""
    likelihood = -(np.log(shapes / ratios) + shapes + 1.0)
    return np.where(shapes < -0.5, -np.inf, likelihood)


def shrunk_shape(shape: float | Array, peaks: float | Array, prior: float) -> float | Array:
    """The shape k/(k + 50) ξ + 50/(k + 50) ξ₀ of k peaks whose own shape is ξ, with ξ₀ the `prior`."""
    return (peaks * shape + PRIOR_PEAKS * prior) / (peaks + PRIOR_PEAKS)


def fit_scales(excesses: Array, shapes: Array, weights: Array) -> Array:
    """Maximum likelihood of σ at given shapes, one for each row of weights `(row, excess)`.

    The likelihood is largest where the weighted mean of (1 + ξ) y / (σ + ξ y) is one. This mean falls with σ, from
    infinity or more than one at the end of the domain to at most one at σ = max(−ξ, 0) max(y) + (1 + ξ) mean(y), so
    halving finds it.
    """
    total = weights.sum(axis=1)
    low = np.maximum(-shapes, 0.0) * excesses.max()
    high = low + (1.0 + shapes) * (weights @ excesses) / total
    bent = shapes[:, None] * excesses
    for _ in range(40):
        middle = 0.5 * (low + high)
        mean = (1.0 + shapes) * np.einsum("bk,bk->b", weights, excesses / (middle[:, None] + bent)) / total
        low, high = np.where(mean > 1.0, middle, low), np.where(mean > 1.0, high, middle)
    return np.asarray(high)


def shrunk(own: Tail, excesses: Array, prior: float) -> Tail:
    """The `own` law of the excesses with its shape drawn towards the `prior`, and the likeliest scale at that shape.

    >>> excesses = np.array([1.0, 2.0, 3.0])
    >>> shrunk(fit_tail(excesses), excesses, prior=0.0).shape > fit_tail(excesses).shape
    True
    """
    shape = float(shrunk_shape(own.shape, len(excesses), prior))
    if excesses.max() <= 0.0 or abs(shape) < 1e-12:
        return Tail(shape, max(float(excesses.mean()), np.finfo(float).tiny))
    return Tail(shape, float(fit_scales(excesses, np.array([shape]), np.ones((1, len(excesses))))[0]))
