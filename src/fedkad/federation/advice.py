"""The fleet's advice about thresholds: whose threshold counts, what is advised, and how long it is kept.

Calibrated scores are alike on all devices, so a device with few rows of its own does well to use at least the usual
threshold of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedkad.detect.model import Model


def own_threshold(model: Model) -> float | None:
    """The threshold of a device if it may advise others, None otherwise.

    The device must have found it itself, on enough rows, unadvised, and not set by hand; and its scores must be
    calibrated, since scores of the paper's kind are not comparable between devices.
    """
    foreign = model.few_rows or model.least_threshold > 0.0 or model.by_hand
    return None if foreign or model.settings.scoring != "calibrated" else model.threshold


def usual_threshold(own: Iterable[float | None]) -> float:
    """The median of the thresholds that may advise others; 0, which advises nothing, if there are none.

    >>> usual_threshold([3.0, None, 5.0])
    4.0
    """
    known = [threshold for threshold in own if threshold is not None]
    return float(np.median(known)) if known else 0.0


def kept_advice(used: Model | None) -> float:
    """What the fleet advised before, while it is the threshold in use: a new training has no newer advice yet."""
    return used.least_threshold if used is not None and used.threshold == used.least_threshold else 0.0
