"""What the agent tells: alerts about incidents and about faults of sensors, as values.

Only this module knows their JSON. Times are seconds since 1970 in whole milliseconds; they become text in `to_json`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

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
    THRESHOLD = "threshold"  # scores were above it for `min_duration`
    RATE = "rate"  # many rows of `rate_window` were abnormal
    # it goes on
    WORSE = "worse"  # it has become critical
    AGAIN = "again"  # it was over, and is there again
    ANOTHER = "another"  # another channel scores higher than it ever did
    STILL = "still"  # nothing new: a reminder
    ACKNOWLEDGED = "acknowledged"  # an operator knows of it
    # it ends
    CLEARED = "cleared"  # rows have been quiet for long enough
    SETTLED = "settled"  # it has lasted for `settle`, and is the new normal
    UNDONE = "undone"  # an operator took back that it was normal
    RELEARN = "relearn"  # the device learns from the beginning, as an operator wants
    NO_MODEL = "no model"  # the model that judged it is gone
    # it ends, and so does a fault
    NORMAL = "normal"  # an operator says so
    MAINTENANCE = "maintenance"  # it was planned for this time
    MUTED = "muted"  # an operator wants no alerts for a while
    # a fault begins and ends
    FAULT = "fault"  # a sensor says what cannot be, or nothing
    RECOVERED = "recovered"  # it works again
    CHANNEL_REMOVED = "channel removed"  # the settings no longer name its channel


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What alerts about incidents and about faults have in common; numbers that JSON does not have are None."""

    KEYS: ClassVar[tuple[str, ...]]

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
        for name in TIMES:
            if (time := getattr(self, name, None)) is not None:
                object.__setattr__(self, name, _in_milliseconds(time))

    def to_json(self) -> dict[str, Any]:
        """Return the alert as it is stored and delivered, ready for JSON."""
        return {name: _plain(name, getattr(self, name)) for name in self.KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAlert(Alert):
    """An alert about an incident: `worst` is when its score was highest, which `channels` and `sentence` are about."""

    KEYS = (
        *("id", "device", "event", "kind", "severity", "start", "time", "duration", "score", "peak", "worst"),
        *("threshold", "rate", "samples", "channels", "witness", "sentence", "acknowledged", "reason"),
        *("provisional", "text"),
    )

    score: float | None = None
    peak: float | None = None
    worst: float | None = None
    threshold: float | None = None
    rate: float | None = None
    samples: int
    channels: tuple[AlertCause, ...] = ()
    witness: str = ""
    provisional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAlert(Alert):
    """An alert about a sensor, or about the device if there is no `channel`."""

    KEYS = (
        *("id", "device", "event", "kind", "fault", "channel", "severity", "start", "time", "duration"),
        *("sentence", "acknowledged", "reason", "text"),
    )

    fault: FaultKind
    channel: str | None = None


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
        return FaultAlert(**_read(FaultAlert, content)) if content["kind"] == Kind.HEALTH else read_incident(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an alert that cannot be read ({error!r})") from None


def read_incident(content: Mapping[str, Any]) -> IncidentAlert:
    """Return the alert about an incident of which `to_json` made this."""
    return IncidentAlert(**_read(IncidentAlert, content))


def _read(kind: type[Alert], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are given, as values."""
    return {name: READERS.get(name, _same)(content[name]) for name in kind.KEYS if content.get(name) is not None}


def _plain(name: str, value: Any) -> Any:
    """Return a field for JSON."""
    if name in TIMES:
        return None if value is None else format_time(value)
    if isinstance(value, tuple):
        return [asdict(cause) for cause in value]
    return value.value if isinstance(value, StrEnum) else value


def _same(value: Any) -> Any:
    return value


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


def _read_causes(causes: Iterable[Mapping[str, Any]]) -> tuple[AlertCause, ...]:
    return tuple(AlertCause(**cause) for cause in causes)


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


TIMES = ("start", "time", "worst")
READERS: Mapping[str, Callable[[Any], Any]] = {
    "event": AlertEvent,
    "kind": Kind,
    "severity": Severity,
    "reason": Reason,
    "fault": FaultKind,
    "channels": _read_causes,
    **dict.fromkeys(TIMES, _read_time),
}
"""How fields that are no plain values are read."""
