"""The state of a device: what a broker and Prometheus are told about it, and when it is stale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkad.detect.threshold import SECONDS, parse_budget
from fedkad.edge.alarms import Alarms
from fedkad.edge.alert import FaultAlert, IncidentAlert, format_time
from fedkad.edge.alerttext import span
from fedkad.edge.settings import BY_PERIOD, Sampling

STATES = ("ok", "waiting", "learning", "warming", "gap", "stale", "maintenance", "muted")
"""The states of a device; an incident may be open in most of them."""


AWAITED = 7200.0
"""Seconds that a channel has to come for the first time: many sensors give a sign of life once an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """A device now, with the time, score and threshold of its last row; `state` is one of `STATES`."""

    state: str
    progress: Mapping[str, float] | None = None  # how far the first model, or the window, has come: have, need, seconds
    time: float | None = None  # seconds since 1970
    score: float | None = None
    threshold: float | None = None
    abnormal: bool = False
    rate: float | None = None  # share of abnormal rows in `rate_window`
    why: str | None = None  # the device is stale, or its window broken
    budget: Mapping[str, Any] | None = None  # false alarms allowed, and alarms measured
    incident: IncidentAlert | None = None  # the last alert of the open incident
    faults: Sequence[FaultAlert] = ()  # the faults of sensors that are open, as they are now
    muted: float | None = None  # until when, in seconds since 1970; None if it is not
    heard: float | None = None  # when the last sample arrived, in seconds since 1970
    counters: Mapping[str, int] | None = None  # by the names in `fedkad.edge.sinks.prometheus`

    def payload(self) -> dict[str, Any]:
        """The state as it is published.

        >>> payload = DeviceStatus(state="ok", time=0.0, score=9.5).payload()
        >>> payload["time"], payload["state"], payload["score"], payload["threshold"], payload["cause"]
        ('1970-01-01T00:00:00.000Z', 'ok', 9.5, None, None)
        """
        names = ("score", "threshold", "abnormal", "rate", "progress", "why", "budget")
        faults = sorted(self.faults, key=lambda fault: bool(fault.acknowledged))  # screens show the first one
        causes = self.incident.channels if self.incident else faults
        return {
            "state": self.state,
            "time": None if self.time is None else format_time(self.time),
            **{name: getattr(self, name) for name in names},
            "cause": causes[0].channel if causes else None,
            "incident": None if self.incident is None else self.incident.to_json(),
            "faults": [fault.to_json() for fault in faults],
            "muted": None if self.muted is None else format_time(self.muted),
        }

    def metrics(self) -> dict[str, float]:
        """The numbers for Prometheus; those without a value are left out."""
        gauges: dict[str, float | None] = {"score": self.score, "threshold": self.threshold, "abnormal": self.abnormal}
        budget = self.budget or {}
        gauges["anomaly_ratio"] = self.rate
        gauges["last_sample_timestamp_seconds"] = self.heard
        gauges["incident_open"] = self.incident is not None
        gauges["faults_open"] = len(self.faults)
        if budget.get("measured_per_week") is not None:
            gauges["alarms_per_week"] = budget["measured_per_week"]
            gauges["alarms_allowed_per_week"] = budget["allowed_per_week"]
            gauges["threshold_ratio"] = budget["threshold_factor"]
        gauges |= {name: self.state == name for name in ("warming", "learning", "stale", "gap", "maintenance")}
        gauges["muted"] = self.state == "muted" or self.muted is not None  # also while no row comes
        return {name: float(value) for name, value in {**gauges, **(self.counters or {})}.items() if value is not None}


def budget_status(budget: str, alarms: Alarms, factor: float) -> dict[str, Any] | None:
    """The false alarms allowed per week, the alarms measured, false or not, and how the threshold follows them."""
    allowed = parse_budget(budget) if budget else None
    if allowed is None:
        return None
    return {
        "allowed": budget,
        "allowed_per_week": allowed * SECONDS["week"],
        "measured_per_week": alarms.incidents / alarms.watched * SECONDS["week"] if alarms.watched else None,
        "watched_hours": alarms.watched / SECONDS["hour"],
        "threshold_factor": factor,
    }


class Staleness:
    """Keeps when samples and rows came, on the monotonic clock that the caller passes as `now`.

    A device that `is_known` has sent before, to an agent that ran earlier.

    >>> staleness = Staleness(Sampling(period=1.0, stale_after=10.0), now=0.0)
    >>> staleness.note_sample(5.0)
    >>> staleness.note_row(5.0)
    >>> staleness.check(14.0), staleness.check(16.0), staleness.check(17.0), staleness.reason
    (False, True, False, 'no sample has come for 12 s')
    """

    def __init__(self, sampling: Sampling, now: float, *, is_known: bool = False) -> None:
        self._sampling, self._is_known = sampling, is_known
        self._last_sample = self._last_row = now
        self._was_heard = self._has_unflushed = False
        self.reason = ""  # why the device is stale; empty while it is not
        self.is_heard = False  # whether it is stale although samples come

    def note_sample(self, now: float) -> None:
        """A sample has come."""
        self._last_sample, self._was_heard, self._has_unflushed = now, True, True

    def note_row(self, now: float) -> None:
        """A row was judged."""
        self._last_row, self.reason, self.is_heard = now, "", False

    def lasted(self, now: float) -> float:
        """Seconds since the last row, or since the agent was started."""
        return now - self._last_row

    def is_flush_due(self, now: float) -> bool:
        """Whether open slots of the grid should be closed because nothing more comes; True once per silence."""
        is_due = self._has_unflushed and now - self._last_sample > self._sampling.lateness + self._sampling.period
        self._has_unflushed = self._has_unflushed and not is_due
        return is_due

    def check(self, now: float, rhythm: float = 0.0, *, awaits: bool = False) -> bool:
        """Whether the device has become stale; True once, and from then on `reason` says why, until now.

        Without a written `stale_after` it may be silent for twice as long as it is by its rhythm, and a channel that
        it `awaits`, because it has never come, has longer.
        """
        is_written = self._sampling.stale_after != BY_PERIOD
        allowed = self._sampling.silent_after if is_written else max(self._sampling.silent_after, 2.0 * rhythm)
        is_heard = self._was_heard and now - self._last_sample < allowed
        patience = max(allowed, AWAITED) if is_heard and awaits and not is_written else allowed
        if not self.reason and now - self._last_row <= patience:
            return False
        was_stale, self.is_heard = bool(self.reason), is_heard
        self.reason = self._why(now)
        return not was_stale

    def _why(self, now: float) -> str:
        if not self._was_heard:
            advice = "" if self._is_known else "; check its name, and topics or path in [source]"
            return f"no sample has come since the agent was started{advice}"
        if self.is_heard:
            return f"samples come, but none could be judged for {span(round(now - self._last_row))}"
        return f"no sample has come for {span(round(now - self._last_sample))}"
