"""The hour as channels of a device: sin and cos of one and two turns a day and a week, and controls that mean nothing.

The simulated clock has no daylight saving: an hour of the day is always the same phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from measurements.house_model import DAY, WEEK
from measurements.measure import Array

HOURS: Mapping[str, Sequence[float]] = {
    "without": (),
    "day": (DAY, DAY / 2),
    "day and week": (DAY, DAY / 2, WEEK, WEEK / 2),
    "17 h": (1020.0, 510.0),
    "17 h and 5 d": (1020.0, 510.0, 5.0 * DAY, 2.5 * DAY),
}
"""The periods of each variant, in rows of a minute."""

NEVER_ODD = 2.0
"""The hour may be anywhere between −1 and 1: so far apart is too little to matter."""


def harmonics(rows: Array, periods: Sequence[float]) -> Array:
    """The sin and then the cos of each period at these rows, a column each."""
    turns = 2.0 * np.pi * rows[:, None] / np.array([periods])
    return np.hstack([np.sin(turns), np.cos(turns)])


def hour_channels(hour: str) -> list[str]:
    """The names of the channels of a variant."""
    return [f"hour.{kind}{period:g}" for kind in ("sin", "cos") for period in HOURS[hour]]


def hour_values(hour: str, row: int) -> dict[str, float]:
    """What a message of that row also carries."""
    values = harmonics(np.array([float(row)]), HOURS[hour])[0].tolist()
    return dict(zip(hour_channels(hour), values, strict=True))


def with_hour(device: Mapping[str, Any], hour: str) -> dict[str, Any]:
    """The settings of a device that also has the hour: its channels are inputs, and their values are never odd.

    >>> with_hour({"sampling": {"channels": ["flow"]}}, "without")
    {'sampling': {'channels': ['flow']}}
    """
    names = hour_channels(hour)
    if not names:
        return dict(device)
    sampling, detector = dict(device["sampling"]), dict(device.get("detector", {}))
    sampling["channels"] = [*sampling["channels"], *names]
    detector["inputs"] = [*detector.get("inputs", ()), *names]
    return {
        **device,
        "sampling": sampling,
        "detector": detector,
        "alarm": {"tolerance": dict.fromkeys(names, NEVER_ODD)},
    }
