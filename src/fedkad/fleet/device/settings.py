"""`device.toml`: what the owner of a device sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fedkad.detect.detector import KoopmanDetector
from fedkad.federation.participant import OwnTerms
from fedkad.fleet.shared.devicefolder import FILE, REMEDY, DeviceFolder
from fedkad.fleet.shared.files import FleetFileError
from fedkad.settingkinds import ArgumentsOf, Rule, at_least
from fedkad.settingsfile import FileSection, read, read_file

SHARED = ("window", "rank", "observables", "horizon", "seed")  # parameters of the detector that the fleet decides on


def _is_server(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


SERVER = Rule(_is_server, "an address and a port, host:8443")
# A budget of alarms needs a sample period, which may come from the data.
OWN_PARAMETERS = ArgumentsOf(partial(KoopmanDetector, sample_period=1.0), without=SHARED)


@dataclass(frozen=True)
class ReadingSettings:
    """How the device's table is read; None for the default of `fedkad.tables.read_table`."""

    time: str | None = None
    max_fill: Annotated[int | None, at_least(0)] = None


@dataclass(frozen=True)
class ReleaseSettings(OwnTerms):
    """What must be true of a training before a reply leaves the device, and how many may ever leave it."""

    noise: Annotated[float, at_least(0)] = 0.0
    most_releases: Annotated[int | None, at_least(0)] = None


@dataclass(frozen=True)
class DeviceFile:
    """All of `device.toml`; a simulated device has none, and `detector` has the parameters that are written."""

    device: str = ""
    server: Annotated[str, SERVER] = ""
    data: str = ""
    made_by: str = ""
    detector: Annotated[Mapping[str, Any], OWN_PARAMETERS] = field(default_factory=dict)
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    privacy: ReleaseSettings = field(default_factory=ReleaseSettings)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> DeviceFile:
        """Settings from a TOML document; raises `SettingsError`."""
        return read(cls, FileSection.of(document))


def load_device(folder: Path) -> DeviceFolder:
    """Read the folder of a device; raises `FleetFileError` or `SettingsError` if something is missing or wrong."""
    path = folder / FILE
    settings = read_file(path, REMEDY, DeviceFile.parse)
    for name in ("device", "server"):
        if not getattr(settings, name):
            raise FleetFileError(f"{path}: {name} is missing; {REMEDY}.")
    device = DeviceFolder(folder.resolve(), settings.device, settings.server, settings.data)
    for needed in (device.key, device.ca_certificate):
        if not needed.is_file():
            raise FleetFileError(f"{needed}: there is no such file; {REMEDY}.")
    return device
