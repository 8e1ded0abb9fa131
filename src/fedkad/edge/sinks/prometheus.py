"""A page of numbers for Prometheus, made when it is read: a sample costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedkad.edge.settings import Prometheus, SettingsError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Snapshot = Mapping[str, Mapping[str, float]]
"""For each device its numbers, by the names in `GAUGES` and `COUNTERS`; those that are missing are left out."""

GAUGES = {
    "score": "How far the last sample departs from the learnt dynamics; left out without a score.",
    "threshold": "Score above which a sample is abnormal.",
    "abnormal": "1 if the last sample is abnormal.",
    "incident_open": "1 while an incident is open.",
    "anomaly_rate": "Share of abnormal samples in the rate window, between 0 and 1.",
    "learning": "1 while there is no model yet.",
    "alarms_per_week": "Alarms there were, false or not, in a week of scored time; with a budget only.",
    "alarms_allowed_per_week": "False alarms that the budget allows in a week.",
    "warming": "1 while the window fills up and there is no score.",
    "stale": "1 if no sample has come for longer than stale_after.",
    "gap": "1 if the window was just broken by a missing value.",
    "maintenance": "1 in a planned stretch without alarms.",
}
COUNTERS = {
    "rows": "Rows of the grid.",
    "carried": "Values that an earlier one stood for.",
    "late": "Values that came after their row was judged.",
    "duplicates": "Values that came twice.",
    "off_clock": "Samples with a time that cannot be.",
    "refused": "Messages that could not be read.",
    "incidents": "Incidents begun.",
    "learnt": "Times that the dynamics were fitted anew.",
}


class Metrics:
    """Serves `/metrics` until it is closed.

    Parameters
    ----------
    settings : Prometheus
        Address and port; here port 0 is one that is free, found in `port`.
    snapshot : callable
        Gives the numbers of all devices. Called in a thread of the server, once for each reading of the page.

    Raises
    ------
    SettingsError
        If the port cannot be had or prometheus_client is missing.
    """

    def __init__(self, settings: Prometheus, snapshot: Callable[[], Snapshot]) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise SettingsError("[prometheus] needs prometheus_client: pip install prometheus_client.") from None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(snapshot))
        try:
            self._server, self._thread = start_http_server(settings.port, settings.address, registry)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"[prometheus] port = {settings.port} cannot be had on {settings.address} ({error}); name a free one."
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """Asked by prometheus_client whenever the page is read."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Any]:
        """Nothing: a page must not be made before the first device is known."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of which any device has a number."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        devices = self._snapshot()
        for names, family_type in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, meaning in names.items():
                family: Any = family_type(f"fedkad_{name}", meaning, labels=["device"])
                for device, numbers in devices.items():
                    if name in numbers:
                        family.add_metric([device], float(numbers[name]))
                if family.samples:
                    yield family
