"""How times, numbers and causes are worded, on the terminal and on pages."""

from __future__ import annotations

import numpy as np

from fedkad.detect.events import Event
from fedkad.tables.times import Times, time_text

CHANNELS_SHOWN = 3
"""Channels named for an event; the others are in the JSON document."""

LEAST_SHARE = 0.05
"""A channel with a smaller share of the score is named only if it is the first."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun.

    >>> counted(1, "row"), counted(2, "row"), counted(3, "gap in time", "gaps in time")
    ('1 row', '2 rows', '3 gaps in time')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def moment(times: Times | None, row: int) -> str:
    """The time of a row, without seconds on the full minute, or its number if the data has no times.

    >>> moment(np.array(["2025-01-09T07:58:00"], dtype="datetime64[ns]"), 0), moment(None, 12)
    ('2025-01-09 07:58', '12')
    """
    if times is None:
        return str(row)
    text = time_text(times[row : row + 1])[0].replace("T", " ")
    return text.removesuffix(":00") if times.dtype.kind == "M" else text


def top_channels(event: Event) -> str:
    """The channels that matter most with their shares, as in ``flow 61%, pressure 20%``."""
    named = [c for k, c in enumerate(event.causes[:CHANNELS_SHOWN]) if k == 0 or c.share >= LEAST_SHARE]
    return ", ".join(f"{cause.channel} {cause.share:.0%}" for cause in named)


def significant(value: float) -> str:
    """A number with three significant digits.

    >>> significant(8.46684), significant(1234.5), significant(0.00123)
    ('8.47', '1234', '0.00123')
    """
    if not np.isfinite(value):
        return str(float(value))
    return np.format_float_positional(float(f"{value:.3g}") if abs(value) < 1000.0 else round(value), trim="-")
