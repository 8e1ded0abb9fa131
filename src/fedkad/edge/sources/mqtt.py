"""Messages of a broker, acknowledged once what they changed is on the disk, and never taken twice."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable

from paho.mqtt.client import MQTTMessage

from fedkad.edge.mqtt import Connection
from fedkad.edge.sources import MOST_IN_HAND, Message
from fedkad.edge.store import Store

Placed = tuple[str | None, str | None]
"""Device and channel that a topic names."""

Arrived = tuple[MQTTMessage, int]
"""A message, and the connection that it came over."""

MOST_WAITING = 1000
"""Messages without a promise, those of QoS 0, that wait while the agent can take none."""


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
        pattern = re.sub(r"^\$share/[^/]+/", "", pattern)  # messages come under the topic that is shared
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
    old number, which no other has until it is acknowledged. Of every number the digest of the message that was taken
    last under it is committed with what the message changed: so it is known again, and not taken twice.
    """

    name = "mqtt"
    header = None
    is_finished = False

    def __init__(self, connection: Connection, topics: Topics, store: Store) -> None:
        self._connection, self._topics, self._store = connection, topics, store
        self._arrived: list[Arrived] = []
        self._handed: list[Arrived] = []
        self._taken: dict[int, bytes] = {}
        connection.receive = self._receive
        connection.subscribe(topics.filters)

    @property
    def in_hand(self) -> int:
        """Messages that the broker waits to hear of."""
        return len(self._handed)

    def poll(self, timeout: float) -> list[Message]:
        """What has arrived, as many as are committed together: a round of the agent's loop for each would cost more."""
        self._connection.poll(timeout)
        found = 0
        while found < len(self._arrived) < MOST_IN_HAND:
            found = len(self._arrived)
            self._connection.read_on()
        arrived, self._arrived = self._arrived, []
        return [message for each in arrived if (message := self._hand_out(each)) is not None]

    def _receive(self, message: MQTTMessage) -> None:
        # Not handed out yet: what arrives while the agent ends must not be acknowledged with what it has taken.
        if message.qos or len(self._arrived) < MOST_WAITING:
            self._arrived.append((message, self._connection.generation))

    def _hand_out(self, arrived: Arrived) -> Message | None:
        """The message as a sample, None for one that is only to be acknowledged."""
        message, _ = arrived
        topic, payload = message.topic, bytes(message.payload)
        self._handed.append(arrived)
        place, digest = self._topics.place(topic), _digest(topic, payload)
        # What is retained was said at some time before; a sample is what is said now.
        if place is None or message.retain or (message.dup and digest == self._last_under(message.mid)):
            return None
        if message.qos:
            self._taken[message.mid] = digest
        return Message(payload, time.time(), *place)

    def _last_under(self, number: int) -> bytes | None:
        return self._taken.get(number) or self._store.taken(number)

    def put_position(self) -> None:
        """Commit the digests of what was handed out."""
        for number, digest in self._taken.items():
            self._store.put_taken(number, digest)

    def committed(self) -> None:
        """Acknowledge what was handed out."""
        for message, generation in self._handed:
            self._connection.acknowledge(message, generation)
        self._handed, self._taken = [], {}

    def close(self) -> None:
        """The connection is closed by whoever opened it."""


def _digest(topic: str, payload: bytes) -> bytes:
    return hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=8).digest()
