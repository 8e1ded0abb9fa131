"""Discovery: one retained message per device, by which Home Assistant shows it without configuration.

The format is that of device-based discovery: `dev` describes the device and `o` the origin of the message, `cmps` has
one entry per entity with its platform in `p`, and `state_topic` and availability apply to all of them. An empty
retained message on the same topic removes the device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from fedkad import __version__
from fedkad.edge.device.status import STATES
from fedkad.edge.health.faults import FAULTS
from fedkad.edge.sinks import to_json
from fedkad.edge.sinks.publications import Publication, Publications

SENDER = "Home Assistant"
LONGEST_STATE = 255
"""Characters of a state in Home Assistant."""

MUTED_FOR = "1d"
"""How long the switch mutes: nobody is to be without alarms because it was forgotten."""


def discovery(
    publications: Publications, device: str, channels: Sequence[str], prefix: str = "homeassistant"
) -> Publication:
    """The message about one device, below the topic that Home Assistant listens on; `channels` may be its causes.

    The state is shown whenever the agent runs: a silent device is "stale", not gone. The device has a name that tells
    it from the one that it watches, which Home Assistant usually knows as well.

    >>> discovery(Publications(devices=("pump-1",)), "pump-1", ["flow"]).topic
    'homeassistant/device/fedkad_pump-1/config'
    """
    identity, state_topic = object_id(device, publications.prefix), publications.topic(device, "state")
    availability = publications.availability(device)
    components = _components(state_topic, channels) | _controls(publications.topic(device, "tell"))
    for name, component in components.items():
        component["unique_id"] = f"{identity}_{name}"
    components["state"] |= _available(availability[:1])
    payload = {
        "dev": {
            "ids": [identity],
            "name": f"{device} (FedKAD)",
            "mf": "FedKAD",
            "mdl": "Anomaly detector",
            "sw": __version__,
        },
        "o": {"name": "fedkad", "sw": __version__},
        "cmps": components,
        "state_topic": state_topic,
        **_available(availability),
    }
    return Publication(f"{prefix}/device/{identity}/config", to_json(payload), 1, True)


def object_id(device: str, prefix: str = "fedkad") -> str:
    """An identity for a discovery topic; a name with other characters is changed, and gets a few digits of its hash.

    >>> object_id("pump-1"), object_id("Pumpe Süd") == object_id("Pumpe Sud"), object_id("Pumpe Süd")
    ('fedkad_pump-1', False, 'fedkad_Pumpe_S_d_22c07e65')
    """
    name = f"{prefix}_{device}"
    allowed = re.sub("[^a-zA-Z0-9_-]", "_", name)
    return name if allowed == name else f"{allowed}_{sha256(name.encode()).hexdigest()[:8]}"


def _available(topics: Sequence[str]) -> dict[str, Any]:
    return {"availability": [{"topic": topic} for topic in topics], "availability_mode": "all"}


def _components(state_topic: str, channels: Sequence[str]) -> dict[str, dict[str, Any]]:
    number = {"p": "sensor", "state_class": "measurement", "suggested_display_precision": 2}
    return {
        "problem": {
            "p": "binary_sensor",
            "name": "Problem",
            "device_class": "problem",
            # A fault that somebody knows of may last for weeks, and must not hide the next one.
            "value_template": "{{ 'ON' if value_json.incident "
            "or value_json.faults | rejectattr('acknowledged') | list else 'OFF' }}",
        },
        "score": {**number, "name": "Score", "icon": "mdi:chart-line", "value_template": "{{ value_json.score }}"},
        "threshold": {
            **number,
            "name": "Threshold",
            "icon": "mdi:chart-line-variant",
            "entity_category": "diagnostic",
            "value_template": "{{ value_json.threshold }}",
        },
        "anomaly_rate": {
            **number,
            "name": "Anomaly rate",
            "icon": "mdi:percent",
            "unit_of_measurement": "%",
            # None is shown as unknown; multiplying null would be an error.
            "value_template": "{% set r = value_json.rate %}{{ r if r is none else (100 * r) | round(2) }}",
        },
        "state": {
            "p": "sensor",
            "name": "State",
            "device_class": "enum",
            "options": list(STATES),
            "entity_category": "diagnostic",
            "value_template": "{{ value_json.state }}",
        },
        "cause": {
            "p": "sensor",
            "name": "Cause",
            "icon": "mdi:magnify",
            "value_template": "{{ value_json.cause or 'none' }}",
            "json_attributes_topic": state_topic,
            "json_attributes_template": "{{ (value_json.incident or (value_json.faults or [{}])[0]) | tojson }}",
            "device_class": "enum",
            "options": list(dict.fromkeys(["none", *channels])),
        },
        "alert": {
            "p": "sensor",
            "name": "Alert",
            "icon": "mdi:message-alert",
            "value_template": "{% set found = value_json.incident or (value_json.faults or [{'text': 'none'}])[0] %}"
            f"{{{{ found.text[:{LONGEST_STATE}] }}}}",
        },
        "progress": {
            "p": "sensor",
            "name": "Learning progress",
            "icon": "mdi:school-outline",
            "unit_of_measurement": "%",
            "entity_category": "diagnostic",
            # The progress of a window that fills up has no seconds: then there is a model.
            "value_template": "{% set p = value_json.progress %}"
            "{{ (100 * p.have / p.need) | round(1) if p and p.seconds is defined else 100 }}",
        },
        "remaining": {
            "p": "sensor",
            "name": "Learning time left",
            "icon": "mdi:timer-sand",
            "device_class": "duration",
            "unit_of_measurement": "h",
            "entity_category": "diagnostic",
            "value_template": "{% set p = value_json.progress %}"
            "{{ (p.seconds / 3600) | round(1) if p and p.seconds is defined else 0 }}",
        },
        "alarms": {
            **number,
            "name": "Alarms per week",
            "icon": "mdi:counter",
            "entity_category": "diagnostic",
            # None is shown as unknown: there is no budget, or nothing was scored yet.
            "value_template": "{% set found = (value_json.budget or {}).measured_per_week %}"
            "{{ found | round(2) if found is number else none }}",
        },
        "fault": {
            "p": "sensor",
            "name": "Sensor fault",
            "icon": "mdi:lan-disconnect",
            "device_class": "enum",
            "options": ["none", *FAULTS],
            "entity_category": "diagnostic",
            "value_template": "{{ value_json.faults[0].fault if value_json.faults else 'none' }}",
        },
    }


def _controls(topic: str) -> dict[str, dict[str, Any]]:
    """By what an operator answers: buttons for an incident, a switch, and a number."""
    told = {"command_topic": topic, "qos": 1}
    button = {"p": "button", **told}
    return {
        "normal": {
            **button,
            "name": "This was normal",
            "icon": "mdi:check",
            "payload_press": _command("normal"),
        },
        "acknowledge": {
            **button,
            "name": "Acknowledge",
            "icon": "mdi:hand-back-right",
            "payload_press": _command("acknowledge"),
        },
        "relearn": {
            **button,
            "name": "Learn anew",
            "icon": "mdi:school",
            "entity_category": "config",
            "payload_press": _command("relearn"),
        },
        "mute": {
            "p": "switch",
            **told,
            "name": "Mute",
            "icon": "mdi:bell-off",
            "payload_on": _command("mute", MUTED_FOR),
            "payload_off": _command("mute", "0"),
            "state_on": "ON",
            "state_off": "OFF",
            "value_template": "{{ 'ON' if value_json.muted else 'OFF' }}",
        },
        "budget": {
            "p": "number",
            **told,
            "name": "False alarms per week",
            "icon": "mdi:bell-ring",
            "entity_category": "config",
            "mode": "box",
            "min": 0.01,
            "max": 10080,  # one per minute
            "step": 0.01,
            "command_template": _command("budget", "{{ value }}/week"),
            # None is shown as unknown: there is no budget.
            "value_template": "{{ value_json.budget.allowed_per_week | round(2) if value_json.budget else none }}",
        },
    }


def _command(verb: str, argument: str = "") -> str:
    return to_json({"verb": verb, "argument": argument, "from": SENDER})
