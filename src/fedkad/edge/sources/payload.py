"""What the readers of JSON messages and of CSV rows have in common: samples, errors, names and times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from fedkad.tables.times import epoch_ticks

# Keys that hold a timestamp, in any letter case; if a message has several, the first in this list counts.
TIME_KEYS = {key: rank for rank, key in enumerate(("time", "timestamp", "ts", "t", "date", "datetime", "last_seen"))}
YEARS = range(1970, 2262)

_END = datetime(YEARS.stop, 1, 1, tzinfo=UTC).timestamp()
_MAX_QUOTED, _MAX_SHOWN, _MAX_DIGITS = 60, 120, 64

# Far more than any device sends, and small enough that no message can hold up the agent.
MAX_BYTES, MAX_NAME = 4 << 20, 200


class PayloadError(ValueError):
    """A message that cannot be used; the error is one sentence and quotes at most about 80 characters of it."""


class Sample(NamedTuple):
    """The content of one message, or of one record in it; `values` has finite numbers of configured channels."""

    device: str | None  # that the message names
    time: float | None  # seconds since 1970 UTC
    values: dict[str, float]


class Near(NamedTuple):
    """What is near to a time that is read, in seconds since 1970: its arrival, and the last time before it."""

    arrival: float = math.nan
    last: float = math.nan

    def meant(self, first: float, second: float) -> float:
        """Resolve a local time that occurs twice, because the clock is set back between the two moments.

        A live time is near to its arrival. A recording has no arrival that says anything, but its times go forward, if
        not strictly: some come a little late.
        """
        apart = second - first
        nearest = min(first, second, key=lambda moment: abs(moment - self.arrival))
        if abs(nearest - self.arrival) <= 0.5 * apart:
            return nearest
        return second if first < self.last - 0.25 * apart else first


UNPLACED = Near()
"""Nothing is known of what is near to a time."""


class PayloadReader:
    """The base of both readers; see `fedkad.edge.sources.readers.JsonReader` for the parameters.

    Attributes
    ----------
    left_out : dict
        The values of the last message, by channel, that are not finite numbers; quoted for an error message.
    """

    def __init__(self, channels: Sequence[str], zone: str, device_key: str, time_key: str) -> None:
        self.channels = tuple(channels)
        self.left_out: dict[str, str] = {}
        self._names = frozenset(self.channels)
        self._zone = find_zone(zone)
        self._device_key, self._time_key = device_key, time_key
        self._arrival = self._last = math.nan  # of the message, and the last time in it or before it

    def _timestamp(self, value: object, key: str) -> float:
        """Read the timestamp under a key."""
        self._last = read_timestamp(value, self._zone, key, Near(self._arrival, self._last))
        return self._last

    def _time_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys that hold a timestamp and are not channels, in the order of `TIME_KEYS`."""
        times = [key for key in keys if key not in self._names and key.lower() in TIME_KEYS]
        return sorted(times, key=lambda key: TIME_KEYS[key.lower()]) if len(times) > 1 else times

    def _device_name(self, value: object) -> str | None:
        """The device that a message names; unprintable characters must never reach a topic, a path or a log."""
        if value is None:
            return None
        if isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable():
            return value
        raise PayloadError(
            f"The device under {quoted(self._device_key)} is {quoted(value)}; "
            f"send its name as plain text of at most {MAX_NAME} characters."
        )


def decode_text(payload: bytes) -> str:
    """The text of a message, without a byte order mark."""
    if len(payload) > MAX_BYTES:
        raise PayloadError(f"The message has {len(payload)} bytes, more than {MAX_BYTES}; send fewer records at once.")
    try:
        return payload.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise PayloadError(
            f"Byte 0x{payload[error.start]:02x} at {error.start} of the message is not UTF-8; send text in UTF-8."
        ) from None


def shown(payload: bytes) -> str:
    r"""A message as the log shows it: at most 120 printable characters on one line.

    >>> print(shown(b'{"flow": 1,\n "\x00": 2}'), len(shown(b"x" * 500)))
    {"flow": 1, "?": 2} 120
    """
    text = " ".join(payload[: 8 * _MAX_SHOWN].decode(errors="replace").split())
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def cut(text: str, length: int) -> str:
    """The beginning of a text, printable, with dots if it is longer."""
    printable = repr(text)[1:-1]
    return printable if len(printable) <= length else printable[: length - 3] + "..."


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


def read_timestamp(value: object, zone: tzinfo | None, key: str = "time", near: Near = UNPLACED) -> float:
    """Read a timestamp: a number of s, ms, µs or ns since 1970, told apart by its size, or an ISO-8601 string.

    Strings without a zone are in `zone`, None for that of the machine; in the hour that is repeated when clocks are set
    back, what is `near` says which of the two moments is meant: the earlier one if nothing is. `key` is where the
    message has the value.

    >>> read_timestamp(1451649600512, None), read_timestamp("1451649600", None)
    (1451649600.512, 1451649600.0)
    >>> read_timestamp("2024-07-01T12:00:00", find_zone("Europe/Berlin")) - read_timestamp("2024-07-01T10:00Z", None)
    0.0
    >>> read_timestamp("yesterday", None, "last_seen")
    Traceback (most recent call last):
    fedkad.edge.sources.payload.PayloadError: The time under 'last_seen' is 'yesterday'; \
send a number of seconds or milliseconds since 1970, or ISO-8601 text, from 1970 to 2261.
    """
    try:
        seconds = _seconds(value, zone, near)
    except (ValueError, OverflowError, OSError):
        seconds = math.nan
    if 0.0 <= seconds < _END:
        return seconds
    raise PayloadError(
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


def _seconds(value: object, zone: tzinfo | None, near: Near) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if not isinstance(value, str):
        return value / epoch_ticks(value)
    number = plain_number(value)
    if not math.isnan(number):
        digits = value.strip()
        # Digits alone stay an integer, so that nanoseconds are not rounded before they are divided.
        number = int(digits) if digits.isdigit() else number
        return number / epoch_ticks(number)
    moment = datetime.fromisoformat(value.strip())
    if moment.year not in YEARS:  # timestamp() overflows for years far out of range
        return math.nan
    if moment.tzinfo is not None:
        return moment.timestamp()
    # Without a zone, timestamp() assumes that of the machine.
    first, second = (moment.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return near.meant(first, second) if first < second else first
