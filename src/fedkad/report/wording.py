"""How times, numbers and causes are worded, on the terminal and on pages."""

from __future__ import annotations

import numpy as np

from fedkad.detect.events import Event
from fedkad.tables import SeriesTable


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun.

    >>> counted(1, "row"), counted(2, "row"), counted(3, "gap in time", "gaps in time")
    ('1 row', '2 rows', '3 gaps in time')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def between(first: str, last: str) -> str:
    """From one moment to another, without saying the same day twice.

    >>> between("2025-01-09 07:58", "2025-01-09 08:10"), between("7", "7")
    ('2025-01-09 07:58 to 08:10', '7')
    """
    day, space, rest = last.partition(" ")
    if first == last:
        return first
    return f"{first} to {rest if space and first.startswith(day + space) else last}"


def clock(table: SeriesTable) -> str:
    """What places in a table are: row numbers, times in a zone, or times without one, which need no mark."""
    return "row, from 0" if table.times is None else table.zone


def marked(text: str, mark: str | None) -> str:
    """The text with a mark in brackets, if there is one."""
    return f"{text} ({mark})" if mark else text


def lasting(seconds: float) -> str:
    """A length of time in a unit that suits it.

    >>> lasting(0.0), lasting(90.0), lasting(5400.0), lasting(200_000.0)
    ('0 s', '90 s', '90 min', '56 h')
    """
    for size, name in ((7200.0, "h"), (120.0, "min")):
        if seconds >= size:
            return f"{seconds / (3600.0 if name == 'h' else 60.0):.0f} {name}"
    return f"{seconds:.0f} s"


def top_channels(event: Event) -> str:
    """The channels that matter most with their shares, as in ``flow 61%, pressure 20%``."""
    return ", ".join(f"{cause.channel} {cause.share:.0%}" for cause in event.main_causes)


def is_by_rule(event: Event) -> bool:
    """Whether no score made it an alarm, but a value so far outside of all that was seen that none need to."""
    return event.peak_score < event.threshold


BY_RULE = "A value that far outside of all that was ever seen is an alarm at any score."
"""Why there are events whose score is below the threshold."""


def significant(value: float) -> str:
    """A number with three significant digits.

    >>> significant(8.46684), significant(1234.5), significant(0.00123)
    ('8.47', '1234', '0.00123')
    """
    if not np.isfinite(value):
        return str(float(value))
    return np.format_float_positional(float(f"{value:.3g}") if abs(value) < 1000.0 else round(value), trim="-")
