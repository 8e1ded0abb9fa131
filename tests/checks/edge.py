"""What must hold for every source and every sink of the agent, whatever is at the other end.

A check takes a source or a sink together with its other end, and fails with an assertion. `test_edge_contracts.py` runs
every check over every source and sink; a new one needs a subclass here and a line there.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from fedkad.edge.connection import Connection
from fedkad.edge.settings import DeviceSettings, HomeAssistant, MqttSink, Sampling, SourceSettings, WebhookSettings
from fedkad.edge.sinks import AlertSink, Entry
from fedkad.edge.sinks.mqtt import BrokerSink
from fedkad.edge.sinks.publications import Publications
from fedkad.edge.sinks.stdout import StdoutSink
from fedkad.edge.sinks.webhook import WebhookSink
from fedkad.edge.sources import BATCH, RawMessage, SampleSource
from fedkad.edge.sources.decoding import Decoder
from fedkad.edge.sources.lines import FileSource, StdinSource
from fedkad.edge.sources.mqtt import MqttSource
from fedkad.edge.sources.topics import Topics
from fedkad.edge.store import Store
from tests.fixtures.broker import Broker, logged, wait_for
from tests.fixtures.receiver import receiving

LIMIT = 20.0
"""Seconds within which something that must not block returns; what it must not wait for takes longer or forever."""


# -- sinks ----------------------------------------------------------------------------------------------------------


class SinkEnds(ABC):
    """A sink and its other end."""

    sink: AlertSink

    def __init__(self) -> None:
        self.closing = ExitStack()

    @abstractmethod
    def received(self) -> list[dict[str, Any]]:
        """The alerts that have arrived at the other end, in order."""

    @abstractmethod
    def fail(self) -> None:
        """Let the other end accept nothing."""

    @abstractmethod
    def recover(self) -> None:
        """Let it accept everything again."""

    def hang(self) -> bool:
        """Let the other end accept a connection and then do nothing; False if there is no such thing."""
        return False

    def work(self) -> None:  # noqa: B027
        """Do what the agent's loop does for the sink."""

    def offer(self, entries: Sequence[Entry]) -> None:
        """Offer as the outbox does, which offers again after an `OSError`."""
        with suppress(OSError):
            self.sink.offer(entries)
        self.work()

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Wait until the sink reports exactly these keys, in order."""
        keys: list[int] = []

        def is_done() -> bool:
            self.offer([entry for entry in entries if entry[0] not in keys])
            self.work()
            keys.extend(self.sink.delivered())
            return len(keys) >= len(entries)

        wait_for(is_done, f"{keys} of {len(entries)} alerts were delivered")
        assert keys == [key for key, _ in entries]

    def assert_received(self, entries: Sequence[Entry]) -> None:
        wait_for(lambda: len(self.received()) >= len(entries), "alerts were lost")
        assert self.received() == [alert for _, alert in entries]


class LimitedStream(io.RawIOBase):
    """A file on a disk with little room."""

    def __init__(self) -> None:
        self.room, self.content = 0, b""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = bytes(content)[: self.room]
        self.room -= len(taken)
        self.content += taken
        return len(taken)


class StdoutEnds(SinkEnds):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._raw = LimitedStream()
        self.recover()
        self.sink = StdoutSink(io.TextIOWrapper(io.BufferedWriter(self._raw)))

    def received(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._raw.content.splitlines()]
        assert all(line.pop("type") == "alert" for line in lines)
        return lines

    def fail(self) -> None:
        self._raw.room = 0

    def recover(self) -> None:
        self._raw.room = 1 << 30


class WebhookEnds(SinkEnds):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._receiver = self.closing.enter_context(receiving())
        self.sink = WebhookSink(WebhookSettings(self._receiver.url), first_wait=0.01, longest_wait=0.05)
        self.closing.callback(self.sink.close)

    def received(self) -> list[dict[str, Any]]:
        return list(self._receiver.accepted)

    def fail(self) -> None:
        self._receiver.status = 503

    def recover(self) -> None:
        self._receiver.status = 200
        self._receiver.may_answer.set()

    def hang(self) -> bool:
        self._receiver.may_answer.clear()
        return True


class BrokerEnds(SinkEnds):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._broker = self.closing.enter_context(Broker(folder))
        self._client = self.closing.enter_context(self._broker.client(name="reader"))
        self._client.subscribe("fedkad/+/alert")
        settings = MqttSink(enabled=True, broker=self._broker.url)
        publications = Publications(devices=("pump",))
        self._connection = Connection(settings, "mqtt", "contract", will=publications.will())
        self.sink = BrokerSink(
            self._connection, publications, settings, HomeAssistant(), {"pump": ("flow",)}, lambda: {}
        )
        self.closing.callback(self._connection.close)
        wait_for(self._is_connected, "no connection")

    def _is_connected(self) -> bool:
        self.work()
        return self._connection.is_connected

    def work(self) -> None:
        self._connection.poll(0.01)

    def received(self) -> list[dict[str, Any]]:
        return [heard.content for heard in self._client.on("fedkad/pump/alert")]

    def fail(self) -> None:
        self._broker.stop()

    def recover(self) -> None:
        self._broker.start()

    def hang(self) -> bool:
        assert self._broker.process is not None
        self._broker.process.send_signal(signal.SIGSTOP)
        self.closing.callback(self._broker.process.send_signal, signal.SIGCONT)
        return True


def entries(first: int, last: int) -> list[Entry]:
    return [(key, {"id": f"pump-{key}", "device": "pump", "event": "start"}) for key in range(first, last + 1)]


def check_delivers_in_order(ends: SinkEnds) -> None:
    """All alerts arrive in the order of the outbox, and each key is reported once."""
    ends.deliver(entries(1, 20))
    ends.assert_received(entries(1, 20))
    assert ends.sink.delivered() == []


def check_sends_once_what_is_offered_again(ends: SinkEnds) -> None:
    """The outbox offers everything again until it is delivered: an alert on its way must not be sent twice."""
    for last in (2, 4, 4):
        ends.offer(entries(1, last))
    ends.deliver(entries(1, 4))
    ends.assert_received(entries(1, 4))


def check_delivers_after_a_failure_what_was_not_delivered(ends: SinkEnds) -> None:
    """While the other end fails nothing is reported; afterwards exactly the rest arrives, in order."""
    ends.deliver(entries(1, 2))
    ends.assert_received(entries(1, 2))
    ends.fail()
    for _ in range(5):
        ends.offer(entries(3, 5))
        assert ends.sink.delivered() == []
    ends.recover()
    ends.deliver(entries(3, 6))
    ends.assert_received(entries(1, 6))


def check_reports_nothing_undelivered_when_closed(ends: SinkEnds) -> None:
    """What could not be delivered is not reported, so that it stays in the outbox."""
    ends.fail()
    ends.offer(entries(1, 3))
    ends.sink.close()
    assert ends.sink.delivered() == []
    assert ends.received() == []


def check_reports_what_is_delivered_while_it_closes(ends: SinkEnds) -> None:
    """A delivery that is in progress at the end is reported if it succeeds; else it would be repeated."""
    ends.offer(entries(1, 1))
    ends.sink.close()
    reported: list[int] = []

    def agree() -> bool:
        ends.work()
        reported.extend(ends.sink.delivered())
        return len(reported) == len(ends.received())  # the other end may show an alert after the sink reports it

    wait_for(agree, "what was delivered and what was reported differ")


def check_never_blocks(ends: SinkEnds) -> None:
    """Neither offering nor closing waits for another end that does not answer."""
    if not ends.hang():
        return
    began = time.monotonic()
    for _ in range(3):
        ends.sink.offer(entries(1, 50))
    ends.sink.close()
    assert time.monotonic() - began < LIMIT
    assert ends.sink.delivered() == []


# -- sources --------------------------------------------------------------------------------------------------------


class SourceEnds(ABC):
    """A source on a store, and its other end."""

    source: SampleSource
    is_durable = True
    """Whether the other end keeps what was not acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.closing = ExitStack()
        self.store = Store(folder / "contract.sqlite")
        self.closing.callback(self.store.close)

    @abstractmethod
    def send(self, *payloads: bytes) -> None:
        """Send messages or lines from the other end."""

    @abstractmethod
    def restart(self) -> None:
        """Begin with a new source on the same store, as after a kill: what is not committed is lost."""

    @abstractmethod
    def confirmed(self) -> int:
        """How many messages will not be handed out again after a kill."""

    def poll(self, count: int) -> list[bytes]:
        """Wait for that many messages; returns all."""
        found: list[bytes] = []

        def is_done() -> bool:
            found.extend(message.payload for message in self.source.poll(0.01))
            return len(found) >= count

        wait_for(is_done, f"{len(found)} of {count} messages came")
        return found

    def commit(self) -> None:
        self.source.put_position()
        self.store.commit()
        self.source.acknowledge()


class StdinEnds(SourceEnds):
    is_durable = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._reader, self._writer = os.pipe()
        self.closing.callback(os.close, self._reader)
        self.closing.callback(os.close, self._writer)
        self.restart()

    def send(self, *payloads: bytes) -> None:
        os.write(self._writer, b"".join(payload + b"\n" for payload in payloads))

    def restart(self) -> None:
        self.source = StdinSource(descriptor=self._reader)

    def confirmed(self) -> int:
        return 0


class FileEnds(SourceEnds):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "contract.log"
        self.restart()

    def send(self, *payloads: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(payload + b"\n" for payload in payloads))

    def restart(self) -> None:
        self.store.discard()
        self.source = FileSource(self._path, self.store)
        self.closing.callback(self.source.close)

    def confirmed(self) -> int:
        position = self.store.states.position("file")
        return 0 if position is None else self._path.read_bytes()[: position["offset"]].count(b"\n")


class MqttEnds(SourceEnds):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._broker = self.closing.enter_context(Broker(folder, lasting=False))
        self._client = self.closing.enter_context(self._broker.client())
        self._connections: list[Connection] = []
        self.restart()

    def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            self._client.publish("in/pump", payload)

    def restart(self) -> None:
        for connection in self._connections:
            if (found := connection.client.socket()) is not None:
                found.close()
        self.store.discard()
        settings = SourceSettings(kind="mqtt", broker=self._broker.url)
        connection = Connection(settings, "source", "contract", is_lasting=True)
        self._connections = [connection]
        self.source = MqttSource(connection, Topics(["in/{device}"], ["pump"]), self.store)
        with logged() as lines:  # it is logged once the broker's grant has been read

            def is_subscribed() -> bool:
                connection.poll(0.01)
                return any(line.endswith(": connected.") for line in lines)

            wait_for(is_subscribed, "no connection")

    def confirmed(self) -> int:
        self._connections[0].poll(0.01)
        return self._broker.log.count("Received PUBACK from contract")


def samples(*numbers: int) -> list[bytes]:
    return [b'{"device": "pump", "flow": %d}' % number for number in numbers]


def check_hands_out_in_order(ends: SourceEnds) -> None:
    """Everything that was sent is handed out once, in order; then polling returns nothing, and soon."""
    ends.send(*samples(*range(BATCH)))
    assert ends.poll(BATCH) == samples(*range(BATCH))
    began = time.monotonic()
    assert list(ends.source.poll(0.01)) == []
    assert time.monotonic() - began < LIMIT


def check_acknowledges_only_after_the_commit(ends: SourceEnds) -> None:
    """Until the commit, the other end must not be told that the messages are safe."""
    if not ends.is_durable:
        return
    ends.send(*samples(1, 2, 3))
    ends.poll(3)
    ends.source.put_position()
    assert ends.confirmed() == 0
    ends.commit()
    wait_for(lambda: ends.confirmed() == 3, "they were not acknowledged")


def check_resumes_where_it_was(ends: SourceEnds) -> None:
    """After a kill, what was committed does not come again, and what was not does; a pipe has no memory."""
    ends.send(*samples(1, 2, 3))
    ends.poll(3)
    ends.commit()
    wait_for(lambda: ends.confirmed() == 3 * ends.is_durable, "they were not acknowledged")
    ends.send(*samples(4, 5))
    assert ends.poll(2) == samples(4, 5)
    ends.restart()
    ends.send(*samples(6))
    expected = samples(4, 5, 6) if ends.is_durable else samples(6)
    assert ends.poll(len(expected)) == expected


def check_hands_out_only_what_is_asked_for(ends: SourceEnds) -> None:
    """Who stops in the middle gets the rest later, also after a commit and a kill in between; a pipe has no memory."""
    ends.send(*samples(*range(6)))
    taken: list[bytes] = []

    def take_two() -> bool:
        taken.extend(message.payload for message in islice(ends.source.poll(0.01), 2 - len(taken)))
        return len(taken) == 2

    wait_for(take_two, "nothing came")
    ends.commit()
    wait_for(lambda: ends.confirmed() == 2 * ends.is_durable, "they were not acknowledged")
    if ends.is_durable:
        ends.restart()
    assert taken + ends.poll(4) == samples(*range(6))


GARBAGE = (b'{"flow": ', b"\xff\xfe", b"[" * 5000, b'{"flow": "off", "device": "pump"}')


def check_survives_garbage(ends: SourceEnds) -> None:
    """Each message that cannot be used is one line in the log and one refusal; the next one is used."""
    refused: list[str] = []
    decoder = Decoder(SourceSettings(kind="stdin"), {"pump": DeviceSettings(Sampling(("flow",)))}, refused.append)
    for number, garbage in enumerate(GARBAGE, start=1):
        ends.send(garbage, *samples(number))
        with logged() as lines:
            payloads = ends.poll(2)
            found = [sample.values for each in payloads for sample in decoder.decode(RawMessage(each, 0.0))]
        assert found == [{"flow": float(number)}]
        assert len(refused) == number
        assert len(lines) == (number <= 3 or number == len(GARBAGE))
        assert all("\n" not in line and len(line) < 300 for line in lines)
        ends.commit()


def check_closes_twice(ends: SourceEnds) -> None:
    """Closing again does no harm."""
    ends.source.close()
    ends.source.close()
