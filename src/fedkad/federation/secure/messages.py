"""What the steps of secure aggregation say to each other: flat messages, checked where they come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Message = dict[str, int | float | str | bytes | list[int] | list[bytes]]
Received = Mapping[str, object]


class MaskingError(ValueError):
    """A step of secure aggregation that cannot or must not be taken; the message says why and what to do."""


class SharesError(MaskingError):
    """Shares made by a device that are of no use to others: made wrong, or changed by whoever passed them on."""

    def __init__(self, device: int, message: str) -> None:
        super().__init__(message)
        self.device = device


def entry(message: Received, name: str, kind: type | tuple[type, ...]) -> Any:
    """One value of a message, checked for its type."""
    value = message.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MaskingError(f"A message of the round has no {name!r}, or one of the wrong type; do not use it.")
    return value


def integers(message: Received, name: str) -> list[int]:
    """A list of integers."""
    values: list[int] = list(entry(message, name, (list, tuple)))
    if any(type(value) is not int for value in values):
        raise MaskingError(f"{name!r} in a message of the round must be integers; do not use them.")
    return values


def blobs(message: Received, name: str, count: int, size: int | None = None) -> list[bytes]:
    """A list of so many byte strings, each of `size` bytes if that is given."""
    values: list[bytes] = list(entry(message, name, (list, tuple)))
    if len(values) != count or any(type(value) is not bytes or size not in (None, len(value)) for value in values):
        expected = f"{count} pieces" + (f" of {size} bytes" if size else "")
        raise MaskingError(f"{name!r} in a message of the round must be {expected}; do not use them.")
    return values


def blob(message: Received, name: str, size: int) -> bytes:
    """One byte string of `size` bytes."""
    value: bytes = entry(message, name, bytes)
    if len(value) != size:
        raise MaskingError(f"{name!r} in a message of the round must be {size} bytes; do not use it.")
    return value
