"""Alerts, states and availability on a broker, over a connection that the agent polls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedkad.edge.connection import Connection
from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.settings import HomeAssistant, MqttSink
from fedkad.edge.sinks import Entry
from fedkad.edge.sinks.homeassistant import discovery
from fedkad.edge.sinks.publications import Publications

CHECK_INTERVAL = 1.0


class BrokerSink:
    """Publishes the alerts, the states and the availability of an agent.

    An alert is sent once and is delivered when the broker confirms it; the client repeats what was not confirmed before
    a connection was lost. A state is sent when its kind changes, and otherwise every `state_every` seconds.
    """

    name = "mqtt"

    def __init__(
        self,
        connection: Connection,
        publications: Publications,
        settings: MqttSink,
        homeassistant: HomeAssistant,
        channels: Mapping[str, Sequence[str]],
        statuses: Callable[[], Mapping[str, DeviceStatus]],
    ) -> None:
        self._connection, self._publications, self._settings = connection, publications, settings
        self._homeassistant, self._channels, self._statuses = homeassistant, channels, statuses
        self._offered: set[int] = set()
        self._delivered: list[int] = []
        self._published: dict[str, tuple[Any, ...]] = {}
        self._next_state = self._next_check = 0.0
        connection.when_connected(self.introduce)
        if homeassistant.enabled:
            connection.listen(f"{homeassistant.prefix}/status", self._on_homeassistant)

    def _on_homeassistant(self, payload: bytes) -> None:
        if payload == b"online":
            self.introduce()

    def introduce(self) -> None:
        """Publish availability and discovery, after every new connection and when Home Assistant comes back."""
        self._published.clear()
        self._next_state = self._next_check = 0.0
        for publication in self._publications.all_status(online=True):
            self._connection.publish(publication)
        for device in self._channels:
            self._discover(device)

    def _discover(self, device: str) -> None:
        if self._homeassistant.enabled:
            channels, prefix = self._channels[device], self._homeassistant.prefix
            self._connection.publish(discovery(self._publications, device, channels, prefix))

    def add(self, device: str, channels: Sequence[str]) -> None:
        """Publish about one more device from now on."""
        self._publications = self._publications.adding(device)
        self._channels = {**self._channels, device: channels}
        self._connection.publish(self._publications.status(device))
        self._discover(device)

    def command_topic(self, device: str) -> str:
        """The topic on which commands about a device come."""
        return self._publications.topic(device, "tell")

    def configure(self, settings: MqttSink) -> None:
        """Publish states in another interval from now on."""
        self._settings, self._next_state = settings, 0.0

    def reply(self, device: str, reply: Mapping[str, Any], confirm: Callable[[], None]) -> bool:
        """Publish the reply to a command, and call `confirm` once the broker has it; False without a connection."""
        return self._connection.publish(self._publications.told(device, reply), confirm)

    def offer(self, entries: Sequence[Entry]) -> None:
        """Publish the alerts that are not published yet."""
        for key, alert in entries:
            if key in self._offered:
                continue
            if not self._connection.publish(self._publications.alert(alert), partial(self._delivered.append, key)):
                return  # no connection: the outbox keeps it
            self._offered.add(key)

    def delivered(self) -> list[int]:
        """The keys of the alerts that the broker has confirmed."""
        delivered = self._delivered.copy()
        self._delivered.clear()
        self._offered.difference_update(delivered)
        return delivered

    def publish_states(self, *, now: bool) -> None:
        """Publish the states whose kind has changed, and all of them every `state_every` seconds.

        They are compared once per second, which is often enough for hundreds of devices, or immediately if `now`.
        """
        moment = time.monotonic()
        if not self._connection.is_connected or not (now or moment >= self._next_check):
            return
        self._next_check, is_due = moment + CHECK_INTERVAL, moment >= self._next_state
        if is_due:
            self._next_state = moment + self._settings.state_every
        for device, status in self._statuses().items():
            incident = status.incident
            kind = (
                [(fault.id, fault.acknowledged) for fault in status.faults],
                *(status.state, status.abnormal, status.muted, status.budget and status.budget["allowed"]),
                incident and (incident.id, incident.severity, incident.acknowledged),
            )
            if is_due or self._published.get(device) != kind:
                self._published[device] = kind
                self._connection.publish(self._publications.state(device, status))

    def close(self) -> None:
        """Publish that the agent is offline: the will is only for an agent that disappears."""
        for publication in self._publications.all_status(online=False):
            self._connection.publish(publication)
