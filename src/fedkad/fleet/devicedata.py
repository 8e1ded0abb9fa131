"""Where a device's statistics come from: its own table, or its agent's model. Neither leaves the device."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.modelfile import ModelFileError
from fedkad.detect.series import Series
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.protocol import ProtocolError, Terms, compare
from fedkad.fleet.devicefolder import FILE, REMEDY
from fedkad.fleet.devicesettings import SHARED, DeviceFile
from fedkad.settingerror import SettingsError
from fedkad.settingsfile import FileSection, read, read_document
from fedkad.tables import DeviceTables, read_device


class DeviceData:
    """The data of one device.

    Parameters
    ----------
    device : str
    state : DeviceState
    path : Path, optional
        A table, or a folder of tables that are separate stretches; if omitted, the statistics in the current model.
    settings : DeviceFile
        `device.toml`: `[detector]` has the device's own parameters, `[reading]` the `time` column and `max_fill`.
    """

    def __init__(self, device: str, state: DeviceState, path: Path | None, settings: DeviceFile) -> None:
        self.device, self.state, self.path = device, state, path
        self.own = dict(settings.detector)
        self.reading = {name: value for name, value in asdict(settings.reading).items() if value is not None}

    def detector(self, terms: Terms) -> KoopmanDetector:
        """A detector with this device's statistics for a training with these terms."""
        if self.path is None:
            return self._gathered(terms)
        parameters = {**self._shared(terms), **self.own}
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

    def _columns(self, device: DeviceTables, terms: Terms) -> list[int]:
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

    def _fingerprint(self, parameters: Mapping[str, Any], terms: Terms) -> str:
        """Changes with the data files and with the settings that they are read with."""
        assert self.path is not None
        files = sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]
        seen = [(str(file), os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
        text = json.dumps([seen, dict(parameters), self.reading, terms.channels], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_settings(folder: Path) -> DeviceFile:
    """`device.toml` of a device's folder, where there is one; the server is told what is wrong in it."""
    path = folder / FILE
    if not path.exists():
        return DeviceFile()
    document = read_document(path, REMEDY)
    try:
        return read(DeviceFile, FileSection.of(document))
    except SettingsError as error:
        raise ProtocolError(str(error.in_file(FILE))) from None


def _period(device: DeviceTables) -> float | None:
    known = [table.period for table in device.tables if table.period is not None]
    return float(np.median(known)) if known else None
