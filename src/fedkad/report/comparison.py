"""What was found against what was injected: only a simulated fleet knows both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedkad.detect.events import Event, Findings
from fedkad.simulate import Fault, Fleet

SECONDS_A_DAY = 86400.0


@dataclass(frozen=True)
class Flagged:
    """An event with the faults that it answers; none of them makes it a false alarm."""

    device: str
    event: Event
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Comparison:
    """The events and faults of one device, each in order of time.

    Attributes
    ----------
    flagged : tuple of Flagged
    missed : tuple of Fault
        Faults that no event answers.
    found : int
        Faults that an event answers.
    """

    device: str
    flagged: tuple[Flagged, ...]
    missed: tuple[Fault, ...]
    found: int

    @property
    def false_alarms(self) -> int:
        """Events that answer no fault."""
        return sum(not flagged.faults for flagged in self.flagged)


@dataclass(frozen=True)
class Tally:
    """The counts of a whole fleet; `days` is the time that was judged and in which nothing was wrong."""

    faults: int
    found: int
    false_alarms: int
    days: float

    @property
    def false_alarms_a_day(self) -> float | None:
        """False alarms per device and healthy day; None if no such time was judged."""
        return self.false_alarms / self.days if self.days > 0.0 else None


def answers(event: Event, fault: Fault, reach: int) -> bool:
    """Whether an event overlaps a fault, or begins at most `reach` rows after it.

    The window of a detector still holds faulty samples for a while after a fault, and the return to normal is itself
    a jump: an event that begins within one window after the fault belongs to it.
    """
    return event.start < fault.end + reach and fault.start <= event.end


def compare(device: str, events: Sequence[Event], faults: Sequence[Fault], reach: int) -> Comparison:
    """Hold the events of a device against its faults.

    >>> event = Event(start=12, end=15, peak=13, peak_score=9.0, threshold=5.0, causes=())
    >>> faults = [Fault("pump-1", "stuck", ("flow",), 10, 20), Fault("pump-1", "drift", ("flow",), 50, 90)]
    >>> comparison = compare("pump-1", [event], faults, reach=5)
    >>> comparison.found, [fault.kind for fault in comparison.missed], comparison.false_alarms
    (1, ['drift'], 0)
    """
    flagged = tuple(
        Flagged(device, event, tuple(fault for fault in faults if answers(event, fault, reach))) for event in events
    )
    answered = {fault for entry in flagged for fault in entry.faults}
    missed = tuple(fault for fault in faults if fault not in answered)
    return Comparison(device, flagged, missed, len(faults) - len(missed))


def tally(comparisons: Sequence[Comparison], findings: Mapping[str, Findings], fleet: Fleet) -> Tally:
    """Count over a fleet; healthy time is that of the rows with a score and without a fault."""
    healthy = sum(
        int((~np.isnan(findings[entry.device].scores) & ~fleet.labels_of(entry.device)).sum()) for entry in comparisons
    )
    return Tally(
        faults=sum(entry.found + len(entry.missed) for entry in comparisons),
        found=sum(entry.found for entry in comparisons),
        false_alarms=sum(entry.false_alarms for entry in comparisons),
        days=healthy * fleet.period / SECONDS_A_DAY,
    )
