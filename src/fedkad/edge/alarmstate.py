"""What the alarm policy of a device remembers: runs of abnormal rows, how frequent they are, the open incident."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedkad.detect.stream import Reading
from fedkad.edge.alert import AlertCause, IncidentAlert, as_number, read_incident

MAX_CHANNELS = 5
"""Channels that an alert names: someone who has looked at five sensors has found the cause or needs the plot."""

LARGEST = sys.float_info.max

MOST_BEGUN = 100
"""Incidents whose beginnings are remembered."""

BUCKETS = 60
"""The window is counted in this many parts, so that months of rows need no more memory than a minute."""

EPISODES = ("incident", "excursion", "last", "taken")
"""The fields of the state that are an episode or nothing."""


@dataclass(slots=True)
class Episode:
    """What is known of a run of abnormal rows.

    `worst` is the time of the row with the highest score, which `seen`, `expected`, `witness` and `sentence` belong to;
    None if an older version, which did not keep it, has counted that row.
    """

    start: float
    last: float
    samples: int = 0
    peak: float = -math.inf
    worst: float | None = None
    critical: bool = False
    total: float = 0.0
    shares: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    witness: str = ""
    sentence: str = ""
    departed: str = (
        ""  # the channel that was farthest from where it has been when an incident began, if it had just left
    )

    def add(self, time: float, critical: bool, reading: Reading) -> None:
        """Count one abnormal row."""
        score, shares = min(float(reading.score), LARGEST), reading.shares.tolist()
        self.last, self.samples = time, self.samples + 1
        self.critical = self.critical or critical
        if score > self.peak or len(self.seen) != len(shares):
            self.peak, self.worst = max(score, self.peak), time
            self.seen, self.expected = reading.seen.tolist(), reading.expected.tolist()
            if explanation := reading.explanation:
                self.witness, self.sentence = explanation.kind, explanation.sentence
        if score < 1e300 and all(map(math.isfinite, shares)):
            self.total += score
            self.shares = _sums(self.shares, shares)

    def joined(self, later: Episode) -> Episode:
        """Both as one; the other began later, and may be over already."""
        worse = later if later.peak > self.peak else self
        return replace(
            worse,
            start=min(self.start, later.start),
            last=max(self.last, later.last),
            samples=self.samples + later.samples,
            critical=self.critical or later.critical,
            total=self.total + later.total,
            shares=_sums(self.shares, later.shares),
            departed=later.departed or self.departed,
        )

    def state(self) -> dict[str, Any]:
        """All fields for JSON, which has no NaN: None stands for it."""
        return {k: [as_number(x) for x in v] if isinstance(v, list) else v for k, v in asdict(self).items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Episode:
        """The inverse of `state`."""
        lists = {k: [math.nan if x is None else x for x in v] for k, v in state.items() if isinstance(v, list)}
        return cls(**{**state, **lists})

    def forget_channels(self) -> None:
        """Drop sums over channels that have changed."""
        self.total, self.shares, self.seen, self.expected = 0.0, [], [], []
        self.witness = self.sentence = self.departed = ""

    def cause(self, channels: Sequence[str]) -> str:
        """The channel with the largest share of all scores so far; empty if that is not known."""
        return channels[max(range(len(channels)), key=self.shares.__getitem__)] if self._is_of(channels) else ""

    def about(self, channels: Sequence[str]) -> list[int]:
        """The channels that it is about, by index: that with the largest share, and that which departed.

        The two differ where a new set-point is farther from what is known than all that follows it.
        """
        return [k for k, name in enumerate(channels) if name in (self.cause(channels), self.departed)]

    def _is_of(self, channels: Sequence[str]) -> bool:
        return self.total > 0.0 and len(self.shares) == len(channels)

    def causes(self, channels: Sequence[str]) -> tuple[AlertCause, ...]:
        """The channels with the largest shares of all scores so far, each with its values at the worst row."""
        if not self._is_of(channels):
            return ()
        order = sorted(range(len(channels)), key=lambda k: -self.shares[k])[:MAX_CHANNELS]
        return tuple(
            AlertCause(
                channels[k],
                as_number(round(min(max(self.shares[k] / self.total, 0.0), 1.0), 4)),
                as_number(self.seen[k]),
                as_number(self.expected[k]),
            )
            for k in order
        )


def _sums(before: list[float], more: list[float]) -> list[float]:
    """The sums of two lists, either of which may be empty."""
    return [a + b for a, b in zip(before, more, strict=False)] or before or more


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
        """The scored and the abnormal rows in the parts that begin after that time."""
        counted = [bucket for bucket in self.buckets if bucket[0] * self.width > time]
        return sum(bucket[1] for bucket in counted), sum(bucket[2] for bucket in counted)

    @property
    def value(self) -> float:
        """The share of abnormal rows among the scored rows; NaN without any."""
        scored, abnormal = self.since(-math.inf)
        return abnormal / scored if scored else math.nan


@dataclass(slots=True)
class AlarmState:
    """All that the policy remembers; `channels` are those of the episodes."""

    incidents: int = 0  # begun so far
    watched: float = 0.0  # seconds scored so far
    time: float = -math.inf  # of the last scored row, as are score and threshold
    score: float = math.nan
    threshold: float = math.nan
    open: IncidentAlert | None = None  # the last alert of the open incident
    said: float = -math.inf  # time of the last alert
    updates: int = 0  # of the open incident that told nothing new
    begun: list[float] = field(default_factory=list)  # when the last incidents began, or came back
    away: dict[str, float] = field(default_factory=dict)  # since when channels are where they have not been
    astray: bool = False  # whether the open incident went where the device has not been
    quiet: float | None = None  # since when an open incident has been quiet
    told: float = -math.inf  # rows up to this time belong to a reported incident, and do not count towards a rate
    cool_until: float = -math.inf  # until then only a critical score begins an incident
    echo_until: float = -math.inf  # until then the last incident may come back without being news,
    echo_channels: list[str] = field(default_factory=list)  # in these channels,
    echo_peak: float = -math.inf  # up to this score
    last_id: str = ""  # of the last incident
    last_acknowledged: str | None = None
    channels: list[str] = field(default_factory=list)
    incident: Episode | None = None
    excursion: Episode | None = None
    last: Episode | None = None  # the last incident, if it may come back
    taken: Episode | None = None  # the last incident, if it was taken for normal
    recent: list[Episode] = field(default_factory=list)  # at most two, too short for an incident: part of a rate

    def to_json(self) -> dict[str, Any]:
        """All fields for JSON, where None stands for NaN and infinity."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> AlarmState:
        """The inverse of `to_json`; fields that are None or missing keep their defaults."""
        known = {name: state[name] for name in cls.__slots__ if state.get(name) is not None}
        known |= {name: Episode.restored(known[name]) for name in EPISODES if name in known}
        if "open" in known:
            known["open"] = read_incident(known["open"])
        return cls(**{**known, "recent": [Episode.restored(each) for each in state.get("recent", [])]})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return as_number(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, IncidentAlert):
        return value.to_json()
    return value.state() if isinstance(value, Episode) else value
