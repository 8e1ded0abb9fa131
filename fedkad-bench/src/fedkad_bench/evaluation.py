"""From the scores of one client to all of its metrics, and from clients to their mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.scoring import smooth_causally, smooth_centred
from fedkad_bench.metrics.affiliation import affiliation
from fedkad_bench.metrics.chance import random_hits
from fedkad_bench.metrics.events import composite, event_wise
from fedkad_bench.metrics.missing import alarms_above
from fedkad_bench.metrics.operation import detection_delay, events_detected, false_alarms_per_day
from fedkad_bench.metrics.ranges import range_based
from fedkad_bench.metrics.ranking import average_precision, roc_auc
from fedkad_bench.metrics.segments import Array, Flags, flagged_within, segments
from fedkad_bench.metrics.vus import vus_pr
from fedkad_bench.protocols import DEFAULT_CHOICES, PROTOCOLS, Choices, outcome, thresholds

Group = Literal["paper", "trusted", "operation"]
Smoothing = Literal["off", "causal", "offline"]
Covers = Literal["sample", "window"]

SMOOTHINGS: tuple[Smoothing, ...] = ("off", "causal", "offline")
CAUSAL_WIDTH = 5
"""Scores that causal smoothing averages."""


class Metric(NamedTuple):
    """How a metric is to be read.

    `group` is "paper" for what the paper reports and the random detector beside it, "trusted" for what the field
    trusts more, "operation" for what an operator feels. `higher_is_better` is None where neither is.
    """

    title: str
    unit: str
    higher_is_better: bool | None
    group: Group


def _protocol_metrics() -> dict[str, Metric]:
    parts = {"precision": "precision", "recall": "recall", "f1": "F1"}
    table = {}
    for protocol in PROTOCOLS:
        for part, word in parts.items():
            table[f"{protocol.key}_{part}"] = Metric(f"{protocol.title}, {word}", "share", True, "paper")
        for part, word in parts.items():
            title = f"{protocol.title}, {word} of random alarms"
            table[f"{protocol.key}_random_{part}"] = Metric(title, "share", None, "paper")
    return table


METRICS: dict[str, Metric] = {
    "vus_pr": Metric("VUS-PR", "share", True, "trusted"),
    "auc_pr": Metric("AUC-PR", "share", True, "trusted"),
    "auc_roc": Metric("AUC-ROC", "share", True, "paper"),
    **_protocol_metrics(),
    "range_precision": Metric("Range precision", "share", True, "trusted"),
    "range_recall": Metric("Range recall", "share", True, "trusted"),
    "range_f1": Metric("Range F1", "share", True, "trusted"),
    "event_precision": Metric("Event precision", "share", True, "trusted"),
    "event_f1": Metric("Event F1", "share", True, "trusted"),
    "composite_f1": Metric("Composite F1 (event recall, point precision)", "share", True, "trusted"),
    "affiliation_precision": Metric("Affiliation precision", "share", True, "trusted"),
    "affiliation_recall": Metric("Affiliation recall", "share", True, "trusted"),
    "affiliation_f1": Metric("Affiliation F1", "share", True, "trusted"),
    "events_detected": Metric("Events detected (event recall)", "share", True, "operation"),
    "delay_samples": Metric("Detection delay", "samples", False, "operation"),
    "false_alarms_per_day": Metric("False alarms", "1/day", False, "operation"),
    "pot_alarm_rate": Metric("Flagged at the POT threshold", "share", None, "operation"),
    "tuned_alarm_rate": Metric("Flagged at the tuned threshold", "share", None, "operation"),
    "pot_threshold": Metric("POT threshold", "score", None, "operation"),
    "tuned_threshold": Metric("Tuned threshold", "score", None, "operation"),
}
"""Every metric of `evaluate_client`, in its order."""


def evaluate_client(
    validation_scores: Array,
    test_scores: Array,
    labels: Flags,
    *,
    sample_period: float | None = None,
    choices: Choices = DEFAULT_CHOICES,
) -> dict[str, float]:
    """All metrics of one client by name; those of alarms that are not the paper's are at the POT threshold.

    Parameters
    ----------
    validation_scores : (any,)
        Scores of normal data, smoothed like those of the test; they alone give the thresholds.
    test_scores, labels : (time,)
        NaN where there is no score.
    sample_period : float, optional
        Seconds between two samples; without it false alarms per day are NaN.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(2000) // 100 == 7
    >>> row = evaluate_client(generator.exponential(size=1000), generator.exponential(size=2000) + 9.0 * labels, labels)
    >>> list(row) == list(METRICS), round(row["vus_pr"], 2), round(row["pot_point_f1"], 2)
    (True, 0.98, 0.15)
    """
    validation, test, labels = _checked(validation_scores, test_scores, labels)
    limits = thresholds(validation, choices)
    alarms = {
        "pot": alarms_above(test, limits.pot, at_least=choices.score_at_least),
        "tuned": alarms_above(test, limits.tuned, at_least=choices.score_at_least),
    }
    return {
        "vus_pr": vus_pr(labels, test),
        "auc_pr": average_precision(labels, test),
        "auc_roc": roc_auc(labels, test),
        **_paper_metrics(labels, alarms, choices),
        **_alarm_metrics(labels, alarms["pot"]),
        "events_detected": events_detected(labels, alarms["pot"]),
        "delay_samples": detection_delay(labels, alarms["pot"]),
        "false_alarms_per_day": false_alarms_per_day(labels, alarms["pot"], sample_period),
        "pot_alarm_rate": float(alarms["pot"].mean()),
        "tuned_alarm_rate": float(alarms["tuned"].mean()),
        "pot_threshold": limits.pot,
        "tuned_threshold": limits.tuned,
    }


def _checked(validation: Array, test: Array, labels: Flags) -> tuple[Array, Array, Flags]:
    validation, test = np.asarray(validation, dtype=float), np.asarray(test, dtype=float)
    labels = np.asarray(labels, dtype=bool)
    if validation.ndim != 1 or test.ndim != 1 or test.shape != labels.shape or not len(test):
        raise ValueError(
            f"Expected a row of validation scores and as many test scores as labels, at least one; "
            f"got shapes {validation.shape}, {test.shape} and {labels.shape}."
        )
    if np.isinf(validation).any() or np.isinf(test).any():
        raise ValueError("Scores must be finite, or NaN where there is none; some are infinite.")
    return validation, test, labels


def _paper_metrics(labels: Flags, alarms: Mapping[str, Flags], choices: Choices) -> dict[str, float]:
    events = segments(labels)
    lengths, normal = events.lengths, int(np.count_nonzero(~labels))
    hits = {kind: flagged_within(events, flags) for kind, flags in alarms.items()}
    outside = {kind: np.asarray(np.count_nonzero(flags & ~labels)) for kind, flags in alarms.items()}
    chance = {
        kind: random_hits(lengths, normal, float(flags.mean()), replicates=choices.replicates, seed=choices.seed)
        for kind, flags in alarms.items()
    }
    row: dict[str, float] = {}
    for protocol in PROTOCOLS:
        kind = protocol.threshold
        ours = outcome(protocol, choices, hits[kind], lengths, outside[kind])
        theirs = outcome(protocol, choices, chance[kind].within, lengths, chance[kind].outside)
        row |= {f"{protocol.key}_{part}": float(value) for part, value in vars(ours).items()}
        row |= {f"{protocol.key}_random_{part}": float(values.mean()) for part, values in vars(theirs).items()}
    return row


def _alarm_metrics(labels: Flags, alarms: Flags) -> dict[str, float]:
    ranges, events, affiliated = range_based(labels, alarms), event_wise(labels, alarms), affiliation(labels, alarms)
    return {
        "range_precision": ranges.precision,
        "range_recall": ranges.recall,
        "range_f1": ranges.f1,
        "event_precision": events.precision,
        "event_f1": events.f1,
        "composite_f1": composite(labels, alarms).f1,
        "affiliation_precision": affiliated.precision,
        "affiliation_recall": affiliated.recall,
        "affiliation_f1": affiliated.f1,
    }


def smoothed(scores: Array, kind: Smoothing, covers: Covers = "sample", window: int = 20) -> Array:
    """The same smoothing for every method, within runs of entries that have a score.

    - "off": the raw scores.
    - "causal": the mean of the last five.
    - "offline": the mean from ⌊window/3⌋ entries before to as many after. A score that judges a whole window
      (`covers="window"`) first moves to its centre: that of the window ending at t + ⌊window/2⌋ becomes entry t, and
      the last entries of a run take the last score of the run.

    >>> smoothed(np.array([np.nan, 3.0, 1.0, 5.0]), "causal")
    array([nan, 3., 2., 3.])
    >>> smoothed(np.array([np.nan, np.nan, 3.0, 1.0, 5.0]), "offline", "window", window=3).round(2)
    array([ nan, 2.  , 3.  , 3.67, 5.  ])
    """
    if kind == "off":
        return scores
    if kind == "causal":
        return smooth_causally(scores, _runs(scores), CAUSAL_WIDTH)
    if kind != "offline":
        raise ValueError(f"kind={kind!r} must be one of {', '.join(SMOOTHINGS)}.")
    raw, runs = _centred(scores, window // 2) if covers == "window" else (scores, _runs(scores))
    return smooth_centred(raw, runs, window // 3)


def _runs(scores: Array) -> list[NDArray[np.intp]]:
    return [np.arange(start, stop) for start, stop in zip(*segments(~np.isnan(scores)), strict=True)]


def _centred(scores: Array, shift: int) -> tuple[Array, list[NDArray[np.intp]]]:
    """Every run begins `shift` entries earlier, but not before the last one ended, and repeats its last score."""
    moved, runs, end = np.full_like(scores, np.nan), [], 0
    for run in _runs(scores):
        entries = np.arange(max(int(run[0]) - shift, end), run[-1] + 1)
        moved[entries] = scores[np.minimum(entries + shift, run[-1])]
        runs.append(entries)
        end = int(run[-1]) + 1
    return moved, runs


def evaluate_smoothings(
    validation_scores: Array,
    test_scores: Array,
    labels: Flags,
    *,
    covers: Covers,
    window: int = 20,
    sample_period: float | None = None,
    choices: Choices = DEFAULT_CHOICES,
) -> dict[Smoothing, dict[str, float]]:
    """`evaluate_client` under each smoothing, validation and test scores smoothed alike.

    >>> scores = np.random.default_rng(0).exponential(size=300)
    >>> list(evaluate_smoothings(scores, scores, scores > 4.0, covers="sample"))
    ['off', 'causal', 'offline']
    """
    return {
        kind: evaluate_client(
            smoothed(validation_scores, kind, covers, window),
            smoothed(test_scores, kind, covers, window),
            labels,
            sample_period=sample_period,
            choices=choices,
        )
        for kind in SMOOTHINGS
    }


class Mean(NamedTuple):
    """A mean over clients, how many they are, and how many were left out because they have no value."""

    value: float
    clients: int
    omitted: int


def macro(rows: Iterable[Mapping[str, float]]) -> dict[str, Mean]:
    """The mean of every metric over clients, each counting alike; clients where it is NaN are left out and counted.

    >>> macro([{"vus_pr": 0.5}, {"vus_pr": float("nan")}, {"vus_pr": 0.25}])
    {'vus_pr': Mean(value=0.375, clients=2, omitted=1)}
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: _mean(np.array(column)) for name, column in values.items()}


def _mean(column: Array) -> Mean:
    there = column[~np.isnan(column)]
    return Mean(float(there.mean()) if len(there) else float("nan"), len(there), len(column) - len(there))
