"""From messages to samples of known devices; what cannot be used, and names that never come, are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedkad.edge.settings import DeviceSettings, Sampling, SourceSettings
from fedkad.edge.settings.rules import EVERY
from fedkad.edge.sources import RawMessage
from fedkad.edge.sources.payload import PayloadError, Sample, shown
from fedkad.edge.sources.readers import CsvReader, JsonReader
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

EXPECTED_WITHIN = 50  # messages of a device within which each of its channels is expected
MAX_LISTED = 5  # channels that a sentence names


class Decoder:
    """Decodes the messages of a source.

    `count_refusal` takes the name of the device for each message, or for the values in it, that cannot be used; an
    empty name if the device is unknown. With the device ``*`` the samples of any device are found.
    """

    def __init__(
        self, source: SourceSettings, devices: Mapping[str, DeviceSettings], count_refusal: Callable[[str], None]
    ) -> None:
        self._count_refusal, self._repeats = count_refusal, RepeatFilter(limit=3)
        self._source, self._is_csv = source, source.kind != "mqtt" and source.format == "csv"
        self._own: dict[str, set[str]] = {}
        self._by_topic: dict[str, JsonReader] = {}
        self._only = next(iter(devices)) if len(devices) == 1 and EVERY not in devices else None
        # A line or a shared topic names its device only in the payload: look for the channels of all devices.
        self._channels = tuple(dict.fromkeys(name for each in devices.values() for name in each.sampling.channels))
        self._zone = next(iter(devices.values())).sampling.zone
        self._common = JsonReader(self._channels, self._zone, source.device_key, source.time_key)
        self._header: bytes | None = None
        self._rows: CsvReader | PayloadError | None = None
        self._unseen = UnseenNames(source)
        for name, device in devices.items():
            self.add(name, device)

    def add(self, name: str, device: DeviceSettings) -> None:
        """Decode the messages of one more device."""
        sampling = device.sampling
        self._own[name] = set(sampling.channels)
        self._by_topic[name] = JsonReader(sampling.channels, sampling.zone, time_key=self._source.time_key)
        if name != EVERY:
            self._unseen.add(name, sampling)

    def decode(self, message: RawMessage, header: bytes | None = None) -> list[Sample]:
        """The samples in a message, each with its device."""
        name = message.device
        # Anything is published below a device, such as ``lamp/action``: it may be no device at all.
        is_below = name is not None and "/" in name and name not in self._own
        reader: JsonReader | CsvReader
        try:
            if self._is_csv:
                reader = self._csv(header)
                samples = reader.read(message.payload, message.arrival)
            else:
                reader = self._common if name is None else self._by_topic[name if name in self._own else EVERY]
                samples = reader.read(message.payload, message.channel, message.arrival)
        except PayloadError as error:
            if is_below:
                return []
            # What is wrong with a header was logged when it came, and is wrong for every row below it.
            self._refuse(name or self._only or "", "payload", "" if error is self._rows else str(error))
            return []
        samples = list(self._attributed(samples)) if name is None else [Sample(name, *each[1:]) for each in samples]
        if reader.left_out and not is_below:
            owner = name or self._only or (samples[0].device if samples else "")
            self._refuse(owner or "", "values", _not_numbers(reader.left_out))
        if self._unseen.is_watching:
            self._unseen.note(message, samples, self._named_devices(message, samples))
        return samples

    def _csv(self, header: bytes | None) -> CsvReader:
        if self._rows is None or header != self._header:
            if header is None:
                raise PayloadError("There is no header above the line; begin with the names of the columns.")
            text, self._header = header.decode("utf-8", errors="replace"), header
            try:
                self._rows = CsvReader(self._channels, self._zone, self._source.device_key, text, self._source.time_key)
            except PayloadError as error:
                self._rows = error
                logger.warning("%s: %s", self._only or "source", error)
        if isinstance(self._rows, PayloadError):
            raise self._rows.with_traceback(None)  # the traceback would grow with every row
        return self._rows

    def _attributed(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """The samples of configured devices, with their channels only."""
        for sample in samples:
            name = sample.device or self._only
            own = None if name is None else self._own.get(name, self._own.get(EVERY))
            if name is None or own is None:
                self._refuse("", "device", self._unknown_device(name))
                continue
            values = sample.values
            if len(own) < len(self._channels):
                values = {key: values[key] for key in values if key in own}
            yield Sample(name, sample.time, values)

    def _unknown_device(self, name: str | None) -> str:
        if name:
            return f"A message is from {name!r}, which is not configured; add it to devices, or keep it away."
        where = f" under {self._source.device_key!r}" if self._source.device_key else ""
        return f"A message names no device{where}; set device_key in [source] to the key that holds the name."

    def _named_devices(self, message: RawMessage, samples: list[Sample]) -> set[str]:
        """The devices that a message is about, even if it has none of their channels."""
        if message.device is not None:
            return {message.device}
        named = {each.device for each in samples if each.device is not None}
        if not named and not self._is_csv:
            named = self._common.devices(message.payload)
        return named or ({self._only} if self._only else set())

    def _refuse(self, device: str, kind: str, reason: str) -> None:
        """Count what cannot be used and log the first few of each kind; an empty reason is only counted."""
        device = device if device in self._own else ""  # anybody may publish under any name
        self._count_refusal(device)
        if not reason:
            return
        if self._repeats.allows((device, kind)):
            last = " Further ones are counted, not logged." if self._repeats.is_spent((device, kind)) else ""
            logger.warning("%s: %s%s", device or "source", reason, last)


def _not_numbers(left_out: Mapping[str, str]) -> str:
    """What is wrong with the values of a message, by channel."""
    names, first = list(left_out), next(iter(left_out.values()))
    if len(names) == 1:
        return f"{names[0]!r} in a message is {first}, which is not a finite number; send a number, or leave it out."
    return (
        f"{listed(names, 'and')} in a message are not finite numbers, the first is {first}; "
        "send numbers, or leave them out."
    )


@dataclass(slots=True)
class _Awaited:
    """What no message of a device has had yet."""

    channels: set[str]
    time: bool
    messages: int = 0


class UnseenNames:
    """Looks at the first messages of each device for its channels, and for a time under `time_key`."""

    def __init__(self, source: SourceSettings) -> None:
        self._time_key = source.time_key
        self._channels: dict[str, tuple[str, ...]] = {}
        self._awaited: dict[str, _Awaited] = {}

    def add(self, name: str, sampling: Sampling) -> None:
        """Look at the messages of one more device."""
        self._channels[name] = sampling.channels
        has_time = bool(self._time_key) and sampling.clock == "message"
        self._awaited[name] = _Awaited(set(sampling.channels), has_time)

    @property
    def is_watching(self) -> bool:
        """Whether anything is still awaited of any device."""
        return bool(self._awaited)

    def note(self, message: RawMessage, samples: Iterable[Sample], devices: Iterable[str]) -> None:
        """Note what a message has of the devices that it is about, and warn after enough messages without it."""
        for name in sorted(self._awaited.keys() & devices):
            awaited = self._awaited[name]
            awaited.messages += 1
            for sample in samples:
                if sample.device == name:
                    awaited.channels.difference_update(sample.values)
                    awaited.time = awaited.time and sample.time is None
            # Where a message has only one channel, it takes that many more of them.
            enough = EXPECTED_WITHIN * (1 if message.channel is None else len(self._channels[name]))
            if (awaited.channels or awaited.time) and awaited.messages < enough:
                continue
            del self._awaited[name]
            self._warn(name, awaited, message)

    def _warn(self, name: str, awaited: _Awaited, message: RawMessage) -> None:
        last, key = shown(message.payload), "channels in [sampling]"
        if awaited.channels:
            missing = listed([each for each in self._channels[name] if each in awaited.channels], "or")
            what = f"has a number under {missing}"
            if message.channel is not None:
                what, last = f"is a number of {missing}", f"of {message.channel!r}"
        elif awaited.time:
            what, key = f"has a time under {self._time_key!r}", "time_key in [source]"
        else:
            return
        logger.warning(
            "%s: none of its first %d messages %s; the last one is %s; check %s.",
            *(name, awaited.messages, what, last, key),
        )


def listed(names: list[str], conjunction: str) -> str:
    """The names as a list in a sentence, the first few of many.

    >>> print(listed(["a"], "or"), listed(["a", "b", "c"], "or"), listed(list("abcdefg"), "and"))
    'a' 'a', 'b' or 'c' 'a', 'b', 'c', 'd', 'e' and 2 more
    """
    shortened = [repr(name) for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        shortened.append(f"{len(names) - MAX_LISTED} more")
    return f" {conjunction} ".join([", ".join(shortened[:-1]), shortened[-1]]) if len(names) > 1 else shortened[0]
