"""Messages from a broker, acknowledged once their effects are on the disk, and never taken twice."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from paho.mqtt.client import MQTTMessage

from fedkad.edge.connection import Connection
from fedkad.edge.sources import BATCH, RawMessage
from fedkad.edge.sources.topics import Topics, covers
from fedkad.edge.store import Store

Received = tuple[MQTTMessage, int]
"""A message, and the generation of the connection that it came over."""

PACKET_NUMBERS = 1 << 16  # those of a broker are below this
MAX_WAITING = 1000  # messages of QoS 0 that are held while the agent cannot take any


class MqttSource:
    """Samples from a broker.

    A message whose acknowledgement was lost is sent again, marked as a duplicate and with its old packet number, which
    no other message gets until it is acknowledged. The digest of the last message under each number is committed
    together with the effects of the message: this is how a repeated message is recognised and not taken twice.

    Commands (`hear`) go to `receive` and are acknowledged like samples. Over a connection of their own nothing else
    comes, and packet numbers are counted `beyond` those of the samples.
    """

    header = None
    is_finished = False

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        store: Store,
        receive: Callable[[str, bytes], None] = lambda device, payload: None,
        beyond: int = 0,
    ) -> None:
        self._connection, self._topics, self._store = connection, topics, store
        self._commanded, self._receive_command, self._beyond = dict[str, str](), receive, beyond
        self._received = deque[Received]()
        self._handed_out: list[Received] = []
        self._digests: dict[int, bytes] = {}
        connection.subscribe(topics.filters, self._receive)
        connection.unsubscribe(topics.covered)

    def hear(self, topic: str, device: str) -> None:
        """Take the commands about a device that come on that topic."""
        self._commanded[topic] = device
        if any(covers(each, topic) for each in self._topics.filters):  # it comes already, and must not come twice
            self._connection.unsubscribe([topic])
        else:
            self._connection.subscribe([topic], self._receive)

    @property
    def unacknowledged(self) -> int:
        """Messages that the broker waits for an acknowledgement of."""
        return len(self._handed_out)

    def poll(self, timeout: float) -> Iterator[RawMessage]:
        """The messages that have arrived, up to a batch: one round of the agent's loop per message would cost more."""
        self._connection.poll(0.0 if self._received else timeout)
        before = 0
        while before < len(self._received) < BATCH:
            before = len(self._received)
            self._connection.read_next()
        return self._messages()

    def _messages(self) -> Iterator[RawMessage]:
        """The samples that have arrived; what comes between them is only taken or acknowledged."""
        while self._received:
            if (message := self._hand_out(self._received.popleft())) is not None:
                yield message

    def _receive(self, message: MQTTMessage) -> None:
        # Not handed out yet: a message that arrives while the agent stops must not be acknowledged.
        if message.qos or len(self._received) < MAX_WAITING:
            self._received.append((message, self._connection.generation))

    def _hand_out(self, received: Received) -> RawMessage | None:
        """The message for the agent, None for one that only has to be acknowledged."""
        message, _ = received
        topic, payload = message.topic, bytes(message.payload)
        self._handed_out.append(received)
        commanded = self._commanded.get(topic)
        place = self._topics.place(topic) if commanded is None else (commanded, None)
        digest = hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=8).digest()
        number = self._beyond + message.mid
        is_repeated = message.dup and digest == (self._digests.get(number) or self._store.states.digest(number))
        # A retained message may be of any age, and is not a sample of now.
        if place is None or message.retain or is_repeated:
            return None
        if message.qos:
            self._digests[number] = digest
        if commanded is not None:
            self._receive_command(commanded, payload)
            return None
        return RawMessage(payload, time.time(), *place)

    def put_position(self) -> None:
        """Put the digests of what was handed out into the store."""
        for number, digest in self._digests.items():
            self._store.states.put_digest(number, digest)

    def acknowledge(self) -> None:
        """Acknowledge what was handed out; what came over an earlier connection the broker sends again, if at all."""
        latest = self._connection.generation
        self._connection.acknowledge(message for message, generation in self._handed_out if generation == latest)
        self._handed_out, self._digests = [], {}

    def close(self) -> None:
        """The agent closes the connection, which a sink may share."""
