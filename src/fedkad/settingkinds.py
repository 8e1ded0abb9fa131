"""What the annotations of a settings dataclass are made of; `fedkad.settingsfile` reads TOML by them.

The type gives the kind of a value: `bool`, `int`, `float`, `str`, `tuple[str, ...]`, a `Mapping` of names to numbers or
strings, `Path`, `Literal`, a union of these, or another dataclass for a section. `Annotated` adds a `ValueKind` that
reads values in its own way, `Rule`s that they must satisfy, and `IfWritten`, the meaning of a key that is missing in a
section that is there. A lambda inside of an annotation does not see the names of its module; those that need them are
constants.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True)
class Surroundings:
    """What the meaning of a value depends on: the folder of the file, and the zone of times that name none."""

    home: Path = Path()
    zone: tzinfo | None = None


@dataclass(frozen=True)
class ValueKind:
    """How a value is read; `read` raises `TypeError`, `ValueError` or `OSError` for what is not `allowed`."""

    read: Callable[[Any, Surroundings], Any]
    allowed: str


@dataclass(frozen=True)
class Rule:
    """What a value must satisfy, how a message says so, and how much of the value it may show."""

    holds: Callable[[Any], bool]
    allowed: str
    shown: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class IfWritten:
    """What a key that is missing in a section that is there means: `value`, or an error that suggests `example`."""

    value: Any = None
    example: str = ""


@dataclass(frozen=True)
class ArgumentsOf:
    """A section whose keys are the parameters of a class with `check_parameters`; read are those that are written."""

    make: Callable[..., Any]
    without: tuple[str, ...] = ()


def parse_duration(text: str) -> float | None:
    """Seconds of a string such as 90s, 5m or 5 min, 1.5h or 2d; None for others.

    >>> parse_duration("90s"), parse_duration("1.5h"), parse_duration("1 min"), parse_duration("soon")
    (90.0, 5400.0, 60.0, None)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|min|h|d)", text)
    return float(found[1]) * {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}[found[2]] if found else None


def split_address(url: str) -> SplitResult | None:
    """The parts of an address; None if it has no host, a port that does not exist, a user, or a space."""
    try:
        parts = urlsplit(url)
        fine = bool(parts.hostname) and parts.port != 0  # a port out of range is a ValueError
    except ValueError:
        return None
    return parts if fine and "@" not in parts.netloc and not re.search(r"[\s\x00-\x1f\x7f]", url) else None


def is_web_address(text: str) -> bool:
    """Whether something can be posted to it.

    >>> [is_web_address(text) for text in ("https://hooks.example/x", "http://", "http://[::1", "hooks.example")]
    [True, False, False, False]
    """
    parts = split_address(text)
    if parts is None or parts.scheme not in ("http", "https"):
        return False
    return (parts.path + parts.query).isascii()  # urllib sends nothing else, but finds a host by its name in any script


def kind_of(hint: Any) -> Any:
    """The `ValueKind` of a plain type; anything else, such as a dataclass, is returned as it is.

    >>> kind_of(Literal["on", "off"]).allowed, kind_of(str | float).allowed, kind_of(int | None).allowed
    ('one of on, off', 'a string or a finite number', 'an integer')
    """
    origin, inner = get_origin(hint), [each for each in get_args(hint) if each is not NoneType]
    if origin is Literal:
        return ValueKind(lambda value, _: inner[inner.index(value)], f"one of {', '.join(inner)}")
    if origin in (UnionType, Union):
        # What a file cannot hold, such as an object of a program, is left out.
        kinds = [kind for kind in map(kind_of, inner) if isinstance(kind, ValueKind)]
        return kinds[0] if len(kinds) == 1 else _either(*kinds)
    return PLAIN.get(hint, hint)


def _either(first: ValueKind, second: ValueKind) -> ValueKind:
    def read(value: Any, around: Surroundings) -> Any:
        try:
            return first.read(value, around)
        except (TypeError, ValueError):
            return second.read(value, around)

    return ValueKind(read, f"{first.allowed} or {second.allowed}")


def _exactly(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:  # to Python, true is an integer
        raise TypeError
    return value


def _string(value: Any) -> str:
    if "\0" in _exactly(str, value):
        raise ValueError
    return str(value)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise TypeError
    return value  # type: ignore[no-any-return]


def _seconds(value: Any) -> float:
    seconds: Any = parse_duration(value) if isinstance(value, str) else value
    if type(seconds) not in (int, float) or not seconds >= 0:
        raise TypeError
    return float(seconds) if seconds <= sys.float_info.max else math.inf


def _folder(value: Any, around: Surroundings) -> Path:
    if not (name := _string(value)):
        raise ValueError
    return around.home / name


def _table(read: Callable[[Any], Any]) -> Callable[[Any, Surroundings], dict[str, Any]]:
    return lambda value, _: {key: read(each) for key, each in _exactly(dict, value).items()}


NAMES = ValueKind(lambda value, _: tuple(map(_string, _exactly(list, value))), "a list of strings")

PLAIN: dict[Any, ValueKind] = {
    bool: ValueKind(lambda value, _: _exactly(bool, value), "true or false"),
    int: ValueKind(lambda value, _: _exactly(int, value), "an integer"),
    float: ValueKind(lambda value, _: _number(value), "a finite number"),
    str: ValueKind(lambda value, _: _string(value), "a string"),
    tuple[str, ...]: NAMES,
    Sequence[str | int]: NAMES,  # channels, which have names in a file
    Mapping[str, float]: ValueKind(_table(_number), "a table of numbers, such as {name = 0.2}"),
    Mapping[str, str]: ValueKind(_table(_string), 'a table of strings, such as {name = "text"}'),
    Path: ValueKind(_folder, "the name of a folder"),
}


def at_least(least: float) -> Rule:
    """A rule for numbers."""
    return Rule(lambda value: least <= value < math.inf, f"at least {least:g}")


def between(least: float, most: float) -> Rule:
    """A rule for numbers of which both bounds are allowed."""
    return Rule(lambda value: least <= value <= most, f"from {least:,} to {most:,}")


POSITIVE = Rule(lambda value: 0.0 < value < math.inf, "above 0 and finite")
SHARE = Rule(lambda value: 0.0 < value <= 1.0, "above 0 and at most 1")

DURATION = ValueKind(lambda value, _: _seconds(value), 'seconds, or a string such as "90s", "5m", "2h" or "1d"')
Seconds = Annotated[float, DURATION, Rule(lambda value: value <= 10 * 365 * 86400.0, "at most ten years")]
UpToAnHour = Annotated[float, DURATION, Rule(lambda value: value <= 3600.0, "at most an hour")]

FileName = Annotated[str, ValueKind(lambda value, around: _string(value) and str(around.home / value), "a string")]
"""Relative to the folder of the settings unless it is absolute; empty for none."""

Channels = Annotated[
    tuple[str, ...],
    Rule(
        lambda names: names and all(names) and len(set(names)) == len(names),
        "the names of all channels, none empty and none twice",
    ),
]
