"""Range-based precision and recall (Tatbul et al. 2018) with flat bias."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedkad_bench.metrics.pointwise import UNDEFINED, PrecisionRecall, with_f1
from fedkad_bench.metrics.segments import Array, Flags, flagged_within, overlapping, segments

Cardinality = Literal["reciprocal", "one"]


def range_based(
    labels: Flags, alarms: Flags, *, existence: float = 0.0, cardinality: Cardinality = "reciprocal"
) -> PrecisionRecall:
    """Means over ranges rather than over entries.

    Of a labelled range R with the runs of alarms P: recall(R) = α [R ∩ P ≠ ∅] + (1 − α) γ |R ∩ P| / |R|, where γ is one
    over the number of runs that meet R (`cardinality="one"`: 1). Precision is the same with the roles exchanged and
    α = 0. Recall and precision are the means over the labelled ranges and over the runs of alarms.

    `existence` is α. The default 0, the usual one, leaves the reward for touching an event at all to the
    event-wise measures.

    >>> labels = np.array([True, True, True, True, False, False])
    >>> range_based(labels, np.array([True, False, True, False, True, True]))
    PrecisionRecall(precision=0.6666666666666666, recall=0.25, f1=0.36363636363636365)
    """
    if not labels.any():
        return UNDEFINED
    if not alarms.any():
        return with_f1(0.0, 0.0)
    recall = existence * np.mean(overlapping(segments(labels), segments(alarms)) > 0)
    recall += (1.0 - existence) * np.mean(_rewards(labels, alarms, cardinality))
    return with_f1(float(np.mean(_rewards(alarms, labels, cardinality))), float(recall))


def _rewards(these: Flags, others: Flags, cardinality: Cardinality) -> Array:
    """γ times the covered share of each run of these."""
    runs = segments(these)
    covered = flagged_within(runs, others) / runs.lengths
    if cardinality == "one":
        return covered
    return np.asarray(covered / np.maximum(overlapping(runs, segments(others)), 1))
