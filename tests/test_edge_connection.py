"""What the agent says to a broker when connections come and go: acknowledgements, and signs of life."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from fedkad.edge import mqtt
from fedkad.edge.agent import Agent
from fedkad.edge.mqtt import Connection
from fedkad.edge.settings import SourceSettings
from fedkad.edge.settingsfile import load
from fedkad.edge.sources import Message
from fedkad.edge.sources.mqtt import MOST_WAITING, MqttSource, Topics
from fedkad.edge.store import Store
from tests.broker import Broker, config, rows_committed, sample, saved_model, series, wait_for, wired


def until(what: Callable[[], object], work: Callable[[], object], message: str) -> None:
    """Do some work again and again until something is true."""

    def looked() -> object:
        work()
        return what()

    wait_for(looked, message)


class Desk:
    """A source on a connection, without an agent: what it takes and when it commits, the test says."""

    def __init__(self, folder: Path, port: int) -> None:
        self.said: list[str] = []
        settings = SourceSettings(kind="mqtt", broker=f"mqtt://127.0.0.1:{port}")
        self.connection = Connection(settings, "source", "desk", self.said.append, lasting=True)
        self.store = Store(folder / "agent.sqlite", self.said.append)
        self.source = MqttSource(self.connection, Topics(["in/{device}"], ["pump"]), self.store)

    def poll(self) -> None:
        self.connection.poll(0.02)

    def connected(self, times: int) -> None:
        until(lambda: sum("connected." in text for text in self.said) == times, self.poll, "no connection")

    def messages(self, count: int) -> list[Message]:
        found: list[Message] = []
        until(lambda: len(found) >= count, lambda: found.extend(self.source.poll(0.02)), "nothing arrives")
        return found

    def listen(self, seconds: float = 0.3) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.source.poll(0.02) == []

    def commit(self) -> None:
        self.source.put_position()
        self.store.commit()
        self.source.committed()

    def close(self) -> None:
        self.connection.close()
        self.store.close()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def acknowledged(broker: Broker) -> int:
    return broker.log.count("Received PUBACK from desk")


def test_a_commit_while_it_connects_says_nothing_before_hello(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = closing.enter_context(Broker(tmp_path))
    wire = closing.enter_context(wired(broker))
    client = closing.enter_context(broker.client())
    desk = Desk(tmp_path, wire.port)
    closing.callback(desk.close)
    desk.connected(1)
    client.publish("in/pump", "1")
    desk.messages(1)
    wire.cut()
    until(lambda: not desk.connection.is_connected, desk.poll, "the cut is not noticed")
    connect = paho.Client._create_socket_connection

    def connect_slowly(self: paho.Client) -> object:
        time.sleep(0.5)
        return connect(self)

    monkeypatch.setattr(paho.Client, "_create_socket_connection", connect_slowly)
    until(lambda: desk.connection._attempting, desk.poll, "it does not connect again")
    time.sleep(0.2)
    desk.commit()
    desk.connected(2)
    desk.listen()  # it comes again, and is known
    desk.commit()
    until(lambda: acknowledged(broker) == 1, desk.poll, "it was not acknowledged")
    assert not [text for text in desk.said if "does not answer" in text]


def test_a_message_of_an_earlier_session_is_not_acknowledged_in_the_next(tmp_path: Path, closing: ExitStack) -> None:
    """A broker that has forgotten the session begins to count anew: the same number is another message."""
    broker = closing.enter_context(Broker(tmp_path, lasting=False))
    desk = Desk(tmp_path, broker.port)
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
    end = time.monotonic() + 0.3
    until(lambda: time.monotonic() > end, desk.poll, "")
    assert acknowledged(broker) == 0
    assert [message.payload for message in desk.messages(1)] == [b"2"]
    desk.commit()
    until(lambda: acknowledged(broker) == 1, desk.poll, "it was not acknowledged")


def test_a_topic_that_is_no_text_is_acknowledged_and_left_out(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        desk = Desk(tmp_path, broker.port)
        desk.connected(1)
        wild = paho.MQTTMessage(mid=7, topic=b"in/\xff")
        wild.qos = 1
        desk.connection._on_message(desk.connection.client, None, wild)
        until(lambda: acknowledged(broker) == 1, desk.poll, "it was not acknowledged")
        assert desk.source.poll(0.0) == []
        assert "not UTF-8" in desk.said[-1]
        desk.close()


def test_messages_without_a_promise_do_not_pile_up(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        desk = Desk(tmp_path, broker.port)
        for k in range(3 * MOST_WAITING):
            message = paho.MQTTMessage(topic=b"in/pump")
            message.qos = int(k >= 2 * MOST_WAITING)
            desk.source._receive(message)
        assert len(desk.source.poll(0.0)) == 2 * MOST_WAITING  # those that cannot be sent again, up to a bound
        desk.close()


def test_an_agent_stays_connected_while_its_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "KEEPALIVE", 1)
    rows, said = series(20), list[str]()
    with Broker(tmp_path) as broker, broker.client() as client:
        path = tmp_path / "agent.toml"
        path.write_text(config(broker.source(), learning={"model": str(saved_model(tmp_path)), "every": 0}))
        agent = Agent(load(path), said.append)
        until(lambda: said, lambda: agent.step(0.05), "no connection")
        client.publish_all("in/pump", [sample(rows, row) for row in range(20)])
        with monkeypatch.context() as full:
            full.setattr(agent.store, "commit", no_space)
            end = time.monotonic() + 5.0
            until(lambda: time.monotonic() > end, lambda: agent.step(0.2), "")
        assert sum("connected." in text for text in said) == 1
        assert not [text for text in said if "lost" in text]
        state = tmp_path / "state"
        until(lambda: rows_committed(state, "pump") == 20, lambda: agent.step(0.05), "samples were lost")
        agent.close()


def no_space() -> None:
    raise OSError(28, "No space left on device")
