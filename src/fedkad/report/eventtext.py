"""How an event's causes and its place in a table are worded, on the terminal and on pages."""

from fedkad.detect.events import Event
from fedkad.tables import SeriesTable

BY_RULE = "A value that far outside of all that was ever seen is an alarm at any score."
"""Why there are events whose score is below the threshold."""


def is_by_rule(event: Event) -> bool:
    """Tell whether a value far outside of all that was seen made it an event, and not its score."""
    return event.peak_score < event.threshold


def top_channels(event: Event) -> str:
    """Return the channels that matter most with their shares, as in ``flow 61%, pressure 20%``."""
    return ", ".join(f"{cause.channel} {cause.share:.0%}" for cause in event.main_causes)


def clock(table: SeriesTable) -> str:
    """Return what positions in a table are: row numbers, times in a zone, or times without one, which need no mark."""
    return "row, from 0" if table.times is None else table.zone


def marked(text: str, mark: str | None) -> str:
    """Return the text with a mark in brackets, if there is one."""
    return f"{text} ({mark})" if mark else text
