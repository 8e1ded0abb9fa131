"""What an operator feels: how soon, how many events, how many false alarms a day."""

from __future__ import annotations

import numpy as np

from fedkad_bench.metrics.segments import Flags, flagged_within, segments

DAY = 86400.0


def events_detected(labels: Flags, alarms: Flags) -> float:
    """The share of labelled segments with at least one alarm; NaN without segments.

    >>> events_detected(np.array([True, True, False, True]), np.array([False, True, False, False]))
    0.5
    """
    hits = flagged_within(segments(labels), alarms)
    return float(np.mean(hits > 0)) if len(hits) else float("nan")


def detection_delay(labels: Flags, alarms: Flags) -> float:
    """Mean number of samples from the start of a detected event to its first alarm; NaN if none was detected.

    >>> detection_delay(np.array([True, True, False, True]), np.array([False, True, False, True]))
    0.5
    """
    events = segments(labels)
    detected = flagged_within(events, alarms) > 0
    if not detected.any():
        return float("nan")
    starts, flagged = events.starts[detected], np.flatnonzero(alarms)
    return float(np.mean(flagged[np.searchsorted(flagged, starts)] - starts))


def false_alarms_per_day(labels: Flags, alarms: Flags, sample_period: float | None) -> float:
    """Runs of alarms that touch no labelled segment, per day of normal time.

    `sample_period` is in seconds; NaN without one, and without normal time.

    >>> false_alarms_per_day(np.array([True, False, False, False]), np.array([True, True, False, True]), 28_800.0)
    1.0
    """
    normal = np.count_nonzero(~labels)
    if sample_period is None or not normal:
        return float("nan")
    false = np.count_nonzero(flagged_within(segments(alarms), labels) == 0)
    return float(false / (normal * sample_period / DAY))
