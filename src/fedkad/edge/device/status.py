"""The status of a device: what a broker, Prometheus and `fedkad-agent status` show of it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkad.detect.stream import Reading
from fedkad.detect.threshold import SECONDS, parse_budget
from fedkad.edge.alert import FaultAlert, IncidentAlert, Reason, format_time
from fedkad.edge.device.grid import GridRow
from fedkad.edge.device.parts import DeviceParts

STATES = ("ok", "waiting", "learning", "warming", "gap", "stale", "maintenance", "muted")
"""The states of a device; an incident may be open in most of them."""


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


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as it is now: its parts, its last row with its reading, and why it is silenced, if it is."""

    parts: DeviceParts
    row: GridRow | None
    reading: Reading | None
    silenced: Reason | None
    refused: int

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.parts.staleness.reason:
            return "stale"
        if self.silenced:
            return self.silenced.value
        if self.parts.model.stream is None:
            return "learning"
        return "waiting" if self.reading is None else self.reading.state

    def status(self) -> DeviceStatus:
        """Return all that is shown of the device."""
        reading, parts, state = self.reading, self.parts, self.state
        grid, alarms, overrides = parts.grid, parts.alarms, parts.overrides
        is_scored = reading is not None and state in ("ok", "maintenance", "muted") and reading.state == "ok"
        return DeviceStatus(
            state=state,
            progress=self.progress,
            time=None if self.row is None else self.row.time,
            score=reading.score if reading is not None and is_scored else None,
            threshold=None if reading is None else reading.threshold,
            abnormal=bool(reading is not None and is_scored and reading.is_anomaly),
            rate=None if math.isnan(alarms.rate) else alarms.rate,
            why=why_stale(parts) or self._what_is_missing() or grid.broken,
            budget=budget_status(parts),
            incident=alarms.open,
            faults=parts.health.open,
            muted=overrides.muted_until if overrides.is_muted(time.time()) else None,
            heard=parts.staleness.heard,
            counters={
                "rows": grid.rows,
                "carried": grid.carried,
                "late": grid.late,
                "duplicates": grid.duplicates,
                "off_clock": grid.off_clock,
                "refused": self.refused,
                "incidents": alarms.incidents,
                "faults": parts.health.count,
                "learnt": parts.learner.learned,
            },
        )

    def line(self) -> dict[str, Any]:
        """Return the reading as a line of JSON, with the three channels that contribute most to its score."""
        reading, state, progress = self.reading, self.state, self.progress
        time = None if self.row is None else self.row.time
        line: dict[str, Any] = {"device": self.parts.name, "time": time, "state": state}
        if progress:
            line["progress"] = progress
        if reading is not None and reading.state == "ok" and state != "stale":
            score = reading.score if reading.score > 0.0 else 1.0
            channels = [{"channel": name, "share": share / score} for name, share in reading.channels[:3]]
            line |= {"score": reading.score, "threshold": reading.threshold, "abnormal": reading.is_anomaly}
            line["channels"] = channels
        return line

    @property
    def progress(self) -> dict[str, float] | None:
        """How far the first model, or the window, has come; None if both are complete."""
        stream, reading = self.parts.model.stream, self.reading
        if stream is None or reading is None or reading.state == "ok":
            return learning_progress(self.parts)
        return {"have": stream.length - reading.missing, "need": stream.length}

    def _what_is_missing(self) -> str:
        """What is missing, in words: the period, or channels while the others are judged."""
        parts, reading = self.parts, self.reading
        if parts.period.first is not None:
            return "its period is not known yet"
        if parts.staleness.heard is not None and (unseen := parts.grid.unseen):
            return _never_come(unseen)
        absent = reading.absent if reading is not None and reading.state == "ok" else []
        return f"judged without {', '.join(absent)}" if absent else ""


def learning_progress(parts: DeviceParts) -> dict[str, float] | None:
    """Return how far the first model has come; None if there is one. Without a period at least a cycle has to pass."""
    if parts.model.stream is not None:
        return None
    need = parts.learner.needed
    if parts.period.first is not None:
        return {"have": 0, "need": parts.configured.first_rows, "seconds": parts.configured.learning.cycle}
    have = min(parts.learner.fresh, need)
    return {"have": have, "need": need, "seconds": (need - have) * parts.settings.sampling.period}


def budget_status(parts: DeviceParts) -> dict[str, Any] | None:
    """Return the false alarms allowed per week, the alarms measured, and how the threshold follows them."""
    budget, alarms, factor = parts.settings.alarm.budget, parts.alarms, parts.budget.factor if parts.budget else 1.0
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


def why_stale(parts: DeviceParts) -> str:
    """Return why the device is stale, with the channels that have never come: there is no row without them."""
    unseen = parts.grid.unseen if parts.staleness.is_heard else []
    return parts.staleness.reason + (f", since {_never_come(unseen)}" if unseen else "")


def _never_come(channels: Sequence[str]) -> str:
    return f"{', '.join(channels)} {'have' if len(channels) > 1 else 'has'} never come"
