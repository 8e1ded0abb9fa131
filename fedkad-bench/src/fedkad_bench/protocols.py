"""The paper's four protocols of thresholding and adjustment, and what it leaves open about them, in one place.

From the section on evaluation metrics: (1) PA%K with k = 0.01 and a threshold tuned on each client's validation split,
the headline; (2) a POT threshold with any-hit point adjustment; (3) POT with k = 0.1 and a recall cap of 0.995 "to
reject lucky-spike thresholds"; (4) POT, point-wise. All are computed for each client and averaged over clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkad.detect.threshold import pot_threshold
from fedkad_bench.metrics.adjusted import credited_points
from fedkad_bench.metrics.pointwise import harmonic_mean, ratio
from fedkad_bench.metrics.segments import Array, Indices

NEARLY_CONSTANT = 1e-12
"""Scores whose spread is below this part of their size differ by rounding only."""


@dataclass(frozen=True)
class Protocol:
    """One way from scores to precision, recall and F1.

    Attributes
    ----------
    key, title : str
        The prefix of its metric names, and its name for people.
    threshold : {"tuned", "pot"}
        Where the threshold comes from; both from validation scores alone.
    share : float or None
        The part of a segment that must be flagged for all of it to count: 0 any hit, None no adjustment.
    recall_cap : float or None
    """

    key: str
    title: str
    threshold: Literal["tuned", "pot"]
    share: float | None
    recall_cap: float | None = None


PROTOCOLS = (
    Protocol("pa1", "PA%K 0.01", "tuned", 0.01),
    Protocol("pot_any", "POT any-hit", "pot", 0.0),
    Protocol("pot_pa10", "PA%K 0.10", "pot", 0.10, recall_cap=0.995),
    Protocol("pot_point", "point-wise", "pot", None),
)


@dataclass(frozen=True)
class Choices:
    """What the paper does not say, chosen once for every method.

    Attributes
    ----------
    tuned_threshold : {"quantile", "maximum", "pot"}
        How a threshold is tuned on a validation split that has no labels: a quantile of its scores, their maximum, or
        as in the other protocols.
    tuned_quantile : float
        That quantile.
    risk : float
        The probability with which a normal score exceeds the POT threshold.
    share_at_least : bool
        A segment is found if its flagged share is ≥ k, "at least a fraction k" in the paper; False: > k, as in the
        definition of PA%K by Kim et al.
    score_at_least : bool
        An alarm is a score > threshold; True: ≥.
    recall_cap : {"limit", "reject"}
        "limit": recall counts as at most the cap, in F1 too. "reject": a result with recall above the cap has F1 0.
    without_anomalies : {"omit", "perfect_if_silent"}
        Of a client without a labelled anomaly. "omit": its detection metrics are NaN, so that macro means leave it
        out and count it. "perfect_if_silent": precision, recall and F1 of the protocols are 1 without an alarm,
        otherwise 0.
    fewest_scores : int
        With fewer validation scores, or equal ones, every threshold is their maximum; without any there are no alarms.
    replicates, seed : int
        Of the random detector that stands beside each protocol.
    """

    tuned_threshold: Literal["quantile", "maximum", "pot"] = "quantile"
    tuned_quantile: float = 0.99
    risk: float = 1e-4
    share_at_least: bool = True
    score_at_least: bool = False
    recall_cap: Literal["limit", "reject"] = "limit"
    without_anomalies: Literal["omit", "perfect_if_silent"] = "omit"
    fewest_scores: int = 30
    replicates: int = 200
    seed: int = 0


DEFAULT_CHOICES = Choices()


@dataclass(frozen=True)
class Thresholds:
    """The two thresholds of one client."""

    tuned: float
    pot: float


def thresholds(validation_scores: Array, choices: Choices = DEFAULT_CHOICES) -> Thresholds:
    """Both thresholds, from the validation scores that there are.

    >>> thresholds(np.array([np.nan, 1.0, 3.0, 2.0]))  # too few for anything but their maximum
    Thresholds(tuned=3.0, pot=3.0)
    >>> found = thresholds(np.random.default_rng(0).exponential(size=20_000))
    >>> round(found.tuned, 1), 8.0 < found.pot < 11.0  # the law says log(100) = 4.6 and log(10,000) = 9.2
    (4.5, True)
    """
    scores = validation_scores[np.isfinite(validation_scores)]
    if not len(scores):
        return Thresholds(np.inf, np.inf)
    largest = float(scores.max())
    size = max(abs(largest), abs(float(scores.min())))
    if len(scores) < choices.fewest_scores or np.ptp(scores) <= NEARLY_CONSTANT * size:
        return Thresholds(largest, largest)
    pot = pot_threshold(scores, choices.risk)
    quantile = float(np.quantile(scores, choices.tuned_quantile))
    return Thresholds({"quantile": quantile, "maximum": largest, "pot": pot}[choices.tuned_threshold], pot)


@dataclass(frozen=True)
class Outcome:
    """Precision, recall and F1 of one set of alarms, or of many at once."""

    precision: Array
    recall: Array
    f1: Array


def outcome(protocol: Protocol, choices: Choices, hits: Indices, lengths: Indices, false_alarms: Indices) -> Outcome:
    """What a protocol says about counts, of a detector or of many random ones.

    Parameters
    ----------
    hits : (…, segment)
        Flagged points of every labelled segment.
    lengths : (segment,)
        Its points.
    false_alarms : (…)
        Flagged points outside of them.

    Examples
    --------
    >>> hits, lengths, false = np.array([[10, 0], [10, 9]]), np.array([100, 100]), np.array([0, 9])
    >>> result = outcome(PROTOCOLS[2], Choices(), hits, lengths, false)
    >>> result.recall, result.precision.round(3)  # the second segment needs 10
    (array([0.5  , 0.545]), array([1.   , 0.924]))
    """
    if not len(lengths):
        return _without_anomalies(choices, false_alarms)
    credited = credited_points(hits, lengths, protocol.share, at_least=choices.share_at_least).sum(axis=-1)
    precision = ratio(credited, credited + false_alarms)
    recall = np.asarray(credited / lengths.sum())
    if protocol.recall_cap is None:
        return Outcome(precision, recall, harmonic_mean(precision, recall))
    if choices.recall_cap == "reject":
        f1 = np.where(recall > protocol.recall_cap, 0.0, harmonic_mean(precision, recall))
        return Outcome(precision, recall, f1)
    recall = np.minimum(recall, protocol.recall_cap)
    return Outcome(precision, recall, harmonic_mean(precision, recall))


def _without_anomalies(choices: Choices, false_alarms: Indices) -> Outcome:
    silent = np.where(np.asarray(false_alarms) == 0, 1.0, 0.0)
    value = np.full_like(silent, np.nan) if choices.without_anomalies == "omit" else silent
    return Outcome(value, value, value)
