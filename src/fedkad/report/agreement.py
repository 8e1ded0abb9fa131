"""What was found against what is known to have happened: injected faults, or labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.events import Event


class Happening(Protocol):
    """Something that was wrong in the rows `start`, …, `end` − 1."""

    @property
    def start(self) -> int:
        """The first row."""

    @property
    def end(self) -> int:
        """The row after the last."""


H = TypeVar("H", bound=Happening)


def answered(event: Event, happenings: Sequence[H], reach: int) -> tuple[H, ...]:
    """Return the happenings that an event answers: it overlaps them, or begins at most `reach` rows after them.

    A detector's window still holds faulty samples for a while after a fault, and the return to normal is itself a jump:
    an event that begins within one window after the fault belongs to it.
    """
    return tuple(h for h in happenings if event.start < h.end + reach and h.start <= event.end)


@dataclass(frozen=True)
class Agreement:
    """How events and labels agree, over one recording or several."""

    labelled: int  # stretches with a label
    found: int  # of them
    events: int
    false_alarms: int  # events that answer no label
    delays: tuple[float, ...]  # from the start of each stretch found to its first alarm; seconds, or rows
    healthy_days: float | None  # of scored rows without a label; None without times

    @property
    def precision(self) -> float:
        """Share of the events that answer a label; NaN without an event."""
        return (self.events - self.false_alarms) / self.events if self.events else float("nan")

    @property
    def recall(self) -> float:
        """Share of the labelled stretches that were found; NaN if there are none."""
        return self.found / self.labelled if self.labelled else float("nan")

    @property
    def delay(self) -> float:
        """The median delay; NaN if nothing was found."""
        return float(np.median(self.delays)) if self.delays else float("nan")

    @property
    def false_alarms_per_day(self) -> float:
        """False alarms per day of scored rows without a label; NaN if there are none, or no times."""
        return self.false_alarms / self.healthy_days if self.healthy_days else float("nan")

    def __add__(self, other: Agreement) -> Agreement:
        days = [a.healthy_days for a in (self, other)]
        return Agreement(
            self.labelled + other.labelled,
            self.found + other.found,
            self.events + other.events,
            self.false_alarms + other.false_alarms,
            self.delays + other.delays,
            None if days[0] is None or days[1] is None else days[0] + days[1],
        )


def agreement(
    events: Sequence[Event],
    happenings: Sequence[Happening],
    scored: NDArray[np.bool_],
    reach: int,
    period: float | None,
) -> Agreement:
    """Compare the events of a recording with its labels; `scored` says which rows have a score.

    >>> from fedkad.report.chart import Span
    >>> event = Event(start=12, end=15, peak=13, peak_score=9.0, threshold=5.0, causes=())
    >>> agreement([event], [Span(10, 20), Span(50, 90)], np.ones(100, dtype=bool), reach=5, period=60.0)
    Agreement(labelled=2, found=1, events=1, false_alarms=0, delays=(120.0,), healthy_days=0.034722222222222224)
    """
    answers = [answered(event, happenings, reach) for event in events]
    delays, healthy = [], scored.copy()
    for happening in happenings:
        healthy[happening.start : happening.end] = False
        starts = [event.start for event, answer in zip(events, answers, strict=True) if happening in answer]
        if starts:
            delays.append(max(min(starts) - happening.start, 0) * (period or 1.0))
    days = None if period is None else float(healthy.sum()) * period / 86_400.0
    false_alarms = sum(not answer for answer in answers)
    return Agreement(len(happenings), len(delays), len(events), false_alarms, tuple(delays), days)
