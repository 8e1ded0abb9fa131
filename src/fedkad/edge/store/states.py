"""Plain values: the state of each device, its adapting threshold, and how far each source was read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fedkad.edge.store.database import Database

logger = logging.getLogger(__name__)

_compact = json.JSONEncoder(separators=(",", ":")).encode
"""The state of 25 channels fits into one page of the file then."""


class StateTable:
    """What devices and sources continue from after a restart."""

    def __init__(self, database: Database) -> None:
        self._database, self._read, self._collect = database, database.read, database.collect

    def get(self, device: str) -> Any:
        """The state of a device, None for a new one; raises `ValueError` if it cannot be read."""
        found = self._read("SELECT state FROM device WHERE name = ?", device)
        return json.loads(found[0][0]) if found else None

    def devices(self) -> list[str]:
        """The devices that have a state."""
        return [str(name) for (name,) in self._read("SELECT name FROM device ORDER BY name")]

    def put(self, device: str, state: Mapping[str, Any]) -> None:
        """Keep the state of a device."""
        self._collect("INSERT OR REPLACE INTO device VALUES (?, ?)", device, _compact(state))

    def position(self, source: str) -> Any:
        """The position of a source at the last commit; None at first."""
        return self._plain("SELECT position FROM source WHERE name = ?", source)

    def put_position(self, source: str, position: Any) -> None:
        """Keep the position of a source."""
        self._collect("INSERT OR REPLACE INTO source VALUES (?, ?)", source, json.dumps(position))

    def digest(self, number: int) -> bytes | None:
        """The digest of the last message under a packet number of the broker."""
        found = self._read("SELECT digest FROM taken WHERE number = ?", number)
        return found[0][0] if found else None

    def put_digest(self, number: int, digest: bytes) -> None:
        """Keep the digest of the last message under a packet number of the broker."""
        self._collect("INSERT OR REPLACE INTO taken VALUES (?, ?)", number, digest)

    def _plain(self, query: str, key: str) -> Any:
        """Plain data that the agent can do without: None if it is damaged."""
        found = self._read(query, key)
        try:
            return json.loads(found[0][0]) if found else None
        except ValueError:
            logger.warning("%s: the state of %s is damaged and ignored.", self._database.path, key)
            return None
