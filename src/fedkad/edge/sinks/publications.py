"""What is published on a broker and where: topics and messages, without a connection.

=============================  =========  =====================================================
{prefix}/{device}/state        retained   numbers of the device and the open incident, in JSON
{prefix}/{device}/alert        each once  alerts, in order, in JSON
{prefix}/{device}/status       retained   whether the device is watched: online, offline
{prefix}/agent/{name}/status   retained   the same of an agent with several devices
=============================  =========  =====================================================

A connection has one last will. That of an agent with one device is on the device's status; that of an agent with
several on its own, and a device is watched if both say online. A device that is silent is still watched: its state
says stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedkad.edge.sinks import to_json
from fedkad.edge.wording import as_text

ONLINE, OFFLINE = "online", "offline"
STATES = ("ok", "waiting", "learning", "warming", "gap", "stale", "maintenance")
"""What a device may be; an open incident is told apart, for it may be open in most of them."""

_RESERVED = {"%": "%25", "/": "%2F", "+": "%2B", "#": "%23", "\0": "%00"}


class Message(NamedTuple):
    """What a client publishes."""

    topic: str
    payload: str
    qos: int
    retain: bool


@dataclass(frozen=True)
class Publications:
    """The topics of an agent and what it says there.

    Attributes
    ----------
    prefix : str
        How all topics begin.
    agent : str
        The name of the agent.
    devices : tuple of str
        The devices that it watches.

    >>> publications = Publications(agent="hall", devices=("pump-1",))
    >>> publications.topic("pump-1", "alert"), publications.topic("a/b", "state")
    ('fedkad/pump-1/alert', 'fedkad/a%2Fb/state')
    >>> publications.will()
    Message(topic='fedkad/pump-1/status', payload='offline', qos=1, retain=True)
    >>> Publications(agent="hall", devices=("pump-1", "pump-2")).will().topic
    'fedkad/agent/hall/status'
    """

    prefix: str = "fedkad"
    agent: str = "agent"
    devices: tuple[str, ...] = ()

    def topic(self, device: str, leaf: str) -> str:
        """Where a device's `state`, `alert` or `status` is published; what a topic cannot hold is percent-encoded."""
        return f"{self.prefix}/{level(device)}/{leaf}"

    def will_topic(self) -> str:
        """Where the broker says that the agent is gone."""
        if len(self.devices) == 1:
            return self.topic(self.devices[0], "status")
        return f"{self.prefix}/agent/{level(self.agent)}/status"

    def availability(self, device: str) -> list[str]:
        """Topics that must all say online for a device to be watched, that of the will first."""
        return list(dict.fromkeys((self.will_topic(), self.topic(device, "status"))))

    def state(self, device: str, snapshot: Mapping[str, Any]) -> Message:
        """The state of a device; a lost one is followed by a newer one, so nothing is confirmed."""
        return Message(self.topic(device, "state"), to_json(state_payload(snapshot)), 0, True)

    def alert(self, alert: Mapping[str, Any]) -> Message:
        """An alert, not retained: who subscribes later must not be told of old ones as if they were new."""
        return Message(self.topic(alert["device"], "alert"), to_json(alert), 1, False)

    def all_status(self, *, online: bool) -> list[Message]:
        """Whether the agent and its devices are there: all at once, when it comes and when it goes."""
        topics = (topic for device in self.devices for topic in self.availability(device))
        return [_status(topic, online) for topic in dict.fromkeys(topics)]

    def will(self) -> Message:
        """What the broker says when the agent is gone without a word."""
        return _status(self.will_topic(), False)


def _status(topic: str, online: bool) -> Message:
    return Message(topic, ONLINE if online else OFFLINE, 1, True)


def level(name: str) -> str:
    """One level of a topic, different for different names.

    >>> level("pump-1"), level("a/b+#"), level("a%2Fb")
    ('pump-1', 'a%2Fb%2B%23', 'a%252Fb')
    """
    return "".join(_RESERVED.get(character, character) for character in name)


def state_payload(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a device, as it is published.

    Parameters
    ----------
    snapshot : mapping
        What the watcher says: `state`, `time` in seconds since 1970, `score`, `threshold`, `abnormal`, `rate`,
        `progress`, `why`, `budget`, and `incident`, the last alert of the incident that is open. Any may be missing.

    >>> incident = {"id": "pump-1-1", "channels": [{"channel": "flow", "share": 0.6, "seen": 3.2, "expected": 5.1}]}
    >>> payload = state_payload({"state": "ok", "time": 0.0, "score": 9.5, "incident": incident})
    >>> payload["time"], payload["state"], payload["score"], payload["threshold"], payload["cause"]
    ('1970-01-01T00:00:00.000Z', 'ok', 9.5, None, 'flow')
    """
    moment, incident = snapshot.get("time"), snapshot.get("incident")
    causes = incident.get("channels") if incident else None
    return {
        "state": snapshot.get("state"),
        "time": None if moment is None else as_text(moment),
        **{key: snapshot.get(key) for key in ("score", "threshold", "abnormal", "rate", "progress", "why", "budget")},
        "cause": causes[0]["channel"] if causes else None,
        "incident": incident,
    }
