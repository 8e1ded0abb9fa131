"""Entries without a score, such as those before the first full window: the one rule for all methods and metrics."""

from __future__ import annotations

import numpy as np

from fedkad_bench.metrics.segments import Array, Flags


def ranked(scores: Array) -> Array:
    """Scores for ranking: an entry without one takes the smallest of the series, zero if there is none at all.

    >>> ranked(np.array([np.nan, 3.0, 2.0]))
    array([2., 3., 2.])
    """
    absent = np.isnan(scores)
    if not absent.any():
        return scores
    return np.where(absent, 0.0 if absent.all() else np.nanmin(scores), scores)


def alarms_above(scores: Array, threshold: float, *, at_least: bool = False) -> Flags:
    """Whether each score exceeds the threshold, or reaches it with `at_least`; an entry without a score does not.

    >>> alarms_above(np.array([np.nan, 3.0, 2.0]), 2.0)
    array([False,  True, False])
    """
    return scores >= threshold if at_least else scores > threshold
