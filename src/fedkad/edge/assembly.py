"""The source and the sinks that a configuration asks for; each loads its libraries only if it is used."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.settings import AgentSettings, SettingsError
from fedkad.edge.settings.rules import EVERY
from fedkad.edge.sinks import AlertSink
from fedkad.edge.sinks.publications import Publications
from fedkad.edge.sinks.stdout import StdoutSink
from fedkad.edge.sources import BATCH, SampleSource
from fedkad.edge.sources.lines import FileSource, StdinSource
from fedkad.edge.store import Store
from fedkad.fleet.shared import extra

if TYPE_CHECKING:
    from fedkad.edge.connection import Connection
    from fedkad.edge.sinks.mqtt import BrokerSink
    from fedkad.edge.sources.mqtt import MqttSource


@dataclass(frozen=True)
class Endpoints:
    """What an agent reads from and writes to."""

    source: SampleSource
    sinks: list[AlertSink]
    connections: list[Connection]  # that of the source, that of the broker sink, one for both, or none
    stdout: StdoutSink | None = None  # the one of the sinks that also writes readings
    broker: BrokerSink | None = None  # the one of the sinks that also publishes states, and replies to commands
    commands: MqttSource | None = None  # brings commands; the source itself if they share a connection

    @property
    def sources(self) -> list[SampleSource]:
        """All that has to be acknowledged: the source, and that of commands if it is another one."""
        return [self.source] if self.commands in (None, self.source) else [self.source, self.commands]

    def add(self, device: str, channels: Sequence[str]) -> None:
        """Publish about one more device, and take commands about it."""
        if self.broker is not None:
            self.broker.add(device, channels)
            self.listen(device)

    def listen(self, device: str) -> None:
        """Take commands about a device, if a broker can bring them."""
        if self.commands is not None and self.broker is not None:
            self.commands.hear(self.broker.command_topic(device), device)

    def wait(self, timeout: float) -> None:
        """Stay connected for so many seconds, but take nothing."""
        until = time.monotonic() + timeout
        while True:
            for connection in self.connections:
                connection.poll(max(until - time.monotonic(), 0.0) / len(self.connections))
            if not self.connections:
                time.sleep(timeout)
            if time.monotonic() >= until:
                return

    def poll_commands(self) -> bool:
        """Take commands that come over a connection of their own; True if some have to be committed."""
        if self.commands is None or self.commands is self.source:
            return False
        for _ in range(BATCH):  # each poll reads one message of the broker
            self.connections[-1].poll(0.0)
        for _ in self.commands.poll(0.0):  # it hands out no samples
            pass
        return bool(self.commands.unacknowledged)


def require_extra(settings: AgentSettings) -> None:
    """Refuse a configuration whose libraries are not installed."""
    uses_broker = settings.source.kind == "mqtt" or settings.mqtt.enabled
    for name, section, is_used in (
        ("paho", "mqtt", uses_broker),
        ("prometheus_client", "prometheus", settings.prometheus.port),
    ):
        if is_used and find_spec(name) is None:
            raise SettingsError(f"The configuration uses {section}, which needs pip install 'fedkad[edge]'.")
    if settings.fleet.enabled:
        extra.require()


def assemble(
    settings: AgentSettings,
    store: Store,
    statuses: Callable[[], Mapping[str, DeviceStatus]],
    receive: Callable[[str, bytes], None],
) -> Endpoints:
    """Make the source and the sinks; nothing is connected yet. `receive` takes the commands that a broker delivers."""
    stdout = StdoutSink(sys.stdout) if settings.stdout.enabled else None
    sinks: list[AlertSink] = [stdout] if stdout is not None else []
    publications = Publications(settings.mqtt.prefix, settings.name, tuple(settings.named), EVERY in settings.devices)
    source, connections = _source(settings, store, publications, receive)
    broker = commands = None
    if settings.mqtt.enabled:
        from fedkad.edge.sources.mqtt import PACKET_NUMBERS, MqttSource
        from fedkad.edge.sources.topics import Topics

        broker = _broker_sink(settings, publications, connections, statuses)
        sinks.append(broker)
        if settings.mqtt.broker:
            commands = MqttSource(connections[-1], Topics((), ()), store, receive, beyond=PACKET_NUMBERS)
        elif isinstance(source, MqttSource):
            commands = source
    if settings.webhook.url:
        from fedkad.edge.sinks.webhook import WebhookSink

        sinks.append(WebhookSink(settings.webhook))
    endpoints = Endpoints(source, sinks, connections, stdout, broker, commands)
    for device in settings.named:
        endpoints.listen(device)
    return endpoints


def _source(
    settings: AgentSettings, store: Store, publications: Publications, receive: Callable[[str, bytes], None]
) -> tuple[SampleSource, list[Connection]]:
    """Make the source, and its connection if it has one."""
    source = settings.source
    has_header = source.format == "csv"
    if source.kind == "stdin":
        return StdinSource(has_header=has_header), []
    if source.kind == "file":
        return FileSource(Path(source.path), store, has_header=has_header), []
    from fedkad.edge.connection import Connection
    from fedkad.edge.sources.mqtt import MqttSource
    from fedkad.edge.sources.topics import Topics

    name = source.client_id or f"fedkad-{settings.name}"
    is_shared = settings.mqtt.enabled and not settings.mqtt.broker
    connection = Connection(source, "source", name, is_lasting=True, will=publications.will() if is_shared else None)

    def is_own(topic: str) -> bool:
        return publications.is_own(topic) or topic.startswith(f"{settings.homeassistant.prefix}/")

    return MqttSource(connection, Topics(source.topics, settings.devices, is_own), store, receive), [connection]


def _broker_sink(
    settings: AgentSettings,
    publications: Publications,
    connections: list[Connection],
    statuses: Callable[[], Mapping[str, DeviceStatus]],
) -> BrokerSink:
    """The sink on a broker, over the connection of the source unless another broker is configured."""
    from fedkad.edge.connection import Connection
    from fedkad.edge.sinks.mqtt import BrokerSink

    if settings.mqtt.broker:
        name = f"fedkad-{settings.name}-out"
        connections.append(Connection(settings.mqtt, "mqtt", name, is_lasting=True, will=publications.will()))
    channels = {name: device.sampling.channels for name, device in settings.named.items()}
    return BrokerSink(connections[-1], publications, settings.mqtt, settings.homeassistant, channels, statuses)
