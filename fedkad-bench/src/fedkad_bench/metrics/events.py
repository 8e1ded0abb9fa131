"""Event-wise measures: a labelled segment is an event, a run of alarms a predicted event."""

from __future__ import annotations

import numpy as np

from fedkad_bench.metrics.operation import events_detected
from fedkad_bench.metrics.pointwise import UNDEFINED, PrecisionRecall, ratio, with_f1
from fedkad_bench.metrics.segments import Flags, flagged_within, segments


def event_wise(labels: Flags, alarms: Flags) -> PrecisionRecall:
    """Recall: the share of events with an alarm. Precision: the share of runs of alarms that touch an event.

    >>> event_wise(np.array([True, True, False, False, True]), np.array([True, True, False, True, False]))
    PrecisionRecall(precision=0.5, recall=0.5, f1=0.5)
    """
    if not labels.any():
        return UNDEFINED
    touching = flagged_within(segments(alarms), labels) > 0
    return with_f1(float(ratio(np.count_nonzero(touching), len(touching))), events_detected(labels, alarms))


def composite(labels: Flags, alarms: Flags) -> PrecisionRecall:
    """Event-wise recall with point-wise precision; their harmonic mean is the composite score Fc of Garg et al. 2021.

    >>> composite(np.array([True, True, False, False, True]), np.array([True, True, False, True, True]))
    PrecisionRecall(precision=0.75, recall=1.0, f1=0.8571428571428571)
    """
    if not labels.any():
        return UNDEFINED
    hits = np.count_nonzero(labels & alarms)
    return with_f1(float(ratio(hits, np.count_nonzero(alarms))), events_detected(labels, alarms))
