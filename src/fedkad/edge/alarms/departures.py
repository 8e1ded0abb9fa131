"""Which channels are outside their known ranges, and since when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedkad.detect.stream import Reading
from fedkad.edge.alarms.episode import Episode
from fedkad.edge.settings import Alarm

BACK = 0.25
"""While a channel of an open incident is this far outside its known ranges, the incident stays open."""

PART = 0.1
"""The least share of a score that makes a channel a part of its cause."""

LOOKS = 60
"""How often in a window of the rate it is found out which channels are outside, which costs as much as many scores."""


class Departures:
    """The channels that are outside their known ranges, by the time at which they left."""

    def __init__(
        self, settings: Alarm, period: float, channels: Sequence[str], since: Mapping[str, float] | None = None
    ) -> None:
        self._settings, self._channels = settings, channels
        self._every = max(settings.rate_window / LOOKS, period)
        self.since = dict(since or {})

    def update(self, reading: Reading, outside: float, before: float, time: float) -> None:
        """Take a row that follows that of the time `before`."""
        if outside <= BACK:
            if self.since:
                self.since = {}
        elif time // self._every != before // self._every:
            self._look(reading, time)

    def origin(self, reading: Reading, counted_until: float, time: float) -> str:
        """Return the channel that is farthest outside, of those that have just left; empty if there is none.

        That is within the window of the rate. A command may have left within `settle`, if no incident was told since
        and it has a part in the score: a new set-point may show hours later, when the heating is needed.
        """
        self._look(reading, time)
        since, settings = self.since, self._settings
        recent = [name for name, left in since.items() if time - left <= settings.rate_window]
        if commands := [name for name in reading.commands if counted_until < since.get(name, -math.inf)]:
            shares, least = dict(zip(self._channels, reading.shares, strict=True)), PART * reading.shares.sum()
            recent += [name for name in commands if shares[name] > least and time - since[name] <= settings.settle]
        distances = dict(zip(self._channels, reading.outside_by_channel.tolist(), strict=True)) if recent else {}
        return max(recent, key=distances.__getitem__, default="")

    def is_of(self, episode: Episode, reading: Reading) -> bool:
        """Whether a channel that an episode is about is outside."""
        return any(reading.outside_by_channel[k] > BACK for k in episode.about(self._channels))

    def _look(self, reading: Reading, time: float) -> None:
        distances = zip(self._channels, reading.outside_by_channel, strict=False)
        outside = [name for name, distance in distances if distance > BACK]
        self.since = {name: min(self.since.get(name, time), time) for name in outside}
