"""Messages of a broker, acknowledged once what they changed is on the disk, and never taken twice."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable
from typing import Any

from paho.mqtt.client import MQTTMessage

from fedkad.edge.mqtt import Connection
from fedkad.edge.sources import Message

Placed = tuple[str | None, str | None]
"""Device and channel that a topic names."""


Key = tuple[int, str]
"""Number and digest of a message."""


class Topics:
    """Which topics to ask for, and what they say.

    >>> topics = Topics(["zigbee2mqtt/{device}", "hall/{device}/+/{channel}"], ["pump-1"])
    >>> topics.filters
    ['zigbee2mqtt/pump-1', 'hall/pump-1/+/+']
    >>> topics.place("zigbee2mqtt/pump-1"), topics.place("hall/pump-1/x/flow"), topics.place("other")
    (('pump-1', None), ('pump-1', 'flow'), None)
    """

    def __init__(self, patterns: Iterable[str], devices: Collection[str]) -> None:
        self.filters: list[str] = []
        self._exact: dict[str, Placed] = {}
        self._wild: list[tuple[re.Pattern[str], str | None]] = []
        for pattern in patterns:
            named: Iterable[str | None] = devices if "{device}" in pattern else (None,)
            for device in named:
                self._add(pattern.replace("{device}", device or ""), device)

    def _add(self, pattern: str, device: str | None) -> None:
        self.filters.append(pattern.replace("{channel}", "+"))
        if re.search(r"[+#]|\{channel\}", pattern) is None:
            self._exact[pattern] = (device, None)
            return
        text = re.escape(pattern).replace(r"\{channel\}", "(?P<channel>[^/]+)")
        text = text.replace(r"\+", "[^/]*").replace(r"/\#", "(?:/.*)?").replace(r"\#", ".*")
        self._wild.append((re.compile(text), device))

    def place(self, topic: str) -> Placed | None:
        """Device and channel of a topic; None for one that was not asked for."""
        found = self._exact.get(topic)
        if found is not None:
            return found
        for pattern, device in self._wild:
            match = pattern.fullmatch(topic)
            if match:
                return device, match.groupdict().get("channel")
        return None


class MqttSource:
    """Samples from a broker.

    A message whose acknowledgement was lost, with a connection or with the agent, comes again, marked so and under its
    old number. The numbers and digests of what is in hand and of what was committed last tell it: it is not taken
    twice. The latter are committed with what the messages changed.
    """

    name = "mqtt"
    header = None
    is_finished = False

    def __init__(self, connection: Connection, topics: Topics, position: Any = None) -> None:
        self._connection, self._topics = connection, topics
        self._inbox: list[Message] = []
        self._handed: list[MQTTMessage] = []
        self._in_hand: dict[Key, None] = {}
        self._known = {(number, digest) for number, digest in position or []}
        connection.receive = self._receive
        connection.subscribe(topics.filters)

    @property
    def in_hand(self) -> int:
        """Messages that the broker waits to hear of."""
        return len(self._handed)

    def poll(self, timeout: float) -> list[Message]:
        """What has arrived."""
        self._connection.poll(timeout)
        arrived, self._inbox = self._inbox, []
        return arrived

    def _receive(self, message: MQTTMessage) -> None:
        topic, payload = message.topic, bytes(message.payload)
        place, key = self._topics.place(topic), (message.mid, _digest(topic, payload))
        # What is retained was said at some time before; a sample is what is said now.
        if place is None or message.retain or (message.dup and key in self._known):
            self._connection.acknowledge(message)
        elif not (message.dup and key in self._in_hand):
            self._handed.append(message)
            if message.qos:
                self._in_hand[key] = None
            self._inbox.append(Message(payload, time.time(), *place))

    def position(self) -> Any:
        """Numbers and digests of the messages that are about to be acknowledged."""
        return list(self._in_hand)

    def committed(self) -> None:
        """Acknowledge what was handed out."""
        for message in self._handed:
            self._connection.acknowledge(message)
        self._known = set(self._in_hand)
        self._in_hand, self._handed = {}, []

    def close(self) -> None:
        """The connection is closed by whoever opened it."""


def _digest(topic: str, payload: bytes) -> str:
    return hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=8).hexdigest()
