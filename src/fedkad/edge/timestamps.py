"""Timestamps in messages, as seconds since 1970 UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

# Keys that hold a timestamp, in any letter case; if a message has several, the first in this list counts.
TIME_KEYS = {key: rank for rank, key in enumerate(("time", "timestamp", "ts", "t", "date", "datetime", "last_seen"))}
YEARS = range(1970, 2262)
# The rule of fedkad.tables.times: 1e11 s is the year 5138, while 1e11 ms is 1973.
TICKS = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000))

_END = datetime(YEARS.stop, 1, 1, tzinfo=UTC).timestamp()
_MAX_QUOTED, _MAX_DIGITS = 60, 64


def find_zone(name: str) -> tzinfo | None:
    """Return the time zone with that name, None for "local", the zone of the machine.

    >>> find_zone("Europe/Berlin"), find_zone("local")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), None)
    """
    if name == "local":
        return None
    if name == "UTC":
        return UTC  # works even where no zone database is installed
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"There is no time zone {quoted(name)} on this machine; name one such as 'UTC' or 'Europe/Berlin'."
        ) from None


def read_timestamp(value: object, zone: tzinfo | None, key: str = "time") -> float:
    """Read a timestamp: a number of s, ms, µs or ns since 1970, told apart by its size, or an ISO-8601 string.

    Parameters
    ----------
    value
        The value in the message.
    zone
        Time zone of strings without one; None for that of the machine. In the hour that is repeated when clocks are
        set back, the earlier of the two moments is meant.
    key
        The key in the message, for the error.

    Examples
    --------
    >>> read_timestamp(1451649600512, None), read_timestamp("1451649600", None)
    (1451649600.512, 1451649600.0)
    >>> read_timestamp("2024-07-01T12:00:00", find_zone("Europe/Berlin")) - read_timestamp("2024-07-01T10:00Z", None)
    0.0
    >>> read_timestamp("yesterday", None, "last_seen")
    Traceback (most recent call last):
    ValueError: The time under 'last_seen' is 'yesterday'; send a number of seconds or milliseconds since 1970, or \
ISO-8601 text, from 1970 to 2261.
    """
    try:
        seconds = _seconds(value, zone)
    except (ValueError, OverflowError, OSError):
        seconds = math.nan
    if 0.0 <= seconds < _END:
        return seconds
    raise ValueError(
        f"The time under {quoted(key)} is {quoted(value)}; send a number of seconds or milliseconds since 1970, "
        f"or ISO-8601 text, from {YEARS.start} to {YEARS.stop - 1}."
    )


def plain_number(text: str) -> float:
    """Return the number that a string holds, NaN if it holds none; ``1_000`` is a number in Python only.

    >>> [plain_number(text) for text in ("21.5", " -2e3 ", "1_000", "21,5", "on", "inf")]
    [21.5, -2000.0, nan, nan, nan, inf]
    """
    if len(text) > _MAX_DIGITS or "_" in text or not text.isascii():
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan


def quoted(value: object) -> str:
    """Return a value as error messages quote it: at most 60 printable characters on one line.

    >>> print(quoted("on"), quoted({"a": 1}), quoted("x" * 80))
    'on' an object 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "an enormous number"  # Python refuses to print the largest
    text = repr(value[: _MAX_QUOTED + 1] if isinstance(value, str) else value)
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "..."


def _seconds(value: object, zone: tzinfo | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if not isinstance(value, str):
        return _scaled(value)
    number = plain_number(value)
    if not math.isnan(number):
        digits = value.strip()
        # Digits alone stay an integer, so that nanoseconds are not rounded before they are divided.
        return _scaled(int(digits) if digits.isdigit() else number)
    return _from_iso(value.strip(), zone)


def _scaled(number: float) -> float:
    for bound, ticks in TICKS:
        if number < bound:
            return number / ticks
    return number / 1_000_000_000


def _from_iso(text: str, zone: tzinfo | None) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None and zone is not None:
        moment = moment.replace(tzinfo=zone)
    # Without a zone, timestamp() assumes that of the machine. It overflows for years far out of range: refuse them.
    return moment.timestamp() if moment.year in YEARS else math.nan
