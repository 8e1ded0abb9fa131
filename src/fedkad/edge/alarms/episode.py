"""What is known of a run of abnormal rows."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedkad.detect.stream import Reading
from fedkad.edge.alert import AlertCause, as_number

MAX_CHANNELS = 5
"""Channels that an alert names: someone who has looked at five sensors has found the cause or needs the plot."""

LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Episode:
    """A run of abnormal rows, or several of them.

    `worst` is the time of the row with the highest score, which `seen`, `expected`, `witness` and `sentence` belong to;
    None if an older version, which did not keep it, has counted that row. `departed` is the channel that was farthest
    outside its known ranges when an incident began, if it had just left them.
    """

    start: float
    last: float
    samples: int = 0
    peak: float = -math.inf
    worst: float | None = None
    critical: bool = False
    total: float = 0.0
    shares: Sequence[float] = ()
    seen: Sequence[float] = ()
    expected: Sequence[float] = ()
    witness: str = ""
    sentence: str = ""
    departed: str = ""

    def adding(self, time: float, reading: Reading, *, critical: bool) -> Episode:
        """Return the episode with one abnormal row more."""
        score, shares = min(float(reading.score), LARGEST), reading.shares.tolist()
        changes: dict[str, Any] = {
            "last": time, "samples": self.samples + 1, "critical": self.critical or critical
        }  # fmt: skip
        if score > self.peak or len(self.seen) != len(shares):
            changes |= {"peak": max(score, self.peak), "worst": time}
            changes |= {"seen": reading.seen.tolist(), "expected": reading.expected.tolist()}
            if explanation := reading.explanation:
                changes |= {"witness": explanation.kind, "sentence": explanation.sentence}
        if score < 1e300 and all(map(math.isfinite, shares)):  # sums stay finite
            changes |= {"total": self.total + score, "shares": _sums(self.shares, shares)}
        return replace(self, **changes)

    def joined(self, later: Episode) -> Episode:
        """Return both as one; the other began later, and may be over already."""
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

    def without_channels(self) -> Episode:
        """Return the episode without what is known of its channels, because they have changed."""
        return replace(
            self, total=0.0, shares=(), seen=(), expected=(), witness="", sentence="", departed=""
        )  # fmt: skip

    def cause(self, channels: Sequence[str]) -> str:
        """Return the channel with the largest share of all scores so far; empty if that is not known."""
        return channels[max(range(len(channels)), key=self.shares.__getitem__)] if self._is_of(channels) else ""

    def about(self, channels: Sequence[str]) -> list[int]:
        """Return the channels that it is about, by index: that with the largest share, and that which departed.

        The two differ where a new set-point is farther from the known ranges than all that follows it.
        """
        return [k for k, name in enumerate(channels) if name in (self.cause(channels), self.departed)]

    def causes(self, channels: Sequence[str]) -> tuple[AlertCause, ...]:
        """Return the channels with the largest shares of all scores, each with its values at the worst row."""
        if not self._is_of(channels) or len(self.seen) != len(channels):  # the channels were others at the worst row
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

    def _is_of(self, channels: Sequence[str]) -> bool:
        return self.total > 0.0 and len(self.shares) == len(channels)

    def to_json(self) -> dict[str, Any]:
        """Return all fields for JSON, which has no NaN: None stands for it."""
        return {k: [as_number(x) for x in v] if isinstance(v, list | tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Episode:
        """Return the episode of which `to_json` made this."""
        lists = {k: [math.nan if x is None else x for x in v] for k, v in state.items() if isinstance(v, list)}
        return cls(**{**state, **lists})


def _sums(before: Sequence[float], more: Sequence[float]) -> Sequence[float]:
    """Return the sums of two lists, either of which may be empty."""
    return [a + b for a, b in zip(before, more, strict=False)] or before or more
