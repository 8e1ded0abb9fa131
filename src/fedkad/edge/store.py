"""The durable state of an agent in one SQLite file: all that a batch of messages changes is committed together.

    device     the state of each device: its grid, its alarms, its counters
    row        rows of the grid that are still needed, to fill the window after a restart and to learn from
    outbox     alerts that a sink has not delivered yet
    incident   the last alert of every incident, even after all sinks have delivered or refused it
    judge      the state of adapting thresholds
    source     how far a file was read
    taken      the digest of the last message under each packet number of the broker
    command    what operators told, and the replies; `fedkad.edge.visiting` writes there as well
    evidence   the rows of the last incidents, for when somebody says later that they were normal

Changes are collected in memory and written in one transaction. If that fails because the disk is full, they stay
collected, nothing is acknowledged, and the next commit tries again. A damaged file, whether noticed while writing or
reading, is renamed, and an empty one takes its place.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import set_aside
from fedkad.edge.commands import Command

Array = NDArray[np.float64]
T = TypeVar("T")

logger = logging.getLogger(__name__)

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
    """
    CREATE TABLE command (number INTEGER PRIMARY KEY, id TEXT NOT NULL, device TEXT NOT NULL, verb TEXT NOT NULL,
        argument TEXT NOT NULL, sender TEXT NOT NULL, time REAL NOT NULL, reply TEXT, accepted INTEGER,
        published INTEGER NOT NULL, UNIQUE (device, id));
    CREATE TABLE evidence (device TEXT, incident TEXT, seq INTEGER, time REAL, vals BLOB,
        PRIMARY KEY (device, incident, seq)) WITHOUT ROWID;
    """,
    """
    ALTER TABLE command RENAME TO command_before;
    CREATE TABLE command (number INTEGER PRIMARY KEY, id TEXT NOT NULL, device TEXT NOT NULL, verb TEXT NOT NULL,
        argument TEXT NOT NULL, sender TEXT NOT NULL, time REAL NOT NULL, reply TEXT, accepted INTEGER,
        published INTEGER NOT NULL, UNIQUE (device, id, verb, argument));
    INSERT INTO command SELECT * FROM command_before;
    DROP TABLE command_before;
    """,
)
"""The steps from one version of the file to the next; a new file takes all of them."""

MAX_WAITING = 100_000
"""Alerts kept per sink; beyond that the oldest are dropped, and that is logged."""

MAX_INCIDENTS = 1000
"""Incidents remembered per device."""

MAX_COMMANDS = 1000
"""Commands remembered after they were answered; one that comes again with an id of these acts only once."""

MAX_EVIDENCE, MAX_PROVEN = 2048, 20
"""Rows kept of an incident, from its beginning, and incidents per device whose rows are kept."""

PUT_COMMAND = (
    "INSERT INTO command (id, device, verb, argument, sender, time, published) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (device, id, verb, argument) DO UPDATE SET published = min(published, excluded.published)"
)
"""Keep a command; one that is there already only gets its reply published again, if it came over a broker."""

_compact = json.JSONEncoder(separators=(",", ":")).encode
"""The state of 25 channels fits into one page of the file then."""

THIS_COMMAND = "device = ? AND id = ? AND verb = ? AND argument = ?"


NO_FAULT = """alert NOT LIKE '%"kind": "health"%'"""
"""Of the alerts that are kept, those of incidents and not of sensors; also where one is damaged."""

NOT_DAMAGED = (
    *("SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED"),
    *("SQLITE_PERM", "SQLITE_NOMEM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT"),
)
"""SQLite errors that do not mean a damaged file."""


class StoreError(ValueError):
    """A file that this version cannot use and must not change."""


class Store:
    """The durable state of an agent; a damaged file is renamed, which is logged, and an older one is upgraded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._surplus_logged: set[str] = set()
        self._last_key = 0  # of the alerts that were handed to a sink
        self._database: sqlite3.Connection | None = None
        try:
            self._safely(self._begin)
        except OSError as error:
            raise StoreError(f"{error}; free some space, or check who may write there.") from None

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
        """The connection to the file; opened again after damage, as soon as the disk has room."""
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
        logger.warning(
            "%s: damaged (%s); renamed to %s, and the agent continues with an empty one.", self.path, error, aside.name
        )

    def _safely(self, work: Callable[[], T], *, is_new: bool = False) -> T:
        """Do something with the file, and if this shows that it is damaged, once more with an empty one.

        Raises `OSError` for anything else. Collected changes are kept: they have the state of every device in them.
        """
        try:
            return work()
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from None
        except sqlite3.ProgrammingError:
            raise  # a bug, not a damaged file
        except sqlite3.DatabaseError as error:
            if is_new:
                raise
            self._begin_again(error)
        return self._safely(work, is_new=True)

    def _read(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query returns."""
        return self._safely(lambda: self._connected().execute(query, values).fetchall())

    # -- committed ----------------------------------------------------------------------------------------------

    def device_state(self, device: str) -> Any:
        """The state of a device, None for a new one; raises `ValueError` if it cannot be read."""
        found = self._read("SELECT state FROM device WHERE name = ?", device)
        return json.loads(found[0][0]) if found else None

    def devices(self) -> list[str]:
        """The devices that have a state."""
        return [str(name) for (name,) in self._read("SELECT name FROM device ORDER BY name")]

    def last_number(self, device: str) -> int:
        """The number of the last row of a device."""
        ((found,),) = self._read("SELECT max(seq) FROM row WHERE device = ?", device)
        return found or 0

    def last_rows(self, device: str, count: int, channels: int) -> list[tuple[int, Array]]:
        """The last rows of a device with their numbers, oldest first; a damaged one is a gap."""
        found = self._read("SELECT seq, vals FROM row WHERE device = ? ORDER BY seq DESC LIMIT ?", device, count)
        return [(number, _values(content, channels)) for number, content in reversed(found)]

    def rows_to_learn(self, device: str, channels: int, after: int = 0) -> tuple[int, Array]:
        """The number of the last row, and all rows after a number, with NaN in those that must not be learned from."""
        return self._safely(lambda: self._rows_to_learn(device, channels, after))

    def _rows_to_learn(self, device: str, channels: int, after: int) -> tuple[int, Array]:
        """Not by `_read`: there are many rows, and they would be in memory twice."""
        database, wanted = self._connected(), "FROM row WHERE device = ? AND seq > ?"
        count, last = database.execute(f"SELECT count(*), max(seq) {wanted}", (device, after)).fetchone()
        rows = np.full((count, channels), np.nan)
        query = f"SELECT vals, trains {wanted} ORDER BY seq"
        for k, (content, trains) in enumerate(database.execute(query, (device, after))):
            if trains:
                rows[k] = _values(content, channels)
        return last or 0, rows

    def count_to_learn(self, device: str, after: int, through: int) -> int:
        """Rows after a number and up to another that may be learned from."""
        query = "SELECT count(*) FROM row WHERE device = ? AND seq > ? AND seq <= ? AND trains"
        [(count,)] = self._read(query, device, after, through)
        return int(count)

    def waiting(self, sink: str, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """The oldest alerts that a sink has not delivered; one that cannot be read is dropped and logged."""
        found = []
        for key, text in self._read("SELECT key, alert FROM outbox WHERE sink = ? ORDER BY key LIMIT ?", sink, limit):
            self._last_key = max(self._last_key, key)
            try:
                found.append((key, json.loads(text)))
            except ValueError:
                logger.warning("%s: an alert for %s is damaged and dropped (%r).", self.path, sink, text[:80])
                self.put_delivered([key])
        return found

    def judge_state(self, device: str) -> dict[str, Any] | None:
        """The state of an adapting threshold."""
        found = self._plain("SELECT state FROM judge WHERE device = ?", device)
        return found if isinstance(found, dict) else None

    def position(self, source: str) -> Any:
        """The position of a source at the last commit; None at first."""
        return self._plain("SELECT position FROM source WHERE name = ?", source)

    def _plain(self, query: str, key: str) -> Any:
        """Plain data that the agent can do without: None if it is damaged."""
        found = self._read(query, key)
        try:
            return json.loads(found[0][0]) if found else None
        except ValueError:
            logger.warning("%s: the state of %s is damaged and ignored.", self.path, key)
            return None

    def incident(self, device: str, identity: str = "") -> dict[str, Any] | None:
        """The last alert of an incident or a fault, without an id of the last one; None if there is none."""
        query = "SELECT alert FROM incident WHERE device = ? AND ? IN (id, '') ORDER BY number DESC LIMIT 1"
        found = self._read(query, device, identity)
        try:
            return dict(json.loads(found[0][0])) if found else None
        except ValueError:
            logger.warning("%s: the incident %s of %s is damaged and ignored.", self.path, identity, device)
            return None

    def rows_between(self, device: str, start: float, end: float, channels: int) -> list[Array]:
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

    def commands(self) -> list[Command]:
        """The commands that are not answered yet, the oldest first."""
        query = "SELECT id, device, verb, argument, sender, time FROM command WHERE reply IS NULL ORDER BY number"
        return [Command(*found) for found in self._read(query)]

    def first_with_id(self, command: Command) -> str:
        """The verb and the argument that came first with the id of a command, which is kept itself."""
        query = "SELECT verb, argument FROM command WHERE device = ? AND id = ? ORDER BY number LIMIT 1"
        return " ".join(self._read(query, command.device, command.id)[0]).strip()

    def replies(self) -> list[tuple[Command, bool, str]]:
        """Commands with whether they were accepted and the reply, where that is still to be published."""
        query = (
            "SELECT id, device, verb, argument, sender, time, accepted, reply FROM command"
            " WHERE reply IS NOT NULL AND NOT published ORDER BY number"
        )
        return [(Command(*found[:6]), bool(found[6]), found[7]) for found in self._read(query)]

    def data_version(self) -> int:
        """A number that changes when another process has written to the file."""
        ((found,),) = self._read("PRAGMA data_version")
        return int(found)

    def digest(self, number: int) -> bytes | None:
        """The digest of the last message under a packet number of the broker."""
        found = self._read("SELECT digest FROM taken WHERE number = ?", number)
        return found[0][0] if found else None

    # -- to be committed ----------------------------------------------------------------------------------------

    def add_row(self, device: str, seq: int, time: float, values: Array, *, trains: bool) -> None:
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

    def forget_evidence(self, device: str) -> None:
        """Drop the rows of all incidents."""
        self._collect("DELETE FROM evidence WHERE device = ?", device)

    def forget_device(self, device: str) -> None:
        """Drop all that is known of a device; what waits for a sink is still delivered."""
        self._collect("DELETE FROM device WHERE name = ?", device)
        for table in ("row", "judge", "evidence", "incident", "command"):
            self._collect(f"DELETE FROM {table} WHERE device = ?", device)

    def put_state(self, device: str, state: Mapping[str, Any]) -> None:
        """Keep the state of a device."""
        self._collect("INSERT OR REPLACE INTO device VALUES (?, ?)", device, _compact(state))

    def put_judge(self, device: str, state: Mapping[str, Any]) -> None:
        """Keep the state of an adapting threshold."""
        self._collect("INSERT OR REPLACE INTO judge VALUES (?, ?)", device, json.dumps(state))

    def put_alert(self, sinks: Iterable[str], alert: Mapping[str, Any]) -> None:
        """Keep an alert for these sinks, and as the last one of its incident."""
        text = json.dumps(alert)
        for sink in sinks:
            self._collect("INSERT INTO outbox (sink, alert) VALUES (?, ?)", sink, text)
        self._collect(
            "INSERT INTO incident (id, device, alert) VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET alert = excluded.alert",
            alert["id"],
            alert["device"],
            text,
        )
        if alert["event"] == "start":
            older = "SELECT number FROM incident WHERE device = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
            device = alert["device"]
            self._collect(
                f"DELETE FROM incident WHERE device = ? AND number <= ({older})", device, device, MAX_INCIDENTS
            )

    def put_evidence(self, alert: Mapping[str, Any], since: int, start: float) -> None:
        """Keep the rows of an incident, those since that number and that time, as far as they have come."""
        device, identity = alert["device"], alert["id"]
        first = "SELECT min(seq) FROM evidence WHERE device = ? AND incident = ?"
        self._collect(
            "INSERT OR IGNORE INTO evidence SELECT device, ?, seq, time, vals FROM row"
            f" WHERE device = ? AND seq >= ? AND time >= ? AND seq < coalesce(({first}), ?) + ?",
            *(identity, device, since, start, device, identity, since, MAX_EVIDENCE),
        )
        if alert["event"] == "start":
            last = f"SELECT id FROM incident WHERE device = ? AND {NO_FAULT} ORDER BY number DESC LIMIT ?"
            self._collect(
                f"DELETE FROM evidence WHERE device = ? AND incident <> ? AND incident NOT IN ({last})",
                *(device, identity, device, MAX_PROVEN - 1),
            )

    def put_command(self, command: Command, *, published: bool) -> None:
        """Keep a command until it is answered; `published` if nobody waits for the reply at a broker."""
        self._collect(PUT_COMMAND, *astuple(command), published)

    def put_reply(self, command: Command, reply: str, *, accepted: bool) -> None:
        """Answer a command, so that it never acts again."""
        self._collect(f"UPDATE command SET reply = ?, accepted = ? WHERE {THIS_COMMAND}", reply, accepted, *command.key)
        older = "SELECT number FROM command ORDER BY number DESC LIMIT 1 OFFSET ?"
        self._collect(f"DELETE FROM command WHERE reply IS NOT NULL AND number <= ({older})", MAX_COMMANDS)

    def put_published(self, command: Command) -> None:
        """Note that a reply was published."""
        self._collect(f"UPDATE command SET published = 1 WHERE {THIS_COMMAND}", *command.key)

    def put_delivered(self, keys: Iterable[int]) -> None:
        """Remove alerts that were delivered."""
        for key in keys:
            self._collect("DELETE FROM outbox WHERE key = ?", key)

    def put_position(self, source: str, position: Any) -> None:
        """Keep the position of a source."""
        self._collect("INSERT OR REPLACE INTO source VALUES (?, ?)", source, json.dumps(position))

    def put_digest(self, number: int, digest: bytes) -> None:
        """Keep the digest of the last message under a packet number of the broker."""
        self._collect("INSERT OR REPLACE INTO taken VALUES (?, ?)", number, digest)

    def _collect(self, statement: str, *values: Any) -> None:
        self._pending.append((statement, values))

    def discard(self) -> None:
        """Forget what is not committed, as a kill would."""
        self._pending.clear()

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._pending)

    def commit(self) -> None:
        """Write all changes or none; raises `OSError` if the disk is full or fails.

        Once it returns, not even a power cut undoes it.
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
        self._last_key = max(self._last_key, key)
        if sink not in self._surplus_logged:
            self._surplus_logged.add(sink)
            logger.warning(
                "%s: not delivering; more than %d alerts are queued, and the oldest are dropped.", sink, MAX_WAITING
            )
        self._collect("DELETE FROM outbox WHERE sink = ? AND key <= ?", sink, key)
        return True

    def close(self) -> None:
        """Close the file; what is not committed is lost."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _open(path: Path) -> sqlite3.Connection:
    """A connection to an undamaged file of this version."""
    database = sqlite3.connect(path, isolation_level=None, cached_statements=32)
    database.text_factory = lambda content: content.decode(errors="replace")  # damaged text is noticed later
    try:
        # Little memory, and a commit is on the disk: a power cut must not undo what was acknowledged.
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
    """The name of this file in the models that have learned from its rows."""
    found = database.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    if found:
        return str(found[0])
    made = uuid.uuid4().hex
    database.execute("INSERT INTO meta VALUES ('identity', ?)", (made,))
    return made


def _number_above(database: sqlite3.Connection, last: int) -> None:
    """Continue the keys of alerts after those of a damaged file, which sinks may still refer to."""
    if last:
        unused = "SELECT 'outbox', ? WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'outbox')"
        database.execute(f"INSERT INTO sqlite_sequence (name, seq) {unused}", (last,))


def _values(content: Any, channels: int) -> Array:
    """The values of a row; all NaN if their number is not that of the channels."""
    if not isinstance(content, bytes) or len(content) != 8 * channels:
        return np.full(channels, np.nan)
    return np.frombuffer(content)


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: written by a newer version of fedkad (format {version}, this one reads up to {len(MIGRATIONS)}); "
            "install that version, or move the file away to start again."
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(f"BEGIN;{script};PRAGMA user_version = {number};COMMIT;")
