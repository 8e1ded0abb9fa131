"""A connection to a broker, driven by the agent's loop: it reconnects with back-off and leaves a last will."""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from fedkad.edge.addresses import split_broker
from fedkad.edge.settings import MqttSink, SettingsError, SourceSettings
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
"""What an acknowledgement of quality 1 begins with: its kind, and the two bytes of the number that follows."""


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
    on_message : callable
        Takes each message that no listener has asked for.
    on_published : callable
        Takes the number, given by `publish`, of each message that the broker has confirmed.
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
        self._settings, self.section, self._client_id = settings, section, client_id
        self._where = f"[{section}] broker {self.host}:{self.port}"
        self._filters: list[str] = []
        self._unwanted: list[str] = []
        self._requested: dict[int, list[str]] = {}  # subscriptions that are not answered, by their number
        self._connected: list[Callable[[], None]] = []
        self._listeners: dict[str, Callable[[bytes], None]] = {}
        self._unconfirmed: set[int] = set()
        self.is_connected = self._is_open = self._is_refused = False
        self.generation = 0
        self.on_message: Callable[[paho.MQTTMessage], None] = lambda message: None
        self.on_published: Callable[[int], None] = lambda number: None
        self._wait, self._next_attempt = SHORTEST_WAIT, 0.0
        self._since, self._lapses, self._repeats = 0.0, 0, RepeatFilter()
        self._attempt: threading.Thread | None = None
        self._failure: Exception | None = None
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=not is_lasting, manual_ack=True
        )
        client.connect_timeout = CONNECT_TIMEOUT
        client.enable_logger = lambda *_: None  # type: ignore[method-assign]
        self._set_password()
        if is_secure:
            client.tls_set_context(tls_context(settings, section))
        if will is not None:
            client.will_set(*will)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message, client.on_publish = self._on_message, self._on_publish
        client.on_subscribe = self._on_subscribe
        client.connect_async(self.host, self.port, KEEPALIVE)

    def _set_password(self) -> None:
        """Read the password again for every attempt: a corrected file needs no restart."""
        settings = self._settings
        if settings.username:
            self.client.username_pw_set(settings.username, read_secret(settings.password_file, self.section))

    def subscribe(self, filters: Iterable[str]) -> None:
        """Subscribe to topics, now and on every later connection."""
        added = list(filters)
        self._filters += added
        if self.is_connected:
            self._request(added)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """End subscriptions with every later connection: a session of an earlier configuration may have them."""
        self._unwanted += filters

    def _request(self, filters: list[str]) -> None:
        _, number = self.client.subscribe([(each, 1) for each in filters])
        if number is not None:
            self._requested[number] = filters

    def listen(self, topic: str, then: Callable[[bytes], None]) -> None:
        """Call `then` with each message of one topic, which may be lost in a kill; these are not samples."""
        self._listeners[topic] = then
        self.subscribe([topic])

    def when_connected(self, then: Callable[[], None]) -> None:
        """Call `then` after every new connection."""
        self._connected.append(then)

    def publish(self, publication: Publication) -> int | None:
        """Send a message; returns its number for `on_published`, None without a connection."""
        if not self.is_connected:
            return None
        number = self.client.publish(*publication).mid
        if publication.qos:
            self._unconfirmed.add(number)
        return number

    def poll(self, timeout: float) -> None:
        """Read and write what is pending; waits up to `timeout` seconds for something to happen."""
        if self._is_attempting(timeout):
            return
        if self.client.socket() is None:
            self._begin_attempt(timeout)
        elif self.client.loop(timeout) != paho.MQTT_ERR_SUCCESS:
            self._lost()

    def read_next(self) -> None:
        """Read the next message, if it is there: quicker than `poll`, which also writes and keeps alive."""
        if self.is_connected and self.client.socket() is not None:
            self.client.loop_read()

    def _begin_attempt(self, timeout: float) -> None:
        remaining = self._next_attempt - time.monotonic()
        if remaining > 0.0:
            time.sleep(min(remaining, timeout))
            return
        self._is_open, self._is_refused, self._failure = True, False, None
        self._attempt = threading.Thread(target=self._reconnect, daemon=True)
        self._attempt.start()

    def _reconnect(self) -> None:
        """Connect in a separate thread: name lookup, network and TLS take long, and samples must not wait for them."""
        try:
            self._set_password()
            self.client.reconnect()
        except Exception as error:
            self._failure = error

    def _is_attempting(self, timeout: float) -> bool:
        """Whether an attempt is in progress; handles its failure once it is over."""
        attempt = self._attempt
        if attempt is None:
            return False
        attempt.join(timeout)
        if attempt.is_alive():
            return True
        self._attempt, error = None, self._failure
        if error is not None:
            self._is_open = False
            hint = "check ca_file" if isinstance(error, ssl.SSLCertVerificationError) else "trying again"
            self._log_once(f"{self._where}: {getattr(error, 'strerror', None) or error}; {hint}.")
            self._back_off()
        return False

    def _lost(self) -> None:
        if not self._is_open:
            return
        if self.is_connected:
            self._log_once(f"{self._where}: connection lost; {self._advice()}.")
        elif not self._is_refused:
            self._log_once(f"{self._where} does not answer like a broker; check the port, and mqtts:// or mqtt://.")
        self._is_open = self.is_connected = False
        self._back_off()

    def _advice(self) -> str:
        """What to do about a lost connection; two clients with the same name keep disconnecting each other."""
        lasted = time.monotonic() - self._since >= STEADY
        self._lapses = 0 if lasted else self._lapses + 1
        if lasted:
            self._wait = SHORTEST_WAIT
        if self._lapses < MANY_LAPSES:
            return "trying again"
        return f"is there another client called {self._client_id}? Then set another name"

    def _back_off(self) -> None:
        self._next_attempt = time.monotonic() + self._wait * random.uniform(0.5, 1.0)
        self._wait = min(2.0 * self._wait, LONGEST_WAIT)

    def _log_once(self, text: str) -> None:
        """Log a line unless it repeats the one before."""
        self._repeats.log(logger, text, logging.INFO)

    def _on_connect(self, client: paho.Client, _: Any, flags: Any, reason: ReasonCode, __: Any) -> None:
        if reason.is_failure:
            self._is_refused = True
            login = any(word in str(reason) for word in ("uthor", "password"))
            hint = "check username and password_file" if login else "see the log of the broker"
            self._log_once(f"{self._where} refuses the agent ({reason}); {hint}.")
            return
        self.is_connected, self._since = True, time.monotonic()
        self.generation += 1
        if self._filters:  # logged once they are granted: earlier messages are not received
            self._request(list(self._filters))
        else:
            self._log_once(f"{self._where}: connected.")
        if self._unwanted:  # after the others were asked for, so that nothing is missed
            self.client.unsubscribe(list(self._unwanted))
        for then in self._connected:
            then()

    def _on_disconnect(self, client: paho.Client, _: Any, flags: Any, reason: ReasonCode, __: Any) -> None:
        self._lost()

    def _on_subscribe(self, client: paho.Client, _: Any, number: int, reasons: list[ReasonCode], __: Any) -> None:
        asked = self._requested.pop(number, [])
        refused = [each for each, reason in zip(asked, reasons, strict=False) if reason.is_failure]
        if refused:
            self._log_once(f"{self._where} does not grant {', '.join(refused[:5])}; allow the agent to read them.")
        else:
            self._log_once(f"{self._where}: connected.")

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        try:
            then = self._listeners.get(message.topic)
        except UnicodeDecodeError:  # without an acknowledgement it would be sent again after every start
            self.acknowledge([message])
            self._log_once(f"{self._where}: a topic is not UTF-8; its messages are ignored.")
            return
        if then is None:
            self.on_message(message)
        else:
            self.acknowledge([message])
            then(bytes(message.payload))

    def _on_publish(self, client: paho.Client, _: Any, number: int, reason: ReasonCode, __: Any) -> None:
        self._unconfirmed.discard(number)
        self.on_published(number)

    def acknowledge(self, messages: Iterable[paho.MQTTMessage]) -> None:
        """Acknowledge messages of quality 1 that came over this connection, in one write.

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


def read_secret(path: str, section: str) -> str | None:
    """The password or token in a file, without the line end."""
    if not path:
        return None
    try:
        return Path(path).read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}, named in [{section}], cannot be read ({error}); correct it.") from None


def tls_context(settings: SourceSettings | MqttSink, section: str) -> ssl.SSLContext:
    """TLS that verifies the broker, with the agent's own certificate if it has one."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.certificate_file:
            context.load_cert_chain(settings.certificate_file, settings.key_file)
    except (OSError, ssl.SSLError) as error:
        named = [name for name in (settings.ca_file, settings.certificate_file, settings.key_file) if name]
        raise SettingsError(f"[{section}] {', '.join(named)}: {error}; correct it.") from None
    return context
