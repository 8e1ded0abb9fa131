"""A connection to a broker, driven by the agent's loop: it reconnects with back-off and leaves a last will."""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from fedkad.edge.settings import MqttSink, SourceSettings
from fedkad.edge.settings.credentials import read_password, tls_context
from fedkad.edge.settings.rules import split_broker
from fedkad.edge.sinks.publications import Publication
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

KEEPALIVE = 30
SHORTEST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds between two attempts to connect; doubled each time, with a random part so that a fleet spreads out."""

STEADY = 5.0
"""Seconds after which a connection counts as stable: the wait after shorter ones keeps growing."""

MANY_LAPSES = 3
"""Short connections in a row after which the log suggests a reason."""

CONNECT_TIMEOUT = 5.0

PUBACK = b"\x40\x02"
"""What an acknowledgement of QoS 1 begins with: its kind, and the two bytes of the number that follows."""


class Connection:
    """One client of one broker, whose address and login are in a `section` of the configuration.

    If it `is_lasting`, the broker keeps a session under its `client_id` while the agent is away. The `will` is what the
    broker publishes if the agent disappears.

    Attributes
    ----------
    section : str
    generation : int
        Connections made so far: a message cannot be acknowledged over a later connection, where its number may be that
        of another one.
    """

    def __init__(
        self,
        settings: SourceSettings | MqttSink,
        section: str,
        client_id: str,
        *,
        is_lasting: bool = False,
        will: Publication | None = None,
    ) -> None:
        self.host, self.port, is_secure = split_broker(settings.broker, section)
        self._settings, self.section = settings, section
        self._where = f"[{section}] broker {self.host}:{self.port}"
        self._filters: list[str] = []
        self._unwanted: list[str] = []
        self._requested: dict[int, list[str]] = {}  # subscriptions that are not answered, by their number
        self._connected: list[Callable[[], None]] = []
        self._receive: Callable[[paho.MQTTMessage], None] = lambda message: None
        self._listeners: dict[str, Callable[[bytes], None]] = {}
        self._unconfirmed: dict[int, Callable[[], None] | None] = {}  # what to call, by the number of the message
        self.is_connected = self._is_open = self._is_refused = False
        self.generation = 0
        self._retries, self._repeats = Retries(client_id), RepeatFilter()
        self._attempt: Attempt | None = None
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=not is_lasting, manual_ack=True
        )
        client.connect_timeout = CONNECT_TIMEOUT
        client.enable_logger = lambda *_: None  # type: ignore[method-assign]
        log_in(client, settings, section)  # at once, so that an agent does not start with a file that cannot be read
        if is_secure:
            login = settings.ca_file, settings.certificate_file, settings.key_file
            client.tls_set_context(tls_context(section, *login))
        if will is not None:
            client.will_set(*will)
        client.on_connect, client.on_disconnect = self._on_connect, lambda *_: self._lost()
        client.on_message, client.on_publish = self._on_message, self._on_publish
        client.on_subscribe = self._on_subscribe
        client.connect_async(self.host, self.port, KEEPALIVE)

    def subscribe(self, filters: Iterable[str], receive: Callable[[paho.MQTTMessage], None]) -> None:
        """Subscribe to topics, now and on every later connection.

        From now on `receive` takes every message that no listener has asked for, and has to acknowledge it.
        """
        self._receive = receive
        self._subscribe(list(filters))

    def listen(self, topic: str, then: Callable[[bytes], None]) -> None:
        """Call `then` with each message of one topic, which may be lost in a kill; these are not samples."""
        self._listeners[topic] = then
        self._subscribe([topic])

    def _subscribe(self, filters: list[str]) -> None:
        self._filters += filters
        if self.is_connected:
            self._request(filters)

    def _request(self, filters: list[str]) -> None:
        _, number = self.client.subscribe([(each, 1) for each in filters])
        if number is not None:
            self._requested[number] = filters

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """End subscriptions with every later connection: a session of an earlier configuration may have them."""
        self._unwanted += filters

    def when_connected(self, then: Callable[[], None]) -> None:
        """Call `then` after every new connection."""
        self._connected.append(then)

    def publish(self, publication: Publication, confirmed: Callable[[], None] | None = None) -> bool:
        """Send a message, and call `confirmed` once the broker has it; False without a connection."""
        if not self.is_connected:
            return False
        number = self.client.publish(*publication).mid
        if publication.qos:
            self._unconfirmed[number] = confirmed
        return True

    def poll(self, timeout: float) -> None:
        """Read and write what is pending; waits up to `timeout` seconds for something to happen."""
        if self._attempt is not None:
            self._attempt.join(timeout)
            if self._attempt.is_alive():
                return
            self._end(self._attempt)
        if self.client.socket() is None:
            self._connect(timeout)
        elif self.client.loop(timeout) != paho.MQTT_ERR_SUCCESS:
            self._lost()

    def read_next(self) -> None:
        """Read the next message, if it is there: quicker than `poll`, which also writes and keeps alive."""
        if self.is_connected and self.client.socket() is not None:
            self.client.loop_read()

    def _connect(self, timeout: float) -> None:
        """Begin to connect once it is time for the next attempt."""
        if (remaining := self._retries.remaining) > 0.0:
            time.sleep(min(remaining, timeout))
            return
        self._is_open, self._is_refused = True, False
        self._attempt = Attempt(self.client, self._settings, self.section)
        self._attempt.start()

    def _end(self, attempt: Attempt) -> None:
        """Take note of how an attempt to connect went."""
        self._attempt, error = None, attempt.error
        if error is not None:
            self._is_open = False
            hint = "check ca_file" if isinstance(error, ssl.SSLCertVerificationError) else "trying again"
            self._log(f"{self._where}: {getattr(error, 'strerror', None) or error}; {hint}.")
            self._retries.wait_longer()

    def _lost(self) -> None:
        if not self._is_open:
            return
        if self.is_connected:
            self._log(f"{self._where}: connection lost; {self._retries.advice()}.")
        elif not self._is_refused:
            self._log(f"{self._where} does not answer like a broker; check the port, and mqtts:// or mqtt://.")
        self._is_open = self.is_connected = False
        self._retries.wait_longer()

    def _log(self, text: str) -> None:
        self._repeats.log(logger, text, logging.INFO)

    def _on_connect(self, client: paho.Client, _: Any, flags: Any, reason: ReasonCode, __: Any) -> None:
        if reason.is_failure:
            self._is_refused = True
            login = any(word in str(reason) for word in ("uthor", "password"))
            hint = "check username and password_file" if login else "see the log of the broker"
            self._log(f"{self._where} refuses the agent ({reason}); {hint}.")
            return
        self.is_connected = True
        self._retries.connected()
        self.generation += 1
        if self._filters:  # logged once they are granted: earlier messages are not received
            self._request(list(self._filters))
        else:
            self._log(f"{self._where}: connected.")
        if self._unwanted:  # after the others were asked for, so that nothing is missed
            self.client.unsubscribe(list(self._unwanted))
        for then in self._connected:
            then()

    def _on_subscribe(self, client: paho.Client, _: Any, number: int, reasons: list[ReasonCode], __: Any) -> None:
        asked = self._requested.pop(number, [])
        refused = [each for each, reason in zip(asked, reasons, strict=False) if reason.is_failure]
        if refused:
            self._log(f"{self._where} does not grant {', '.join(refused[:5])}; allow the agent to read them.")
        else:
            self._log(f"{self._where}: connected.")

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        try:
            listener = self._listeners.get(message.topic)
        except UnicodeDecodeError:  # without an acknowledgement it would be sent again after every start
            self.acknowledge([message])
            self._log(f"{self._where}: a topic is not UTF-8; its messages are ignored.")
            return
        if listener is None:
            self._receive(message)
        else:
            self.acknowledge([message])
            listener(bytes(message.payload))

    def _on_publish(self, client: paho.Client, _: Any, number: int, reason: ReasonCode, __: Any) -> None:
        if (confirmed := self._unconfirmed.pop(number, None)) is not None:
            confirmed()

    def acknowledge(self, messages: Iterable[paho.MQTTMessage]) -> None:
        """Acknowledge messages of QoS 1 that came over this connection, in one write.

        `Client.ack` writes each of them alone, which costs as much as decoding it. To the queue of the client a packet
        is any bytes, and it takes care of TLS, of a full buffer and of the order.
        """
        packets = b"".join(PUBACK + message.mid.to_bytes(2, "big") for message in messages if message.qos)
        if packets and self.is_connected:
            self.client._packet_queue(PUBACK[0], packets, 0, 1)

    def close(self, timeout: float = 2.0) -> None:
        """Disconnect once the broker has confirmed what was published.

        Closing a socket with unread input discards what the other side has not read yet.
        """
        if not self.is_connected:
            return
        deadline = time.monotonic() + timeout
        while (self._unconfirmed or self.client.want_write()) and time.monotonic() < deadline:
            if self.client.loop(0.05) != paho.MQTT_ERR_SUCCESS:
                return
        self.is_connected = self._is_open = False  # not a lost connection
        self.client.disconnect()
        while self.client.want_write() and time.monotonic() < deadline and self.client.loop(0.05) == 0:
            pass


class Retries:
    """When to connect again: the wait doubles with every failure, until a connection has lasted."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._wait, self._next_attempt = SHORTEST_WAIT, 0.0
        self._since, self._lapses = 0.0, 0

    @property
    def remaining(self) -> float:
        """Seconds until the next attempt."""
        return self._next_attempt - time.monotonic()

    def connected(self) -> None:
        """Note the time of a connection."""
        self._since = time.monotonic()

    def wait_longer(self) -> None:
        """Put off the next attempt, by a random part so that a fleet spreads out."""
        self._next_attempt = time.monotonic() + self._wait * random.uniform(0.5, 1.0)
        self._wait = min(2.0 * self._wait, LONGEST_WAIT)

    def advice(self) -> str:
        """What to do about a lost connection; two clients with the same name keep disconnecting each other."""
        lasted = time.monotonic() - self._since >= STEADY
        self._lapses = 0 if lasted else self._lapses + 1
        if lasted:
            self._wait = SHORTEST_WAIT
        if self._lapses < MANY_LAPSES:
            return "trying again"
        return f"is there another client called {self._client_id}? Then set another name"


class Attempt(threading.Thread):
    """Connects in a separate thread: name lookup, network and TLS take long, and samples must not wait for them."""

    def __init__(self, client: paho.Client, settings: SourceSettings | MqttSink, section: str) -> None:
        super().__init__(daemon=True)
        self._client, self._settings, self._section = client, settings, section
        self.error: Exception | None = None

    def run(self) -> None:
        """Connect, or keep the error."""
        try:
            log_in(self._client, self._settings, self._section)
            self._client.reconnect()
        except Exception as error:
            self.error = error


def log_in(client: paho.Client, settings: SourceSettings | MqttSink, section: str) -> None:
    """Read the password for every attempt: a corrected file needs no restart."""
    if settings.username:
        client.username_pw_set(settings.username, read_password(settings.password_file, section))
