"""Areas under the curves of all thresholds: how well the scores order the entries."""

from __future__ import annotations

import numpy as np

from fedkad_bench.metrics.missing import ranked
from fedkad_bench.metrics.segments import Array, Flags


def roc_auc(labels: Flags, scores: Array) -> float:
    """The probability that an anomalous entry scores above a normal one, ties counting half: the area under ROC.

    NaN if either kind is absent.

    >>> roc_auc(np.array([False, True, False, True]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    scores = ranked(scores)
    anomalous, normal = scores[labels], np.sort(scores[~labels])
    if not len(anomalous) or not len(normal):
        return float("nan")
    anomalous.sort()
    below, not_above = (np.searchsorted(normal, anomalous, side=side) for side in ("left", "right"))
    return float((below.sum() + not_above.sum()) / (2.0 * len(anomalous) * len(normal)))


def average_precision(labels: Flags, scores: Array) -> float:
    """AP = Σ_i (R_i − R_(i−1)) P_i over the distinct scores as thresholds: the area under precision-recall.

    That is the mean, over the anomalous entries, of the precision of the alarms that score no less.

    >>> average_precision(np.array([False, True, False, True]), np.array([0.1, 0.4, 0.6, 0.8]))
    0.8333333333333333
    """
    scores = ranked(scores)
    anomalous, everything = np.sort(scores[labels]), np.sort(scores)
    if not len(anomalous):
        return float("nan")
    found = len(anomalous) - np.searchsorted(anomalous, anomalous, side="left")
    flagged = len(everything) - np.searchsorted(everything, anomalous, side="left")
    return float(np.mean(found / flagged))
