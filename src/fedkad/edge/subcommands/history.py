"""``fedkad-agent incidents`` and ``status``: what the store knows, as tables for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedkad.edge.alarms.stored import open_incident
from fedkad.edge.alert import Alert, AlertEvent, FaultAlert, IncidentAlert, Reason, format_time, from_json
from fedkad.edge.alerttext import short_number, span
from fedkad.edge.commands.client import StoreClient, with_known
from fedkad.edge.device.overrides import Overrides
from fedkad.edge.settings import AgentSettings, DeviceSettings, Maintenance, SettingsError
from fedkad.locks import is_held

STATUS = (
    *("device", "state", "rows", "last scored", "score", "threshold", "factor", "budget", "measured", "incidents"),
    *("open incident", "faults"),
)


def incidents(settings: AgentSettings, device: str, last: int) -> str:
    """The last incidents of a device, or of all, the newest at the end."""
    devices = with_known(settings).named
    if device and device not in devices:
        raise SettingsError(f"There is no device {device!r}; the devices are {', '.join(list(devices)[:8])}.")
    store = StoreClient(settings.state)
    alerts = as_they_are(store.incidents(device, last), store.states())
    return incident_table(alerts) if alerts else "No incidents."


def status(settings: AgentSettings) -> str:
    """Whether the agent runs, and what it knows of every device."""
    store = StoreClient(settings.state)
    states, waiting = store.states(), store.waiting()
    devices = settings.admitting(states).named
    planned = {name: [each for each in settings.maintenance if each.device in ("", name)] for name in devices}
    lines = [_status_row(name, device, states.get(name), planned[name]) for name, device in devices.items()]
    running = "runs" if is_held(settings.state / "agent.lock") else "does not run"
    commands = f"; {waiting} command(s) wait for it" if waiting else ""
    return "\n".join([f"The agent {settings.name} {running}{commands}.", "", table(STATUS, lines)])


def as_they_are(alerts: Iterable[Alert], states: Mapping[str, Mapping[str, Any]]) -> list[Alert]:
    """The alerts, those of what is open as the states of the devices describe it now."""
    opened = {each.id: each for state in states.values() for each in _opened(state)}
    return [opened.get(alert.id, alert) for alert in alerts]


def _opened(state: Mapping[str, Any]) -> Iterator[Alert]:
    """The open faults of a device, and its open incident with how long that lasts by now: it is told less and less."""
    yield from map(from_json, (state.get("health") or {}).get("open") or [])
    if incident := open_incident(state.get("alarms") or {}):
        yield incident


def incident_table(alerts: Iterable[Alert]) -> str:
    """Incidents by their last alerts."""
    head = ("start", "device", "lasted", "severity", "peak", "end", "acknowledged", "id", "what")
    return table(head, [_incident_row(alert) for alert in alerts])


def _incident_row(alert: Alert) -> Sequence[str]:
    is_closed = alert.event == AlertEvent.END or alert.reason == Reason.NORMAL
    cause = alert.channels[0].channel if isinstance(alert, IncidentAlert) and alert.channels else ""
    return (
        _shown(alert.start),
        alert.device,
        span(alert.duration),
        alert.fault if isinstance(alert, FaultAlert) else alert.severity,
        short_number(alert.peak) if isinstance(alert, IncidentAlert) else "",
        alert.reason if is_closed else "open",
        alert.acknowledged or "",
        alert.id,
        alert.sentence or cause,
    )


def _status_row(
    name: str, settings: DeviceSettings, state: Mapping[str, Any] | None, planned: Iterable[Maintenance]
) -> Sequence[str]:
    state = state or {}
    alarms, orders = state.get("alarms", {}), Overrides.restored(state.get("orders", {}))
    opened = open_incident(alarms)
    acknowledged = f", acknowledged by {opened.acknowledged}" if opened and opened.acknowledged else ""
    budget = (state.get("shown") or {}).get("budget") or {}
    measured = budget.get("measured_per_week")
    return (
        name,
        _state(state, orders, planned),
        str(state.get("seq", 0)),
        _shown(alarms["time"]) if alarms.get("time") is not None else "never",
        short_number(alarms.get("score")) if alarms.get("score") is not None else "",
        short_number(alarms.get("threshold")) if alarms.get("threshold") is not None else "",
        "" if measured is None else short_number(budget["threshold_factor"]),
        orders.applied(settings).alarm.budget,
        "" if measured is None else f"{short_number(measured)}/week",
        str(alarms.get("incidents", 0)),
        "" if opened is None else f"{opened.id}{acknowledged}",
        "; ".join(fault["sentence"] for fault in state.get("health", {}).get("open", [])),
    )


def _state(state: Mapping[str, Any], orders: Overrides, planned: Iterable[Maintenance]) -> str:
    now = time.time()
    if ends := [each.end for each in planned if each.start <= now < each.end]:
        return f"maintenance until {_shown(max(ends))}"
    if orders.is_muted(now):
        return f"mute until {_shown(orders.muted_until)}"
    if not state:
        return "no sample yet"
    if not state.get("period", 1.0):
        return "learning, its period is not known yet"
    progress = (state.get("shown") or {}).get("learning")
    if progress is None:
        return "ok"
    return f"learning, {progress['have']} of {progress['need']} rows, {span(progress['seconds'])} left"


def _shown(time: float) -> str:
    """A time, to the second.

    >>> _shown(1772367302.0)
    '2026-03-01 12:15:02Z'
    """
    return f"{format_time(time)[:19].replace('T', ' ')}Z"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows below their head, in columns; those that are empty throughout are left out.

    >>> print(table(("device", "open", "rows"), [("pump-1", "", "7"), ("fan", "", "12")]))
    device  rows
    pump-1  7
    fan     12
    """
    columns = [each for each in zip(head, *rows, strict=True) if any(each[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
