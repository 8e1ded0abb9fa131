"""What the readers of JSON messages and of CSV rows have in common: samples, errors, names and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedkad.edge.timestamps import TIME_KEYS, find_zone, quoted, read_timestamp

# Far more than any device sends, and small enough that no message can hold up the agent.
MAX_BYTES, MAX_NAME = 4 << 20, 200

_MAX_SHOWN = 120


class PayloadError(ValueError):
    """A message that cannot be used; the error is one sentence and quotes at most about 80 characters of it."""


class Sample(NamedTuple):
    """The content of one message, or of one record in it.

    Attributes
    ----------
    device : str or None
        The device that the message names, None if it names none.
    time : float or None
        Seconds since 1970 UTC, None if the message has no timestamp.
    values : dict
        Finite numbers by channel; only configured channels, and only those in the message.
    """

    device: str | None
    time: float | None
    values: dict[str, float]


class PayloadReader:
    """The base of both readers; see `fedkad.edge.jsonpayload.JsonReader` for the parameters.

    Attributes
    ----------
    refused : int
        Values of channels that were dropped because they are not finite numbers.
    left_out : dict
        Those of the last message by channel, quoted for an error message.
    """

    def __init__(self, channels: Sequence[str], zone: str, device_key: str, time_key: str) -> None:
        self.channels = tuple(channels)
        self.refused = 0
        self.left_out: dict[str, str] = {}
        self._known = frozenset(self.channels)
        self._zone = find_zone(zone)
        self._device_key, self._time_key = device_key, time_key

    def _leave_out(self, name: str, value: object) -> None:
        self.refused += 1
        self.left_out.setdefault(name, quoted(value))

    def _time_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys that hold a timestamp and are not channels, in the order of `TIME_KEYS`."""
        found = [key for key in keys if key not in self._known and key.lower() in TIME_KEYS]
        return sorted(found, key=lambda key: TIME_KEYS[key.lower()]) if len(found) > 1 else found

    def _timestamp(self, value: object, key: str) -> float:
        try:
            return read_timestamp(value, self._zone, key)
        except ValueError as error:
            raise PayloadError(str(error)) from None

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
