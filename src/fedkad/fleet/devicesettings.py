"""`device.toml`: the settings of one device of a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fedkad.detect.detector import KoopmanDetector
from fedkad.settingkinds import ArgumentsOf, Rule, at_least

SHARED = ("window", "rank", "observables", "horizon", "seed")
"""Parameters of the detector that the fleet decides on."""


def _is_server(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


SERVER = Rule(_is_server, "an address and a port, host:8443")
# A budget of alarms needs a sample period, which may come from the data.
OWN_PARAMETERS = ArgumentsOf(partial(KoopmanDetector, sample_period=1.0), without=SHARED)


@dataclass(frozen=True)
class ReadingSettings:
    """How the device's table is read; None for the default of `fedkad.tables.read_device`."""

    time: str | None = None
    max_fill: Annotated[int | None, at_least(0)] = None


@dataclass(frozen=True)
class ReleaseSettings:
    """How often the device may release something with noise; None for no limit."""

    most_releases: int | None = None


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
