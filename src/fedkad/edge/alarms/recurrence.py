"""What is remembered of the last incident, because it may come back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedkad.detect.tracking import MARGINAL
from fedkad.edge.alarms.episode import Episode
from fedkad.edge.alert import as_number

ECHO_LASTS = 3600.0
"""Seconds after which an excursion is no echo, whatever its score."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The last incident, and until when it may come back without being news.

    `channels` and `peak` say which excursions are echoes of it, which are not told. It is `last` if what is no echo is
    told as the same incident again, and `accepted` if it was taken for normal, which may be taken back.
    """

    until: float = -math.inf
    channels: Sequence[str] = ()
    peak: float = -math.inf
    id: str = ""
    acknowledged: str | None = None
    updates: int = 0
    last: Episode | None = None
    accepted: Episode | None = None

    def is_echo(self, excursion: Episode, channels: Sequence[str], time: float) -> bool:
        """Whether an excursion is what the last incident was, and neither worse nor long."""
        if time >= self.until or excursion.cause(channels) not in self.channels:
            return False
        return excursion.peak <= MARGINAL * self.peak and time - excursion.start < ECHO_LASTS

    def taken_back(self, identity: str, sender: str, until: float) -> Recurrence:
        """Return what holds when an operator does not take that incident for normal any more.

        It is told again until then if it is still there. It is acknowledged, so that it does not become normal once
        more by itself.
        """
        if self.accepted is None or self.id != identity:
            return replace(self, until=-math.inf)
        return replace(
            self, last=self.accepted, accepted=None, acknowledged=sender, channels=(), until=until
        )  # fmt: skip

    def without_channels(self) -> Recurrence:
        """Return the same without what is known of the channels of its episodes, because they have changed."""
        last, accepted = (each and each.without_channels() for each in (self.last, self.accepted))
        return replace(self, last=last, accepted=accepted)

    def to_json(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        episodes = {name: each and each.to_json() for name, each in (("last", self.last), ("accepted", self.accepted))}
        return {**asdict(self), "until": as_number(self.until), "peak": as_number(self.peak), **episodes}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Recurrence:
        """Return what `to_json` made this of."""
        given = {name: value for name, value in state.items() if value is not None}
        return cls(**given | {name: Episode.from_json(given[name]) for name in ("last", "accepted") if name in given})
