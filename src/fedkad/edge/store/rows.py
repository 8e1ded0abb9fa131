"""The rows of the grids: for the window after a restart, to learn from, and as the evidence of incidents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.edge.alert import Alert, AlertEvent, Kind
from fedkad.edge.store.database import Database

Array = NDArray[np.float64]

MAX_EVIDENCE, MAX_PROVEN = 2048, 20
"""Rows kept of an incident, from its beginning, and incidents per device whose rows are kept."""


class RowTable:
    """The rows of all devices, by the number that each has in its device."""

    def __init__(self, database: Database) -> None:
        self._database, self._read, self._collect = database, database.read, database.collect

    def last_number(self, device: str) -> int:
        """The number of the last row of a device."""
        ((found,),) = self._read("SELECT max(seq) FROM row WHERE device = ?", device)
        return found or 0

    def last(self, device: str, count: int, channels: int) -> list[tuple[int, Array]]:
        """The last rows of a device with their numbers, oldest first; a damaged one is a gap."""
        found = self._read("SELECT seq, vals FROM row WHERE device = ? ORDER BY seq DESC LIMIT ?", device, count)
        return [(number, _values(content, channels)) for number, content in reversed(found)]

    def to_learn(self, device: str, channels: int, after: int = 0) -> tuple[int, Array]:
        """The number of the last row, and all rows after a number, with NaN in those that must not be learned from."""

        def read() -> tuple[int, Array]:
            connection, wanted = self._database.connection(), "FROM row WHERE device = ? AND seq > ?"
            count, last = connection.execute(f"SELECT count(*), max(seq) {wanted}", (device, after)).fetchone()
            rows = np.full((count, channels), np.nan)
            query = f"SELECT vals, trains {wanted} ORDER BY seq"
            # One by one: fetched together, many rows would be in memory twice.
            for k, (content, trains) in enumerate(connection.execute(query, (device, after))):
                if trains:
                    rows[k] = _values(content, channels)
            return last or 0, rows

        return self._database.safely(read)

    def count_to_learn(self, device: str, after: int, through: int) -> int:
        """Rows after a number and up to another that may be learned from."""
        query = "SELECT count(*) FROM row WHERE device = ? AND seq > ? AND seq <= ? AND trains"
        [(count,)] = self._read(query, device, after, through)
        return int(count)

    def between(self, device: str, start: float, end: float, channels: int) -> list[Array]:
        """The rows of that time that are kept, oldest first, with a gap where some are missing."""
        part = "SELECT seq, vals FROM {} WHERE device = ? AND time BETWEEN ? AND ?"
        query = f"{part.format('row')} UNION {part.format('evidence')} ORDER BY seq"
        rows: list[Array] = []
        last = None
        for seq, content in self._read(query, *2 * (device, start, end)):
            if last is not None and seq > last + 1:
                rows.append(np.full(channels, np.nan))
            rows.append(_values(content, channels))
            last = seq
        return rows

    def add(self, device: str, seq: int, time: float, values: Array, *, trains: bool) -> None:
        """Keep a row of the grid."""
        self._collect("INSERT OR REPLACE INTO row VALUES (?, ?, ?, ?, ?)", device, seq, time, values.tobytes(), trains)

    def revoke(self, device: str, since: int) -> None:
        """Do not learn from the rows since that number: what followed was abnormal."""
        self._collect("UPDATE row SET trains = 0 WHERE device = ? AND seq >= ?", device, since)

    def revoke_between(self, device: str, start: float, end: float) -> None:
        """Do not learn from the rows between two times: somebody called them a fault."""
        self._collect("UPDATE row SET trains = 0 WHERE device = ? AND time BETWEEN ? AND ?", device, start, end)

    def spend(self, device: str, through: int) -> None:
        """Do not learn from the rows up to that number again."""
        self._collect("UPDATE row SET trains = 0 WHERE device = ? AND seq <= ?", device, through)

    def forget(self, device: str, before: int) -> None:
        """Drop the rows before that number."""
        self._collect("DELETE FROM row WHERE device = ? AND seq < ?", device, before)

    def put_evidence(self, alert: Alert, since: int, start: float) -> None:
        """Keep the rows of an incident, those since that number and that time, as far as they have come."""
        device, identity = alert.device, alert.id
        first = "SELECT min(seq) FROM evidence WHERE device = ? AND incident = ?"
        self._collect(
            "INSERT OR IGNORE INTO evidence SELECT device, ?, seq, time, vals FROM row"
            f" WHERE device = ? AND seq >= ? AND time >= ? AND seq < coalesce(({first}), ?) + ?",
            *(identity, device, since, start, device, identity, since, MAX_EVIDENCE),
        )
        if alert.event == AlertEvent.START:
            last = "SELECT id FROM incident WHERE device = ? AND kind <> ? ORDER BY number DESC LIMIT ?"
            self._collect(
                f"DELETE FROM evidence WHERE device = ? AND incident <> ? AND incident NOT IN ({last})",
                *(device, identity, device, Kind.HEALTH.value, MAX_PROVEN - 1),
            )

    def forget_evidence(self, device: str) -> None:
        """Drop the rows of all incidents."""
        self._collect("DELETE FROM evidence WHERE device = ?", device)


def _values(content: Any, channels: int) -> Array:
    """The values of a row; all NaN if their number is not that of the channels."""
    if not isinstance(content, bytes) or len(content) != 8 * channels:
        return np.full(channels, np.nan)
    return np.frombuffer(content)
