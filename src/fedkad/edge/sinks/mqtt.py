"""Alerts, states and availability on a broker, over a connection that the agent looks after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedkad.edge.mqtt import Connection
from fedkad.edge.settings import HomeAssistant, MqttSink
from fedkad.edge.sinks import Entry, to_json
from fedkad.edge.sinks.homeassistant import discovery
from fedkad.edge.sinks.publications import Message, Publications

LOOK_EVERY = 1.0

Snapshots = Callable[[], Mapping[str, Mapping[str, Any]]]


class MqttOut:
    """What an agent publishes.

    Alerts are sent once each and taken when the broker confirms them; the client sends again what was not confirmed
    before a connection was lost. States are sent when they change in kind and otherwise every `state_every` seconds.
    """

    name = "mqtt"

    def __init__(
        self,
        connection: Connection,
        publications: Publications,
        settings: MqttSink,
        homeassistant: HomeAssistant,
        devices: Mapping[str, Sequence[str]],
        snapshots: Snapshots,
    ) -> None:
        self._connection, self._publications, self._settings = connection, publications, settings
        self._homeassistant, self._devices, self._snapshots = homeassistant, devices, snapshots
        self._under_way: dict[int, int] = {}
        self._keys: set[int] = set()
        self._taken: list[int] = []
        self._said: dict[str, tuple[Any, ...]] = {}
        self._next_state = self._next_look = 0.0
        connection.sent = self._confirmed
        connection.when_connected(self.introduce)
        if homeassistant.enabled:
            connection.listen(f"{homeassistant.prefix}/status", self._hear)

    def _hear(self, payload: bytes) -> None:
        if payload == b"online":
            self.introduce()

    def introduce(self) -> None:
        """Say who is here, after every new connection and when Home Assistant comes back."""
        self._said.clear()
        self._next_state = self._next_look = 0.0
        for message in self._publications.all_status(online=True):
            self._publish(message)
        if self._homeassistant.enabled:
            for device, channels in self._devices.items():
                topics = self._publications.availability(device)
                topic, payload = discovery(
                    device,
                    prefix=self._publications.prefix,
                    availability=topics,
                    channels=channels,
                    discovery_prefix=self._homeassistant.prefix,
                )
                self._publish(Message(topic, to_json(payload), 1, True))

    def offer(self, entries: Sequence[Entry]) -> None:
        """Publish what is not under way."""
        for key, alert in entries:
            if key in self._keys:
                continue
            number = self._publish(self._publications.alert(alert))
            if number is None:
                return  # no connection: the outbox keeps it
            self._under_way[number] = key
            self._keys.add(key)

    def _confirmed(self, number: int) -> None:
        key = self._under_way.pop(number, None)
        if key is not None:
            self._taken.append(key)

    def taken(self) -> list[int]:
        """Keys of the alerts that the broker has confirmed."""
        taken, self._taken = self._taken, []
        self._keys.difference_update(taken)
        return taken

    def tell_states(self, *, urgent: bool) -> None:
        """Publish the states that have changed in kind, and all of them every `state_every` seconds.

        Looked at once a second, which is often enough for hundreds of devices, or at once when it is `urgent`.
        """
        now = time.monotonic()
        if not self._connection.is_connected or not (urgent or now >= self._next_look):
            return
        self._next_look, due = now + LOOK_EVERY, now >= self._next_state
        if due:
            self._next_state = now + self._settings.state_every
        for device, snapshot in self._snapshots().items():
            incident = snapshot["incident"]
            kind = (snapshot["state"], snapshot["abnormal"], incident and (incident["id"], incident.get("severity")))
            if due or self._said.get(device) != kind:
                self._said[device] = kind
                self._publish(self._publications.state(device, snapshot))

    def close(self) -> None:
        """Say goodbye: a will is only read when somebody is gone without a word."""
        for message in self._publications.all_status(online=False):
            self._publish(message)

    def _publish(self, message: Message) -> int | None:
        return self._connection.publish(message.topic, message.payload, qos=message.qos, retain=message.retain)
