"""`fleet.toml`: what an operator decides about a fleet, read and written in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedkad.atomicfile import write_atomically
from fedkad.durations import parse_duration
from fedkad.federation.settings import ENCODINGS, FEWEST, STARTS
from fedkad.fleet.tomlfile import FleetFileError, read_toml, toml_text

FILE = "fleet.toml"


class SettingError(ValueError):
    """A value that makes no sense; the message has no full stop, for it ends the sentence of who found it."""

    def __init__(self, section: str, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key} = {value!r} in [{section}] must be {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


@dataclass(frozen=True)
class Place:
    """Where devices reach the server, and where it is reached on its own machine."""

    address: str = "localhost"
    port: int = 8443
    control_port: int = 8000

    @property
    def reached_at(self) -> str:
        """Where devices reach the server, as they must write it.

        >>> Place("fleet.example").reached_at, Place("fd00::1").reached_at
        ('fleet.example:8443', '[fd00::1]:8443')
        """
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Model:
    """What every device must have in common: the channels, and the parameters of the lifting and the subspace."""

    channels: tuple[str, ...] = ()
    window: int = 20
    rank: int = 24
    observables: int = 128
    horizon: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Training:
    """How a training goes: its rounds, who is asked, when a round closes, and what travels."""

    rounds: int = 8
    participation: float = 0.25
    penalty: float = 1.0
    local_steps: int = 5
    start: str = "warm"
    encoding: str = "float32"
    quorum: float = 1.0
    deadline: float = 120.0
    robust: bool = False
    every: str = ""


@dataclass(frozen=True)
class Privacy:
    """What is done beyond keeping samples at home."""

    secure_aggregation: bool = False
    noise: float = 0.0
    clip: float = 0.1


@dataclass(frozen=True)
class FleetSettings:
    """All of `fleet.toml`."""

    place: Place = field(default_factory=Place)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    privacy: Privacy = field(default_factory=Privacy)

    @property
    def least(self) -> int:
        """Devices that a round needs: of two, neither a median nor a masked sum is worth anything."""
        return FEWEST if self.privacy.secure_aggregation or self.training.robust else 1


SECTIONS: dict[str, type[Any]] = {"place": Place, "model": Model, "training": Training, "privacy": Privacy}


def load(folder: Path) -> FleetSettings:
    """Read the settings of a server's folder."""
    path = folder / FILE
    document = read_toml(path, "make the folder with `fedkad fleet init`")
    unknown = sorted(set(document) - set(SECTIONS))
    if unknown:
        raise FleetFileError(f"{path}: there is no section [{unknown[0]}]; the sections are {', '.join(SECTIONS)}.")
    found = FleetSettings(**{name: _section(path, name, document.get(name, {})) for name in SECTIONS})
    try:
        check(found)
    except ValueError as error:
        raise FleetFileError(f"{path}: {error}.") from None
    return found


def check(settings: FleetSettings) -> None:
    """Refuse values that make no sense, each by name and alone, and those that exclude each other."""
    for (section, names), (is_fine, allowed) in RULES.items():
        for name in names:
            value = getattr(getattr(settings, section), name)
            if not is_fine(value):
                raise SettingError(section, name, value, allowed)
    _check_model(settings.model)
    if settings.place.port == settings.place.control_port:
        raise SettingError("place", "control_port", settings.place.control_port, "another than port")
    if settings.training.robust and settings.privacy.secure_aggregation:
        raise ValueError(
            "robust in [training] and secure_aggregation in [privacy] exclude each other: a median needs every reply, "
            "and the server is to see only their sum; choose one"
        )
    seconds(settings.training.every)


def _check_model(model: Model) -> None:
    """Refuse what no device could train."""
    channels = list(model.channels)
    if not channels or not all(channels) or len(set(channels)) < len(channels):
        raise SettingError("model", "channels", channels, "the names of all channels, none empty and none there twice")
    dimension = len(channels) * model.window + model.observables
    if model.rank > dimension:
        allowed = f"at most the lifted dimension {dimension}, channels times window plus observables"
        raise SettingError("model", "rank", model.rank, allowed)


KINDS: dict[type[object], str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    tuple: "a list of texts",
}
"""What a value may be, by that of its default."""

Rule = tuple[Callable[[Any], bool], str]

POSITIVE: Rule = (lambda value: 0.0 < value < math.inf, "above 0 and finite")
NOT_NEGATIVE: Rule = (lambda value: 0.0 <= value < math.inf, "0 or above, and finite")
SHARE: Rule = (lambda value: value <= 1.0, "a share, at most 1")
PORT: Rule = (lambda value: 0 < value < 65536, "a port, 1 to 65535")
RULES: dict[tuple[str, tuple[str, ...]], Rule] = {
    ("place", ("port", "control_port")): PORT,
    ("model", ("window", "rank", "horizon")): POSITIVE,
    ("model", ("observables", "seed")): NOT_NEGATIVE,
    ("training", ("start",)): (STARTS.__contains__, f"one of {', '.join(STARTS)}"),
    ("training", ("encoding",)): (ENCODINGS.__contains__, f"one of {', '.join(ENCODINGS)}"),
    ("training", ("rounds", "participation", "penalty", "local_steps", "quorum", "deadline")): POSITIVE,
    ("training", ("participation", "quorum")): SHARE,
    ("privacy", ("noise",)): NOT_NEGATIVE,
    ("privacy", ("clip",)): POSITIVE,
}
"""Of each key what it may be, and how that is said."""


def save(folder: Path, settings: FleetSettings) -> None:
    """Write the settings."""
    lines: list[str] = []
    for name, section in asdict(settings).items():
        lines += [f"[{name}]", *(f"{key} = {toml_text(value)}" for key, value in section.items()), ""]
    write_atomically(folder / FILE, "\n".join(lines).encode())


def _section(path: Path, name: str, given: Any) -> Any:
    kind = SECTIONS[name]
    if not isinstance(given, dict):
        raise FleetFileError(f"{path}: {name} = {given!r} must be a section; write [{name}] and its keys below it.")
    defaults = kind()
    known = {entry.name for entry in fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise FleetFileError(f"{path}: [{name}] has no {key!r}; it knows {', '.join(sorted(known))}.")
        expected = getattr(defaults, key)
        if isinstance(expected, tuple):
            fine = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        elif isinstance(expected, bool) or not isinstance(expected, float):
            fine = type(value) is type(expected)
        else:
            fine = type(value) in (int, float)
        if not fine:
            raise FleetFileError(f"{path}: {key} = {value!r} in [{name}] must be {KINDS[type(expected)]}.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


def seconds(text: str) -> float | None:
    """The length of a period such as 30m or 24h; None for the empty one, which never comes.

    >>> seconds("90s"), seconds("1.5h"), seconds("")
    (90.0, 5400.0, None)
    """
    if not text:
        return None
    found = parse_duration(text)
    if not found:
        raise ValueError(
            f"every = {text!r} in [training] must be a number above 0 with s, m, h or d, such as 24h, or empty"
        )
    return found
