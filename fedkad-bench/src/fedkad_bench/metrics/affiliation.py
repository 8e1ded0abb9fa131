"""Affiliation precision and recall (Huet, Navarro and Rossi, KDD 2022): distances in time, judged against chance.

Entry t is the interval [t, t + 1). Every event [a, b) has a zone [s, e), halfway to its neighbours, in which alarms
are judged by how a point drawn uniformly from the zone would do:

- precision of the zone: the mean over flagged x of P(dist(X, event) ≥ dist(x, event));
- recall of the zone: the mean over y of the event of P(|X − y| ≥ dist(y, alarms of the zone)); 0 without alarms;

either probability 1 at distance 0. Precision is the mean over the zones with alarms, recall over all zones. All
integrals have closed forms, the integrands being piecewise linear.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkad_bench.metrics.pointwise import UNDEFINED, PrecisionRecall, with_f1
from fedkad_bench.metrics.segments import Array, Flags, Indices, Segments, segments


class _Pieces(NamedTuple):
    """Runs of alarms [p, q), cut at the borders of zones, each with its event [a, b) and its zone [s, e)."""

    event: Indices
    p: Array
    q: Array
    a: Array
    b: Array
    s: Array
    e: Array


def affiliation(labels: Flags, alarms: Flags) -> PrecisionRecall:
    """Affiliation precision, recall and F1.

    >>> labels = np.zeros(100, dtype=bool)
    >>> labels[40:50] = True
    >>> near, far = np.zeros((2, 100), dtype=bool)
    >>> near[51:55], far[90:94] = True, True
    >>> round(affiliation(labels, near).f1, 2), round(affiliation(labels, far).f1, 2)
    (0.86, 0.1)
    """
    events, runs = segments(labels), segments(alarms)
    count = len(events.starts)
    if not count:
        return UNDEFINED
    if not len(runs.starts):
        return with_f1(0.0, 0.0)
    pieces = _cut(events, runs, len(labels))
    flagged = np.bincount(pieces.event, pieces.q - pieces.p, minlength=count)
    near = np.bincount(pieces.event, _precision_integrals(pieces), minlength=count)
    found = np.bincount(pieces.event, _recall_integrals(pieces), minlength=count)
    heard = flagged > 0.0
    return with_f1(float(np.mean(near[heard] / flagged[heard])), float(np.mean(found / events.lengths)))


def _cut(events: Segments, runs: Segments, length: int) -> _Pieces:
    borders = np.concatenate([[0.0], (events.stops[:-1] + events.starts[1:]) / 2.0, [float(length)]])
    first = np.searchsorted(borders, runs.starts, side="right") - 1
    last = np.searchsorted(borders, runs.stops, side="left") - 1
    pieces = last - first + 1
    run = np.repeat(np.arange(len(pieces)), pieces)
    event = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    s, e = borders[event], borders[event + 1]
    p, q = np.maximum(runs.starts[run], s), np.minimum(runs.stops[run], e)
    return _Pieces(event, p, q, events.starts[event].astype(float), events.stops[event].astype(float), s, e)


def _precision_integrals(c: _Pieces) -> Array:
    """∫ over a piece of P(dist(X, event) ≥ dist(x, event)) dx."""
    inside = np.maximum(np.minimum(c.q, c.b) - np.maximum(c.p, c.a), 0.0)
    left = _up_to(c, np.maximum(c.a - c.p, 0.0)) - _up_to(c, np.maximum(c.a - c.q, 0.0))
    right = _up_to(c, np.maximum(c.q - c.b, 0.0)) - _up_to(c, np.maximum(c.p - c.b, 0.0))
    return np.asarray(inside + left + right)


def _up_to(c: _Pieces, distance: Array) -> Array:
    """∫₀^d P(dist(X, event) ≥ u) du, where P is (max(a − s − u, 0) + max(e − b − u, 0)) / (e − s)."""
    total = np.zeros(len(distance))
    for margin in (c.a - c.s, c.e - c.b):
        reached = np.minimum(distance, margin)
        total += margin * reached - reached**2 / 2.0
    return total / (c.e - c.s)


def _recall_integrals(c: _Pieces) -> Array:
    """∫ of P(|X − y| ≥ dist(y, piece)) dy over the points y of the event to which no other piece is nearer."""
    joined = c.event[1:] == c.event[:-1]
    halfway = (c.q[:-1] + c.p[1:]) / 2.0
    low = np.maximum(np.concatenate([c.s[:1], np.where(joined, halfway, c.s[1:])]), c.a)
    high = np.minimum(np.concatenate([np.where(joined, halfway, c.e[:-1]), c.e[-1:]]), c.b)
    inside = np.maximum(np.minimum(c.q, high) - np.maximum(c.p, low), 0.0)
    # Left of the piece, y from low to p at distance p − y: e − p on the far side, max(2y − p − s, 0) on the near one.
    stop = np.clip(c.p, low, np.maximum(high, low))
    near = _half_square(2.0 * stop - c.p - c.s) - _half_square(2.0 * low - c.p - c.s)
    left = (c.e - c.p) * (stop - low) + near
    # Right of it, y from q to high at distance y − q, the mirror image.
    begin = np.clip(c.q, np.minimum(low, high), high)
    near = _half_square(c.e + c.q - 2.0 * begin) - _half_square(c.e + c.q - 2.0 * high)
    right = (c.q - c.s) * (high - begin) + near
    outside = np.where(high > low, left + right, 0.0)
    return np.asarray(inside + outside / (c.e - c.s))


def _half_square(values: Array) -> Array:
    """∫ max(2y − c, 0) dy = max(2y − c, 0)² / 4."""
    return np.asarray(np.maximum(values, 0.0) ** 2 / 4.0)
