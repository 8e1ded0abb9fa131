"""What the alarm policy of a device counts, whatever the phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedkad.edge.alarms.episode import Episode
from fedkad.edge.alarms.recurrence import Recurrence
from fedkad.edge.alert import Kind, as_number
from fedkad.edge.settings import Alarm

SLACK = 1e-3
"""Durations may fall short by this share of a period, because times in seconds since 1970 are rounded."""

MOST_BEGUN = 100
"""Incidents whose beginnings are remembered."""

BUCKETS = 60
"""The window of the rate is counted in this many parts, so that months of rows need no more memory than a minute."""


class AbnormalRate:
    """Counts the scored and the abnormal rows of the last `window` seconds; a window of 0 counts nothing.

    >>> rate = AbnormalRate(60.0)
    >>> for second in range(90):
    ...     rate.count(second, second >= 75)
    >>> rate.value, rate.since(79.5)
    (0.25, (10, 10))
    """

    def __init__(self, window: float, buckets: Iterable[Sequence[int]] = ()) -> None:
        self.width = window / BUCKETS
        self.buckets = [list(map(int, bucket)) for bucket in buckets]  # index of the part, scored rows, abnormal rows

    def count(self, time: float, abnormal: bool) -> None:
        """Count a row; forgets parts that are out of the window, or in the future of a clock that was set back."""
        if not self.width:
            return
        index = int(time // self.width)
        if not self.buckets or self.buckets[-1][0] != index:
            self.buckets = [bucket for bucket in self.buckets if index - BUCKETS < bucket[0] <= index]
            if not self.buckets or self.buckets[-1][0] != index:
                self.buckets.append([index, 0, 0])
        self.buckets[-1][1] += 1
        self.buckets[-1][2] += int(abnormal)

    def since(self, time: float) -> tuple[int, int]:
        """Return the scored and the abnormal rows in the parts that begin after that time."""
        counted = [bucket for bucket in self.buckets if bucket[0] * self.width > time]
        return sum(bucket[1] for bucket in counted), sum(bucket[2] for bucket in counted)

    @property
    def value(self) -> float:
        """The share of abnormal rows among the scored rows; NaN without any."""
        scored, abnormal = self.since(-math.inf)
        return abnormal / scored if scored else math.nan


class Tally:
    """The last row, the rate of abnormal ones, and the incidents so far."""

    def __init__(self, settings: Alarm, period: float, state: Mapping[str, Any]) -> None:
        self._settings, self._period = settings, period
        self._limit = settings.rate_limit if settings.rate_window > 0.0 else 0.0
        known = {name: value for name, value in state.items() if value is not None}
        self.time: float = known.get("time", -math.inf)  # of the last scored row, as are score and threshold
        self.watched: float = known.get("watched", 0.0)  # seconds scored so far
        self.score: float = known.get("score", math.nan)
        self.threshold: float = known.get("threshold", math.nan)
        self.incidents: int = known.get("incidents", 0)  # begun so far
        self.begun: list[float] = list(known.get("begun", ()))  # when the last ones began, or came back
        # rows up to then count towards no rate: an incident, or a command, has dealt with them
        self.counted_until: float = known.get("told", -math.inf)
        self.channels: list[str] = known.get("channels", [])  # those of the episodes
        # at most two excursions that were too short to be told, and may be part of a rate
        self.recent = [Episode.from_json(each) for each in known.get("recent", ())]
        self.recurrence = Recurrence.from_json(known.get("recurrence", {}))
        self.rate = AbnormalRate(settings.rate_window)
        if state.get("width") == self.rate.width:  # counts of another window would be counted in the wrong places
            self.rate = AbnormalRate(settings.rate_window, state.get("buckets", []))

    def to_json(self) -> dict[str, Any]:
        """Return what is counted, for JSON."""
        names = ("time", "watched", "score", "threshold")
        return {
            **{name: as_number(getattr(self, name)) for name in names},
            "told": as_number(self.counted_until),
            "incidents": self.incidents,
            "begun": self.begun,
            "channels": self.channels,
            "recent": [each.to_json() for each in self.recent],
            "recurrence": self.recurrence.to_json(),
            "width": self.rate.width,
            "buckets": self.rate.buckets,
        }

    def count(self, time: float, score: float, threshold: float, *, abnormal: bool) -> None:
        """Count a scored row."""
        self.time, self.score, self.threshold = time, score, threshold
        self.watched += self._period
        self.rate.count(time, abnormal)

    def note_begun(self) -> None:
        """Note that an incident begins, comes back, or has another cause."""
        self.begun = [*self.begun[1 - MOST_BEGUN :], float(self.time)]

    def begin(self, *, is_new: bool) -> None:
        """Note that an incident begins, or the last one goes on."""
        self.recent = []
        self.incidents += is_new
        if not is_new:
            self.recurrence = replace(self.recurrence, last=None)
        self.note_begun()

    def end(self, recurrence: Recurrence) -> None:
        """Note that an incident is over, and may come back."""
        self.recurrence, self.counted_until = recurrence, self.time

    def silence(self) -> None:
        """Drop what was counted towards another incident."""
        self.recent, self.counted_until = [], self.time

    def interrupt(self, time: float) -> None:
        """Go on from another time."""
        self.time = time

    def take_back(self, identity: str, sender: str, *, is_open: bool) -> None:
        """Do not take the last incident for normal any more, if it is that one and nothing else is open."""
        until = self.time + self._settings.settle
        identity = "" if is_open else identity
        self.recurrence = self.recurrence.taken_back(identity, sender, until)

    def is_frequent(self, since: float | None = None) -> bool:
        """Whether many rows of the window are abnormal, of those that belong to no incident unless `since` is given."""
        if not self._limit:
            return False
        scored, abnormal = self.rate.since(self.counted_until if since is None else since)
        half = 0.5 * self._settings.rate_window - SLACK * self._period
        return scored * self._period >= half and abnormal >= self._limit * scored

    def may_end(self, kind: Kind) -> bool:
        """Whether an incident of that kind is not one of many short excursions that still go on."""
        by_rate = kind == Kind.RATE and self._limit
        return not by_rate or self.rate.value < self._settings.release * self._limit

    def keep(self, excursion: Episode) -> None:
        """Keep an excursion that was too short to be told: it may be part of a rate.

        Two episodes of half a window each are kept: enough to explain an incident, without one per row.
        """
        if not self._limit:
            return
        if self.recent and excursion.start - self.recent[-1].start <= 0.5 * self._settings.rate_window:
            self.recent[-1] = self.recent[-1].joined(excursion)
        else:
            self.recent = [*self.recent[-1:], excursion]

    def with_recent(self, excursion: Episode) -> Episode:
        """Return the abnormal rows of about one window: those of recent excursions and of this one."""
        episode = excursion
        for earlier in reversed(self.recent):
            if excursion.last - earlier.last <= self._settings.rate_window:
                episode = earlier.joined(episode)
        return episode

    def set_back(self, time: float, longest: float) -> None:
        """Forget what is in the future of a clock that was set back; the last incident may come back for `longest`."""
        self.recent = [episode for episode in self.recent if episode.last <= time]
        self.begun = [moment for moment in self.begun if moment <= time]
        self.counted_until = min(self.counted_until, time)
        self.recurrence = replace(self.recurrence, until=min(self.recurrence.until, time + longest))

    def use_channels(self, channels: Sequence[str]) -> None:
        """Forget what is known of other channels."""
        self.channels = list(channels)
        self.recurrence = self.recurrence.without_channels()
        self.recent = [each.without_channels() for each in self.recent]
