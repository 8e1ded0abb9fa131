"""`fleet.toml`, the settings of a fleet by its sections, and the layout of the server's folder around it."""

from __future__ import annotations

import ipaddress
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from fedkad.atomicfile import write_atomically
from fedkad.federation.settings import FEWEST, WITHSTANDS_TWO, Encoding, Start
from fedkad.fleet.shared.files import Below
from fedkad.settingerror import SettingError, SettingsError
from fedkad.settingkinds import POSITIVE, SHARE, Channels, Rule, at_least, is_web_address, parse_duration
from fedkad.settingsfile import FileSection, as_text, read, read_file

FILE = "fleet.toml"
HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")

Port = Annotated[int, Rule(lambda port: 0 < port < 65536, "a port from 1 to 65535")]


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_address(text: str) -> bool:
    """Return whether this is a host name or an IP address."""
    return _ip_address(text) is not None or (len(text) <= 253 and HOST.fullmatch(text) is not None)


def _is_bindable(text: str) -> bool:
    """Return whether nginx can listen there: it has no way to say to which network a link-local address belongs."""
    address = _ip_address(text)
    return address is not None and (address.version == 4 or not (address.is_link_local or address.scope_id))


BOUND_TO = Rule(
    lambda text: not text or _is_bindable(text),
    "an IP address of this machine that does not begin with fe80, or empty for all of them",
)
INTERVAL = Rule(
    lambda text: not text or bool(parse_duration(text)), "a positive number with s, m, h or d, such as 24h, or empty"
)
METRICS = Rule(
    lambda text: not text or (text.startswith("/") and text.endswith(".prom")),
    "the whole path of a file that ends in .prom, or empty",
)
WEB_ADDRESS = Rule(
    lambda text: not text or is_web_address(text),
    "an address that begins with https:// or http://, has a host, and has neither a user nor spaces; or empty",
    shown=lambda text: text[:8],  # there may be a secret in it
)
RENAMED = {
    "training": {"least": "min_devices"},
    "notice": {"invite": "devices_per_training", "by_call": "on_demand"},
}
"""Keys by their sections that had another name until 0.2; the old names are read until the release after that."""

LONGEST_PERIOD = 6 * 3600.0  # seconds: a device that polls as rarely still sees each notice long before it expires
PERIOD = Rule(
    lambda text: 1.0 <= (parse_duration(text) or 0.0) <= LONGEST_PERIOD, "a duration from 1s to 6h, such as 1m or 10m"
)
SILENCE = Rule(lambda text: (parse_duration(text) or 0.0) >= 1.0, "a duration of at least 1s, such as 12h or 7d")


@dataclass(frozen=True)
class Place:
    """Where devices reach the server, which of its machine's addresses it listens at, and where that machine does.

    `also` are further addresses at which devices reach it, such as the one before or the next one.
    """

    address: str = "localhost"
    port: Port = 8443
    control_port: Port = 8000
    bind: Annotated[str, BOUND_TO] = ""
    most_connections: Annotated[int, at_least(128)] = 8192
    also: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where devices reach the server, without the port."""
        return (self.address, *self.also)

    @property
    def servers(self) -> tuple[str, ...]:
        """The server's addresses as devices must write them, in the order in which they try.

        >>> Place("fleet.example", also=("fd00::1",)).servers
        ('fleet.example:8443', '[fd00::1]:8443')
        """
        return tuple(f"[{each}]:{self.port}" if ":" in each else f"{each}:{self.port}" for each in self.addresses)

    @property
    def reached_at(self) -> str:
        """The first of them."""
        return self.servers[0]

    def check(self, section: FileSection) -> None:
        """Raise a `SettingError` for an address that is none, and where both ports are the same."""
        if not is_address(self.address):
            raise SettingError(
                "address", self.address, "a host name or an IP address, without a port and without https://"
            )
        for each in self.also:
            if not is_address(each):
                raise SettingError("also", each, "host names or IP addresses, without a port and without https://")
        if self.port == self.control_port:
            raise SettingError("control_port", self.control_port, "different from port")


@dataclass(frozen=True)
class ModelSettings:
    """What all devices have in common: the channels, and the parameters of the lifting and the subspace."""

    channels: Channels = ()
    window: Annotated[int, at_least(1)] = 20
    rank: Annotated[int, at_least(1)] = 24
    observables: Annotated[int, at_least(0)] = 128
    horizon: Annotated[int, at_least(1)] = 1
    seed: Annotated[int, at_least(0)] = 0

    def check(self, section: FileSection) -> None:
        """Raise a `SettingError` for a model that no device could train."""
        if not self.channels:
            raise SettingError("channels", [], "the names of all channels, none empty and none twice")
        if self.rank > self.dimension:
            allowed = f"at most the lifted dimension {self.dimension}, channels times window plus observables"
            raise SettingError("rank", self.rank, allowed)

    @property
    def dimension(self) -> int:
        """D, the lifted dimension."""
        return len(self.channels) * self.window + self.observables


@dataclass(frozen=True)
class TrainingSettings:
    """How a training goes: its rounds, who is asked, when a round closes, and what travels."""

    rounds: Annotated[int, at_least(1)] = 8
    participation: Annotated[float, SHARE] = 0.25
    penalty: Annotated[float, POSITIVE] = 1.0
    local_steps: Annotated[int, at_least(1)] = 5
    start: Start = "warm"
    encoding: Encoding = "float32"
    quorum: Annotated[float, SHARE] = 1.0
    deadline: Annotated[float, POSITIVE] = 120.0
    min_devices: Annotated[int, at_least(1)] = FEWEST
    robust: bool | None = None
    every: Annotated[str, INTERVAL] = ""


@dataclass(frozen=True)
class Privacy:
    """What is done beyond keeping samples on the devices."""

    secure_aggregation: bool = False
    noise: Annotated[float, at_least(0)] = 0.0
    clip: Annotated[float, POSITIVE] = 0.1


@dataclass(frozen=True)
class NoticeSettings:
    """The notice, by which devices that are not connected learn of trainings and models."""

    period: Annotated[str, PERIOD] = "1m"
    devices_per_training: Annotated[int, at_least(1)] = 64
    on_demand: bool | None = None

    @property
    def seconds(self) -> float:
        """Seconds between two looks of a device."""
        return parse_duration(self.period) or math.nan

    def is_on_demand(self, devices: int) -> bool:
        """Return whether devices connect only when a training calls them: as chosen, or if there are many."""
        return devices > self.devices_per_training if self.on_demand is None else self.on_demand


@dataclass(frozen=True)
class ReportingSettings:
    """How an operator learns of what happens: a file of metrics, a webhook, and after what silence of a device."""

    metrics: Annotated[str, METRICS] = ""
    webhook: Annotated[str, WEB_ADDRESS] = ""
    silent: Annotated[str, SILENCE] = "7d"

    @property
    def silence(self) -> float:
        """Seconds without a connection after which a device is silent."""
        return parse_duration(self.silent) or math.nan


@dataclass(frozen=True)
class FleetSettings:
    """All of `fleet.toml`."""

    place: Place = field(default_factory=Place)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    privacy: Privacy = field(default_factory=Privacy)
    notice: NoticeSettings = field(default_factory=NoticeSettings)
    reporting: ReportingSettings = field(default_factory=ReportingSettings)

    @property
    def min_devices(self) -> int:
        """Devices that a round needs: with two, neither a median nor a masked sum is worth anything."""
        needed = FEWEST if self.privacy.secure_aggregation or self.training.robust else 1
        return max(self.training.min_devices, needed)

    @property
    def robust(self) -> bool:
        """Whether the server takes the median of the replies: unless chosen, wherever it can and it is of use."""
        if self.training.robust is None:
            return self.training.min_devices >= FEWEST and not self.privacy.secure_aggregation
        return self.training.robust

    @property
    def asked(self) -> int:
        """Devices that a round asks at least, if as many are online: a median of five withstands two liars."""
        return max(self.min_devices, WITHSTANDS_TWO if self.robust else 1)

    def check(self, section: FileSection) -> None:
        """Raise a `SettingsError` for settings that are mutually exclusive."""
        called = self.notice.devices_per_training
        if called < self.min_devices:
            raise SettingsError(
                f"devices_per_training in [notice] is {called}, and a round needs {self.min_devices} devices; raise it."
            )
        if self.training.robust and self.privacy.secure_aggregation:
            raise SettingsError(
                "robust in [training] and secure_aggregation in [privacy] are mutually exclusive: a median needs every "
                "reply, and the server may see only their sum; choose one."
            )


def load(folder: Path) -> FleetSettings:
    """Read the settings of a server's folder; raises `SettingsError`."""
    return read_file(folder / FILE, "make the folder with `fedkad fleet init`", _parse)


def check(settings: FleetSettings) -> None:
    """Raise a `SettingsError` for settings that could not be read from a file."""
    _parse(tomllib.loads(as_text(settings)))


def _parse(document: Mapping[str, Any]) -> FleetSettings:
    return read(FleetSettings, FileSection.of({name: _renamed(name, table) for name, table in document.items()}))


def _renamed(section: str, table: Any) -> Any:
    """Return a table of `fleet.toml` with the keys of 0.1 under their present names."""
    names = RENAMED.get(section, {})
    if not isinstance(table, dict):
        return table
    return {(key if names.get(key) in (None, *table) else names[key]): value for key, value in table.items()}


def save(folder: Path, settings: FleetSettings) -> None:
    """Write the settings."""
    write_atomically(folder / FILE, as_text(settings).encode())


@dataclass(frozen=True)
class ServerFolder:
    """The paths of one fleet's server; `root` is absolute because it is passed to other processes."""

    root: Path

    ca_key = Below("ca/ca.key")  # signs server certificates
    ca_certificate = Below("ca/ca.crt")  # what devices trust: the authority, and the next one if there is one
    seen = Below("seen.json")  # when devices last looked at the notice
    next_key = Below("ca/next.key")  # of the next authority, while devices learn to trust it
    next_certificate = Below("ca/next.crt")
    next_cross_signature = Below("ca/next.voucher")  # by which the authority vouches for the next one
    server_key = Below("server/server.key")
    server_certificate = Below("server/server.crt")  # what devices see
    notice_key = Below("server/notice.key")  # signs notices
    notice_certificate = Below("server/notice.crt")  # by which devices trust that key
    registry = Below("devices.json")  # the devices that may take part
    tokens = Below("tokens.json")  # one-time tokens that are not used yet
    devices = Below("devices")  # one folder per device, to be copied to it
    flower = Below("flower")  # Flower's own home: its settings, its database, its copies of the app
    database = Below("flower/state.db")  # may be deleted while no server runs: all of it is made again
    secret = Below("flower/superexec.secret")  # authenticates the process that starts server apps
    training = Below("training")  # the state of trainings, written by the server app
    public = Below("public")  # what nginx serves as it is: the notice, and the models that it names
    logs = Below("logs")  # the output of the server's processes
    lock = Below("server.lock")  # held while a server runs

    @classmethod
    def existing(cls, path: Path) -> ServerFolder:
        """Return a folder that `fedkad fleet init` created; raises `SettingsError` for any other."""
        load(path)
        return cls(path.resolve())

    @cached_property
    def settings(self) -> FleetSettings:
        """`fleet.toml` as it was when first read."""
        return load(self.root)
