"""The text of an alert, short enough for a phone."""

from __future__ import annotations

import math

from fedkad.edge.alert import AlertEvent, IncidentAlert, Kind, Reason, format_time

MIN_SHARE = 0.1
"""A second channel is named if its share is at least this."""

ENDED_BY = {
    Reason.MAINTENANCE: "ended by maintenance",
    Reason.MUTED: "muted",
    Reason.NORMAL: "said to be normal",
    Reason.RELEARN: "ended to learn anew",
    Reason.SETTLED: "taken for the new normal",
    Reason.UNDONE: "not taken for normal any more",
    Reason.NO_MODEL: "ended without a model, which the device learns again,",
}
"""How the text of an incident's end begins, by a reason that is not in the scores."""


def alert_text(alert: IncidentAlert, window: float) -> str:
    """Say what happened, why, and how bad it is; `window` is that of the rate."""
    device = f"{alert.device}{' (provisional)' if alert.provisional else ''}"
    why = _reasons(alert, _when(alert.worst, alert.time))
    if alert.event == AlertEvent.END:
        return "; ".join([f"{device}: {_ending(alert)}", *why, f"peak {short_number(alert.peak)}"])
    if alert.kind == Kind.RATE:
        numbers = f"{_percent(alert.rate)} of the last {span(window)} abnormal"
    else:
        numbers = f"score {short_number(alert.score)}, threshold {short_number(alert.threshold)}"
    news = {
        Reason.WORSE: ", now critical",
        Reason.AGAIN: ", again",
        Reason.ANOTHER: ", and another cause",
        Reason.STILL: f", for {span(alert.duration)}",
        Reason.ACKNOWLEDGED: f", acknowledged by {alert.acknowledged}",
    }.get(alert.reason, "")
    return f"{device}{news}: {'; '.join([*why, numbers])}"


def _when(worst: float | None, time: float) -> str:
    """Return the words before values that are not current but those of the worst row.

    >>> _when(1772374440.0, 1772376000.0), _when(1772409598.0, 1772409900.0)
    ('at worst (14:14Z) ', 'at worst (2026-03-01T23:59:58Z) ')
    """
    if worst == time:
        return ""
    if worst is None:
        return "at worst "
    then, now = format_time(worst), format_time(time)
    shown = then[11:19] if then[:10] == now[:10] else then[:19]
    return f"at worst ({shown.removesuffix(':00')}Z) "


def _ending(alert: IncidentAlert) -> str:
    lasted = span(alert.duration)
    if alert.reason in ENDED_BY:
        return f"{ENDED_BY[alert.reason]} after {lasted}"
    return f"over, lasted {'one sample' if alert.samples == 1 else lasted}"


def _reasons(alert: IncidentAlert, when: str) -> list[str]:
    """Return one clause: what the leading witness says or else the first channel with its values; none without."""
    if alert.sentence:  # alerts that were open before there were witnesses have none
        return [f"{when}{alert.sentence}"]
    if not alert.channels:
        return []
    first, *others = alert.channels
    text = first.channel
    if first.seen is not None and first.expected is not None:
        text = "{}{} {} instead of {}".format(when, text, *_pair(first.seen, first.expected))
    text += f" ({_percent(first.share)})"
    if others and (others[0].share or 0.0) >= MIN_SHARE:
        text += f", then {others[0].channel} ({_percent(others[0].share)})"
    return [text]


def _pair(seen: float, expected: float) -> tuple[str, str]:
    """Two values with just enough decimals to show how they differ.

    Two digits of the difference are shown, or one if it is 5 or more; differences below 10 always get a decimal, and
    trailing zeros are dropped.

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
    """A number with at most that many decimals.

    >>> _fixed(37.5, 3), _fixed(120.2, 0), _fixed(-0.001, 1)
    ('37.5', '120', '0')
    """
    text = f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 makes -0.0 positive
    return text.rstrip("0").rstrip(".") if decimals else text


def short_number(value: float | None) -> str:
    """A number with three digits, more if it is large.

    >>> short_number(12345.6), short_number(0.12345), short_number(None)
    ('12346', '0.123', 'unknown')
    """
    return "unknown" if value is None else f"{value:.3g}" if abs(value) < 1000.0 else f"{value:.5g}"


def _percent(share: float | None) -> str:
    return "some" if share is None else f"{100.0 * share:.0f} %"


def span(seconds: float) -> str:
    """A duration in its largest unit.

    >>> span(45.0), span(600.0), span(5400.0), span(200000.0)
    ('45 s', '10 min', '1.5 h', '2.3 d')
    """
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{seconds:.3g} s"
