"""Metrics for Prometheus, computed when they are read: a sample costs nothing."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedkad import __version__
from fedkad.edge.settings import Prometheus, SettingsError

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class AgentMetrics(NamedTuple):
    """The numbers of an agent now: of devices by the names in `GAUGES` and `COUNTERS`, of which some may be missing.

    The others are by the section of a broker, and by the name of a sink.
    """

    devices: Mapping[str, Mapping[str, float]]
    connected: Mapping[str, bool] = MappingProxyType({})
    waiting: Mapping[str, int] = MappingProxyType({})
    is_disk_full: bool = False


GAUGES = {
    "score": "How far the last sample departs from the learned dynamics; left out without a score.",
    "threshold": "Score above which a sample is abnormal.",
    "abnormal": "1 if the last sample is abnormal.",
    "incident_open": "1 while an incident is open.",
    "faults_open": "Faults of sensors that are open.",
    "anomaly_ratio": "Share of abnormal samples in the rate window, between 0 and 1.",
    "learning": "1 while there is no model yet.",
    "alarms_per_week": "Alarms per week of scored time, false or not; with a budget only.",
    "alarms_allowed_per_week": "False alarms that the budget allows per week.",
    "threshold_ratio": "What the fitted threshold is multiplied by to keep the budget.",
    "warming": "1 while the window fills up and there is no score.",
    "stale": "1 if no sample has come for longer than stale_after.",
    "gap": "1 if the window was just broken by a missing value.",
    "maintenance": "1 during planned maintenance.",
    "muted": "1 while an operator has muted the device.",
    "last_sample_timestamp_seconds": "When the last sample arrived, in seconds since 1970.",
}
COUNTERS = {
    "rows": "Rows of the grid.",
    "carried": "Missing values that were replaced by an earlier one.",
    "late": "Values that came after their row was judged.",
    "duplicates": "Values that came twice.",
    "off_clock": "Samples with an implausible time.",
    "refused": "Messages that could not be read, or had values that could not.",
    "incidents": "Incidents begun.",
    "faults": "Faults of sensors begun.",
    "learnt": "How often the dynamics were fitted again.",
}


OF_AGENT = {
    "broker_connected": "1 while the agent is connected to the broker of a section.",
    "alerts_waiting": "Alerts that a sink has not delivered yet.",
    "disk_full": "1 while nothing can be written, and no message is accepted.",
}
BUILD = "Versions of fedkad and of Python."


class MetricsServer:
    """Serves `/metrics` until it is closed.

    Raises a `SettingsError` if the port is not available; here port 0 means any free one, found in `port`. `metrics`
    returns the numbers of the agent, and is called in a thread of the server for each request.
    """

    def __init__(self, settings: Prometheus, metrics: Callable[[], AgentMetrics]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._metrics = metrics
        registry = CollectorRegistry(auto_describe=False)  # the metrics must not be computed before they are asked for
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(settings.port, settings.address, registry)
        except (OSError, OverflowError) as error:
            raise _unavailable(settings, error) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """All metrics that there is a number for; called by prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        devices, connected, waiting, is_disk_full = self._metrics()
        yield InfoMetricFamily("fedkad_build", BUILD, {"version": __version__, "python": sys.version.split()[0]})
        for name, label, numbers in (
            ("broker_connected", "section", connected),
            ("alerts_waiting", "sink", waiting),
            ("disk_full", "", {"": is_disk_full}),
        ):
            yield from _family(GaugeMetricFamily, name, OF_AGENT[name], label, numbers)
        for kind, names in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, meaning in names.items():
                by_device = {device: numbers[name] for device, numbers in devices.items() if name in numbers}
                yield from _family(kind, name, meaning, "device", by_device)


def _family(kind: Any, name: str, meaning: str, label: str, numbers: Mapping[str, float]) -> Iterator[Metric]:
    """The numbers of one name, by the value of their label if they have one; nothing without any number."""
    family = kind(f"fedkad_{name}", meaning, labels=[label] if label else [])
    for value, number in numbers.items():
        family.add_metric([value] if label else [], float(number))
    if numbers:
        yield family


def check_port(settings: Prometheus) -> None:
    """Raise a `SettingsError` if the port is not available now."""
    try:
        address, *_ = socket.getaddrinfo(settings.address, settings.port, type=socket.SOCK_STREAM)
        with socket.socket(*address[:3]) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            taken.bind(address[4])
    except OSError as error:
        raise _unavailable(settings, error) from None


def _unavailable(settings: Prometheus, error: Exception) -> SettingsError:
    return SettingsError(
        f"[prometheus] port = {settings.port} is not available on {settings.address} ({error}); choose another."
    )
