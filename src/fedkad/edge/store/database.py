"""One SQLite file in which all that a batch of messages changes is committed together.

Changes are collected in memory and written in one transaction. If that fails because the disk is full, they stay
collected, nothing is acknowledged, and the next commit tries again. A damaged file, whether noticed while writing or
reading, is renamed, and an empty one takes its place.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from fedkad.atomicfile import set_aside

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
    """
    ALTER TABLE incident ADD COLUMN kind TEXT NOT NULL DEFAULT '';
    UPDATE incident SET kind = coalesce(json_extract(alert, '$.kind'), '') WHERE json_valid(alert);
    """,
    "DROP TABLE judge;",
)
"""The steps from one version of the file to the next; a new file takes all. Only append: files have taken these."""

NOT_DAMAGED = (
    *("SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED"),
    *("SQLITE_PERM", "SQLITE_NOMEM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT"),
)
"""SQLite errors that do not mean a damaged file."""


class StoreError(ValueError):
    """A file that this version cannot use and must not change."""


class Database:
    """A file of collected changes; a damaged one is renamed, which is logged, and an older one is upgraded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._last_key = 0  # of the alerts that were handed to a sink
        self._database: sqlite3.Connection | None = None
        try:
            self.safely(self._begin)
        except OSError as error:
            raise StoreError(f"{error}; free some space, or check who may write there.") from None

    def _begin(self) -> None:
        if self.path.exists() and not self.path.stat().st_size:
            raise sqlite3.DatabaseError("it is empty")
        try:
            self.connection()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith(NOT_DAMAGED):
                raise
            raise sqlite3.DatabaseError(str(error)) from None  # such as a table that is missing

    def connection(self) -> sqlite3.Connection:
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

    def safely(self, work: Callable[[], T], *, is_new: bool = False) -> T:
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
        return self.safely(work, is_new=True)

    def read(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query returns."""
        return self.safely(lambda: self.connection().execute(query, values).fetchall())

    def data_version(self) -> int:
        """A number that changes when another process has written to the file."""
        ((found,),) = self.read("PRAGMA data_version")
        return int(found)

    def collect(self, statement: str, *values: Any) -> None:
        """Have a statement executed with the next commit."""
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
        self.safely(self._write)
        self._pending.clear()

    def _write(self) -> None:
        database = self.connection()
        try:
            database.execute("BEGIN IMMEDIATE")
            for statement, alike in groupby(self._pending, key=itemgetter(0)):
                database.executemany(statement, map(itemgetter(1), alike))
            database.execute("COMMIT")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def reserve(self, key: int) -> None:
        """Note the key of an alert that was handed to a sink: the keys of a new file continue above it."""
        self._last_key = max(self._last_key, key)

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


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: written by a newer version of fedkad (format {version}, this one reads up to {len(MIGRATIONS)}); "
            "install that version, or move the file away to start again."
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(f"BEGIN;{script};PRAGMA user_version = {number};COMMIT;")
