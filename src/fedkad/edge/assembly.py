"""Which source and sinks a configuration asks for; each brings its libraries only if it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedkad.edge.settings import AgentSettings, SettingsError
from fedkad.edge.sinks import Sink
from fedkad.edge.sinks.stdout import Lines
from fedkad.edge.sources import Source
from fedkad.edge.sources.lines import GrowingFile, Stdin
from fedkad.edge.store import Store

if TYPE_CHECKING:
    from fedkad.edge.mqtt import Connection, Will
    from fedkad.edge.sinks.mqtt import MqttOut
    from fedkad.edge.sinks.prometheus import Metrics
    from fedkad.edge.sinks.publications import Publications

Say = Callable[[str], None]
Snapshots = Callable[[], Mapping[str, Mapping[str, Any]]]


class Parts(NamedTuple):
    """What an agent is connected to.

    Attributes
    ----------
    source : Source
    sinks : list of Sink
    broker : MqttOut, optional
        The one of the sinks that also tells states.
    connections : list of Connection
        To brokers: that of the source, that of the sink, one for both, or none.
    """

    source: Source
    sinks: list[Sink]
    broker: MqttOut | None
    connections: list[Connection]


def require_extra(settings: AgentSettings) -> None:
    """Refuse a configuration whose libraries are not installed, in one sentence."""
    uses_broker = settings.source.kind == "mqtt" or settings.mqtt.enabled
    for name, section, used in (
        ("paho", "mqtt", uses_broker),
        ("prometheus_client", "prometheus", settings.prometheus.port),
    ):
        if used and find_spec(name) is None:
            raise SettingsError(f"The configuration uses {section}, which needs pip install 'fedkad[edge]'.")


def assemble(settings: AgentSettings, store: Store, say: Say, snapshots: Snapshots) -> Parts:
    """Make the source and the sinks; nothing is connected yet."""
    sinks: list[Sink] = [Lines(sys.stdout)] if settings.stdout.enabled else []
    connections: list[Connection] = []
    publications = _publications(settings)
    source = _source(settings, store, say, publications, connections)
    broker = _broker(settings, say, publications, connections, snapshots) if publications is not None else None
    if broker is not None:
        sinks.append(broker)
    if settings.webhook.url:
        from fedkad.edge.sinks.webhook import Webhook

        sinks.append(Webhook(settings.webhook, say))
    return Parts(source, sinks, broker, connections)


def _publications(settings: AgentSettings) -> Publications | None:
    if not settings.mqtt.enabled:
        return None
    from fedkad.edge.sinks.publications import Publications

    return Publications(settings.mqtt.prefix, settings.name, tuple(settings.devices))


def _source(
    settings: AgentSettings,
    store: Store,
    say: Say,
    publications: Publications | None,
    connections: list[Connection],
) -> Source:
    wanted = settings.source
    headed = wanted.format == "csv"
    if wanted.kind == "stdin":
        return Stdin(headed=headed)
    if wanted.kind == "file":
        return GrowingFile(Path(wanted.path), store, say, headed=headed)
    from fedkad.edge.mqtt import Connection
    from fedkad.edge.sources.mqtt import MqttSource, Topics

    name = wanted.client_id or f"fedkad-{settings.name}"
    will = _will(publications) if publications is not None and not settings.mqtt.broker else None
    connection = Connection(wanted, "source", name, say, lasting=True, will=will)
    connections.append(connection)
    return MqttSource(connection, Topics(wanted.topics, settings.devices), store)


def _broker(
    settings: AgentSettings,
    say: Say,
    publications: Publications,
    connections: list[Connection],
    snapshots: Snapshots,
) -> MqttOut:
    from fedkad.edge.mqtt import Connection
    from fedkad.edge.sinks.mqtt import MqttOut

    if settings.mqtt.broker:
        will = _will(publications)
        connections.append(Connection(settings.mqtt, "mqtt", f"fedkad-{settings.name}-out", say, will=will))
    channels = {name: device.sampling.channels for name, device in settings.devices.items()}
    return MqttOut(connections[-1], publications, settings.mqtt, settings.homeassistant, channels, snapshots)


def _will(publications: Publications) -> Will:
    from fedkad.edge.mqtt import Will

    message = publications.will()
    return Will(message.topic, message.payload)


def serve_numbers(settings: AgentSettings, numbers: Callable[[], Mapping[str, Mapping[str, float]]]) -> Metrics:
    """Begin to serve the numbers of all devices to Prometheus."""
    from fedkad.edge.sinks.prometheus import Metrics

    return Metrics(settings.prometheus, numbers)
