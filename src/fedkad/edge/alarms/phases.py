"""The phases of an incident, and what each may become.

    idle       nothing is wrong
    suspect    rows are abnormal, and too short or too few to be told
    open       an incident is told, and goes on
    quiet      it is open, and all rows are quiet
    waiting    it would be over, and waits for its level to come back, as a new level by day does after the night
    cooling    it is over; for a while only a critical score begins another one

Phases are frozen: the policy makes the next one of a phase and a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedkad.edge.alarms.episode import Episode
from fedkad.edge.alert import IncidentAlert, Kind

LONGEST_QUIET = 43200.0
"""Seconds that an incident that went astray must be quiet at most, however long it has lasted: a night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An incident that is open."""

    id: str
    kind: Kind
    episode: Episode
    acknowledged: str | None = None  # by whom
    is_astray: bool = False  # whether it went far outside the known ranges
    updates: int = 0  # that said nothing new
    alert: IncidentAlert | None = None  # the last one
    alerted_at: float  # when that was

    def clear_after(self, least: float) -> float:
        """Return how long it must be quiet; if it went astray, as long as it lasted, up to a night.

        A new level that comes by day and goes at night is one incident then, and may settle. So is a new set-point.
        """
        lasted = self.episode.last - self.episode.start
        return max(least, min(lasted, LONGEST_QUIET)) if self.is_astray else least


@dataclass(frozen=True, slots=True)
class Idle:
    """No row is abnormal."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An excursion that is not told."""

    excursion: Episode


@dataclass(frozen=True, slots=True)
class Cooling:
    """The pause after an incident, perhaps with an excursion."""

    until: float
    excursion: Episode | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """An incident that goes on; what is wrong `beside` it, in a channel that it is not about, may be told as well."""

    incident: Incident
    beside: Episode | None = None


@dataclass(frozen=True, slots=True)
class Quiet:
    """An incident of which all rows `since` then were quiet."""

    incident: Incident
    since: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """An incident that has been quiet for so long that it would be over, had it not gone astray."""

    incident: Incident
    since: float


Phase = Idle | Suspect | Cooling | Open | Quiet | Waiting
Calm = Idle | Suspect | Cooling
OpenPhase = Open | Quiet | Waiting

IDLE = Idle()

MAY_BECOME: Mapping[type[Phase], Mapping[type[Phase], str]] = {
    Idle: {Suspect: "an abnormal\nrow", Open: "abnormal for min_duration,\nor often"},
    Suspect: {Idle: "a quiet row,\na gap", Open: "abnormal for\nmin_duration, or often"},
    Open: {Quiet: "a quiet row", Cooling: "quiet, with\nclear_after 0", Idle: "a command, maintenance,\nsettled"},
    Quiet: {
        Open: "another row,\na gap",
        Waiting: "quiet for clear_after\nand cool_down,\nand was astray",
        Cooling: "quiet for\nclear_after",
        Suspect: "brief news",
        Idle: "a command, …",
    },
    Waiting: {
        Open: "its level is back,\nor news",
        Quiet: "abnormal rows\nare often",
        Cooling: "quiet for as long as it lasted",
        Suspect: "brief\nnews",
        Idle: "a command, …",
    },
    Cooling: {
        Idle: "cool_down\nis over",
        Suspect: "it is over, and\nrows are abnormal",
        Open: "a critical score,\nor it is over",
    },
}
"""What one row or one command may make of a phase, and when."""


def name_of(phase: Phase | type[Phase]) -> str:
    """Return the name of a phase.

    >>> name_of(IDLE), name_of(Waiting)
    ('idle', 'waiting')
    """
    kind = phase if isinstance(phase, type) else type(phase)
    return kind.__name__.lower()


def set_back(phase: Phase, time: float, pause: float) -> Phase:
    """Return a phase without what is in the future of a clock that was set back."""
    match phase:
        case Suspect():
            return IDLE
        case Cooling(until):
            return Cooling(min(until, time + pause))
        case Open(incident) | Quiet(incident) | Waiting(incident):
            return Open(replace(incident, alerted_at=min(incident.alerted_at, time)))
        case _:
            return phase


def without_channels(phase: Phase) -> Phase:
    """Return a phase without what is known of the channels of its episodes, because they have changed."""
    match phase:
        case Suspect(excursion):
            return Suspect(excursion.without_channels())
        case Cooling(until, excursion):
            return Cooling(until, excursion and excursion.without_channels())
        case Open(incident, beside):
            return Open(_without_channels(incident), beside and beside.without_channels())
        case Quiet() | Waiting():
            return replace(phase, incident=_without_channels(phase.incident))
        case _:
            return phase


def _without_channels(incident: Incident) -> Incident:
    return replace(incident, episode=incident.episode.without_channels())
