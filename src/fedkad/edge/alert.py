"""What the agent tells: alerts about incidents and about faults of sensors, as values.

Only this module knows their JSON. Times are seconds since 1970 in whole milliseconds; they become text in `to_json`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_TIME, _LAST_TIME = -62135596800.0, 253402300799.0  # years 1 and 9999, the range of a datetime


class AlertEvent(StrEnum):
    """Where in the life of an incident or a fault an alert stands."""

    START = "start"
    UPDATE = "update"
    END = "end"


class Kind(StrEnum):
    """What an alert is about: scores above the threshold, many short excursions, or a sensor."""

    SCORE = "score"
    RATE = "rate"
    HEALTH = "health"


class Severity(StrEnum):
    """How bad it is."""

    WARNING = "warning"
    CRITICAL = "critical"


class Reason(StrEnum):
    """Why there is an alert."""

    # an incident begins
    THRESHOLD = "threshold"
    RATE = "rate"
    # it goes on
    WORSE = "worse"
    AGAIN = "again"
    ANOTHER = "another"
    STILL = "still"
    ACKNOWLEDGED = "acknowledged"
    # it ends
    CLEARED = "cleared"
    SETTLED = "settled"
    NORMAL = "normal"
    UNDONE = "undone"
    RELEARN = "relearn"
    NO_MODEL = "no model"
    # it ends, and so does a fault
    MAINTENANCE = "maintenance"
    MUTED = "muted"
    # a fault begins and ends
    FAULT = "fault"
    RECOVERED = "recovered"
    CHANNEL_REMOVED = "channel removed"


class FaultKind(StrEnum):
    """What is wrong with a sensor, or with the device."""

    SILENT = "silent"
    CHANNEL_SILENT = "channel silent"
    STUCK = "stuck"
    IMPOSSIBLE = "impossible"
    PERIOD = "period"


@dataclass(frozen=True, slots=True)
class AlertCause:
    """A channel with its share of the scores of an incident, and its values at the worst row."""

    channel: str
    share: float | None
    seen: float | None
    expected: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"channel": self.channel, "share": self.share, "seen": self.seen, "expected": self.expected}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What alerts about incidents and about faults have in common; numbers that JSON does not have are None."""

    id: str  # of the incident or the fault
    device: str
    event: AlertEvent
    kind: Kind
    severity: Severity
    start: float  # of the incident or the fault
    time: float
    duration: float
    sentence: str = ""
    acknowledged: str | None = None  # by whom
    reason: Reason
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _in_milliseconds(self.start))
        object.__setattr__(self, "time", _in_milliseconds(self.time))

    def to_json(self) -> dict[str, Any]:
        """Return the alert as it is stored and delivered, ready for JSON."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAlert(Alert):
    """An alert about an incident: `worst` is when its score was highest, which `channels` and `sentence` are about."""

    score: float | None
    peak: float | None
    worst: float | None = None
    threshold: float | None
    rate: float | None
    samples: int
    channels: tuple[AlertCause, ...] = ()
    witness: str = ""
    provisional: bool = False

    def __post_init__(self) -> None:
        Alert.__post_init__(self)
        object.__setattr__(self, "worst", None if self.worst is None else _in_milliseconds(self.worst))

    def to_json(self) -> dict[str, Any]:
        """Return the alert as it is stored and delivered, ready for JSON."""
        return {
            "id": self.id,
            "device": self.device,
            "event": self.event.value,
            "kind": self.kind.value,
            "severity": self.severity.value,
            "start": format_time(self.start),
            "time": format_time(self.time),
            "duration": self.duration,
            "score": self.score,
            "peak": self.peak,
            "worst": None if self.worst is None else format_time(self.worst),
            "threshold": self.threshold,
            "rate": self.rate,
            "samples": self.samples,
            "channels": [cause.to_json() for cause in self.channels],
            "witness": self.witness,
            "sentence": self.sentence,
            "acknowledged": self.acknowledged,
            "reason": self.reason.value,
            "provisional": self.provisional,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAlert(Alert):
    """An alert about a sensor, or about the device if there is no `channel`."""

    fault: FaultKind
    channel: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the alert as it is stored and delivered, ready for JSON."""
        return {
            "id": self.id,
            "device": self.device,
            "event": self.event.value,
            "kind": self.kind.value,
            "fault": self.fault.value,
            "channel": self.channel,
            "severity": self.severity.value,
            "start": format_time(self.start),
            "time": format_time(self.time),
            "duration": self.duration,
            "sentence": self.sentence,
            "acknowledged": self.acknowledged,
            "reason": self.reason.value,
            "text": self.text,
        }


def from_json(content: Mapping[str, Any]) -> Alert:
    """Return the alert of which `to_json` made this; what an earlier version did not know has its default.

    Raises a `ValueError` if it is none.

    >>> content = {"id": "pump-1-19700101T000001Z-h1", "device": "pump-1", "event": "start", "kind": "health",
    ...     "fault": "stuck", "channel": "flow", "severity": "warning", "start": "1970-01-01T00:00:01.500Z",
    ...     "time": "1970-01-01T00:00:09.000Z", "duration": 7.5, "sentence": "flow stands still", "acknowledged": None,
    ...     "reason": "fault", "text": "pump-1: flow stands still"}
    >>> fault = from_json(content)
    >>> fault.start, fault.to_json() == content
    (1.5, True)
    """
    try:
        return _read_fault(content) if content["kind"] == Kind.HEALTH else read_incident(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an alert that cannot be read ({error!r})") from None


def read_incident(content: Mapping[str, Any]) -> IncidentAlert:
    """Return the alert about an incident of which `to_json` made this."""
    worst = content.get("worst")
    return IncidentAlert(
        **_read_common(content),
        score=content["score"],
        peak=content["peak"],
        worst=None if worst is None else _read_time(worst),
        threshold=content["threshold"],
        rate=content["rate"],
        samples=content["samples"],
        channels=tuple(AlertCause(**cause) for cause in content["channels"]),
        witness=content.get("witness", ""),
        provisional=content.get("provisional", False),
    )


def _read_fault(content: Mapping[str, Any]) -> FaultAlert:
    return FaultAlert(**_read_common(content), fault=FaultKind(content["fault"]), channel=content["channel"])


def _read_common(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": content["id"],
        "device": content["device"],
        "event": AlertEvent(content["event"]),
        "kind": Kind(content["kind"]),
        "severity": Severity(content["severity"]),
        "start": _read_time(content["start"]),
        "time": _read_time(content["time"]),
        "duration": content["duration"],
        "sentence": content.get("sentence", ""),
        "acknowledged": content.get("acknowledged"),
        "reason": Reason(content["reason"]),
        "text": content["text"],
    }


def identity(device: str, start: float, number: int, *, is_fault: bool = False) -> str:
    """Return the id of the incident or fault of a device that began then, the `number`th of its kind.

    >>> identity("pump-1", 1.5, 3), identity("pump-1", 1.5, 1, is_fault=True)
    ('pump-1-19700101T000001Z-3', 'pump-1-19700101T000001Z-h1')
    """
    return f"{device}-{_as_datetime(start):%Y%m%dT%H%M%SZ}-{'h' if is_fault else ''}{number}"


def format_time(time: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC.

    >>> format_time(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    return _as_datetime(time).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_number(value: float) -> float | None:
    """Return a number for JSON, None for NaN and infinity."""
    return float(value) if abs(value) < sys.float_info.max else None


def _read_time(text: str) -> float:
    return _seconds(datetime.fromisoformat(text))


def _in_milliseconds(time: float) -> float:
    """Return the time that `format_time` shows, as a number."""
    moment = _as_datetime(time)
    return _seconds(moment.replace(microsecond=moment.microsecond // 1000 * 1000))


def _seconds(moment: datetime) -> float:
    """Return the number that `format_time` shows as this moment: far from now, floats are less than exact."""
    time = moment.timestamp()
    return time if _as_datetime(time) >= moment else math.nextafter(time, math.inf)


def _as_datetime(time: float) -> datetime:
    """Return seconds since 1970 as a datetime, or the nearest possible one."""
    return _EPOCH + timedelta(seconds=min(max(time, _FIRST_TIME), _LAST_TIME))
