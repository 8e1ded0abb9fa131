"""Alerts: those that wait for a sink, and the last one of every incident, whatever the sinks made of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from fedkad.edge.alert import Alert, AlertEvent, from_json
from fedkad.edge.store.database import Database

logger = logging.getLogger(__name__)

MAX_WAITING = 100_000
"""Alerts kept per sink; beyond that the oldest are dropped, and that is logged."""

MAX_INCIDENTS = 1000
"""Incidents remembered per device."""


class AlertTable:
    """The outbox of every sink, and the incidents and faults of every device."""

    def __init__(self, database: Database) -> None:
        self._database, self._read, self._collect = database, database.read, database.collect
        self._surplus_logged: set[str] = set()

    def waiting(self, sink: str, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """The oldest alerts that a sink has not delivered; one that cannot be read is dropped and logged."""
        alerts = []
        for key, text in self._read("SELECT key, alert FROM outbox WHERE sink = ? ORDER BY key LIMIT ?", sink, limit):
            self._database.reserve(key)
            try:
                alerts.append((key, json.loads(text)))
            except ValueError:
                logger.warning("%s: an alert for %s is damaged and dropped (%r).", self._database.path, sink, text[:80])
                self.remove([key])
        return alerts

    def incident(self, device: str, identity: str = "") -> Alert | None:
        """Return the last alert of an incident or a fault, without an id of the last one; None if there is none."""
        query = "SELECT alert FROM incident WHERE device = ? AND ? IN (id, '') ORDER BY number DESC LIMIT 1"
        found = self._read(query, device, identity)
        try:
            return from_json(json.loads(found[0][0])) if found else None
        except ValueError:
            logger.warning("%s: the incident %s of %s is damaged and ignored.", self._database.path, identity, device)
            return None

    def put(self, sinks: Iterable[str], alert: Alert) -> None:
        """Keep an alert for these sinks, and as the last one of its incident."""
        text = json.dumps(alert.to_json())
        for sink in sinks:
            self._collect("INSERT INTO outbox (sink, alert) VALUES (?, ?)", sink, text)
        self._collect(
            "INSERT INTO incident (id, device, kind, alert) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, alert = excluded.alert",
            *(alert.id, alert.device, alert.kind.value, text),
        )
        if alert.event == AlertEvent.START:
            older = "SELECT number FROM incident WHERE device = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
            self._collect(
                f"DELETE FROM incident WHERE device = ? AND number <= ({older})",
                *(alert.device, alert.device, MAX_INCIDENTS),
            )

    def remove(self, keys: Iterable[int]) -> None:
        """Remove alerts that were delivered."""
        for key in keys:
            self._collect("DELETE FROM outbox WHERE key = ?", key)

    def drop_other_sinks(self, sinks: Iterable[str]) -> None:
        """Drop the alerts for sinks that are no longer configured, or they might be delivered months later."""
        wanted = list(sinks)
        marks = ", ".join("?" * len(wanted))
        query = f"SELECT count(*), group_concat(DISTINCT sink) FROM outbox WHERE sink NOT IN ({marks})"
        ((count, others),) = self._read(query, *wanted)
        if count:
            logger.warning("%d alert(s) for %s, which is no longer configured, are dropped.", count, others)
            self._collect(f"DELETE FROM outbox WHERE sink NOT IN ({marks})", *wanted)

    def drop_surplus(self, sink: str) -> bool:
        """Keep at most `MAX_WAITING` alerts for a sink; True if some are dropped."""
        query = "SELECT key FROM outbox WHERE sink = ? ORDER BY key DESC LIMIT 1 OFFSET ?"
        found = self._read(query, sink, MAX_WAITING)
        if not found:
            return False
        ((key,),) = found
        self._database.reserve(key)
        if sink not in self._surplus_logged:
            self._surplus_logged.add(sink)
            logger.warning(
                "%s: not delivering; more than %d alerts are queued, and the oldest are dropped.", sink, MAX_WAITING
            )
        self._collect("DELETE FROM outbox WHERE sink = ? AND key <= ?", sink, key)
        return True
