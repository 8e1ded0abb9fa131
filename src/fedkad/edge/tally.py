"""What abnormal rows have in common, and which channels they come from."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_CHANNELS = 5
"""An alert names no more: who looks at five sensors has found it or needs the plot."""

LARGEST = sys.float_info.max


class Cause(NamedTuple):
    """A channel's part in an incident.

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
class Tally:
    """What abnormal rows have in common: since when, how many, how bad, by which channels.

    `worst` is the time of the row that `seen` and `expected` are of; None where an older version, which did not keep
    it, has counted that row.
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

    def add(self, time: float, score: float, critical: bool, explained: tuple[Array, Array, Array]) -> None:
        """Count one row."""
        shares, seen, expected = explained
        self.last, self.samples = time, self.samples + 1
        self.critical = self.critical or critical
        if score > self.peak or len(self.seen) != len(shares):
            self.peak, self.worst = max(score, self.peak), time
            self.seen, self.expected = _floats(seen), _floats(expected)
        if score < 1e300 and np.isfinite(shares).all():
            self.total += score
            self.shares = [a + b for a, b in zip(self.shares or [0.0] * len(shares), _floats(shares), strict=True)]

    def joined(self, later: Tally) -> Tally:
        """Both as one, the other being the later."""
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
        """All of it, for JSON, which has no NaN: None stands for it."""
        values = asdict(self)
        return {k: [as_number(x) for x in v] if isinstance(v, list) else v for k, v in values.items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Tally:
        """What `state()` gave."""
        lists = {k: [math.nan if x is None else x for x in v] for k, v in state.items() if isinstance(v, list)}
        return cls(**{**state, **lists})

    def forget_channels(self) -> None:
        """Other channels from now on: sums over the old ones say nothing about the new."""
        self.total, self.shares, self.seen, self.expected = 0.0, [], [], []

    def causes(self, channels: Sequence[str]) -> list[Cause]:
        """The channels with the largest shares, at most `MOST_CHANNELS`."""
        if not self.total > 0.0 or len(self.shares) != len(channels):
            return []
        order = sorted(range(len(channels)), key=lambda k: -self.shares[k])[:MOST_CHANNELS]
        portions = {k: min(max(self.shares[k] / self.total, 0.0), 1.0) for k in order}
        return [Cause(channels[k], round(portions[k], 4), self.seen[k], self.expected[k]) for k in order]


def as_number(value: float) -> float | None:
    """A number that JSON has, or None."""
    return float(value) if abs(value) < LARGEST else None


def _floats(values: Any) -> list[float]:
    return [float(value) for value in np.asarray(values).tolist()]
