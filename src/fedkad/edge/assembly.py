"""The source and the sinks that a configuration asks for; each loads its libraries only if it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedkad.edge.addresses import EVERY
from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.settings import AgentSettings, SettingsError
from fedkad.edge.sinks import AlertSink
from fedkad.edge.sinks.publications import Publications
from fedkad.edge.sinks.stdout import StdoutSink
from fedkad.edge.sources import SampleSource
from fedkad.edge.sources.lines import FileSource, StdinSource
from fedkad.edge.store import Store
from fedkad.fleet.shared import extra

if TYPE_CHECKING:
    from fedkad.edge.connection import Connection
    from fedkad.edge.sinks.mqtt import BrokerSink
    from fedkad.edge.sources.mqtt import MqttSource


class Endpoints(NamedTuple):
    """What an agent is connected to; connections are that of the source, that of the sink, one for both, or none."""

    source: SampleSource
    sinks: list[AlertSink]
    stdout: StdoutSink | None  # the one of the sinks that also writes readings
    broker: BrokerSink | None  # the one of the sinks that also publishes states
    connections: list[Connection]
    tells: MqttSource | None  # brings what is told about devices; the source itself if they share a connection
    hear: Callable[[str], None]  # take what is told about a device, over a broker


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
    """Make the source and the sinks; nothing is connected yet. `receive` takes what a broker delivers to be told."""
    stdout = StdoutSink(sys.stdout) if settings.stdout.enabled else None
    sinks: list[AlertSink] = [stdout] if stdout is not None else []
    grows = EVERY in settings.devices
    publications = Publications(settings.mqtt.prefix, settings.name, tuple(settings.named), grows)
    source, connections, tells = _source(settings, store, publications, receive)
    broker = None
    if settings.mqtt.enabled:
        broker = _broker_sink(settings, publications, connections, statuses)
        sinks.append(broker)
    if settings.mqtt.enabled and settings.mqtt.broker:
        from fedkad.edge.sources.mqtt import PACKET_NUMBERS, MqttSource, Topics

        tells = MqttSource(connections[-1], Topics((), ()), store, receive, beyond=PACKET_NUMBERS)

    def hear(device: str) -> None:
        if tells is not None and settings.mqtt.enabled:
            tells.hear(publications.topic(device, "tell"), device)

    for device in settings.named:
        hear(device)
    if settings.webhook.url:
        from fedkad.edge.sinks.webhook import WebhookSink

        sinks.append(WebhookSink(settings.webhook))
    return Endpoints(source, sinks, stdout, broker, connections, tells, hear)


def _source(
    settings: AgentSettings, store: Store, publications: Publications, receive: Callable[[str, bytes], None]
) -> tuple[SampleSource, list[Connection], MqttSource | None]:
    """The source, its connection, and the source again if something may be told over that."""
    source = settings.source
    has_header = source.format == "csv"
    if source.kind == "stdin":
        return StdinSource(has_header=has_header), [], None
    if source.kind == "file":
        return FileSource(Path(source.path), store, has_header=has_header), [], None
    from fedkad.edge.connection import Connection
    from fedkad.edge.sources.mqtt import MqttSource, Topics

    name = source.client_id or f"fedkad-{settings.name}"
    is_shared = settings.mqtt.enabled and not settings.mqtt.broker
    connection = Connection(source, "source", name, is_lasting=True, will=publications.will() if is_shared else None)

    def is_own(topic: str) -> bool:
        return publications.is_own(topic) or topic.startswith(f"{settings.homeassistant.prefix}/")

    made = MqttSource(connection, Topics(source.topics, settings.devices, is_own), store, receive)
    return made, [connection], made


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
