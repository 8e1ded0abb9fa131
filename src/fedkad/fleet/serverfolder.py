"""What lies where in the folder of a server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedkad.fleet import settings


@dataclass(frozen=True)
class ServerFolder:
    """The paths of one fleet's server; `root` is absolute, since other processes are told it."""

    root: Path

    @classmethod
    def existing(cls, path: Path) -> ServerFolder:
        """A folder that `fedkad fleet init` made; raises `SettingsError` for any other."""
        settings.load(path)
        return cls(path.resolve())

    @cached_property
    def settings(self) -> settings.FleetSettings:
        """`fleet.toml` as it was when first asked for."""
        return settings.load(self.root)

    @property
    def ca_key(self) -> Path:
        """The key that signs server certificates."""
        return self.root / "ca" / "ca.key"

    @property
    def ca_certificate(self) -> Path:
        """What devices trust."""
        return self.root / "ca" / "ca.crt"

    @property
    def server_key(self) -> Path:
        """The key of the server's certificate."""
        return self.root / "server" / "server.key"

    @property
    def server_certificate(self) -> Path:
        """The certificate that devices see."""
        return self.root / "server" / "server.crt"

    @property
    def registry(self) -> Path:
        """The devices that may take part."""
        return self.root / "devices.json"

    @property
    def devices(self) -> Path:
        """One folder a device, to be copied to it."""
        return self.root / "devices"

    @property
    def flower(self) -> Path:
        """Flower's own home: its settings, its database, its copies of the app."""
        return self.root / "flower"

    @property
    def secret(self) -> Path:
        """What the process that starts server apps proves itself with."""
        return self.flower / "superexec.secret"

    @property
    def training(self) -> Path:
        """The state of trainings, written by the server app."""
        return self.root / "training"

    @property
    def logs(self) -> Path:
        """What the processes of the server say."""
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Held while a server runs."""
        return self.root / "server.lock"
