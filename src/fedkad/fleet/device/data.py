"""Where a device's statistics come from: its own table, or its agent's model. Neither leaves the device."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.learning import fit
from fedkad.detect.modelfile import ModelFileError
from fedkad.detect.series import Series, as_series
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.durable import DurableParticipant
from fedkad.federation.protocol import ProtocolError, Terms, compare
from fedkad.fleet.device.settings import SHARED, DeviceFile
from fedkad.fleet.shared.devicefolder import FILE, REMEDY
from fedkad.settingerror import SettingsError
from fedkad.settingsfile import read_file
from fedkad.tables import DeviceTables, read_device, read_table


class DeviceData:
    """The data of one device: a table, or a folder of tables that are separate stretches.

    Without a path, these are the statistics in the device's current model.
    """

    def __init__(self, device: str, state: DeviceState, path: Path | None, settings: DeviceFile) -> None:
        self.device, self.state, self.path = device, state, path
        self.own = dict(settings.detector)
        self.reading = {name: value for name, value in asdict(settings.reading).items() if value is not None}

    def detector(self, terms: Terms) -> KoopmanDetector:
        """Return a detector with this device's statistics for a training with these terms."""
        if self.path is None:
            return self._gathered(terms)
        parameters = {**_shared(terms), **self.own}
        prepared = self.state.prepared(self._fingerprint(self.path, parameters, terms))
        try:
            return KoopmanDetector.load(prepared)
        except ModelFileError:  # missing or damaged; the table is still there
            return self._prepare(self.path, parameters, terms, prepared)

    def _prepare(self, path: Path, parameters: dict[str, Any], terms: Terms, prepared: Path) -> KoopmanDetector:
        device = read_device(path, partial(read_table, **self.reading))
        columns = self._columns(device, terms)
        periods = [table.period for table in device.tables if table.period is not None]
        parameters.setdefault("sample_period", float(np.median(periods)) if periods else None)
        series = [Series(values[:, columns], terms.channels) for values in device.series()]
        detector = KoopmanDetector.of(*fit(KoopmanDetector(**parameters).settings, as_series(series)))
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
        setup = detector.memory_.setup
        compare("channels", setup.channel_names, terms.channels, f"device {self.device!r}", "the server")
        for name, theirs in _shared(terms).items():
            compare(name, getattr(setup.settings, name), theirs, f"device {self.device!r}", "the server")
        return detector

    def _columns(self, device: DeviceTables, terms: Terms) -> list[int]:
        """Return the columns of the fleet's channels in the table, which may have others as well, in any order."""
        lacking = [name for name in terms.channels if name not in device.channels]
        if lacking:
            raise ProtocolError(
                f"The server asks for the channels {', '.join(terms.channels)}, and the table of device "
                f"{self.device!r} lacks {', '.join(lacking)}; give it a table that has them."
            )
        return [device.channels.index(name) for name in terms.channels]

    def _fingerprint(self, path: Path, parameters: Mapping[str, Any], terms: Terms) -> str:
        """Changes with the data files and with the settings that they are read with."""
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        seen = [(str(file), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
        text = json.dumps([seen, dict(parameters), self.reading, terms.channels], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def participant_in(folder: Path, device: str, data: Path | None) -> DurableParticipant:
    """Return the participant whose knowledge lies in a folder, with its settings."""
    state, settings = DeviceState(folder), read_settings(folder)
    own = DeviceData(device, state, data, settings)
    return DurableParticipant(device, state, own.detector, settings.privacy)


def read_settings(folder: Path) -> DeviceFile:
    """`device.toml` of a device's folder, where there is one; what is wrong in it is sent to the server."""

    def parse(document: Mapping[str, Any]) -> DeviceFile:
        try:
            return DeviceFile.parse(document)
        except SettingsError as error:
            raise ProtocolError(str(error.in_file(FILE))) from None

    path = folder / FILE
    return read_file(path, REMEDY, parse) if path.exists() else DeviceFile()


def _shared(terms: Terms) -> dict[str, Any]:
    return {name: terms.consensus.rank if name == "rank" else getattr(terms, name) for name in SHARED}
