"""Where a device's statistics come from: its own table, or its agent's model. Neither leaves the device."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.modelfile import ModelFileError
from fedkad.detect.series import Series
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.protocol import ProtocolError, Terms, compare
from fedkad.fleet.devicefolder import FILE, REMEDY
from fedkad.fleet.tomlfile import read_toml
from fedkad.tables import Device, read_device

READING = ("time", "max_fill")
SHARED = ("window", "rank", "observables", "horizon", "seed")
"""Detector parameters that are set for the whole fleet."""


class DeviceData:
    """The data of one device.

    Parameters
    ----------
    device : str
    state : DeviceState
    path : Path, optional
        A table, or a folder of tables that are separate stretches; if omitted, the statistics in the current model.
    settings : mapping
        `device.toml`: `[detector]` has the device's own parameters, `[reading]` the `time` column and `max_fill`.
    """

    def __init__(self, device: str, state: DeviceState, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.device, self.state, self.path = device, state, path
        self.own = _table(settings, "detector")
        self.reading = _table(settings, "reading")
        for name in self.reading:
            if name not in READING:
                raise ProtocolError(f"device.toml: [reading] cannot set {name!r}; it may set {' and '.join(READING)}.")

    def detector(self, terms: Terms) -> KoopmanDetector:
        """A detector with this device's statistics for a training with these terms."""
        if self.path is None:
            return self._gathered(terms)
        parameters = {**self._shared(terms), **self._checked_own()}
        prepared = self.state.prepared(self._fingerprint(parameters, terms))
        try:
            return KoopmanDetector.load(prepared)
        except ModelFileError:  # missing or damaged; the table is still there
            return self._prepare(parameters, terms, prepared)

    def _prepare(self, parameters: dict[str, Any], terms: Terms, prepared: Path) -> KoopmanDetector:
        assert self.path is not None
        device = read_device(self.path, **self.reading)
        columns = self._columns(device, terms)
        parameters.setdefault("sample_period", _period(device))
        series = [Series(values[:, columns], terms.channels) for values in device.series()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRowsWarning)
            detector = KoopmanDetector(**parameters).fit(series)
        detector.save(prepared)
        return detector

    def _gathered(self, terms: Terms) -> KoopmanDetector:
        if self.own:
            raise ProtocolError(
                f"device.toml of device {self.device!r}: [detector] applies to a table (--data), and the agent's "
                "model has its own parameters; remove the section."
            )
        if self.state.version() is None:
            raise ProtocolError(
                f"Device {self.device!r} has neither a table (data in device.toml or --data) nor a model from its "
                "agent; give it one of them."
            )
        detector = KoopmanDetector.load(self.state.model)
        compare("channels", detector.channel_names_, terms.channels, f"device {self.device!r}", "the server")
        for name, theirs in self._shared(terms).items():
            compare(name, getattr(detector.parameters_, name), theirs, f"device {self.device!r}", "the server")
        detector.kept()
        return detector

    def _columns(self, device: Device, terms: Terms) -> list[int]:
        """The columns of the fleet's channels in the table, which may have others as well, in any order."""
        lacking = [name for name in terms.channels if name not in device.channels]
        if lacking:
            raise ProtocolError(
                f"The server asks for the channels {', '.join(terms.channels)}, and the table of device "
                f"{self.device!r} lacks {', '.join(lacking)}; give it a table that has them."
            )
        return [device.channels.index(name) for name in terms.channels]

    @staticmethod
    def _shared(terms: Terms) -> dict[str, Any]:
        return {name: terms.consensus.rank if name == "rank" else getattr(terms, name) for name in SHARED}

    def _checked_own(self) -> dict[str, Any]:
        known = KoopmanDetector().get_params()
        for name in self.own:
            if name in SHARED or name not in known:
                allowed = ", ".join(sorted(set(known).difference(SHARED)))
                raise ProtocolError(
                    f"device.toml of device {self.device!r}: [detector] cannot set {name!r}; it may set {allowed}."
                )
        return self.own

    def _fingerprint(self, parameters: Mapping[str, Any], terms: Terms) -> str:
        """Changes with the data files and with the settings that they are read with."""
        assert self.path is not None
        files = sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]
        seen = [(str(file), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
        text = json.dumps([seen, dict(parameters), self.reading, terms.channels], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_settings(folder: Path) -> dict[str, Any]:
    """`device.toml` of a device's folder; a simulated device has none."""
    path = folder / FILE
    return read_toml(path, REMEDY) if path.exists() else {}


def most_releases(settings: Mapping[str, Any]) -> int | None:
    """How often the device may say something with noise, by `[privacy]` of its `device.toml`; None for ever."""
    most = _table(settings, "privacy").get("most_releases")
    if most is not None and type(most) is not int:
        raise ProtocolError(f"device.toml: most_releases = {most!r} in [privacy] must be a whole number.")
    return most


def _table(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name, {})
    if not isinstance(found, dict):
        raise ProtocolError(f"device.toml: {name} = {found!r} must be a section, [{name}].")
    return found


def _period(device: Device) -> float | None:
    known = [table.period for table in device.tables if table.period is not None]
    return float(np.median(known)) if known else None
