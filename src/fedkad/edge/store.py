"""What an agent must not forget, in one SQLite file: all that a batch of messages changed is committed together.

    device     where each device stands: its grid, its alarms, what is counted
    row        rows of the grid that are still needed: to fill the window after a restart, and to learn from
    outbox     alerts that a sink has not taken yet
    incident   the last word on every incident, also on those that every sink has taken or one has refused
    judge      thresholds that adapt, as the scores so far have left them
    source     how far a file was read
    taken      of each number that a broker gives to messages, the digest of the last one under it

Changes are gathered in memory and written in one transaction. If that fails because the disk is full, they stay
gathered, nothing is acknowledged, and the next commit tries again. A file that turns out to be damaged, whether it is
written or read, is set aside, and an empty one takes its place.
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Say = Callable[[str], None]
T = TypeVar("T")

MIGRATIONS = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE device (name TEXT PRIMARY KEY, state TEXT NOT NULL);
    CREATE TABLE row (device TEXT, seq INTEGER, time REAL, vals BLOB, trains INTEGER, PRIMARY KEY (device, seq))
        WITHOUT ROWID;
    CREATE TABLE outbox (key INTEGER PRIMARY KEY AUTOINCREMENT, sink TEXT NOT NULL, alert TEXT NOT NULL);
    """,
    """
    CREATE TABLE incident (number INTEGER PRIMARY KEY, id TEXT UNIQUE, device TEXT NOT NULL, alert TEXT NOT NULL);
    CREATE TABLE source (name TEXT PRIMARY KEY, position TEXT NOT NULL);
    CREATE TABLE taken (number INTEGER PRIMARY KEY, digest BLOB NOT NULL);
    CREATE TABLE judge (device TEXT PRIMARY KEY, state TEXT NOT NULL);
    """,
    "CREATE INDEX outbox_of_sink ON outbox (sink, key);",
    "CREATE INDEX incident_of_device ON incident (device, number);",
)
"""What takes a file from one version to the next; a new file goes through all of them."""

MOST_WAITING = 100_000
"""Alerts that are kept for a sink that takes none; then the oldest go, and that is said."""

MOST_INCIDENTS = 1000
"""Incidents of a device that are remembered."""


NOT_DAMAGED = (
    *("SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED"),
    *("SQLITE_PERM", "SQLITE_NOMEM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT"),
)
"""What SQLite calls troubles that are not the file's own."""


class StoreError(ValueError):
    """A file that this version cannot use and must not touch."""


class Store:
    """The durable state of an agent.

    Parameters
    ----------
    path : Path
        A damaged file there is set aside, and said so; a file of an older version is brought up to date.
    say : callable
        Takes a sentence for the log.
    """

    def __init__(self, path: Path, say: Say) -> None:
        self.path, self._say = path, say
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._surplus_said: set[str] = set()
        self._last_key = 0  # of the alerts that anybody was told of
        self._database: sqlite3.Connection | None = None
        try:
            self._safely(self._begin)
        except OSError as error:
            raise StoreError(f"{error}; free some space, or see who may write there.") from None

    def _begin(self) -> None:
        if self.path.exists() and not self.path.stat().st_size:
            raise sqlite3.DatabaseError("it is empty")
        try:
            self._connected()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith(NOT_DAMAGED):
                raise
            raise sqlite3.DatabaseError(str(error)) from None  # such as a table that is missing

    def _connected(self) -> sqlite3.Connection:
        """The connection to the file, which is made anew after damage, as soon as the disk has room for that."""
        if self._database is None:
            database = _open(self.path)
            try:
                self.identity = _identity(database)
                _number_above(database, self._last_key)
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database

    def _begin_again(self, error: sqlite3.DatabaseError) -> None:
        self.close()
        aside = set_aside(self.path)
        self._say(f"{self.path}: damaged ({error}); it is now {aside.name}, and the agent goes on with an empty one.")

    def _safely(self, work: Callable[[], T], *, is_new: bool = False) -> T:
        """Do something with the file, and once more with an empty one if this shows that it is damaged.

        Raises `OSError` for troubles that are not the file's own. What is gathered stays so: it says where every device
        of it stands.
        """
        try:
            return work()
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from None
        except sqlite3.ProgrammingError:
            raise  # a mistake of ours, and the file is sound
        except sqlite3.DatabaseError as error:
            if is_new:
                raise
            self._begin_again(error)
        return self._safely(work, is_new=True)

    def _read(self, query: str, *values: Any) -> list[Any]:
        """What a query finds."""
        return self._safely(lambda: self._connected().execute(query, values).fetchall())

    # -- what was committed -------------------------------------------------------------------------------------

    def device_state(self, device: str) -> Any:
        """Where a device stood, None for a new one; raises `ValueError` where that cannot be read."""
        found = self._read("SELECT state FROM device WHERE name = ?", device)
        return json.loads(found[0][0]) if found else None

    def last_number(self, device: str) -> int:
        """The number of the last row of a device."""
        ((found,),) = self._read("SELECT max(seq) FROM row WHERE device = ?", device)
        return found or 0

    def last_rows(self, device: str, count: int, channels: int) -> list[Array]:
        """The last rows of a device, oldest first; a damaged one is a gap."""
        found = self._read("SELECT vals FROM row WHERE device = ? ORDER BY seq DESC LIMIT ?", device, count)
        return [_values(content, channels) for (content,) in reversed(found)]

    def rows_to_learn(self, device: str, channels: int) -> tuple[int, Array]:
        """The rows gathered so far, with NaN where one must not be learnt from, and the number of the last."""
        return self._safely(lambda: self._rows_to_learn(device, channels))

    def _rows_to_learn(self, device: str, channels: int) -> tuple[int, Array]:
        """Not by `_read`: they are many, and would be in memory twice."""
        database = self._connected()
        count, last = database.execute("SELECT count(*), max(seq) FROM row WHERE device = ?", (device,)).fetchone()
        rows = np.full((count, channels), np.nan)
        query = "SELECT vals, trains FROM row WHERE device = ? ORDER BY seq"
        for k, (content, trains) in enumerate(database.execute(query, (device,))):
            if trains:
                rows[k] = _values(content, channels)
        return last or 0, rows

    def waiting(self, sink: str, most: int) -> list[tuple[int, dict[str, Any]]]:
        """The oldest alerts that a sink has not taken; one that cannot be read is dropped, and said so."""
        found = []
        for key, text in self._read("SELECT key, alert FROM outbox WHERE sink = ? ORDER BY key LIMIT ?", sink, most):
            self._last_key = max(self._last_key, key)
            try:
                found.append((key, json.loads(text)))
            except ValueError:
                self._say(f"{self.path}: an alert for {sink} is damaged and dropped ({text[:80]!r}).")
                self.put_delivered([key])
        return found

    def incidents(self, device: str) -> list[dict[str, Any]]:
        """The last alert of every incident that is remembered, the newest first.

        The agent itself does not ask: it is for whoever wants to know what there was after the sinks have forgotten it.
        """
        query = "SELECT alert FROM incident WHERE device = ? ORDER BY number DESC"
        return [json.loads(alert) for (alert,) in self._read(query, device)]

    def judge_state(self, device: str) -> dict[str, Any] | None:
        """What was kept of an adapting threshold."""
        found = self._plain("SELECT state FROM judge WHERE device = ?", device)
        return found if isinstance(found, dict) else None

    def position(self, source: str) -> Any:
        """Where a source stood at the last commit; None at first."""
        return self._plain("SELECT position FROM source WHERE name = ?", source)

    def _plain(self, query: str, key: str) -> Any:
        """Plain data that the agent can do without: none where it is damaged."""
        found = self._read(query, key)
        try:
            return json.loads(found[0][0]) if found else None
        except ValueError:
            self._say(f"{self.path}: what was kept of {key} is damaged and left out.")
            return None

    def taken(self, number: int) -> bytes | None:
        """The digest of the last message under a number of the broker."""
        found = self._read("SELECT digest FROM taken WHERE number = ?", number)
        return found[0][0] if found else None

    # -- what is to be committed --------------------------------------------------------------------------------

    def add_row(self, device: str, seq: int, time: float, values: Array, *, trains: bool) -> None:
        """Keep a row of the grid."""
        self._gather("INSERT OR REPLACE INTO row VALUES (?, ?, ?, ?, ?)", device, seq, time, values.tobytes(), trains)

    def revoke(self, device: str, since: int) -> None:
        """Learn nothing from the rows since that number: what followed was abnormal."""
        self._gather("UPDATE row SET trains = 0 WHERE device = ? AND seq >= ?", device, since)

    def spend(self, device: str, through: int) -> None:
        """Learn nothing more from the rows up to that number: it was done."""
        self._gather("UPDATE row SET trains = 0 WHERE device = ? AND seq <= ?", device, through)

    def forget(self, device: str, before: int) -> None:
        """Drop the rows before that number."""
        self._gather("DELETE FROM row WHERE device = ? AND seq < ?", device, before)

    def put_state(self, device: str, state: Mapping[str, Any]) -> None:
        """Where a device stands now."""
        self._gather("INSERT OR REPLACE INTO device VALUES (?, ?)", device, json.dumps(state))

    def put_judge(self, device: str, state: Mapping[str, Any]) -> None:
        """What is to be kept of an adapting threshold."""
        self._gather("INSERT OR REPLACE INTO judge VALUES (?, ?)", device, json.dumps(state))

    def put_alert(self, sinks: Iterable[str], alert: Mapping[str, Any]) -> None:
        """An alert for these sinks, and the last word on its incident."""
        text = json.dumps(alert)
        for sink in sinks:
            self._gather("INSERT INTO outbox (sink, alert) VALUES (?, ?)", sink, text)
        self._gather(
            "INSERT INTO incident (id, device, alert) VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET alert = excluded.alert",
            alert["id"],
            alert["device"],
            text,
        )
        if alert["event"] == "start":
            older = "SELECT number FROM incident WHERE device = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
            device = alert["device"]
            self._gather(
                f"DELETE FROM incident WHERE device = ? AND number <= ({older})", device, device, MOST_INCIDENTS
            )

    def put_delivered(self, keys: Iterable[int]) -> None:
        """Alerts that a sink has taken."""
        for key in keys:
            self._gather("DELETE FROM outbox WHERE key = ?", key)

    def put_position(self, source: str, position: Any) -> None:
        """Where a source stands with what is committed."""
        self._gather("INSERT OR REPLACE INTO source VALUES (?, ?)", source, json.dumps(position))

    def put_taken(self, number: int, digest: bytes) -> None:
        """A message was taken under a number of the broker."""
        self._gather("INSERT OR REPLACE INTO taken VALUES (?, ?)", number, digest)

    def _gather(self, statement: str, *values: Any) -> None:
        self._pending.append((statement, values))

    def discard(self) -> None:
        """Forget what was gathered, as a kill does."""
        self._pending.clear()

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._pending)

    def commit(self) -> None:
        """Write all that was gathered, or nothing of it; raises `OSError` when the disk does not take it.

        Once it returns, not even a power cut takes it back.
        """
        self._safely(self._write)
        self._pending.clear()

    def _write(self) -> None:
        database = self._connected()
        try:
            database.execute("BEGIN IMMEDIATE")
            for statement, alike in groupby(self._pending, key=itemgetter(0)):
                database.executemany(statement, map(itemgetter(1), alike))
            database.execute("COMMIT")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def drop_other_sinks(self, sinks: Iterable[str]) -> None:
        """Drop the alerts for sinks that are not configured any more, and say so: they would be told in months."""
        wanted = list(sinks)
        marks = ", ".join("?" * len(wanted))
        query = f"SELECT count(*), group_concat(DISTINCT sink) FROM outbox WHERE sink NOT IN ({marks})"
        ((count, others),) = self._read(query, *wanted)
        if count:
            self._say(f"{count} alert(s) that waited for {others}, which is not configured any more, are dropped.")
            self._gather(f"DELETE FROM outbox WHERE sink NOT IN ({marks})", *wanted)

    def drop_surplus(self, sink: str) -> bool:
        """Keep no more than `MOST_WAITING` alerts for a sink; True if there is something to commit."""
        query = "SELECT key FROM outbox WHERE sink = ? ORDER BY key DESC LIMIT 1 OFFSET ?"
        found = self._read(query, sink, MOST_WAITING)
        if not found:
            return False
        ((key,),) = found
        self._last_key = max(self._last_key, key)
        if sink not in self._surplus_said:
            self._surplus_said.add(sink)
            self._say(f"{sink}: it takes no alerts; more than {MOST_WAITING} wait, and the oldest are dropped.")
        self._gather("DELETE FROM outbox WHERE sink = ? AND key <= ?", sink, key)
        return True

    def close(self) -> None:
        """Close the file; what was gathered and not committed is gone."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a sound file of this version."""
    database = sqlite3.connect(path, isolation_level=None, cached_statements=32)
    database.text_factory = lambda content: content.decode(errors="replace")  # damaged text is no error of its own
    try:
        # Little memory, and what is committed is on the disk: a power cut must not take back what was acknowledged.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-512", "wal_autocheckpoint=250"):
            database.execute(f"PRAGMA {pragma}").fetchall()
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        _migrate(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _identity(database: sqlite3.Connection) -> str:
    """What this file is called in the models that have learnt from its rows."""
    found = database.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    if found:
        return str(found[0])
    made = uuid.uuid4().hex
    database.execute("INSERT INTO meta VALUES ('identity', ?)", (made,))
    return made


def _number_above(database: sqlite3.Connection, last: int) -> None:
    """Let the keys of alerts go on where those of a damaged file ended: sinks still speak of these."""
    if last:
        unused = "SELECT 'outbox', ? WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'outbox')"
        database.execute(f"INSERT INTO sqlite_sequence (name, seq) {unused}", (last,))


def _values(content: Any, channels: int) -> Array:
    """The values of a row; NaN throughout where they are not as many as there are channels."""
    if not isinstance(content, bytes) or len(content) != 8 * channels:
        return np.full(channels, np.nan)
    return np.frombuffer(content)


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: written by a newer version of fedkad (format {version}, this knows {len(MIGRATIONS)}); "
            "install that version, or move the file away to begin anew."
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(f"BEGIN;{script};PRAGMA user_version = {number};COMMIT;")


def set_aside(path: Path) -> Path:
    """Rename a damaged file, with what belongs to it, to a name that is free; returns that name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.replace(path, aside)
    for suffix in ("-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + suffix))
    return aside
