"""The gate before a delivery: devices compare the new subspace with the current one on rows of their own.

A device fits the operator on the first half of the rows that it keeps, and tells how well that predicts the second half
in either subspace. The server takes the median over the devices that it asked: one liar, or one device whose data have
changed, decides nothing. Where replies are masked, devices send the logarithm of new over current loss, clipped to a
known range, and the server learns its mean alone. Where they are noisy, no device is asked: a loss would be a further
release, and noise that hides a device drowns the 10 % that the gate looks for.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.model import Memory
from fedkad.federation.settings import FEWEST
from fedkad.koopman.operator import Reduced, fit_operator, loss, relative_ridge
from fedkad.koopman.scaling import CLIP
from fedkad.koopman.snapshots import Statistics, collect

Array = NDArray[np.float64]

JUDGES = 16
"""Devices that are asked, drawn at random: no attacker knows which."""

WORSE = 1.1
"""A new subspace whose loss is this many times that of the current one, for the median device, is not delivered. The
losses of two honest trainings in different orders differ by 0.1 % (`python -m measurements.liars`, on all rows)."""

LARGEST_OPINION = math.log(1.5)
"""Under masks a device says at most that the new loss is 1.5 times the current one, or the reverse. Of n judges within
this range, more than n / 5 have to agree to keep a good model back, and more than n / 3 to let a bad one pass."""

ROUNDED = 1e-5
"""A mean so far beyond the range may be due to rounding."""

FAR_WORSE = 3.0
"""A device keeps its last model if a new one has so many times its loss: for one device alone even good ones differ."""

OPINION = (1, 1)
"""The shape of what a judge says under masks."""

RIDGE = 1e-10


class Judgement(NamedTuple):
    """The loss of a device on its own rows in the new subspace, and in the current one."""

    new: float
    current: float

    @property
    def counts(self) -> bool:
        """Whether it is an opinion: a device that predicts nothing in either subspace has none."""
        return self.current > 0.0 and self.new >= 0.0

    @property
    def clipped(self) -> float:
        """The logarithm that the device sends under masks, 0 for no opinion.

        >>> Judgement(9.0, 0.1).clipped == LARGEST_OPINION, Judgement(0.1, 0.1).clipped, Judgement(0.0, 0.0).clipped
        (True, 0.0, 0.0)
        """
        ratio = self.new / self.current if self.counts else 1.0
        return min(max(math.log(ratio) if ratio > 0.0 else -LARGEST_OPINION, -LARGEST_OPINION), LARGEST_OPINION)


class Verdict(NamedTuple):
    """What the devices say in sum: how many of them, and the median (under masks the mean) of new over current loss."""

    judges: int
    ratio: float

    @property
    def is_worse(self) -> bool:
        """Whether the new subspace is worse than the current one; fewer than three devices decide nothing."""
        return self.judges >= FEWEST and self.ratio > WORSE


def verdict_of(judgements: Collection[Judgement]) -> Verdict:
    """Judge by the median of the ratios.

    >>> verdict_of([Judgement(0.2, 0.1), Judgement(0.1, 0.1), Judgement(9.0, 0.1)])
    Verdict(judges=3, ratio=2.0)
    """
    ratios = [each.new / each.current for each in judgements if each.counts]
    return Verdict(len(ratios), float(np.median(ratios)) if ratios else 1.0)


def verdict_of_sum(judges: int, total: float) -> Verdict:
    """Judge by the sum of the logarithms alone; a sum that honest judges cannot make is a bad sign.

    >>> [round(verdict_of_sum(4, total).ratio, 3) for total in (0.0, 0.4, -0.4, -40.0)]
    [1.0, 1.105, 0.905, 1.5]
    """
    mean = total / judges
    return Verdict(judges, math.exp(mean if abs(mean) <= LARGEST_OPINION + ROUNDED else LARGEST_OPINION))


def held_out_losses(memory: Memory, subspaces: Sequence[Array]) -> list[float]:
    """Compute ‖Y − P Q̂ Pᵀ X‖² / ‖Y‖² of the second half of the kept rows for each P, with Q̂ fitted on the first."""
    rows, setup = np.clip(memory.held_out.rows, -CLIP, CLIP), memory.setup
    middle = len(rows) // 2
    first, second = (collect(part, setup.lifting, setup.settings.horizon) for part in (rows[:middle], rows[middle:]))
    return [_loss_at(first, second, subspace) for subspace in subspaces]


def _loss_at(first: Statistics, second: Statistics, subspace: Array) -> float:
    fitted = Reduced.at(first, subspace)
    operator = fit_operator(fitted, relative_ridge(fitted, RIDGE))
    return loss(Reduced.at(second, subspace), operator) / (second.energy or 1.0)
