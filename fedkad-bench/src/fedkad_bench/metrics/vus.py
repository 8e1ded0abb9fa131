"""VUS-PR: the volume under the precision-recall curves of labels with ever wider margins (Paparrizos et al. 2022).

For a buffer of ℓ samples the labels y become continuous, y_ℓ: 1 inside of segments, and at their flanks

    y_ℓ(s − j) += √(1 − j/ℓ),  j = 1 … ⌊ℓ/2⌋,        y_ℓ(e + j) += √(1 − j/ℓ),  j = 1 … ⌊ℓ/2⌋ − 1,

for a segment from s to e, clipped at 1. Over 250 thresholds τ, evenly spaced among the sorted scores, with the alarms
ŷ = [score ≥ τ],

    TP = Σ y_ℓ ŷ,   precision = TP / Σ ŷ,   recall = min(TP / ((Σ y + Σ y_ℓ)/2), 1) · share of segments with an alarm,

where segments are the runs of y_ℓ > 0. VUS-PR is the mean over ℓ = 0 … L of the area under precision over recall.

`vus_pr` has the area by trapezoids, as `aeon.benchmarking.metrics.anomaly_detection.range_pr_vus_score` has it. A
trapezoid joins two thresholds by a straight line, which rewards tied scores: one true alarm with everything else tied
has more than half of the volume. `vus_pr_steps` has it by steps, the precision at a threshold times the recall gained
there, as the code of TSB-AD (Liu and Paparrizos 2024) has it.

Here only the flanks are visited for each buffer, and whether a segment has an alarm is asked of its largest score
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedkad_bench.metrics.missing import ranked
from fedkad_bench.metrics.segments import Array, Flags, Indices, Segments, segments

THRESHOLDS = 250
BUFFER = 20
DIGITS = 9
"""Scores that agree in this many digits are tied: smoothing rounds equal scores differently."""


def vus_pr(labels: Flags, scores: Array, *, buffer: int = BUFFER) -> float:
    """VUS-PR with buffers from 0 to `buffer`; NaN without anomalies, and 0 for scores that are all equal.

    >>> labels = np.arange(1000) // 50 == 7
    >>> scores = np.sin(np.arange(1000.0))
    >>> round(vus_pr(labels, scores), 3), round(vus_pr(labels, scores + labels), 3)
    (0.058, 0.547)
    """
    return _volume(labels, scores, buffer, _trapezoids)


def vus_pr_steps(labels: Flags, scores: Array, *, buffer: int = BUFFER) -> float:
    """VUS-PR by steps, which gives tied scores nothing; scores count to nine digits.

    >>> labels = np.arange(1000) // 50 == 7
    >>> tied = np.where(np.arange(1000) == 360, 1.0, 0.0)  # one true alarm, everything else tied
    >>> round(vus_pr(labels, tied), 2), round(vus_pr_steps(labels, tied), 2)
    (0.54, 0.07)
    """
    return _volume(labels, _rounded(scores), buffer, _steps)


def _rounded(scores: Array) -> Array:
    """Scores to nine digits.

    >>> _rounded(np.array([0.0, 1 / 3, 2000 / 3, np.nan]))
    array([0.00000000e+00, 3.33333333e-01, 6.66666667e+02,            nan])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(scores))))
        return np.where(scores == 0.0, 0.0, np.round(scores * unit) / unit)


def _volume(labels: Flags, scores: Array, buffer: int, area: Callable[[Array, Array], float]) -> float:
    scores = ranked(scores)
    found = segments(labels)
    if not len(found.starts):
        return float("nan")
    ordered = np.sort(scores)
    if ordered[0] == ordered[-1]:
        return 0.0
    thresholds = ordered[::-1][np.linspace(0, len(ordered) - 1, THRESHOLDS, dtype=np.int_)]
    flagged = _at_least(ordered, thresholds)
    anomalous = np.sort(scores[labels])
    within = _at_least(anomalous, thresholds)
    flanks = _flanks(found, labels, buffer // 2)
    # The first of the descending thresholds that a flank's score reaches.
    reached = np.searchsorted(-thresholds, -scores[flanks.entries], side="left")
    existence = [_existence(found, scores, thresholds, reach) for reach in range(buffer // 2 + 1)]
    areas = []
    for size in range(buffer + 1):
        weights = flanks.weights(size)
        true = within + np.cumsum(np.bincount(reached, weights, minlength=THRESHOLDS))
        positives = len(anomalous) + weights.sum() / 2.0
        areas.append(area(np.minimum(true / positives, 1.0) * existence[size // 2], true / flagged))
    return float(np.mean(areas))


def _at_least(ascending: Array, thresholds: Array) -> Indices:
    """How many of the values reach each threshold."""
    return np.asarray(len(ascending) - np.searchsorted(ascending, thresholds, side="left"))


def _trapezoids(recall: Array, precision: Array) -> float:
    """The trapezoids under precision over recall, from recall 0 and precision 1 on."""
    gained = np.diff(recall, prepend=0.0)
    means = (precision + np.concatenate([[1.0], precision[:-1]])) / 2.0
    return float(gained @ means)


def _steps(recall: Array, precision: Array) -> float:
    """The steps under precision over recall."""
    return float(np.diff(recall, prepend=0.0) @ precision)


class _Flanks(NamedTuple):
    """Unlabelled entries near segments, and how they are reached: pairs of an entry and a distance."""

    entries: Indices
    pair_entry: Indices  # positions in `entries`
    pair_distance: Indices
    pair_is_before: Flags

    def weights(self, buffer: int) -> Array:
        """y_ℓ of the entries for ℓ = `buffer`."""
        if buffer <= 1:
            return np.zeros(len(self.entries))
        reach = np.where(self.pair_is_before, buffer // 2, buffer // 2 - 1)
        slopes = np.sqrt(np.maximum(1.0 - self.pair_distance / buffer, 0.0)) * (self.pair_distance <= reach)
        return np.minimum(np.bincount(self.pair_entry, slopes, minlength=len(self.entries)), 1.0)


def _flanks(found: Segments, labels: Flags, reach: int) -> _Flanks:
    """All unlabelled entries up to `reach` before a segment or after it; those of two segments in two pairs."""
    distances = np.arange(1, reach + 1)
    entries = np.concatenate([found.starts[:, None] - distances, found.stops[:, None] - 1 + distances]).ravel()
    repeated = np.tile(distances, 2 * len(found.starts))
    is_before = np.arange(len(entries)) < len(entries) // 2
    inside = (entries >= 0) & (entries < len(labels))
    inside[inside] = ~labels[entries[inside]]
    unique, positions = np.unique(entries[inside], return_inverse=True)
    return _Flanks(unique, positions, repeated[inside], is_before[inside])


def _existence(found: Segments, scores: Array, thresholds: Array, reach: int) -> Array:
    """At each threshold, the share of the segments, widened by their flanks and then joined, that have an alarm."""
    starts = np.maximum(found.starts - reach, 0)
    stops = np.minimum(found.stops + max(reach - 1, 0), len(scores))
    apart = starts[1:] > stops[:-1]
    starts, stops = starts[np.r_[True, apart]], stops[np.r_[apart, True]]
    # One entry more, for a segment that ends with the series.
    bounds = np.column_stack([starts, stops]).ravel()
    largest = np.maximum.reduceat(np.append(scores, -np.inf), bounds)[::2]
    return _at_least(np.sort(largest), thresholds) / len(starts)
