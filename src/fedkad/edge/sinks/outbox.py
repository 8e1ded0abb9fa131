"""Alerts on their way out: from the outbox in the store to the sinks, and deleted once they are delivered."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from fedkad.edge.alert import Alert
from fedkad.edge.sinks import AlertSink
from fedkad.edge.store import Store
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

OFFERED, OFFER_INTERVAL = 50, 1.0
"""Alerts offered to a sink at a time, and seconds until those that it has not delivered are offered again."""


class Outbox:
    """Hands alerts to the sinks.

    Attributes
    ----------
    has_new : bool
        Whether there are alerts that are not committed yet.
    """

    def __init__(self, store: Store, sinks: Sequence[AlertSink]) -> None:
        self._store, self._sinks = store, sinks
        self._delivered: set[int] = set()
        self._next_offer, self._repeats = 0.0, RepeatFilter(limit=3, period=3600.0)
        self.has_new = True  # there may be some from before
        store.alerts.drop_other_sinks(sink.name for sink in sinks)

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks."""
        return [sink.name for sink in self._sinks]

    @property
    def has_delivered(self) -> bool:
        """Whether alerts were delivered that are still in the outbox until the next commit."""
        return bool(self._delivered)

    @property
    def is_urgent(self) -> bool:
        """Whether there may be committed alerts that were not offered yet."""
        return self._next_offer == 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no committed alert waits for any sink."""
        return not any(self._store.alerts.waiting(sink.name, 1) for sink in self._sinks)

    def put(self, alerts: Iterable[Alert]) -> None:
        """Keep alerts for every sink."""
        for alert in alerts:
            self._store.alerts.put([sink.name for sink in self._sinks], alert)
            self.has_new = True

    def committed(self) -> None:
        """Offer again at once what was committed, and what waits behind delivered alerts."""
        if self.has_new or self._delivered:
            self._next_offer = 0.0
        self.has_new = False
        self._delivered.clear()

    def offer_now(self) -> None:
        """Offer at the next `deliver`, without waiting."""
        self._next_offer = 0.0

    def deliver(self) -> bool:
        """Offer committed alerts when it is time; True if some were delivered, which has to be committed."""
        now = time.monotonic()
        if now >= self._next_offer:
            self._next_offer = math.inf  # unless something waits
            for sink in self._sinks:
                waiting = self._store.alerts.waiting(sink.name, OFFERED)
                waiting = [(key, alert) for key, alert in waiting if key not in self._delivered]
                if waiting:
                    self._next_offer = now + OFFER_INTERVAL
                try:
                    sink.offer(waiting)
                except BrokenPipeError:
                    raise
                except OSError as error:
                    if self._repeats.allows(sink.name):
                        logger.warning("%s accepts nothing (%s); its alerts are kept.", sink.name, error.strerror)
        delivered = self._collect()
        self._delivered.update(delivered)
        return bool(delivered)

    def _collect(self) -> list[int]:
        """The keys of delivered alerts, which are deleted with the next commit."""
        delivered = [key for sink in self._sinks for key in sink.delivered()]
        self._store.alerts.remove(delivered)
        return delivered

    def drop_surplus(self) -> bool:
        """Limit how many alerts wait for a sink; True if some are dropped, which has to be committed."""
        return sum(self._store.alerts.drop_surplus(sink.name) for sink in self._sinks) > 0

    def close(self) -> None:
        """Commit what was delivered while the sinks were closed, and nothing else: the agent has committed the rest."""
        self._store.discard()
        if self._collect():
            with suppress(OSError):  # then they are delivered once more
                self._store.commit()
