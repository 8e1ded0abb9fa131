"""Discovery: one retained message per device, by which Home Assistant shows it without configuration.

The format is that of device-based discovery: `dev` describes the device and `o` the origin of the message, `cmps` has
one entry per entity with its platform in `p`, and `state_topic` and availability apply to all of them. An empty
retained message on the same topic removes the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from fedkad import __version__
from fedkad.edge.alert import FaultKind
from fedkad.edge.device.status import STATES
from fedkad.edge.sinks import to_json
from fedkad.edge.sinks.publications import Publication, Publications

SENDER = "Home Assistant"
LONGEST_STATE = 255  # characters of a state in Home Assistant
MUTED_FOR = "1d"  # how long the switch mutes: a forgotten switch must not silence a device for good


_MEASUREMENT = {"p": "sensor", "state_class": "measurement", "suggested_display_precision": 2}
_SENSOR = {"p": "sensor"}
_SHOWN: list[tuple[str, Mapping[str, Any], str, str, str, Mapping[str, Any], str]] = [
    # key, kind, name, icon, category, more, template of the value
    # A fault that is acknowledged may last for weeks, and must not hide the next one.
    ("problem", {"p": "binary_sensor"}, "Problem", "", "", {"device_class": "problem"},
     "{{ 'ON' if value_json.incident or value_json.faults | rejectattr('acknowledged') | list else 'OFF' }}"),
    ("score", _MEASUREMENT, "Score", "chart-line", "", {}, "{{ value_json.score }}"),
    ("threshold", _MEASUREMENT, "Threshold", "chart-line-variant", "diagnostic", {}, "{{ value_json.threshold }}"),
    # None is shown as unknown; multiplying null would be an error.
    ("anomaly_rate", _MEASUREMENT, "Anomaly rate", "percent", "", {"unit_of_measurement": "%"},
     "{% set r = value_json.rate %}{{ r if r is none else (100 * r) | round(2) }}"),
    ("state", _SENSOR, "State", "", "diagnostic", {"device_class": "enum", "options": list(STATES)},
     "{{ value_json.state }}"),
    ("cause", _SENSOR, "Cause", "magnify", "", {}, "{{ value_json.cause or 'none' }}"),
    ("alert", _SENSOR, "Alert", "message-alert", "", {},
     "{% set found = value_json.incident or (value_json.faults or [{'text': 'none'}])[0] %}"
     f"{{{{ found.text[:{LONGEST_STATE}] }}}}"),
    # The progress of a window that fills up has no seconds: then there is a model.
    ("progress", _SENSOR, "Learning progress", "school-outline", "diagnostic", {"unit_of_measurement": "%"},
     "{% set p = value_json.progress %}"
     "{{ (100 * p.have / p.need) | round(1) if p and p.seconds is defined else 100 }}"),
    ("remaining", _SENSOR, "Learning time left", "timer-sand", "diagnostic",
     {"device_class": "duration", "unit_of_measurement": "h"},
     "{% set p = value_json.progress %}{{ (p.seconds / 3600) | round(1) if p and p.seconds is defined else 0 }}"),
    # None: there is no budget, or nothing was scored yet.
    ("alarms", _MEASUREMENT, "Alarms per week", "counter", "diagnostic", {},
     "{% set found = (value_json.budget or {}).measured_per_week %}"
     "{{ found | round(2) if found is number else none }}"),
    ("fault", _SENSOR, "Sensor fault", "lan-disconnect", "diagnostic",
     {"device_class": "enum", "options": ["none", *FaultKind]},
     "{{ value_json.faults[0].fault if value_json.faults else 'none' }}"),
]  # fmt: skip


def _command(verb: str, argument: str = "") -> str:
    return to_json({"verb": verb, "argument": argument, "from": SENDER})


_CONTROLS: list[tuple[str, str, str, str, str, Mapping[str, Any]]] = [
    # key, platform, name, icon, category, what it sends and shows
    ("normal", "button", "This was normal", "check", "", {"payload_press": _command("normal")}),
    ("acknowledge", "button", "Acknowledge", "hand-back-right", "", {"payload_press": _command("acknowledge")}),
    ("relearn", "button", "Learn anew", "school", "config", {"payload_press": _command("relearn")}),
    ("mute", "switch", "Mute", "bell-off", "", {
        "payload_on": _command("mute", MUTED_FOR), "payload_off": _command("mute", "0"),
        "state_on": "ON", "state_off": "OFF", "value_template": "{{ 'ON' if value_json.muted else 'OFF' }}",
    }),
    ("budget", "number", "False alarms per week", "bell-ring", "config", {
        "mode": "box", "min": 0.01, "max": 10080, "step": 0.01,  # at most one per minute
        "command_template": _command("budget", "{{ value }}/week"),
        # None is shown as unknown: there is no budget.
        "value_template": "{{ value_json.budget.allowed_per_week | round(2) if value_json.budget else none }}",
    }),
]  # fmt: skip


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
    components = _components(state_topic, publications.topic(device, "tell"), channels)
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


def _components(state_topic: str, command_topic: str, channels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the entities of a device by their keys: what is shown, and what an operator presses or sets."""
    components = {
        key: {**kind, **_labels(name, icon), **more, **_category(category), "value_template": template}
        for key, kind, name, icon, category, more, template in _SHOWN
    }
    components["cause"] |= {
        "json_attributes_topic": state_topic,
        "json_attributes_template": "{{ (value_json.incident or (value_json.faults or [{}])[0]) | tojson }}",
        "device_class": "enum",
        "options": list(dict.fromkeys(["none", *channels])),
    }
    for key, platform, name, icon, category, more in _CONTROLS:
        sent = {"p": platform, "command_topic": command_topic, "qos": 1}
        components[key] = {**sent, **_labels(name, icon), **_category(category), **more}
    return components


def _labels(name: str, icon: str) -> dict[str, str]:
    return {"name": name, "icon": f"mdi:{icon}"} if icon else {"name": name}


def _category(category: str) -> dict[str, str]:
    return {"entity_category": category} if category else {}
