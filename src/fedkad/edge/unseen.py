"""Warns of configured names that no message of a device has: usually they are misspelled."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedkad.edge.payload import Sample, shown
from fedkad.edge.settings import DeviceSettings, SourceSettings
from fedkad.edge.sources import RawMessage

logger = logging.getLogger(__name__)

EXPECTED_WITHIN = 50
"""Messages of a device within which each of its channels is expected."""

MAX_LISTED = 5
"""Channels that a sentence names."""


@dataclass(slots=True)
class _Awaited:
    """What no message of a device has had yet."""

    channels: set[str]
    time: bool
    messages: int = 0


class UnseenNames:
    """Looks at the first messages of each device for its channels, and for a time under `time_key`."""

    def __init__(self, source: SourceSettings, devices: Mapping[str, DeviceSettings]) -> None:
        self._time_key = source.time_key
        self._channels = {name: device.sampling.channels for name, device in devices.items()}
        self._awaited = {
            name: _Awaited(set(device.sampling.channels), bool(source.time_key) and device.sampling.clock == "message")
            for name, device in devices.items()
        }

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
