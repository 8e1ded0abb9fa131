"""From what arrived to the device that it is about: messages and lines become samples, and none is lost unsaid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedkad.edge.payload import CsvRows, PayloadError, Payloads, shown
from fedkad.edge.settings import DeviceSettings, SourceSettings
from fedkad.edge.sources import Message

Say = Callable[[str], None]

SAID_ALOUD = 3
"""Refusals of a device and of one kind that are said; later ones are only counted, for a broken sensor must not fill
the log."""

EXPECTED_WITHIN = 50
"""Messages of a device in which each of its channels is expected once, or its name is likely to be mistyped."""

MOST_NAMED = 5
"""Channels that a sentence names."""


class Measured(NamedTuple):
    """Values of a device, at a time that the message named or None."""

    device: str
    time: float | None
    values: dict[str, float]


@dataclass(slots=True)
class Awaited:
    """What no message of a device has had yet."""

    channels: set[str]
    time: bool
    messages: int = 0

    def note(self, found: Iterable[Measured]) -> None:
        """Take note of what one message has."""
        self.messages += 1
        for _, time, values in found:
            self.channels.difference_update(values)
            self.time = self.time and time is None


class Reader:
    """Reads the messages of a source.

    Parameters
    ----------
    source : SourceSettings
    devices : mapping
    say : callable
        Takes a sentence for the log.
    count : callable
        Takes the name of a device whose message, or a value in it, could not be read; the empty one if nobody knows.
    """

    def __init__(
        self, source: SourceSettings, devices: Mapping[str, DeviceSettings], say: Say, count: Callable[[str], None]
    ) -> None:
        self._count, self._refused = count, dict[tuple[str, str], int]()
        self._say, self._format, self._key = say, source.format if source.kind != "mqtt" else "json", source.device_key
        self._time_key = source.time_key
        self._own = {name: set(device.sampling.channels) for name, device in devices.items()}
        self._by_topic = {
            name: Payloads(device.sampling.channels, device.sampling.zone, time_key=source.time_key)
            for name, device in devices.items()
        }
        self._only = next(iter(devices)) if len(devices) == 1 else None
        # A line or a common topic says whose it is only once it is read: look for the channels of all.
        self._channels = tuple(dict.fromkeys(name for each in devices.values() for name in each.sampling.channels))
        self._zone = next(iter(devices.values())).sampling.zone
        self._common = Payloads(self._channels, self._zone, self._key, source.time_key)
        self._header: bytes | None = None
        self._rows: CsvRows | PayloadError | None = None
        self._awaited = {
            name: Awaited(set(self._own[name]), bool(source.time_key) and device.sampling.clock == "message")
            for name, device in devices.items()
        }

    def read(self, message: Message, header: bytes | None = None) -> list[Measured]:
        """The samples in a message; one that cannot be read is counted, and the first few are said."""
        name = message.device
        reader: Payloads | CsvRows
        try:
            if self._format == "csv":
                reader = self._csv(header)
                samples = reader.read(message.payload)
            else:
                reader = self._common if name is None else self._by_topic[name]
                samples = reader.read(message.payload, message.channel)
        except PayloadError as error:
            # What is wrong with a header was said when it came, and is wrong for every row below it.
            self._refuse(name or self._only or "", "payload", "" if error is self._rows else str(error))
            return []
        if name is None:
            found = list(self._placed(samples))
        else:
            found = [Measured(name, sample.time, sample.values) for sample in samples]
        if reader.left_out:
            whose = name or self._only or (found[0].device if found else "")
            self._refuse(whose, "values", _not_numbers(reader.left_out))
        if self._awaited:
            self._look(message, found)
        return found

    def _csv(self, header: bytes | None) -> CsvRows:
        if self._rows is None or header != self._header:
            if header is None:
                raise PayloadError("The line has no header above it; begin with the names of the columns.")
            text, self._header = header.decode("utf-8", errors="replace"), header
            try:
                self._rows = CsvRows(self._channels, self._zone, self._key, text, self._time_key)
            except PayloadError as error:
                self._rows = error
                self._say(f"{self._only or 'source'}: {error}")
        if isinstance(self._rows, PayloadError):
            raise self._rows.with_traceback(None)  # which would grow with every row
        return self._rows

    def _placed(self, samples: Iterable[tuple[str | None, float | None, dict[str, float]]]) -> Iterable[Measured]:
        for device, time, values in samples:
            name = device or self._only
            if name is None or name not in self._own:
                self._refuse("", "device", self._stranger(name))
                continue
            own = self._own[name]
            kept = values if len(own) == len(self._channels) else {key: values[key] for key in values if key in own}
            yield Measured(name, time, kept)

    def _stranger(self, name: str | None) -> str:
        if name:
            return f"A message is of {name!r}, which is none of the devices; add it to devices, or keep it away."
        where = f"under {self._key!r}" if self._key else "anywhere"
        return f"A message names no device {where}; device_key in [source] must say where its name stands."

    def _refuse(self, device: str, kind: str, why: str) -> None:
        """Count what cannot be used, and say the first of its kind; an empty `why` is only counted."""
        self._count(device)
        if not why:
            return
        count = self._refused[device, kind] = self._refused.get((device, kind), 0) + 1
        if count <= SAID_ALOUD:
            last = " More of these are counted, not said." if count == SAID_ALOUD else ""
            self._say(f"{device or 'source'}: {why}{last}")

    # -- names that nothing comes under -----------------------------------------------------------------------------

    def _look(self, message: Message, found: list[Measured]) -> None:
        """Note which channels a message has; a name that is in no message is mistyped, and nobody else would say so."""
        for name in sorted(self._awaited.keys() & self._about(message, found)):
            awaited = self._awaited[name]
            awaited.note(each for each in found if each.device == name)
            # Where a message has one channel only, it takes as many more of them.
            enough = EXPECTED_WITHIN * (1 if message.channel is None else len(self._own[name]))
            if (awaited.channels or awaited.time) and awaited.messages < enough:
                continue
            del self._awaited[name]
            if awaited.channels:
                self._say_no_channel(name, awaited, message)
            elif awaited.time:
                self._say_no_time(name, awaited, message)

    def _about(self, message: Message, found: list[Measured]) -> set[str]:
        """The devices that a message is about, also if it has none of their channels."""
        if message.device is not None:
            return {message.device}
        named = {each.device for each in found}
        if not named and self._format != "csv":
            named = self._common.devices(message.payload)
        return named or ({self._only} if self._only else set())

    def _say_no_time(self, name: str, awaited: Awaited, message: Message) -> None:
        has = f"has a time under {self._time_key!r}"
        self._say(
            f"{name}: none of its first {awaited.messages} messages {has}; the last one is {shown(message.payload)}; "
            "check time_key in [source]."
        )

    def _say_no_channel(self, name: str, awaited: Awaited, message: Message) -> None:
        missing = _named([each for each in self._channels if each in awaited.channels], "or")
        if message.channel is None:
            has, last = f"has a number under {missing}", shown(message.payload)
        else:
            has, last = f"is a number of {missing}", f"of {message.channel!r}"
        first = f"none of its first {awaited.messages} messages"
        self._say(f"{name}: {first} {has}; the last one is {last}; check channels in [sampling].")


def _not_numbers(left_out: Mapping[str, str]) -> str:
    """What is wrong with the values of a message, by channel."""
    names, first = list(left_out), next(iter(left_out.values()))
    if len(names) == 1:
        return f"{names[0]!r} in a message is {first}, which is no finite number; send a number, or leave it out."
    listed = _named(names, "and")
    return f"{listed} in a message are no finite numbers, the first is {first}; send numbers, or leave them out."


def _named(names: list[str], word: str) -> str:
    """The names in a row, the first few of many.

    >>> print(_named(["a"], "or"), _named(["a", "b", "c"], "or"), _named(list("abcdefg"), "and"))
    'a' 'a', 'b' or 'c' 'a', 'b', 'c', 'd', 'e' and 2 more
    """
    listed = [repr(name) for name in names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        listed.append(f"{len(names) - MOST_NAMED} more")
    return f" {word} ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else listed[0]
