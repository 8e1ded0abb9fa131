"""An incident in words: what a person reads on a phone, and times as everybody writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from fedkad.edge.tally import Cause

WORTH_SAYING = 0.1
"""A second channel is in the text if its share is at least this."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_TIME, _LAST_TIME = -62135596800.0, 253402300799.0  # years 1 and 9999, all that a date can say


def as_text(time: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC.

    >>> as_text(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    return as_date(time).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_date(time: float) -> datetime:
    """Seconds since 1970 as a date, the nearest that there is."""
    return _EPOCH + timedelta(seconds=min(max(time, _FIRST_TIME), _LAST_TIME))


def sentence(alert: Mapping[str, Any], causes: Sequence[Cause], window: float) -> str:
    """What a person reads on a phone."""
    device, why = alert["device"], _reasons(causes)
    after = _span(alert["duration"])
    if alert["event"] == "end":
        how = "ended by maintenance" if alert["reason"] == "maintenance" else "over"
        return "; ".join([f"{device}: {how} after {after}", *why, f"peak {_short(alert['peak'])}"])
    if alert["kind"] == "rate":
        numbers = f"{_percent(alert['rate'])} of the last {_span(window)} abnormal"
    else:
        numbers = f"score {_short(alert['score'])}, threshold {_short(alert['threshold'])}"
    opening = {"worse": f"{device}, now critical", "still": f"{device}, for {after}"}.get(alert["reason"], device)
    return f"{opening}: {'; '.join([*why, numbers])}"


def _reasons(causes: Sequence[Cause]) -> list[str]:
    """The first channel with its values and the second with its share, as one clause; none if nothing is known."""
    if not causes:
        return []
    first, *others = causes
    values = ""
    if math.isfinite(first.seen) and math.isfinite(first.expected):
        values = " {} instead of {}".format(*_pair(first.seen, first.expected))
    text = f"{first.channel}{values} ({_percent(first.share)})"
    if others and others[0].share >= WORTH_SAYING:
        text += f", then {others[0].channel} ({_percent(others[0].share)})"
    return [text]


def _pair(seen: float, expected: float) -> tuple[str, str]:
    """Two values with as many decimals as show how they differ.

    >>> _pair(1013.254, 1013.761), _pair(3.2, 5.1), _pair(0.0, 12345.6)
    (('1013.25', '1013.76'), ('3.2', '5.1'), ('0', '12346'))
    """
    apart = abs(seen - expected)
    if not 1e-6 < apart < 1e9 or max(abs(seen), abs(expected)) >= 1e9:
        return f"{seen:.6g}", f"{expected:.6g}"
    decimals = max(1 - math.floor(math.log10(apart)), 0)
    return f"{seen:.{decimals}f}", f"{expected:.{decimals}f}"


def _short(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}" if abs(value) < 1000.0 else f"{value:.5g}"


def _percent(share: float | None) -> str:
    return "some" if share is None else f"{100.0 * share:.0f} %"


def _span(seconds: float) -> str:
    """A duration for people.

    >>> _span(45.0), _span(600.0), _span(5400.0), _span(200000.0)
    ('45 s', '10 min', '1.5 h', '2.3 d')
    """
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{seconds:.3g} s"
