"""The durable state of an agent in one SQLite file: all that a batch of messages changes is committed together.

Each module has its tables:

    states     `device`     the state of each device: its grid, its alarms, its counters
               `source`     how far a file was read
               `taken`      the digest of the last message under each packet number of the broker
    rows       `row`        rows of the grid that are still needed, to fill the window after a restart and to learn from
               `evidence`   the rows of the last incidents, for when an operator says later that they were normal
    alerts     `outbox`     alerts that a sink has not delivered yet
               `incident`   the last alert of every incident, even after all sinks have delivered or refused it
    commands   `command`    commands and their replies; `fedkad.edge.commands.client` writes there as well
"""

from __future__ import annotations

from pathlib import Path

from fedkad.edge.store.alerts import AlertTable
from fedkad.edge.store.commands import CommandTable
from fedkad.edge.store.database import Database
from fedkad.edge.store.rows import RowTable
from fedkad.edge.store.states import StateTable


class Store(Database):
    """The file of an agent, with what it keeps by subject."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.states, self.rows = StateTable(self), RowTable(self)
        self.alerts, self.commands = AlertTable(self), CommandTable(self)

    def forget_device(self, device: str) -> None:
        """Drop all that is known of a device; what waits for a sink is still delivered."""
        self.collect("DELETE FROM device WHERE name = ?", device)
        for table in ("row", "evidence", "incident", "command"):
            self.collect(f"DELETE FROM {table} WHERE device = ?", device)
