"""Flower's database on the server, which holds nothing that cannot be made again: devices, connections and runs.

The server registers its devices anew, and a training goes on from its own files. So a database that is damaged, by a
full disk or a power cut, is moved aside, and Flower begins with an empty one.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
BASIC = 0xFF  # what remains of an extended error code


def is_damaged(database: Path) -> bool:
    """Whether SQLite calls a database malformed, or no database at all; one that is missing or busy is not."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(database)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return getattr(error, "sqlite_errorcode", 0) & BASIC in DAMAGED
    return bool(found != ("ok",))
