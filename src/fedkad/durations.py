"""Durations as people write them in configurations."""

from __future__ import annotations

import re

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float | None:
    """Seconds of a text such as 90s, 5m or 5 min, 1.5h or 2d; None for others.

    >>> parse_duration("90s"), parse_duration("1.5h"), parse_duration("1 min"), parse_duration("soon")
    (90.0, 5400.0, 60.0, None)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|min|h|d)", text)
    return float(found[1]) * UNITS[found[2]] if found else None
