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
from fedkad.edge.sinks.publications import Publications
from fedkad.edge.status import STATES

_ALLOWED = re.compile(r"[a-zA-Z0-9_-]+")


def discovery(
    device: str,
    *,
    prefix: str = "fedkad",
    availability: Sequence[str] = (),
    channels: Sequence[str] = (),
    discovery_prefix: str = "homeassistant",
) -> tuple[str, dict[str, Any]]:
    """The topic and the payload of the message about one device.

    Parameters
    ----------
    device : str
    prefix : str
        The first level of the topics that the agent publishes to.
    availability : sequence of str
        Topics that must all be online, that of the agent first. The state is shown whenever the agent runs: a silent
        device is "stale", not gone.
    channels : sequence of str
        The possible causes.
    discovery_prefix : str
        Where Home Assistant listens.

    >>> topic, payload = discovery("pump-1", availability=["fedkad/agent/hall/status"], channels=["flow"])
    >>> topic, payload["state_topic"], sorted(payload["cmps"])
    ('homeassistant/device/fedkad_pump-1/config', 'fedkad/pump-1/state',
     ['anomaly_rate', 'cause', 'problem', 'score', 'state', 'threshold'])
    """
    identity = object_id(device, prefix)
    payload: dict[str, Any] = {
        "dev": {"ids": [identity], "name": device, "mf": "FedKAD", "mdl": "Anomaly detector", "sw": __version__},
        "o": {"name": "fedkad", "sw": __version__},
        "cmps": _components(identity, Publications(prefix).topic(device, "state"), channels),
        "state_topic": Publications(prefix).topic(device, "state"),
    }
    if availability:
        payload |= _available(availability)
        payload["cmps"]["state"] |= _available(availability[:1])
    return f"{discovery_prefix}/device/{identity}/config", payload


def object_id(device: str, prefix: str = "fedkad") -> str:
    """An identity for a discovery topic; a name with other characters is changed, and gets a few digits of its hash.

    >>> object_id("pump-1"), object_id("Pumpe Süd") == object_id("Pumpe Sud"), object_id("Pumpe Süd")
    ('fedkad_pump-1', False, 'fedkad_Pumpe_S_d_22c07e65')
    """
    name = f"{prefix}_{device}"
    if _ALLOWED.fullmatch(name):
        return name
    return f"{re.sub('[^a-zA-Z0-9_-]', '_', name)}_{sha256(name.encode()).hexdigest()[:8]}"


def _available(topics: Sequence[str]) -> dict[str, Any]:
    return {"availability": [{"topic": topic} for topic in topics], "availability_mode": "all"}


def _components(identity: str, state_topic: str, channels: Sequence[str]) -> dict[str, dict[str, Any]]:
    number = {"p": "sensor", "state_class": "measurement", "suggested_display_precision": 2}
    components: dict[str, dict[str, Any]] = {
        "problem": {
            "p": "binary_sensor",
            "name": "Problem",
            "device_class": "problem",
            "value_template": "{{ 'ON' if value_json.incident else 'OFF' }}",
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
        "cause": _cause(state_topic, channels),
    }
    for name, component in components.items():
        component["unique_id"] = f"{identity}_{name}"
    return components


def _cause(state_topic: str, channels: Sequence[str]) -> dict[str, Any]:
    """The first channel of the open incident, with the incident as attributes."""
    cause: dict[str, Any] = {
        "p": "sensor",
        "name": "Cause",
        "icon": "mdi:magnify",
        "value_template": "{{ value_json.cause or 'none' }}",
        "json_attributes_topic": state_topic,
        "json_attributes_template": "{{ (value_json.incident or {}) | tojson }}",
    }
    if channels:
        cause |= {"device_class": "enum", "options": list(dict.fromkeys(["none", *channels]))}
    return cause
