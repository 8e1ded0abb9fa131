"""From scored rows to what a person is told: one incident with a beginning, news and an end, not a ring for each row.

The policy of one device. It has no clock and does no I/O: the same rows give the same alerts, and what it knows is a
small state in JSON that goes on exactly where it stopped. A row is one of three things:

    abnormal   the detector says so
    quiet      its score is below `release` times the threshold (with a threshold of 0 or less: not abnormal)
    neither    between the two: it neither begins an incident nor clears it

An *excursion* begins with an abnormal row and goes on until a quiet one; from its `min_duration` on it is an incident.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.edge.settings import Alarm
from fedkad.edge.tally import LARGEST, Tally, as_number
from fedkad.edge.wording import as_date, as_text, sentence

Array = NDArray[np.float64]
Explain = Callable[[], tuple[Array, Array, Array]]

BUCKETS = 60
"""The rate is counted in so many parts of its window: months of rows cost no more memory than a minute's."""

SLACK = 1e-3
"""Durations may fall short by this share of a period: times in seconds since 1970 are rounded."""


class Judged(NamedTuple):
    """One scored row.

    Attributes
    ----------
    time : float
        Seconds since 1970.
    score, threshold : float
        The score, NaN while there is none, and the threshold that it was held against.
    abnormal : bool
    evidence : bool
        False if nothing was measured in this row: it neither begins nor ends anything.
    """

    time: float
    score: float
    threshold: float
    abnormal: bool
    evidence: bool = True


class Alarms:
    """The alarms of one device.

    An incident begins when the scores have been abnormal for `min_duration` without a quiet row, or when the share of
    abnormal rows in `rate_window` reaches `rate_limit`, provided that half of the window was scored; rows up to the end
    of the last incident do not count, for they were told. It ends after `clear_after` of only quiet rows, and if it
    began by its rate not before that has fallen below `release` times the limit. For `cool_down` after that only a
    critical score begins another; what still goes on then begins. All durations are differences of the rows' times.

    The start of an incident is its first abnormal row, not the row at which `min_duration` was reached; one that began
    by its rate starts with the first of the abnormal rows that are counted in it, about one window back. One that has
    cleared has lasted until its last abnormal row, not until the quiet after it was long enough.

    Parameters
    ----------
    device : str
    settings : Alarm
    period : float
        Seconds between two rows.
    state : mapping, optional
        What `state()` gave, to go on from there.

    Attributes
    ----------
    incidents : int
        Incidents begun so far.
    watched : float
        Seconds scored so far.

    >>> alarms = Alarms("pump-1", Alarm(min_duration=2.0, clear_after=2.0), period=1.0)
    >>> def explain():
    ...     return np.array([7.0, 2.0]), np.array([3.2, 1.0]), np.array([5.1, 1.2])
    >>> for second, score in enumerate([1.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0]):
    ...     for alert in alarms.update(Judged(float(second), score, 6.0, score > 6.0), explain, ["flow", "pressure"]):
    ...         print(alert["event"], alert["id"], alert["duration"])
    ...         print(alert["text"])
    start pump-1-19700101T000001Z-1 2.0
    pump-1: at worst (00:00:01Z) flow 3.2 instead of 5.1 (78 %), then pressure (22 %); score 9, threshold 6
    end pump-1-19700101T000001Z-1 2.0
    pump-1: over, lasted 2 s; at worst (00:00:01Z) flow 3.2 instead of 5.1 (78 %), then pressure (22 %); peak 9
    """

    def __init__(self, device: str, settings: Alarm, period: float, state: Mapping[str, Any] | None = None) -> None:
        self._device, self._period = device, period
        slack = SLACK * period
        self._least, self._clear = settings.min_duration - slack, settings.clear_after - slack
        self._cool_down = settings.cool_down - slack
        self._every = settings.update_every - slack if settings.update_every > 0.0 else math.inf
        self._window = settings.rate_window
        self._width = self._window / BUCKETS
        self._limit = settings.rate_limit if self._width > 0.0 else 0.0
        self._half = 0.5 * self._window - slack
        self._release, self._critical = settings.release, settings.critical
        self._restore(state or {})

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.incidents: int = state.get("incidents", 0)
        self.watched: float = state.get("watched", 0.0)
        self._time = _or(state.get("time"), -math.inf)
        self._score = _or(state.get("score"), math.nan)
        self._threshold = _or(state.get("threshold"), math.nan)
        self._open: dict[str, Any] | None = state.get("open")
        self._said = _or(state.get("said"), -math.inf)
        self._quiet: float | None = state.get("quiet")
        self._told = _or(state.get("told"), -math.inf)
        self._cool_until = _or(state.get("cool_until"), -math.inf)
        self._channels: list[str] = list(state.get("channels", []))
        self._incident = _restored(state.get("incident"))
        self._excursion = _restored(state.get("excursion"))
        self._recent = [Tally.restored(tally) for tally in state.get("recent", [])]
        # Counts of another window would be counted in the wrong places.
        counts = state.get("buckets", []) if state.get("width") == self._width else []
        self._buckets: deque[list[int]] = deque([int(index), scored, abnormal] for index, scored, abnormal in counts)
        self._scored = sum(bucket[1] for bucket in self._buckets)
        self._abnormal = sum(bucket[2] for bucket in self._buckets)

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON; `Alarms(device, settings, period, state)` goes on exactly."""
        return {
            "incidents": self.incidents,
            "watched": self.watched,
            "time": as_number(self._time),
            "score": as_number(self._score),
            "threshold": as_number(self._threshold),
            "open": self._open,
            "said": as_number(self._said),
            "quiet": None if self._quiet is None else float(self._quiet),
            "told": as_number(self._told),
            "cool_until": as_number(self._cool_until),
            "channels": list(self._channels),
            "incident": None if self._incident is None else self._incident.state(),
            "excursion": None if self._excursion is None else self._excursion.state(),
            "recent": [tally.state() for tally in self._recent],
            "width": self._width,
            "buckets": [list(bucket) for bucket in self._buckets],
        }

    @property
    def open(self) -> dict[str, Any] | None:
        """The incident that is open, as the last alert that was given about it; not to be changed."""
        return self._open

    @property
    def rate(self) -> float:
        """Share of the scored rows that were abnormal, in the `rate_window` before the last one; NaN without any."""
        scored = self._scored  # read once: another thread may ask
        return self._abnormal / scored if scored else math.nan

    @property
    def per_second(self) -> float:
        """Incidents a second of scored time, to compare with a budget; NaN before anything was scored."""
        return self.incidents / self.watched if self.watched else math.nan

    def update(self, judged: Judged, explain: Explain, channels: Sequence[str]) -> list[dict[str, Any]]:
        """Take one row; return the alerts that it gives rise to, as a rule none.

        Parameters
        ----------
        judged : Judged
        explain : callable
            Gives the shares of the score, what was seen and what was expected, a value a channel. Called for abnormal
            rows only.
        channels : sequence of str
        """
        time, score, threshold, abnormal, evidence = judged
        if not evidence or score != score:
            return []
        if time < self._time:
            self._go_back(time)
        self._time, self._score, self._threshold = time, score, threshold
        self.watched += self._period
        if self._width:
            self._count(time, abnormal)
        if abnormal:
            return self._take_abnormal(explain(), channels)
        if self._incident is None and self._excursion is None:
            return []
        return self._take_normal(quiet=threshold <= 0.0 or score < self._release * threshold)

    def silence(self, time: float) -> list[dict[str, Any]]:
        """Begin maintenance: an open incident ends, and what was counted towards another is dropped.

        No cool-down follows: what is wrong after maintenance is news.
        """
        alerts = [] if self._incident is None else [self._end(time, "maintenance")]
        self._excursion, self._recent = None, []
        self._told, self._cool_until = self._time, -math.inf
        return alerts

    def interrupt(self, time: float) -> list[dict[str, Any]]:
        """Say that what follows is not connected to what was: a broken window, a stale device, another clock.

        What had not lasted for `min_duration` is dropped. An open incident stays open, for nobody knows, and nothing is
        said about it until rows come again; quiet is counted anew, and it ends after `clear_after` of it.
        """
        if time < self._time:
            self._go_back(time)
            self._time = time
        self._quiet = None
        self._drop_excursion()
        return []

    def _go_back(self, time: float) -> None:
        """Forget what lies in the future of a clock that was set back; nothing may wait until it comes again."""
        self._excursion = self._quiet = None
        self._recent = [tally for tally in self._recent if tally.last <= time]
        self._said, self._told = min(self._said, time), min(self._told, time)
        self._cool_until = min(self._cool_until, time + self._cool_down)

    def _count(self, time: float, abnormal: bool) -> None:
        index = int(time // self._width)
        buckets = self._buckets
        if not buckets or buckets[-1][0] != index:
            self._turn_to(index)
        bucket = buckets[-1]
        bucket[1] += 1
        self._scored += 1
        if abnormal:
            bucket[2] += 1
            self._abnormal += 1

    def _turn_to(self, index: int) -> None:
        """Drop the buckets that are too old and those of the future; make that of now the last."""
        buckets = self._buckets
        while buckets and not index - BUCKETS < buckets[0][0] <= index:
            self._uncount(buckets.popleft())
        while buckets and buckets[-1][0] > index:
            self._uncount(buckets.pop())
        if not buckets or buckets[-1][0] != index:
            buckets.append([index, 0, 0])

    def _uncount(self, bucket: list[int]) -> None:
        self._scored -= bucket[1]
        self._abnormal -= bucket[2]

    def _take_abnormal(self, explained: tuple[Array, Array, Array], channels: Sequence[str]) -> list[dict[str, Any]]:
        self._name(channels)
        self._quiet = None
        time, score = float(self._time), min(float(self._score), LARGEST)
        if (tally := self._incident or self._excursion) is None:
            tally = self._excursion = Tally(time, time)
        critical, known = self._is_critical(), tally.critical
        tally.add(time, score, critical, explained)
        if self._incident is None:
            return self._begin(tally, critical)
        return [self._alert("update", "worse", self._time)] if tally.critical and not known else self._go_on()

    def _name(self, channels: Sequence[str]) -> None:
        names = list(channels)
        if names == self._channels:
            return
        self._channels = names
        for tally in (self._incident, self._excursion, *self._recent):
            if tally is not None:
                tally.forget_channels()

    def _is_critical(self) -> bool:
        if self._threshold <= 0.0:
            return bool(self._score > 0.0)
        return bool(self._score >= self._critical * self._threshold)

    def _begin(self, excursion: Tally, critical: bool) -> list[dict[str, Any]]:
        time = self._time
        if time < self._cool_until and not critical:
            return []
        if time - excursion.start >= self._least:
            self._incident, kind, reason = excursion, "score", "threshold"
        elif self._is_frequent():
            self._incident, kind, reason = self._gathered(excursion), "rate", "rate"
        else:
            return []
        self._excursion, self._recent = None, []
        self.incidents += 1
        start = f"{as_date(self._incident.start):%Y%m%dT%H%M%SZ}"
        self._open = {"id": f"{self._device}-{start}-{self.incidents}", "kind": kind}
        return [self._alert("start", reason, time)]

    def _is_frequent(self) -> bool:
        if not self._limit:
            return False
        since = [bucket for bucket in self._buckets if bucket[0] * self._width > self._told]
        scored, abnormal = sum(bucket[1] for bucket in since), sum(bucket[2] for bucket in since)
        return scored * self._period >= self._half and abnormal >= self._limit * scored

    def _gathered(self, excursion: Tally) -> Tally:
        """The abnormal rows of about one window: those of earlier excursions and of this one."""
        tally = excursion
        for earlier in reversed(self._recent):
            if excursion.last - earlier.last <= self._window:
                tally = earlier.joined(tally)
        return tally

    def _drop_excursion(self) -> None:
        """It was too short to be told, but may be part of a rate.

        Two tallies are kept, of half a window each: enough to say why, without one for every row.
        """
        excursion, self._excursion = self._excursion, None
        if excursion is None or not self._limit:
            return
        if self._recent and excursion.start - self._recent[-1].start <= 0.5 * self._window:
            self._recent[-1] = self._recent[-1].joined(excursion)
        else:
            self._recent = [*self._recent[-1:], excursion]

    def _take_normal(self, *, quiet: bool) -> list[dict[str, Any]]:
        if self._incident is None:
            if quiet:
                self._drop_excursion()
            return []
        if not quiet:
            self._quiet = None
            return self._go_on()
        if self._quiet is None:
            self._quiet = self._time
        if self._time - self._quiet >= self._clear and self._is_rare():
            return [self._end(self._time, "cleared")]
        return self._go_on()

    def _is_rare(self) -> bool:
        assert self._open is not None
        return self._open["kind"] != "rate" or not self._limit or self.rate < self._release * self._limit

    def _go_on(self) -> list[dict[str, Any]]:
        return [self._alert("update", "still", self._time)] if self._time - self._said >= self._every else []

    def _end(self, time: float, reason: str) -> dict[str, Any]:
        alert = self._alert("end", reason, time)
        self._open = self._incident = self._quiet = None
        self._told, self._cool_until = self._time, time + self._cool_down
        return alert

    def _alert(self, event: str, reason: str, time: float) -> dict[str, Any]:
        assert self._incident is not None
        assert self._open is not None
        incident = self._incident
        causes = incident.causes(self._channels)
        # What has cleared was over before the quiet that was waited for.
        until = incident.last if reason == "cleared" else float(time)
        alert: dict[str, Any] = {
            "id": self._open["id"],
            "device": self._device,
            "event": event,
            "kind": self._open["kind"],
            "severity": "critical" if incident.critical else "warning",
            "start": as_text(incident.start),
            "time": as_text(time),
            "duration": round(max(until - incident.start, 0.0), 3),
            "score": as_number(self._score),
            "peak": as_number(incident.peak),
            "worst": None if incident.worst is None else as_text(incident.worst),
            "threshold": as_number(self._threshold),
            "rate": as_number(round(self.rate, 4)),
            "samples": incident.samples,
            "channels": [_numbers_or_none(cause._asdict()) for cause in causes],
            "reason": reason,
        }
        alert["text"] = sentence(alert, causes, self._window)
        self._open, self._said = alert, time
        return alert


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _numbers_or_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: as_number(value) if isinstance(value, float) else value for key, value in values.items()}


def _restored(state: Mapping[str, Any] | None) -> Tally | None:
    return None if state is None else Tally.restored(state)
