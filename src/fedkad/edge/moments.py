"""What a message says about its time, as seconds since 1970 UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

# What a time is called, in any letter case; where there are several, the first of this list is meant.
TIME_KEYS = {key: rank for rank, key in enumerate(("time", "timestamp", "ts", "t", "date", "datetime", "last_seen"))}
YEARS = range(1970, 2262)
# The rule of fedkad.tables.times: 1e11 s is the year 5138, while 1e11 ms is 1973.
TICKS = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000))

_END = datetime(YEARS.stop, 1, 1, tzinfo=UTC).timestamp()
_SHOWN, _LONGEST_NUMBER = 60, 64


def zone_called(name: str) -> tzinfo | None:
    """Return the zone of that name, None for "local", the machine's own; look it up once, not for each message.

    Examples
    --------
    >>> zone_called("Europe/Berlin"), zone_called("local")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), None)
    """
    if name == "local":
        return None
    if name == "UTC":
        return UTC  # known even where no list of zones is installed
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"There is no time zone {quoted(name)} on this machine; name one such as 'UTC' or 'Europe/Berlin'."
        ) from None


def read_moment(value: object, zone: tzinfo | None, key: str = "time") -> float:
    """Read a time: a number of s, ms, µs or ns since 1970 (its size tells which), or ISO-8601 text.

    Parameters
    ----------
    value
        What the message says.
    zone
        Of text that names none; None for that of the machine. In the hour that a change of clocks repeats, the
        earlier of the two moments is meant.
    key
        Where the message says it, for the error.

    Examples
    --------
    >>> read_moment(1451649600512, None), read_moment("1451649600", None)
    (1451649600.512, 1451649600.0)
    >>> read_moment("2024-07-01T12:00:00", zone_called("Europe/Berlin")) == read_moment("2024-07-01T10:00:00Z", None)
    True
    >>> read_moment("yesterday", None, "last_seen")
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
    """Return the number that a text is, NaN if it is none; Python's ``1_000`` is not one outside of Python.

    Examples
    --------
    >>> [plain_number(text) for text in ("21.5", " -2e3 ", "1_000", "21,5", "on", "inf")]
    [21.5, -2000.0, nan, nan, nan, inf]
    """
    if len(text) > _LONGEST_NUMBER or "_" in text or not text.isascii():
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan


def quoted(value: object) -> str:
    """Return what a message says as an error quotes it: one line of at most 60 characters, all of them printable.

    Examples
    --------
    >>> print(quoted("on"), quoted({"a": 1}), quoted("x" * 80))
    'on' an object 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number without end"  # Python refuses to write out the largest
    text = repr(value[: _SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


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
    # Without a zone, timestamp() takes that of the machine. Years far out of range overflow there: refused before.
    return moment.timestamp() if moment.year in YEARS else math.nan
