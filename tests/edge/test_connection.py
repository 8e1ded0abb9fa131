"""What the agent says to a broker when connections come and go: acknowledgements, and signs of life."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from fedkad.edge import connection as mqtt
from fedkad.edge.agent import Agent
from fedkad.edge.connection import Connection
from fedkad.edge.settings import SourceSettings
from fedkad.edge.settings.file import load
from fedkad.edge.sources import RawMessage
from fedkad.edge.sources.mqtt import MAX_WAITING, MqttSource
from fedkad.edge.sources.topics import Topics
from fedkad.edge.store import Store
from tests.fixtures.broker import Broker, config, logged, rows_committed, sample, saved_model, series, wait_for, wired


def until(what: Callable[[], object], work: Callable[[], object], message: str) -> None:
    """Do some work again and again until something is true."""

    def looked() -> object:
        work()
        return what()

    wait_for(looked, message)


class Desk:
    """A source on a connection, without an agent: what it takes and when it commits, the test says."""

    def __init__(self, folder: Path, port: int, said: list[str]) -> None:
        self.said = said
        settings = SourceSettings(kind="mqtt", broker=f"mqtt://127.0.0.1:{port}")
        self.connection = Connection(settings, "source", "desk", is_lasting=True)
        self.store = Store(folder / "agent.sqlite")
        self.source = MqttSource(self.connection, Topics(["in/{device}"], ["pump"]), self.store)

    def poll(self) -> None:
        self.connection.poll(0.02)

    def connected(self, times: int) -> None:
        until(lambda: sum("connected." in text for text in self.said) == times, self.poll, "no connection")

    def messages(self, count: int) -> list[RawMessage]:
        found: list[RawMessage] = []
        until(lambda: len(found) >= count, lambda: found.extend(self.source.poll(0.02)), "nothing arrives")
        return found

    def expect_nothing(self, until_then: Callable[[], object]) -> None:
        """Hand out nothing until something has happened."""
        found: list[RawMessage] = []
        until(until_then, lambda: found.extend(self.source.poll(0.02)), "it does not happen")
        assert found == []

    def commit(self) -> None:
        self.source.put_position()
        self.store.commit()
        self.source.acknowledge()

    def close(self) -> None:
        self.connection.close()
        self.store.close()


@pytest.fixture
def said() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def acknowledged(broker: Broker) -> int:
    return broker.log.count("Received PUBACK from desk")


def test_a_commit_while_it_connects_says_nothing_before_hello(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    broker = closing.enter_context(Broker(tmp_path))
    wire = closing.enter_context(wired(broker))
    client = closing.enter_context(broker.client())
    desk = Desk(tmp_path, wire.port, said)
    closing.callback(desk.close)
    desk.connected(1)
    client.publish("in/pump", "1")
    desk.messages(1)
    wire.cut()
    until(lambda: not desk.connection.is_connected, desk.poll, "the cut is not noticed")
    connect, may_connect = paho.Client._create_socket_connection, threading.Event()

    def connect_slowly(self: paho.Client) -> object:
        assert may_connect.wait(60)
        return connect(self)

    monkeypatch.setattr(paho.Client, "_create_socket_connection", connect_slowly)
    until(lambda: desk.connection._attempt, desk.poll, "it does not connect again")
    desk.commit()
    may_connect.set()
    desk.connected(2)
    desk.expect_nothing(lambda: "Sending PUBLISH to desk (d1" in broker.log)  # it comes again, and is known
    until(lambda: desk.source.unacknowledged, lambda: list(desk.source.poll(0.02)), "it does not come again")
    desk.commit()
    until(lambda: acknowledged(broker) == 1, desk.poll, "it was not acknowledged")
    assert not [text for text in said if "does not answer" in text]


def test_a_message_of_an_earlier_session_is_not_acknowledged_in_the_next(
    tmp_path: Path, closing: ExitStack, said: list[str]
) -> None:
    """A broker that has forgotten the session begins to count anew: the same number is another message."""
    broker = closing.enter_context(Broker(tmp_path, lasting=False))
    desk = Desk(tmp_path, broker.port, said)
    closing.callback(desk.close)
    desk.connected(1)
    with broker.client() as client:
        client.publish("in/pump", "1")
        desk.messages(1)
    broker.restart()
    desk.connected(2)
    client = closing.enter_context(broker.client())
    client.publish("in/pump", "2")
    wait_for(
        lambda: broker.log.count("Sending PUBLISH to desk (d0, q1, r0, m1") == 2, "it is not under the same number"
    )
    desk.commit()  # of the first, while the second is on its way
    for _ in range(10):
        desk.poll()
    assert acknowledged(broker) == 0
    assert [message.payload for message in desk.messages(1)] == [b"2"]
    desk.commit()
    until(lambda: acknowledged(broker) == 1, desk.poll, "it was not acknowledged")


def test_a_topic_that_is_no_text_is_acknowledged_and_left_out(tmp_path: Path, said: list[str]) -> None:
    with Broker(tmp_path) as broker:
        desk = Desk(tmp_path, broker.port, said)
        desk.connected(1)
        wild = paho.MQTTMessage(mid=7, topic=b"in/\xff")
        wild.qos = 1
        desk.connection._on_message(desk.connection.client, None, wild)
        until(lambda: acknowledged(broker) == 1, desk.poll, "it was not acknowledged")
        assert list(desk.source.poll(0.0)) == []
        assert "not UTF-8" in said[-1]
        desk.close()


def test_messages_without_a_promise_do_not_pile_up(tmp_path: Path, said: list[str]) -> None:
    with Broker(tmp_path) as broker:
        desk = Desk(tmp_path, broker.port, said)
        for k in range(3 * MAX_WAITING):
            message = paho.MQTTMessage(topic=b"in/pump")
            message.qos = int(k >= 2 * MAX_WAITING)
            desk.source._receive(message)
        assert len(list(desk.source.poll(0.0))) == 2 * MAX_WAITING  # those that cannot be sent again, up to a bound
        desk.close()


def test_an_agent_stays_connected_while_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(mqtt, "KEEPALIVE", 1)
    rows = series(20)
    with Broker(tmp_path) as broker, broker.client() as client:
        path = tmp_path / "agent.toml"
        path.write_text(config(broker.source(), learning={"model": str(saved_model(tmp_path)), "every": 0}))
        agent = Agent(load(path))
        until(lambda: said, lambda: agent.step(0.05), "no connection")
        client.publish_all("in/pump", [sample(rows, row) for row in range(20)])
        with monkeypatch.context() as full:
            full.setattr(agent.store, "commit", no_space)
            pings = broker.log.count("Received PINGREQ from fedkad-hall")
            until(
                lambda: broker.log.count("Received PINGREQ from fedkad-hall") >= pings + 3,
                lambda: agent.step(0.2),
                "it does not keep the connection alive",
            )
        assert sum("connected." in text for text in said) == 1
        assert not [text for text in said if "lost" in text]
        state = tmp_path / "state"
        until(lambda: rows_committed(state, "pump") == 20, lambda: agent.step(0.05), "samples were lost")
        agent.close()


def no_space() -> None:
    raise OSError(28, "No space left on device")
