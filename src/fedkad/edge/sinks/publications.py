"""What is published on a broker and where: topics and messages, without a connection.

=============================  =========  =====================================================
{prefix}/{device}/state        retained   numbers of the device and the open incident, in JSON
{prefix}/{device}/alert        each once  alerts, in order, in JSON
{prefix}/{device}/tell         to it      commands about the device, in JSON or text
{prefix}/{device}/told         each once  the reply to that, in JSON
{prefix}/{device}/status       retained   whether the device is watched: online, offline
{prefix}/agent/{name}/status   retained   the same for an agent with several devices
=============================  =========  =====================================================

A connection has one last will. An agent with one device has it on the status of the device, an agent with several, or
whose devices become more, on its own status, and a device is watched if both are online. A silent device is still
watched: its state is stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.sinks import to_json

_RESERVED = {"%": "%25", "/": "%2F", "+": "%2B", "#": "%23", "\0": "%00"}

LEAVES = {"state", "alert", "tell", "told", "status"}
"""The last levels of an agent's topics."""


class Publication(NamedTuple):
    """A message to publish."""

    topic: str
    payload: str
    qos: int
    retain: bool


@dataclass(frozen=True)
class Publications:
    """The topics of an agent, and what it publishes there.

    >>> publications = Publications(agent="hall", devices=("pump-1",))
    >>> publications.topic("pump-1", "alert"), publications.topic("a/b", "state")
    ('fedkad/pump-1/alert', 'fedkad/a%2Fb/state')
    >>> publications.will()
    Publication(topic='fedkad/pump-1/status', payload='offline', qos=1, retain=True)
    >>> Publications(agent="hall", devices=("pump-1", "pump-2")).will().topic
    'fedkad/agent/hall/status'
    """

    prefix: str = "fedkad"
    agent: str = "agent"
    devices: tuple[str, ...] = ()
    grows: bool = False  # whether other devices may be found later

    def topic(self, device: str, leaf: str) -> str:
        """The topic of one of a device's `LEAVES`; reserved characters are percent-encoded."""
        return f"{self.prefix}/{level(device)}/{leaf}"

    def is_own(self, topic: str) -> bool:
        """Whether an agent with this prefix publishes there, or is told something.

        >>> own = Publications("plant")
        >>> [own.is_own(topic) for topic in ("plant/a%2Fb/state", "plant/agent/hall/status", "plant/hall/lamp")]
        [True, True, False]
        """
        if not topic.startswith(f"{self.prefix}/"):
            return False
        *names, leaf = topic.removeprefix(f"{self.prefix}/").split("/")
        return leaf in LEAVES and (len(names) == 1 or (len(names) == 2 and names[0] == "agent"))

    def adding(self, device: str) -> Publications:
        """The same with one more device."""
        return replace(self, devices=(*self.devices, device))

    def availability(self, device: str) -> list[str]:
        """The topics that must all be online for a device to be watched, that of the will first."""
        return list(dict.fromkeys((self.will().topic, self.topic(device, "status"))))

    def state(self, device: str, status: DeviceStatus) -> Publication:
        """The state of a device; unconfirmed, because a newer one follows a lost one."""
        return Publication(self.topic(device, "state"), to_json(status.payload()), 0, True)

    def alert(self, alert: Mapping[str, Any]) -> Publication:
        """An alert; not retained, because a later subscriber must not take an old one for a new one."""
        return Publication(self.topic(alert["device"], "alert"), to_json(alert), 1, False)

    def told(self, device: str, reply: Mapping[str, Any]) -> Publication:
        """The reply to a command; not retained, as it is for the sender."""
        return Publication(self.topic(device, "told"), to_json(reply), 1, False)

    def all_status(self, *, online: bool) -> list[Publication]:
        """The availability of the agent and its devices, for when it starts and stops."""
        topics = [topic for device in self.devices for topic in self.availability(device)]
        return [_status(topic, online) for topic in dict.fromkeys((self.will().topic, *topics))]

    def status(self, device: str) -> Publication:
        """That a device is watched from now on."""
        return _status(self.topic(device, "status"), True)

    def will(self) -> Publication:
        """What the broker publishes when the agent disappears."""
        if len(self.devices) == 1 and not self.grows:
            return _status(self.topic(self.devices[0], "status"), False)
        return _status(f"{self.prefix}/agent/{level(self.agent)}/status", False)


def _status(topic: str, online: bool) -> Publication:
    return Publication(topic, "online" if online else "offline", 1, True)


def level(name: str) -> str:
    """A name as one level of a topic, different for different names.

    >>> level("pump-1"), level("a/b+#"), level("a%2Fb")
    ('pump-1', 'a%2Fb%2B%23', 'a%252Fb')
    """
    return "".join(_RESERVED.get(character, character) for character in name)
