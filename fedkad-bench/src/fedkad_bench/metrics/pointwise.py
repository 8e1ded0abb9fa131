"""Precision, recall and F1 of single entries, and their arithmetic, which the other families share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedkad_bench.metrics.segments import Array, Flags


class PrecisionRecall(NamedTuple):
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f1: float


def harmonic_mean(precision: ArrayLike, recall: ArrayLike) -> Array:
    """F1 = 2 P R / (P + R), and 0 where both are 0.

    >>> harmonic_mean([1.0, 0.0], [0.5, 0.0]).round(3)
    array([0.667, 0.   ])
    """
    p, r = np.asarray(precision, dtype=float), np.asarray(recall, dtype=float)
    return ratio(2.0 * p * r, p + r)


def ratio(part: ArrayLike, whole: ArrayLike) -> Array:
    """The quotient, and 0 where the whole is 0."""
    numerator, denominator = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    return np.asarray(numerator / np.where(denominator == 0.0, 1.0, denominator))


def with_f1(precision: float, recall: float) -> PrecisionRecall:
    """Both with their harmonic mean.

    >>> with_f1(0.5, 0.5)
    PrecisionRecall(precision=0.5, recall=0.5, f1=0.5)
    """
    return PrecisionRecall(float(precision), float(recall), float(harmonic_mean(precision, recall)))


UNDEFINED = PrecisionRecall(np.nan, np.nan, np.nan)
"""Where there is nothing to find."""


def pointwise(labels: Flags, alarms: Flags) -> PrecisionRecall:
    """P = TP / (TP + FP), R = TP / (TP + FN), counted in entries.

    >>> pointwise(np.array([True, True, False, False]), np.array([True, False, True, False]))
    PrecisionRecall(precision=0.5, recall=0.5, f1=0.5)
    """
    positives = np.count_nonzero(labels)
    if not positives:
        return UNDEFINED
    hits = np.count_nonzero(labels & alarms)
    return with_f1(float(ratio(hits, np.count_nonzero(alarms))), hits / positives)
