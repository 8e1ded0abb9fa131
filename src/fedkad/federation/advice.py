"""The fleet's advice about thresholds: whose threshold counts, what is advised, and how long it is kept.

Calibrated scores are alike on all devices, so a device with few rows of its own does well to use at least the usual
threshold of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedkad.detect.detector import KoopmanDetector


def own_threshold(detector: KoopmanDetector) -> float | None:
    """The threshold of a device if it may advise others, None otherwise.

    The device must have found it itself, on enough rows, unadvised, and not set by hand; and its scores must be
    calibrated, since scores of the paper's kind are not comparable between devices.
    """
    foreign = detector.few_rows_ or detector.least_threshold_ > 0.0 or detector.by_hand_
    return None if foreign or detector.parameters_.scoring != "calibrated" else detector.threshold_


def usual_threshold(own: Iterable[float | None]) -> float:
    """The median of the thresholds that may advise others; 0, which advises nothing, if there are none.

    >>> usual_threshold([3.0, None, 5.0])
    4.0
    """
    known = [threshold for threshold in own if threshold is not None]
    return float(np.median(known)) if known else 0.0


def kept_advice(used: KoopmanDetector | None) -> float:
    """What the fleet advised before, while it is the threshold in use: a new training has no newer advice yet."""
    if used is None or used.threshold_ != used.least_threshold_:
        return 0.0
    return used.least_threshold_
