"""What the agent reports about a device: on a broker, to Prometheus and on standard output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkad.detect.stream import Reading
from fedkad.detect.threshold import SECONDS, parse_budget
from fedkad.edge.alarms import Alarms, Alert
from fedkad.edge.alerttext import format_time

STATES = ("ok", "waiting", "learning", "warming", "gap", "stale", "maintenance")
"""The states of a device; an incident may be open in most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """A device now.

    Attributes
    ----------
    state : str
        One of `STATES`.
    progress : dict, optional
        How far the first model, or the window, has come: have and need.
    time : float, optional
        Of the last row, in seconds since 1970.
    score, threshold, abnormal
        Of the last row.
    rate : float, optional
        Share of abnormal rows in `rate_window`.
    why : str, optional
        Why the device is stale or its window broken.
    budget : dict, optional
        False alarms allowed, and alarms measured.
    incident : dict, optional
        The last alert of the open incident.
    counters : mapping
        By the names of the counters in `fedkad.edge.sinks.prometheus`.
    """

    state: str
    progress: Mapping[str, int] | None = None
    time: float | None = None
    score: float | None = None
    threshold: float | None = None
    abnormal: bool = False
    rate: float | None = None
    why: str | None = None
    budget: Mapping[str, Any] | None = None
    incident: Alert | None = None
    counters: Mapping[str, int] | None = None

    def payload(self) -> dict[str, Any]:
        """The state as it is published.

        >>> incident = {"id": "pump-1-1", "channels": [{"channel": "flow", "share": 0.6, "seen": 3.2, "expected": 5.1}]}
        >>> payload = DeviceStatus(state="ok", time=0.0, score=9.5, incident=incident).payload()
        >>> payload["time"], payload["state"], payload["score"], payload["threshold"], payload["cause"]
        ('1970-01-01T00:00:00.000Z', 'ok', 9.5, None, 'flow')
        """
        names = ("score", "threshold", "abnormal", "rate", "progress", "why", "budget")
        causes = self.incident.get("channels") if self.incident else None
        return {
            "state": self.state,
            "time": None if self.time is None else format_time(self.time),
            **{name: getattr(self, name) for name in names},
            "cause": causes[0]["channel"] if causes else None,
            "incident": self.incident,
        }

    def metrics(self) -> dict[str, float]:
        """The numbers for Prometheus; those without a value are left out."""
        gauges: dict[str, float | None] = {"score": self.score, "threshold": self.threshold, "abnormal": self.abnormal}
        budget = self.budget or {}
        gauges["anomaly_rate"] = self.rate
        gauges["incident_open"] = self.incident is not None
        if budget.get("measured_per_week") is not None:
            gauges["alarms_per_week"] = budget["measured_per_week"]
            gauges["alarms_allowed_per_week"] = budget["allowed_per_week"]
        gauges |= {name: self.state == name for name in ("warming", "learning", "stale", "gap", "maintenance")}
        return {name: float(value) for name, value in {**gauges, **(self.counters or {})}.items() if value is not None}


def budget_status(budget: str, alarms: Alarms) -> dict[str, Any] | None:
    """The false alarms allowed per week, and the alarms measured, false or not; None without a budget."""
    allowed = parse_budget(budget) if budget else None
    if allowed is None:
        return None
    return {
        "allowed": budget,
        "allowed_per_week": allowed * SECONDS["week"],
        "measured_per_week": alarms.per_second * SECONDS["week"] if alarms.watched else None,
        "watched_hours": alarms.watched / SECONDS["hour"],
    }


def reading_line(
    device: str, time: float | None, state: str, progress: Mapping[str, int] | None, reading: Reading | None
) -> dict[str, Any]:
    """One reading for a line of JSON, with the three channels that contribute most to its score."""
    line: dict[str, Any] = {"device": device, "time": time, "state": state}
    if progress:
        line["progress"] = progress
    if reading is not None and reading.state == "ok" and state != "stale":
        score = reading.score if reading.score > 0.0 else 1.0
        channels = [{"channel": name, "share": share / score} for name, share in reading.channels[:3]]
        line |= {"score": reading.score, "threshold": reading.threshold, "abnormal": reading.is_anomaly}
        line |= {"channels": channels}
    return line
