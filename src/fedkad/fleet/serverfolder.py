"""The layout of a server's folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedkad.fleet import settings
from fedkad.fleet.files import Below


@dataclass(frozen=True)
class ServerFolder:
    """The paths of one fleet's server; `root` is absolute because it is passed to other processes."""

    root: Path

    ca_key = Below("ca/ca.key")  # signs server certificates
    ca_certificate = Below("ca/ca.crt")  # what devices trust
    server_key = Below("server/server.key")
    server_certificate = Below("server/server.crt")  # what devices see
    registry = Below("devices.json")  # the devices that may take part
    devices = Below("devices")  # one folder per device, to be copied to it
    flower = Below("flower")  # Flower's own home: its settings, its database, its copies of the app
    secret = Below("flower/superexec.secret")  # authenticates the process that starts server apps
    training = Below("training")  # the state of trainings, written by the server app
    logs = Below("logs")  # the output of the server's processes
    lock = Below("server.lock")  # held while a server runs

    @classmethod
    def existing(cls, path: Path) -> ServerFolder:
        """A folder that `fedkad fleet init` created; raises `SettingsError` for any other."""
        settings.load(path)
        return cls(path.resolve())

    @cached_property
    def settings(self) -> settings.FleetSettings:
        """`fleet.toml` as it was when first read."""
        return settings.load(self.root)
