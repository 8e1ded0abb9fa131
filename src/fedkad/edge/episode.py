"""A run of abnormal rows: since when, how many, how bad, and which channels they come from."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedkad.detect.stream import Reading

MAX_CHANNELS = 5
"""Channels that an alert names: someone who has looked at five sensors has found the cause or needs the plot."""

LARGEST = sys.float_info.max


class ChannelShare(NamedTuple):
    """A channel's part in an episode.

    Attributes
    ----------
    channel : str
    share : float
        Its part of the scores of all abnormal rows so far, between 0 and 1.
    seen, expected : float
        In units of the channel, at the row with the highest score so far.
    """

    channel: str
    share: float
    seen: float
    expected: float


@dataclass(slots=True)
class Episode:
    """What is known of a run of abnormal rows.

    `worst` is the time of the row with the highest score, which `seen` and `expected` belong to; None if an older
    version, which did not keep it, has counted that row.
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

    def add(self, time: float, critical: bool, reading: Reading) -> None:
        """Count one abnormal row."""
        score, shares = min(float(reading.score), LARGEST), reading.shares.tolist()
        self.last, self.samples = time, self.samples + 1
        self.critical = self.critical or critical
        if score > self.peak or len(self.seen) != len(shares):
            self.peak, self.worst = max(score, self.peak), time
            self.seen, self.expected = reading.seen.tolist(), reading.expected.tolist()
        if score < 1e300 and all(map(math.isfinite, shares)):
            self.total += score
            self.shares = [a + b for a, b in zip(self.shares or [0.0] * len(shares), shares, strict=True)]

    def joined(self, later: Episode) -> Episode:
        """Both as one; the other is the later one."""
        worse = later if later.peak > self.peak else self
        shares = [a + b for a, b in zip(self.shares, later.shares, strict=False)] or self.shares or later.shares
        return replace(
            worse,
            start=min(self.start, later.start),
            last=later.last,
            samples=self.samples + later.samples,
            critical=self.critical or later.critical,
            total=self.total + later.total,
            shares=shares,
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

    def causes(self, channels: Sequence[str]) -> list[ChannelShare]:
        """The channels with the largest shares, at most `MAX_CHANNELS`."""
        if not self.total > 0.0 or len(self.shares) != len(channels):
            return []
        order = sorted(range(len(channels)), key=lambda k: -self.shares[k])[:MAX_CHANNELS]
        portions = {k: min(max(self.shares[k] / self.total, 0.0), 1.0) for k in order}
        return [ChannelShare(channels[k], round(portions[k], 4), self.seen[k], self.expected[k]) for k in order]


def as_number(value: float) -> float | None:
    """A number for JSON, None for NaN and infinity."""
    return float(value) if abs(value) < LARGEST else None
