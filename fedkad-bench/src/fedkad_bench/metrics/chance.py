"""What a detector scores that flags every entry independently with the same probability: the measure of a metric.

Only counts matter to point-wise and point-adjusted measures. A segment of n points has Binomial(n, p) of them flagged,
and so have the normal points: they are drawn directly, without a series.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkad_bench.metrics.adjusted import credited_points
from fedkad_bench.metrics.pointwise import UNDEFINED, PrecisionRecall, harmonic_mean, ratio
from fedkad_bench.metrics.segments import Flags, Indices, segments

REPLICATES = 200


class RandomHits(NamedTuple):
    """Flagged points of every segment, `(replicate, segment)`, and flagged normal points, `(replicate,)`."""

    within: Indices
    outside: Indices


def random_hits(
    lengths: Indices, normal_points: int, rate: float, *, replicates: int = REPLICATES, seed: int = 0
) -> RandomHits:
    """Counts of a random detector with this rate of alarms.

    >>> hits = random_hits(np.array([10, 1000]), 5000, 0.02)
    >>> hits.within.shape, hits.within.mean(axis=0).round(1)
    ((200, 2), array([ 0.3, 20.3]))
    """
    generator = np.random.default_rng(seed)
    within = generator.binomial(lengths, rate, size=(replicates, len(lengths)))
    return RandomHits(within, generator.binomial(normal_points, rate, size=replicates))


def random_adjusted(
    labels: Flags,
    rate: float,
    share: float | None,
    *,
    at_least: bool = True,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> PrecisionRecall:
    """Expected precision, recall and F1 of a random detector after adjustment, each the mean over the replicates.

    >>> labels = np.zeros(10_000, dtype=bool)
    >>> labels[5000:6000] = True
    >>> round(random_adjusted(labels, 0.02, 0.0).f1, 2), round(random_adjusted(labels, 0.02, None).f1, 2)
    (0.92, 0.03)
    """
    lengths = segments(labels).lengths
    if not len(lengths):
        return UNDEFINED
    positives = int(lengths.sum())
    hits = random_hits(lengths, len(labels) - positives, rate, replicates=replicates, seed=seed)
    credited = credited_points(hits.within, lengths, share, at_least=at_least).sum(axis=1)
    precision, recall = ratio(credited, credited + hits.outside), credited / positives
    f1 = harmonic_mean(precision, recall)
    return PrecisionRecall(float(precision.mean()), float(recall.mean()), float(f1.mean()))
