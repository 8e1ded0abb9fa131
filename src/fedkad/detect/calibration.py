"""What a device learns about its own residuals with a score of one term: their spread, and the scores of normal data.

With enough rows the last part of the training data is held out: the spread comes from the statistics of the first
part, the scores from the rest. With few rows none can be held out; they are cut into blocks instead, and each block is
scored with an operator that was fitted without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import broken
from fedkad.detect.dynamics import Dynamics
from fedkad.detect.explanations import explain_prediction
from fedkad.detect.model import Fit, Memory, Setup
from fedkad.detect.paper import PaperScoring
from fedkad.detect.ranges import KnownRanges
from fedkad.detect.scoring import (
    SPREAD_FLOOR,
    Explanation,
    ScoredWindow,
    Scoring,
    Steps,
    score_series,
    smooth_causally,
)
from fedkad.detect.steps import PlainSteps
from fedkad.detect.threshold import SMALLEST
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced
from fedkad.koopman.scaling import clipped
from fedkad.koopman.snapshots import Statistics, collect, stretches

Array = NDArray[np.float64]
Fitted = Sequence[tuple[Dynamics, Statistics]]
"""Dynamics, and the statistics that they were not fitted to or, where they are the only ones, all of them."""

BLOCKS = 5  # blocks of cross-fitting


class HoldOutMethod:
    """What methods have in common whose score has one term: the last rows set the threshold, and are not learned from.

    A subclass says how predictions are judged: `scoring` makes the scoring of dynamics, whose residuals are usual if
    they are those of the `fitted` ones.
    """

    name: ClassVar[str]
    least_threshold: ClassVar[float] = SMALLEST
    holds_out: ClassVar[bool] = True
    bridges: ClassVar[bool] = False
    has_private: ClassVar[bool] = False
    is_comparable: ClassVar[bool] = True
    always_regularised: ClassVar[bool] = True

    def scoring(self, dynamics: Dynamics, fitted: Fitted) -> Scoring:
        """The scoring by these dynamics."""
        raise NotImplementedError

    def cleaned(self, values: Array) -> Array:
        """The training values as they are."""
        return values

    def ranges(self, setup: Setup, scaled: Array) -> KnownRanges | None:
        """None: no ranges are known."""
        return None

    def calibrate(self, memory: Memory, subspace: Array, fit: Fit) -> tuple[Scoring, Array]:
        """A scoring, and its smoothed scores of normal data that it was not fitted on."""
        statistics, held_out = memory.statistics, memory.held_out
        smoothing = memory.setup.settings.smoothing
        dynamics = fit(Reduced.at(statistics, subspace))
        if not held_out.few:
            scoring = self.scoring(dynamics, [(dynamics, statistics)])
            return scoring, score_series(scoring, held_out.rows).causal(smoothing)
        rows, lead = held_out.rows, dynamics.lead
        blocks = _blocks(rows, dynamics.lifting, dynamics.horizon)
        fitted = [(fit(Reduced.at(statistics - left_out, subspace)), left_out) for _, left_out in blocks]
        raw = np.full((len(rows), 1), np.nan)
        for (others, _), (block, _) in zip(fitted, blocks, strict=True):
            terms = score_series(self.scoring(others, fitted), rows[block]).terms
            is_scored = ~np.isnan(terms[:, 0])
            raw[block][is_scored] = terms[is_scored]
        smooth = smooth_causally(raw, broken(rows, lead + 1).entries(lead), smoothing)
        return self.scoring(dynamics, fitted), smooth[:, 0]

    def steps(self, scoring: Any) -> Steps:
        """Steps by the scoring itself."""
        return PlainSteps(scoring)

    def explain(self, setup: Setup, scoring: Any, windows: Sequence[ScoredWindow], sample: Array) -> Explanation:
        """Explain the score by the channel that was predicted worst."""
        return explain_prediction(setup, scoring, windows, sample)

    def to_arrays(self, scoring: Any) -> dict[str, NDArray[Any]]:
        """What a file keeps of the scoring beside its dynamics: nothing."""
        return {}

    def from_arrays(self, dynamics: Dynamics, arrays: Mapping[str, NDArray[Any]]) -> Scoring:
        """The scoring that a file has kept."""
        return self.scoring(dynamics, [])


class PaperMethod(HoldOutMethod):
    """The mean squared norm of the residual of the whole lifted state, in the units of the device."""

    name = "paper"
    is_comparable = False
    always_regularised = False

    def scoring(self, dynamics: Dynamics, fitted: Fitted) -> Scoring:
        """The scoring by these dynamics; residuals are not in units of usual ones."""
        return PaperScoring(dynamics)


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

    @property
    def centre_and_spread(self) -> tuple[Array, Array]:
        """Mean and standard deviation, `(H, n)` each, the latter not below a floor."""
        count = np.maximum(self.pairs, 1.0)
        centre = self.total / count
        variance = np.maximum(self.squares / count - centre**2, 0.0)
        return centre, np.maximum(np.sqrt(variance), SPREAD_FLOOR)
