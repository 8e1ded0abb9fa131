"""From what arrived to the device that it is about: messages and lines become samples, and none is lost unsaid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fedkad.edge.payload import CsvRows, PayloadError, Payloads
from fedkad.edge.settings import DeviceSettings, Source
from fedkad.edge.sources import Message

Say = Callable[[str], None]

SAID_ALOUD = 3
"""Refusals of a device that are said; later ones are only counted, for a broken sensor must not fill the log."""


class Measured(NamedTuple):
    """Values of a device, at a time that the message named or None."""

    device: str
    time: float | None
    values: dict[str, float]


class Reader:
    """Reads the messages of a source.

    Parameters
    ----------
    source : Source
    devices : mapping
    say : callable
        Takes a sentence for the log.
    count : callable
        Takes the name of a device whose message, or a value in it, could not be read; the empty one if nobody knows.
    """

    def __init__(
        self, source: Source, devices: Mapping[str, DeviceSettings], say: Say, count: Callable[[str], None]
    ) -> None:
        self._count, self._refused = count, dict[str, int]()
        self._say, self._format, self._key = say, source.format if source.kind != "mqtt" else "json", source.device_key
        self._own = {name: set(device.sampling.channels) for name, device in devices.items()}
        self._by_topic = {
            name: Payloads(device.sampling.channels, device.sampling.zone) for name, device in devices.items()
        }
        self._only = next(iter(devices)) if len(devices) == 1 else None
        # A line or a common topic says whose it is only once it is read: look for the channels of all.
        self._channels = tuple(dict.fromkeys(name for each in devices.values() for name in each.sampling.channels))
        self._zone = next(iter(devices.values())).sampling.zone
        self._common = Payloads(self._channels, self._zone, self._key)
        self._header: bytes | None = None
        self._rows: CsvRows | None = None

    def read(self, message: Message, header: bytes | None = None) -> list[Measured]:
        """The samples in a message; one that cannot be read is counted, and the first few are said."""
        name = message.device
        reader: Payloads | CsvRows
        try:
            if self._format == "csv":
                reader = self._csv(header)
                before, samples = reader.refused, reader.read(message.payload)
            else:
                reader = self._common if name is None else self._by_topic[name]
                before, samples = reader.refused, reader.read(message.payload, message.channel)
        except PayloadError as error:
            self._refuse(name or self._only or "", str(error))
            return []
        if name is None:
            found = list(self._placed(samples))
        else:
            found = [Measured(name, sample.time, sample.values) for sample in samples]
        if reader.refused > before:
            whose = name or self._only or (found[0].device if found else "")
            self._refuse(whose, f"{reader.refused - before} of the values in a message are no finite numbers.")
        return found

    def _csv(self, header: bytes | None) -> CsvRows:
        if self._rows is None or header != self._header:
            if header is None:
                raise PayloadError("The line has no header above it; begin with the names of the columns.")
            text = header.decode("utf-8", errors="replace")
            self._rows, self._header = CsvRows(self._channels, self._zone, self._key, text), header
        return self._rows

    def _placed(self, samples: Iterable[tuple[str | None, float | None, dict[str, float]]]) -> Iterable[Measured]:
        for device, time, values in samples:
            name = device or self._only
            if name is None or name not in self._own:
                whose = f"is of {name!r}, which is none of the devices" if name else f"names no device as {self._key!r}"
                self._refuse("", f"A message {whose}.")
                continue
            own = self._own[name]
            kept = values if len(own) == len(self._channels) else {key: values[key] for key in values if key in own}
            yield Measured(name, time, kept)

    def _refuse(self, device: str, why: str) -> None:
        self._count(device)
        count = self._refused[device] = self._refused.get(device, 0) + 1
        if count <= SAID_ALOUD:
            last = " More of these are counted, not said." if count == SAID_ALOUD else ""
            self._say(f"{device or 'source'}: {why}{last}")
