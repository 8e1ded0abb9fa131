"""What a device learns about its own residuals: their spread, and the scores of normal data.

With enough rows the last part of the training data is held out: the spread comes from the statistics of the first
part, the scores from the rest. With few rows none can be held out; they are cut into blocks instead, and each block is
scored with an operator that was fitted without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import broken
from fedkad.detect.scoring import (
    SPREAD_FLOOR,
    CalibratedScoring,
    Dynamics,
    PaperScoring,
    Scoring,
    score_series,
    smooth_causally,
)
from fedkad.detect.series import join_stretches
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import clipped, incomplete
from fedkad.koopman.snapshots import Statistics, collect, stretches

Array = NDArray[np.float64]
Fit = Callable[[Statistics], Dynamics]

FEWEST_HELD_OUT = 100
"""If the held-out part gives fewer scores, the rows are cross-fitted."""

MOST_HELD_OUT = 8192
"""Held-out rows that a device keeps, to reset its threshold whenever its model changes."""

BLOCKS = 5
"""Blocks of cross-fitting."""


@dataclass(frozen=True)
class HeldOut:
    """Scaled rows, not clipped, that a model is calibrated on.

    The statistics never saw them or, if there are `few` and for witnesses, hold them with these `weights`.
    """

    rows: Array
    few: bool
    weights: Array

    @classmethod
    def of(cls, rows: Array, *, few: bool) -> HeldOut:
        """Rows that the statistics hold in full, if they hold them at all."""
        return cls(rows, few, np.ones(len(rows)))

    def extended(self, rows: Array, lead: int, forgetting: float = 1.0) -> HeldOut:
        """These rows and newer ones after a gap; the oldest are dropped when there are too many."""
        joined = join_stretches([self.rows, rows]) if len(rows) else self.rows
        weights = np.concatenate([forgetting * self.weights, np.ones(len(joined) - len(self.rows))])
        return replace(self, rows=joined, weights=weights).scorable(lead)

    def scorable(self, lead: int) -> HeldOut:
        """The rows that can be scored and the context they need, at most as many as are kept."""
        pieces, room = list[slice](), MOST_HELD_OUT
        for run in reversed(list(stretches(self.rows, shortest=lead + 1))):
            if room >= 0:
                pieces.insert(0, slice(max(run.start, run.stop - room), run.stop))
                room -= run.stop - run.start + 1  # and the gap before it
        if not pieces:
            return replace(self, rows=self.rows[:0], weights=self.weights[:0])
        rows = join_stretches([self.rows[run] for run in pieces])
        weights = join_stretches([self.weights[run, None] for run in pieces])[:, 0]
        return replace(self, rows=rows[-MOST_HELD_OUT:], weights=weights[-MOST_HELD_OUT:])


def split(values: Array, validation: float, lead: int) -> tuple[Array, Array | None]:
    """The first 1 − `validation` of the complete rows, and the rest with the `lead` rows before it as context.

    The first part is for the statistics, the rest is held out; if it is too short to hold any out, it is None.
    """
    first = first_spared(values, validation)
    held_out = HeldOut.of(values[max(first - lead, 0) :], few=False).scorable(lead).rows
    scores = sum(run.stop - run.start - lead for run in stretches(held_out, shortest=lead + 1))
    if scores < FEWEST_HELD_OUT:
        return values, None
    return values[:first], held_out


def first_spared(values: Array, validation: float) -> int:
    """The first row of the last `validation` share of the complete rows; the end if that share is empty."""
    complete = np.flatnonzero(~incomplete(values))
    spared = int(validation * len(complete))
    return int(complete[-spared]) if spared else len(values)


class ResidualMoments(NamedTuple):
    """Number, sum and sum of squares of the residuals of the predicted sample, per step ahead and channel."""

    pairs: Array  # (H, 1)
    total: Array  # (H, n)
    squares: Array  # (H, n)

    @classmethod
    def of(cls, dynamics: Dynamics, statistics: Statistics) -> ResidualMoments:
        """Moments of e = x(t+h) − KΦ(t), K = Z_newest Q^h Zᵀ, over all pairs in the statistics.

        Σe = Σx − KΣΦ and Σe² = Σx² − 2 diag(K Σ Φxᵀ) + diag(K ΣΦΦᵀ Kᵀ). The sums over Φ are those of the pairs one
        step ahead, scaled to the fewer pairs h steps ahead.
        """
        newest, subspace = dynamics.lifting.newest, dynamics.subspace
        gram, state = statistics.gram(subspace), statistics.x_sum @ subspace
        count, total, squares = [], [], []
        for h, decoder in enumerate(dynamics.newest_decoders):
            cross = statistics.ahead[h] @ subspace
            share = statistics.ahead_count[h] / statistics.count if statistics.count else 0.0
            count.append([statistics.ahead_count[h]])
            total.append(share * (statistics.y_sum[newest] - state @ decoder))
            squares.append(
                share * statistics.yy[newest]
                - 2.0 * np.einsum("cr,rc->c", cross, decoder)
                + share * np.einsum("rc,rs,sc->c", decoder, gram, decoder)
            )
        return cls(np.array(count), np.array(total), np.array(squares))

    def calibrated(self, dynamics: Dynamics) -> CalibratedScoring:
        """The scoring that centres and divides by these moments."""
        count = np.maximum(self.pairs, 1.0)
        centre = self.total / count
        variance = np.maximum(self.squares / count - centre**2, 0.0)
        return CalibratedScoring(dynamics, centre, np.maximum(np.sqrt(variance), SPREAD_FLOOR))


def calibrate(
    dynamics: Dynamics, statistics: Statistics, held_out: HeldOut, fit: Fit, *, paper: bool, smoothing: int
) -> tuple[Scoring, Array]:
    """A scoring, and its smoothed scores of normal data that it was not fitted on.

    The scores are calibrated on the statistics and the held-out rows; `fit` makes the dynamics of other statistics.
    """
    if held_out.few:
        return _cross_fit(dynamics, statistics, held_out.rows, fit, paper=paper, smoothing=smoothing)
    scoring: Scoring = (
        PaperScoring(dynamics) if paper else ResidualMoments.of(dynamics, statistics).calibrated(dynamics)
    )
    raw = score_series(scoring, held_out.rows)
    return scoring, raw.causal(smoothing)


def _cross_fit(
    dynamics: Dynamics, statistics: Statistics, rows: Array, fit: Fit, *, paper: bool, smoothing: int
) -> tuple[Scoring, Array]:
    blocks = _blocks(rows, dynamics.lifting, dynamics.horizon)
    fitted = [fit(statistics - left_out) for _, left_out in blocks]
    moments = [ResidualMoments.of(others, left_out) for others, (_, left_out) in zip(fitted, blocks, strict=True)]
    pooled = ResidualMoments(*(sum(parts[1:], start=parts[0]) for parts in zip(*moments, strict=True)))
    raw = np.full((len(rows), 1), np.nan)
    for others, (block, _) in zip(fitted, blocks, strict=True):
        judge: Scoring = PaperScoring(others) if paper else pooled.calibrated(others)
        found = score_series(judge, rows[block]).parts
        seen = ~np.isnan(found[:, 0])
        raw[block][seen] = found[seen]
    runs = broken(rows, dynamics.lead + 1).entries(dynamics.lead)
    smooth = smooth_causally(raw, runs, smoothing)
    scoring: Scoring = PaperScoring(dynamics) if paper else pooled.calibrated(dynamics)
    return scoring, smooth[:, 0]


def _blocks(rows: Array, lifting: Lifting, horizon: int) -> list[tuple[slice, Statistics]]:
    """Contiguous blocks of targets and their context, and the statistics of their pairs, which add up to all.

    (Moments two and more steps ahead lack the few pairs that cross from one block into the next.)
    """
    lead = lifting.window + horizon - 1
    runs = stretches(rows, shortest=lifting.window + 1)
    targets = np.concatenate([np.arange(run.start + lifting.window, run.stop) for run in runs])
    blocks = []
    for part in np.array_split(targets, BLOCKS):
        start, stop = int(part[0]), int(part[-1]) + 1
        left_out = collect(clipped(rows[start - lifting.window : stop]), lifting, horizon)
        blocks.append((slice(max(start - lead, 0), stop), left_out))
    return blocks
