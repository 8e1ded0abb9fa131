"""What the server does about processes that hang and about a damaged database: heartbeats alone do not tell."""

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from fedkad.atomicfile import set_aside
from fedkad.fleet.shared.processes import SupervisedProcess
from fedkad.fleet.shared.progress import MARK, ProgressWatch

logger = logging.getLogger(__name__)

SILENT = 60.0  # seconds without an answer of Flower, which has long started by then, until something is done about it
HANGS = 300.0  # seconds without one after which its process is taken to hang
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
BASIC = 0xFF  # what remains of an extended error code


class LinkGuard:
    """Looks after Flower's SuperLink: it replaces a damaged database, and ends a SuperLink that hangs.

    Its supervisor then starts it again. The database is checked at the start, when the SuperLink has ended, and when
    the server's work has failed for `SILENT` seconds. All that the database holds can be made again: the server
    registers its devices, and a training goes on from its own files.
    """

    def __init__(self, database: Path, superlink: SupervisedProcess) -> None:
        self.database, self.superlink = database, superlink
        self.answered = self.checked = time.monotonic()

    def attend(self, *, is_well: bool, is_silent: bool) -> None:
        """Look whether there is a reason to act: work fails, or Flower itself does not answer."""
        now = time.monotonic()
        if is_well:
            self.checked = now
        elif self.superlink.child is None or now - self.checked > SILENT:
            self.checked = now
            self.mend()
        if not is_silent:
            self.answered = now
        elif self.superlink.child is not None and now - max(self.answered, self.superlink.child.started) > HANGS:
            logger.warning("superlink: has not answered for %g s, and is ended", HANGS)
            self.superlink.child.end()

    def mend(self) -> None:
        """Check the database, and move it aside if it is damaged."""
        if is_damaged(self.database):
            if self.superlink.child is not None:
                self.superlink.child.end()
            aside = set_aside(self.database)
            logger.warning(
                "%s was damaged and is now %s; Flower begins with a new one, and devices connect again. Nothing of the "
                "fleet is lost, and the old file may be removed.",
                self.database,
                aside.name,
            )


class RunGuard:
    """Ends the processes of a run whose app hangs, or never starts; the training then goes on in another run.

    An app that waits for slow devices marks its steps meanwhile.
    """

    def __init__(self, training: Path, superexec: SupervisedProcess) -> None:
        self.watch, self.superexec = ProgressWatch(training / MARK), superexec
        self.run: int | None = None

    def attend(self, run: int | None) -> None:
        """Look whether the run that is under way gets on; None if there is none, or if Flower does not answer."""
        before, self.run = self.run, run
        if run is None or run != before:
            self.watch.restart()
        elif self.watch.is_stuck() and self.superexec.child is not None:
            logger.warning("superexec: run %d has made no progress for %g s, and is ended", run, self.watch.patience)
            self.superexec.child.end()
            self.watch.restart()


def is_damaged(database: Path) -> bool:
    """Return whether SQLite calls a database malformed, or no database at all; one that is missing or busy is not."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(database)) as connection:
            result = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return getattr(error, "sqlite_errorcode", 0) & BASIC in DAMAGED
    return bool(result != ("ok",))
