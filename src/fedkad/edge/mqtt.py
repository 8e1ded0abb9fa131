"""A connection to a broker, driven by the agent's own loop: no thread, reconnecting with back-off, with a last will."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from fedkad.edge.addresses import split_broker
from fedkad.edge.settings import MqttSink, SettingsError, SourceSettings

Say = Callable[[str], None]
Receive = Callable[[paho.MQTTMessage], None]

KEEPALIVE = 30
SHORTEST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds between two attempts to connect; doubled each time, with some chance in it so that a fleet spreads out."""

STEADY = 5.0
"""Seconds after which a connection is one that lasts: those that do not are made less and less often."""

MANY = 3
"""Such connections in a row that make one ask why."""

CONNECT_TIMEOUT = 5.0


@dataclass(frozen=True)
class Will:
    """What the broker says, retained, when the agent is gone without a word."""

    topic: str
    payload: str = "offline"


class Connection:
    """One client of one broker.

    Parameters
    ----------
    settings : SourceSettings or MqttSink
        Where the broker is and how one logs in.
    section : str
        Of the configuration, for messages.
    client_id : str
        The broker keeps a session under this name while the agent is away, if it is `lasting`.
    """

    def __init__(
        self,
        settings: SourceSettings | MqttSink,
        section: str,
        client_id: str,
        say: Say,
        *,
        lasting: bool = False,
        will: Will | None = None,
    ) -> None:
        self.host, self.port, secure = split_broker(settings.broker, section)
        self._settings, self._say, self._section, self._said = settings, say, section, ""
        self._filters: list[str] = []
        self._connected: list[Callable[[], None]] = []
        self._listeners: dict[str, Callable[[bytes], None]] = {}
        self._unconfirmed: set[int] = set()
        self.is_connected = self._is_open = self._is_refused = False
        self.generation = 0  # connections so far: what came over one cannot be acknowledged over the next
        self.receive: Receive = lambda message: None
        self.sent: Callable[[int], None] = lambda number: None
        self._wait, self._next_attempt = SHORTEST_WAIT, 0.0
        self._name, self._since, self._lapses = client_id, 0.0, 0
        self._attempting: threading.Thread | None = None
        self._failure: Exception | None = None
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=not lasting, manual_ack=True
        )
        client.connect_timeout = CONNECT_TIMEOUT
        client.enable_logger = lambda *_: None  # type: ignore[method-assign]
        self._log_in()
        if secure:
            client.tls_set_context(tls_context(settings, section))
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message, client.on_publish = self._on_message, self._on_publish
        client.on_subscribe = self._on_subscribe
        client.connect_async(self.host, self.port, KEEPALIVE)

    def _log_in(self) -> None:
        """Read the password, anew for every attempt: whoever corrects the file need not restart the agent."""
        settings = self._settings
        if settings.username:
            self.client.username_pw_set(settings.username, read_secret(settings.password_file, self._section))

    def subscribe(self, filters: Iterable[str]) -> None:
        """Ask for the messages of these topics, now and after every new connection."""
        self._filters += filters

    def listen(self, topic: str, then: Callable[[bytes], None]) -> None:
        """Do something with the messages of one topic, at once; they are not samples."""
        self._listeners[topic] = then
        self.subscribe([topic])

    def when_connected(self, then: Callable[[], None]) -> None:
        """Do that after every new connection."""
        self._connected.append(then)

    def publish(self, topic: str, payload: str | bytes, *, qos: int = 0, retain: bool = False) -> int | None:
        """Send a message, if there is a connection; returns the number that `sent` is told, None if not."""
        if not self.is_connected:
            return None
        number = self.client.publish(topic, payload, qos=qos, retain=retain).mid
        if qos:
            self._unconfirmed.add(number)
        return number

    def poll(self, timeout: float) -> None:
        """Read and write what there is; waits up to `timeout` seconds for something."""
        if self._wait_for_attempt(timeout):
            return
        if self.client.socket() is None:
            self._attempt(timeout)
        elif self.client.loop(timeout) != paho.MQTT_ERR_SUCCESS:
            self._lost()

    def read_on(self) -> None:
        """Read the next message, if it is there: quicker than `poll`, which looks after all else too."""
        if self.is_connected and self.client.socket() is not None:
            self.client.loop_read()

    def _attempt(self, timeout: float) -> None:
        remaining = self._next_attempt - time.monotonic()
        if remaining > 0.0:
            time.sleep(min(remaining, timeout))
            return
        self._is_open, self._is_refused, self._failure = True, False, None
        self._attempting = threading.Thread(target=self._reconnect, daemon=True)
        self._attempting.start()

    def _reconnect(self) -> None:
        """Connect, in a thread of its own: names, networks and TLS take long, and samples must not wait for them."""
        try:
            self._log_in()
            self.client.reconnect()
        except Exception as error:
            self._failure = error

    def _wait_for_attempt(self, timeout: float) -> bool:
        """Whether an attempt is under way; once it is over, what has become of it is dealt with here."""
        attempting = self._attempting
        if attempting is None:
            return False
        attempting.join(timeout)
        if attempting.is_alive():
            return True
        self._attempting, error = None, self._failure
        if error is not None:
            self._is_open = False
            hint = "check ca_file" if isinstance(error, ssl.SSLCertVerificationError) else "trying again"
            self._tell(f"{self._where}: {getattr(error, 'strerror', None) or error}; {hint}.")
            self._back_off()
        return False

    def _lost(self) -> None:
        if not self._is_open:
            return
        if self.is_connected:
            self._tell(f"{self._where}: connection lost; {self._advice()}.")
        elif not self._is_refused:
            self._tell(f"{self._where} does not answer as a broker does; check the port, and mqtts:// or mqtt://.")
        self._is_open = self.is_connected = False
        self._back_off()

    def _advice(self) -> str:
        """What to do about a lost connection; two clients of one name take it from each other for ever."""
        lasted = time.monotonic() - self._since >= STEADY
        self._lapses = 0 if lasted else self._lapses + 1
        if lasted:
            self._wait = SHORTEST_WAIT
        if self._lapses < MANY:
            return "trying again"
        return f"is there another client called {self._name}? Then set another name"

    def _back_off(self) -> None:
        self._next_attempt = time.monotonic() + self._wait * random.uniform(0.5, 1.0)
        self._wait = min(2.0 * self._wait, LONGEST_WAIT)

    @property
    def _where(self) -> str:
        return f"[{self._section}] broker {self.host}:{self.port}"

    def _tell(self, text: str) -> None:
        """Say something once, until something else is to be said."""
        if text != self._said:
            self._said = text
            self._say(text)

    def _on_connect(self, client: paho.Client, _: Any, flags: Any, reason: ReasonCode, __: Any) -> None:
        if reason.is_failure:
            self._is_refused = True
            login = any(word in str(reason) for word in ("uthor", "password"))
            hint = "check username and password_file" if login else "see the log of the broker"
            self._tell(f"{self._where} refuses the agent ({reason}); {hint}.")
            return
        self.is_connected, self._since = True, time.monotonic()
        self.generation += 1
        if self._filters:  # said once they are granted: what is published before is not heard
            client.subscribe([(each, 1) for each in self._filters])
        else:
            self._tell(f"{self._where}: connected.")
        for then in self._connected:
            then()

    def _on_disconnect(self, client: paho.Client, _: Any, flags: Any, reason: ReasonCode, __: Any) -> None:
        self._lost()

    def _on_subscribe(self, client: paho.Client, _: Any, number: int, reasons: list[ReasonCode], __: Any) -> None:
        refused = [each for each, reason in zip(self._filters, reasons, strict=False) if reason.is_failure]
        if refused:
            self._tell(f"{self._where} does not grant {', '.join(refused[:5])}; let the agent read them.")
        else:
            self._tell(f"{self._where}: connected.")

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        try:
            then = self._listeners.get(message.topic)
        except UnicodeDecodeError:  # it would be sent again after every start
            self.acknowledge(message, self.generation)
            self._tell(f"{self._where}: a topic is not UTF-8; its messages are left out.")
            return
        if then is None:
            self.receive(message)
        else:
            self.acknowledge(message, self.generation)
            then(bytes(message.payload))

    def _on_publish(self, client: paho.Client, _: Any, number: int, reason: ReasonCode, __: Any) -> None:
        self._unconfirmed.discard(number)
        self.sent(number)

    def acknowledge(self, message: paho.MQTTMessage, generation: int) -> None:
        """Tell the broker that a message need not be sent again, over the connection that it came over.

        Over any other, its number may be that of another message. The broker sends it again there, if at all.
        """
        if message.qos and self.is_connected and generation == self.generation:
            self.client.ack(message.mid, message.qos)

    def close(self, patience: float = 2.0) -> None:
        """Say goodbye, once the broker has confirmed what was published.

        A socket that is closed with something unread takes back what the other side has not read yet.
        """
        if not self.is_connected:
            return
        deadline = time.monotonic() + patience
        while (self._unconfirmed or self.client.want_write()) and time.monotonic() < deadline:
            if self.client.loop(0.05) != paho.MQTT_ERR_SUCCESS:
                return
        self.is_connected = self._is_open = False  # by our own will
        self.client.disconnect()
        while self.client.want_write() and time.monotonic() < deadline and self.client.loop(0.05) == 0:
            pass


def read_secret(path: str, section: str) -> str | None:
    """The password or token in a file, without the end of its line."""
    if not path:
        return None
    try:
        return Path(path).read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}, named in [{section}], cannot be read ({error}); correct it.") from None


def tls_context(settings: SourceSettings | MqttSink, section: str) -> ssl.SSLContext:
    """TLS that checks the broker, and shows a certificate of the agent's own where there is one."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.certificate_file:
            context.load_cert_chain(settings.certificate_file, settings.key_file)
    except (OSError, ssl.SSLError) as error:
        named = [name for name in (settings.ca_file, settings.certificate_file, settings.key_file) if name]
        raise SettingsError(f"[{section}] {', '.join(named)}: {error}; correct it.") from None
    return context
