"""The stored state of the alarms, also that of earlier versions, and what other processes read in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedkad.edge.alarms.episode import Episode
from fedkad.edge.alarms.phases import IDLE, Cooling, Incident, Open, OpenPhase, Phase, Quiet, Suspect, Waiting, name_of
from fedkad.edge.alert import IncidentAlert, Kind, as_number, read_incident

PHASES = {name_of(kind): kind for kind in (Open, Quiet, Waiting)}


def phase_state(phase: Phase) -> dict[str, Any]:
    """Return a phase for JSON."""
    state: dict[str, Any] = {"phase": name_of(phase)}
    match phase:
        case Suspect(excursion):
            state |= {"episode": excursion.to_json()}
        case Cooling(until, excursion):
            state |= {"until": as_number(until), "episode": excursion and excursion.to_json()}
        case Open(incident, beside):
            state |= {"incident": _incident_state(incident), "episode": beside and beside.to_json()}
        case Quiet(incident, since) | Waiting(incident, since):
            state |= {"incident": _incident_state(incident), "since": as_number(since)}
    return state


def _incident_state(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "kind": incident.kind.value,
        "acknowledged": incident.acknowledged,
        "astray": incident.is_astray,
        "updates": incident.updates,
        "told": as_number(incident.alerted_at),
        "episode": incident.episode.to_json(),
        "alert": incident.alert and incident.alert.to_json(),
    }


def restored_phase(state: Mapping[str, Any]) -> Phase:
    """Return the phase of which `phase_state` made this."""
    episode = Episode.from_json(state["episode"]) if state.get("episode") else None
    match state.get("phase"):
        case "suspect" if episode:
            return Suspect(episode)
        case "cooling":
            return Cooling(state["until"], episode)
        case "open":
            return Open(_restored_incident(state["incident"]), episode)
        case "quiet" | "waiting" as name:
            return PHASES[name](_restored_incident(state["incident"]), state["since"])
        case _:
            return IDLE


def _restored_incident(state: Mapping[str, Any]) -> Incident:
    return Incident(
        id=state["id"],
        kind=Kind(state["kind"]),
        episode=Episode.from_json(state["episode"]),
        acknowledged=state["acknowledged"],
        is_astray=state["astray"],
        updates=state["updates"],
        alert=read_incident(state["alert"]),
        alerted_at=state["told"],
    )


def upgraded(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state of this version; earlier ones had no phase, but fields that together said which it was."""
    if not state or "phase" in state:
        return state
    recurrence = {
        "until": state.get("echo_until"),
        "channels": state.get("echo_channels"),
        "peak": state.get("echo_peak"),
        "id": state.get("last_id"),
        "acknowledged": state.get("last_acknowledged"),
        "updates": state.get("updates"),
        "last": state.get("last"),
        "accepted": state.get("taken"),
    }
    if state.get("incident"):
        alert = state["open"]
        incident = {
            "id": alert["id"],
            "kind": alert["kind"],
            "acknowledged": alert.get("acknowledged"),
            "astray": state.get("astray", False),
            "updates": state.get("updates", 0),
            "told": state["said"],
            "episode": state["incident"],
            "alert": alert,
        }
        name = "open" if state.get("quiet") is None else "quiet"
        phase = {"phase": name, "incident": incident, "since": state.get("quiet"), "episode": state.get("excursion")}
    elif state.get("cool_until") is not None:
        phase = {"phase": "cooling", "until": state["cool_until"], "episode": state.get("excursion")}
    else:
        phase = {"phase": "suspect", "episode": state.get("excursion"), "incident": None}
    return {**state, "incident": None, **phase, "recurrence": recurrence}


def open_incident(state: Mapping[str, Any]) -> IncidentAlert | None:
    """Return the last alert of the incident that is open in a stored state, with how long that has lasted by now.

    It is told less and less. The peak is that of all rows.
    """
    state = upgraded(state)
    phase = restored_phase(state)
    if not isinstance(phase, OpenPhase) or phase.incident.alert is None:
        return None
    episode = phase.incident.episode
    lasted = max(state["time"] - episode.start, 0.0)  # the clock may have been set back
    return replace(phase.incident.alert, duration=lasted, peak=episode.peak)
