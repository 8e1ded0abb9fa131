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
    device, why = alert["device"], _reasons(causes, _when(alert))
    if alert["event"] == "end":
        return "; ".join([f"{device}: {_ending(alert)}", *why, f"peak {_short(alert['peak'])}"])
    if alert["kind"] == "rate":
        numbers = f"{_percent(alert['rate'])} of the last {_span(window)} abnormal"
    else:
        numbers = f"score {_short(alert['score'])}, threshold {_short(alert['threshold'])}"
    news = {"worse": ", now critical", "still": f", for {_span(alert['duration'])}"}.get(alert["reason"], "")
    return f"{device}{news}: {'; '.join([*why, numbers])}"


def _when(alert: Mapping[str, Any]) -> str:
    """What is said before values that are not those of now: they are of the worst row.

    >>> _when({"time": "2026-03-01T14:40:00.000Z", "worst": "2026-03-01T14:14:00.000Z"})
    'at worst (14:14Z) '
    >>> _when({"time": "2026-03-02T00:05:00.000Z", "worst": "2026-03-01T23:59:58.000Z"})
    'at worst (2026-03-01T23:59:58Z) '
    """
    worst, time = alert["worst"], alert["time"]
    if worst == time:
        return ""
    if worst is None:
        return "at worst "
    shown = worst[11:19] if worst[:10] == time[:10] else worst[:19]
    return f"at worst ({shown.removesuffix(':00')}Z) "


def _ending(alert: Mapping[str, Any]) -> str:
    span = _span(alert["duration"])
    if alert["reason"] == "maintenance":
        return f"ended by maintenance after {span}"
    return f"over, lasted {'one sample' if alert['samples'] == 1 else span}"


def _reasons(causes: Sequence[Cause], when: str) -> list[str]:
    """The first channel with its values and the second with its share, as one clause; none if nothing is known."""
    if not causes:
        return []
    first, *others = causes
    text = first.channel
    if math.isfinite(first.seen) and math.isfinite(first.expected):
        text = "{}{} {} instead of {}".format(when, text, *_pair(first.seen, first.expected))
    text += f" ({_percent(first.share)})"
    if others and others[0].share >= WORTH_SAYING:
        text += f", then {others[0].channel} ({_percent(others[0].share)})"
    return [text]


def _pair(seen: float, expected: float) -> tuple[str, str]:
    """Two values with as many decimals as show how they differ, and no more: an expected value has endless ones.

    Two digits of the difference are shown, or one if that is at least 5, which says as much as 10 to 49 do; from 1 to
    10 a decimal always, and at the end of a number no zeros.

    >>> _pair(1013.254, 1013.561), _pair(3.2, 5.1), _pair(0.0, 12345.6)
    (('1013.25', '1013.56'), ('3.2', '5.1'), ('0', '12346'))
    >>> _pair(37.5, 37.444), _pair(37.5, 37.4804), _pair(35.81, 44.53)
    (('37.5', '37.44'), ('37.5', '37.48'), ('35.8', '44.5'))
    """
    apart = abs(seen - expected)
    if not 1e-6 < apart < 1e9 or max(abs(seen), abs(expected)) >= 1e9:
        return f"{seen:.6g}", f"{expected:.6g}"
    decimals = max(math.ceil(math.log10(5.0 / apart)), 1 if apart < 10.0 else 0)
    return _fixed(seen, decimals), _fixed(expected, decimals)


def _fixed(value: float, decimals: int) -> str:
    """A number with at most so many decimals.

    >>> _fixed(37.5, 3), _fixed(120.2, 0), _fixed(-0.001, 1)
    ('37.5', '120', '0')
    """
    text = f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 makes -0.0 positive
    return text.rstrip("0").rstrip(".") if decimals else text


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
