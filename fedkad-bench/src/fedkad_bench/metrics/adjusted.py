"""Point adjustment: a segment found in part counts as found in full (Xu et al. 2018; PA%K: Kim et al. 2022).

It flatters: on long segments a random detector is adjusted to near perfection. No adjusted number should stand without
that of the random detector beside it (`chance`).
"""

from __future__ import annotations

import numpy as np

from fedkad_bench.metrics.pointwise import UNDEFINED, PrecisionRecall, ratio, with_f1
from fedkad_bench.metrics.segments import Flags, Indices, flagged_within, segments


def credited_points(hits: Indices, lengths: Indices, share: float | None, *, at_least: bool = True) -> Indices:
    """Points of each segment that count as flagged, `(…, segment)`, when `hits` of its `lengths` points are.

    All of them if hits / length ≥ share and there is a hit at all (`at_least=False`: > share); otherwise those that
    were hit. A share of 0 is the classic any-hit adjustment, None no adjustment.

    >>> credited_points(np.array([1, 9, 0]), np.array([100, 1000, 5]), 0.01)
    array([100,   9,   0])
    """
    if share is None:
        return hits
    # The quotient of integers is correctly rounded: 3 / 30 is the same number as 0.1, whereas 0.1 * 30 exceeds 3.
    part = hits / lengths
    found = (part >= share) & (hits > 0) if at_least else part > share
    return np.where(found, lengths, hits)


def point_adjusted(labels: Flags, alarms: Flags, share: float | None, *, at_least: bool = True) -> PrecisionRecall:
    """Precision, recall and F1 of single entries after adjustment; alarms outside of segments stay as they are.

    >>> labels = np.array([True, True, True, True, False, False])
    >>> point_adjusted(labels, np.array([False, True, False, False, False, True]), 0.2)
    PrecisionRecall(precision=0.8, recall=1.0, f1=0.888888888888889)
    """
    found = segments(labels)
    if not len(found.starts):
        return UNDEFINED
    credited = int(credited_points(flagged_within(found, alarms), found.lengths, share, at_least=at_least).sum())
    false = int(np.count_nonzero(alarms & ~labels))
    return with_f1(float(ratio(credited, credited + false)), credited / int(found.lengths.sum()))
