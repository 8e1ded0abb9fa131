"""Which levels go together: what the levels of the other channels say about that of each.

A slow fault hides from every prediction: a sensor that drifts by 5 °C in 12 hours is where its own past says, at each
step, and may be at a level that is usual at another hour. The channels that go with it give it away. With C the
covariance of the levels ℓ (means of a window) in training and P = (C + λ I)⁻¹, the level of channel c *departs* from
what those of the others say by

    d_c = (P (ℓ − ℓ̄))_c / P_cc,

the residual of a ridge regression on all other channels. A channel is *tied* to the others if they explain most of its
level, and if that holds in time: what the first part of training shows must be true in the part after it.

A day shows few ties, a fortnight nearly all. So they are learned again with everything that a device learns, until it
has seen enough windows (`settled_after`); a channel keeps its last tie that held. From then on they stay, and only
their bounds go on learning: an unnoticed fault must not undo the tie that would have revealed it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.quantiles import channel_quantiles

Array = NDArray[np.float64]

FOLDS = ((0.4, 0.55), (0.55, 0.7), (0.7, 0.85), (0.85, 1.0))
"""Where training is cut to see what holds in time: what comes before is known, the next part is met."""

EXPLAINED = 0.9  # the share of the variance of a level that the other channels must explain
SLACK = 0.05  # how far outside of the bounds 99 % of the next part may lie, in ranges
FARTHEST = 1.0  # a departure counts up to so many ranges outside: a machine with a new duty breaks many ties at once
FEWEST = 20  # windows per channel, which do not overlap, that a regression needs: with fewer, chance ties channels
MOVES = 1e-3  # the least variance of a level that can be explained, in variances of its channel
NARROWEST = 0.1  # the smallest range of a departure, in standard deviations of its channel

RIDGE, NOISE = 1e-4, 0.02
"""λ = 1e-4 + 0.02 n / m for n channels and m windows that do not overlap."""


def settled_after(channels: int) -> float:
    """Windows that do not overlap after which ties stay: a fortnight of one-minute rows in windows of 20, or more."""
    return float(max(1000, 2 * FEWEST * channels))


class Ties(NamedTuple):
    """From levels to departures: d = T ℓ − t."""

    weights: Array  # T, (n, n); a row of zeros for a channel that is not tied
    offset: Array  # t, (n,)

    @classmethod
    def none(cls, channels: int) -> Ties:
        """No channel is tied."""
        return cls(np.zeros((channels, channels)), np.zeros(channels))

    def departures(self, levels: Array) -> Array:
        """How far levels `(…, n)` are from what those of the other channels say."""
        departures: Array = levels @ self.weights.T - self.offset
        return departures

    def instead_of(self, before: Ties) -> Ties:
        """These ties, and for channels that have none those of before."""
        is_tied: NDArray[np.bool_] = np.asarray(self.weights.any(axis=1))
        weights = np.where(is_tied[:, None], self.weights, before.weights)
        return Ties(weights, np.where(is_tied, self.offset, before.offset))


def learn_ties(levels: Array, independent: float) -> Ties:
    """The ties in levels `(windows, n)` in the order of time, of which so many do not overlap.

    >>> flow = np.sin(np.arange(500.0) / 20.0)
    >>> noise = np.random.default_rng(0).normal(size=(500, 3)) * 0.05
    >>> ties = learn_ties(np.stack([flow, 2.0 * flow, np.cos(np.arange(500.0) / 31.0)], axis=1) + noise, 500)
    >>> ties.weights.any(axis=1)
    array([ True,  True, False])
    >>> bool(ties.departures(np.array([0.5, 0.2, 0.0]))[1] < -0.7)
    True
    """
    channels = levels.shape[1]
    if min(independent, len(levels)) < FEWEST * channels:
        return Ties.none(channels)
    ties, is_tied = _regression(levels, independent)
    if not is_tied.any():
        return Ties.none(channels)
    for share, until in FOLDS:
        first, last = int(share * len(levels)), int(until * len(levels))
        earlier, _ = _regression(levels[:first], share * independent)
        is_tied &= _holds(earlier.departures(levels[:first]), earlier.departures(levels[first:last]))
    return Ties(ties.weights * is_tied[:, None], ties.offset * is_tied)


def _regression(levels: Array, independent: float) -> tuple[Ties, NDArray[np.bool_]]:
    """Every channel on all others, and which of them these explain."""
    usual, channels = levels.mean(axis=0), levels.shape[1]
    spread = levels - usual
    covariance = spread.T @ spread / len(levels)
    ridge = RIDGE + NOISE * channels / max(independent, 1.0)
    precision = np.linalg.inv(covariance + ridge * np.eye(channels))
    weights = precision / np.diag(precision)[:, None]
    ties = Ties(weights, weights @ usual)
    variance = np.diag(covariance)
    left = ties.departures(levels).var(axis=0)
    return ties, (left <= (1.0 - EXPLAINED) * variance) & (variance > MOVES)


def _holds(earlier: Array, later: Array) -> NDArray[np.bool_]:
    """Which departures of later windows lie within the bounds of the earlier ones, or close to them."""
    low, first, last, high = channel_quantiles(earlier, [0.002, 0.01, 0.99, 0.998]).T
    outside = np.maximum(np.maximum(low - later, later - high), 0.0) / np.maximum(last - first, NARROWEST)
    held: NDArray[np.bool_] = channel_quantiles(outside, [0.99])[:, 0] <= SLACK
    return held
