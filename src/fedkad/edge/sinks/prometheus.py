"""Metrics for Prometheus, computed when they are read: a sample costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedkad.edge.settings import Prometheus, SettingsError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

DeviceMetrics = Mapping[str, Mapping[str, float]]
"""The numbers of each device, by the names in `GAUGES` and `COUNTERS`; some may be missing."""

GAUGES = {
    "score": "How far the last sample departs from the learned dynamics; left out without a score.",
    "threshold": "Score above which a sample is abnormal.",
    "abnormal": "1 if the last sample is abnormal.",
    "incident_open": "1 while an incident is open.",
    "faults_open": "Faults of sensors that are open.",
    "anomaly_rate": "Share of abnormal samples in the rate window, between 0 and 1.",
    "learning": "1 while there is no model yet.",
    "alarms_per_week": "Alarms per week of scored time, false or not; with a budget only.",
    "alarms_allowed_per_week": "False alarms that the budget allows per week.",
    "threshold_factor": "What the fitted threshold is multiplied by to keep the budget.",
    "warming": "1 while the window fills up and there is no score.",
    "stale": "1 if no sample has come for longer than stale_after.",
    "gap": "1 if the window was just broken by a missing value.",
    "maintenance": "1 during planned maintenance.",
    "muted": "1 while an operator has muted the device.",
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


class MetricsServer:
    """Serves `/metrics` until it is closed.

    Raises a `SettingsError` if the port is not available; here port 0 means any free one, found in `port`. `metrics`
    returns the numbers of all devices, and is called in a thread of the server for each request.
    """

    def __init__(self, settings: Prometheus, metrics: Callable[[], DeviceMetrics]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._metrics = metrics
        registry = CollectorRegistry(auto_describe=False)  # the metrics must not be computed before they are asked for
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(settings.port, settings.address, registry)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"[prometheus] port = {settings.port} is not available on {settings.address} ({error}); choose another."
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """All metrics that any device has a number for; called by prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        devices = self._metrics()
        for names, family_type in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, meaning in names.items():
                family: Any = family_type(f"fedkad_{name}", meaning, labels=["device"])
                for device, numbers in devices.items():
                    if name in numbers:
                        family.add_metric([device], float(numbers[name]))
                if family.samples:
                    yield family
