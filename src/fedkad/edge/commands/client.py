"""What another process does with the store of an agent: leave a command and wait for the reply, read, forget a device.

The agent may run meanwhile, so nothing is repaired, renamed or upgraded here; its own `Store` does that. The file is
opened for each access, because the agent may have replaced a damaged one.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

from fedkad.edge.alert import Alert, from_json
from fedkad.edge.commands.command import Command, CommandError, check, new_id
from fedkad.edge.settings import AgentSettings, SettingsError
from fedkad.edge.settings.rules import EVERY
from fedkad.edge.store import Store
from fedkad.edge.store.commands import PUT_COMMAND, THIS_COMMAND
from fedkad.edge.store.database import MIGRATIONS, StoreError
from fedkad.locks import holding, is_held

PATIENCE = 5.0
"""Seconds that an access waits while the agent writes."""

INTERVAL = 0.1
"""Seconds between two looks for the reply."""

PROMPT = 1.0
"""Seconds in which an agent that is idle replies."""


class CommandReply(NamedTuple):
    """The answer to a command."""

    accepted: bool
    text: str


class StoreClient:
    """Visits the store in the state folder of an agent.

    Raises a `StoreError` if there is none, or it is of another version, and an `OSError` if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agent.sqlite"

    def leave(self, command: Command) -> None:
        """Leave a command for the agent, if it is not there; once this returns, it is durable."""
        with self._visit("rw") as database:
            if not _found(database, command):
                database.execute(PUT_COMMAND, (*astuple(command), True))

    def reply(self, command: Command) -> CommandReply | None:
        """The answer to a command; None if there is none yet.

        A command that is gone was in a damaged file, and is left again.
        """
        with self._visit("ro") as database:
            found = _found(database, command)
        if not found:
            self.leave(command)
            return None
        accepted, text = found[0]
        return None if text is None else CommandReply(bool(accepted), text)

    def states(self) -> dict[str, dict[str, Any]]:
        """The state of every device; those that cannot be read are left out."""
        with self._visit("ro") as database:
            found = database.execute("SELECT name, state FROM device ORDER BY name").fetchall()
        return {name: state for name, text in found if isinstance(state := _plain(text), dict)}

    def incidents(self, device: str = "", last: int = 1000) -> list[Alert]:
        """Return the last alerts of the last incidents, of one device or all, the oldest first."""
        query = "SELECT alert FROM incident WHERE device = ? OR ? = '' ORDER BY number DESC LIMIT ?"
        with self._visit("ro") as database:
            found = database.execute(query, (device, device, last)).fetchall()
        alerts: list[Alert] = []
        for (text,) in reversed(found):
            with suppress(ValueError):  # one that is damaged
                alerts.append(from_json(json.loads(text)))
        return alerts

    def undelivered(self) -> dict[str, int]:
        """How many alerts wait for each sink; those without any are left out."""
        with self._visit("ro") as database:
            return dict(database.execute("SELECT sink, count(*) FROM outbox GROUP BY sink").fetchall())

    def waiting(self) -> int:
        """Commands that are not answered."""
        with self._visit("ro") as database:
            return int(database.execute("SELECT count(*) FROM command WHERE reply IS NULL").fetchone()[0])

    @contextmanager
    def _visit(self, mode: str) -> Iterator[sqlite3.Connection]:
        if not self._path.exists():
            raise StoreError(f"{self._path}: there is no such file; start the agent with this configuration first.")
        try:
            address = f"{self._path.absolute().as_uri()}?mode={mode}"
            with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as database:
                database.text_factory = lambda content: content.decode(errors="replace")
                self._check(database)
                yield database
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from None

    def _check(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != len(MIGRATIONS):
            raise StoreError(
                f"{self._path}: written by another version of fedkad (format {version}, this one has "
                f"{len(MIGRATIONS)}); restart the agent with this version."
            )
        database.execute("PRAGMA synchronous=FULL")


def with_known(settings: AgentSettings) -> AgentSettings:
    """The settings with the devices that the agent has found, if it watches every one that publishes."""
    return settings.admitting(StoreClient(settings.state).states()) if EVERY in settings.devices else settings


def _found(database: sqlite3.Connection, command: Command) -> list[Any]:
    return database.execute(f"SELECT accepted, reply FROM command WHERE {THIS_COMMAND}", command.key).fetchall()


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def tell(settings: AgentSettings, device: str, verb: str, argument: str, sender: str, wait: float) -> str:
    """Tell something about a device; returns the reply, or what is known after `wait` seconds.

    Raises a `CommandError` with the reply if it is refused, and a `KeyboardInterrupt` that says what holds if nobody
    wants to wait any more.
    """
    command = Command(new_id(), device, verb, argument, sender or user_name(), time.time())
    visitor = StoreClient(settings.state)
    visitor.leave(check(command, with_known(settings).named))
    try:
        return _answer(visitor, command, settings.state / "agent.lock", wait)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Accepted; the agent has not replied yet, and acts on it as soon as it can.") from None


def _answer(visitor: StoreClient, command: Command, lock: Path, wait: float) -> str:
    begun = time.monotonic()
    while (reply := visitor.reply(command)) is None:
        waited = time.monotonic() - begun
        if waited > min(PROMPT, wait) and not is_held(lock):
            return "Accepted; the agent does not run now, and acts on it at its next start."
        if waited > wait:
            return f"Accepted; the agent has not replied within {wait:g} s, and acts on it as soon as it can."
        time.sleep(INTERVAL)
    if not reply.accepted:
        raise CommandError(reply.text)
    return reply.text


def user_name() -> str:
    """The name of the user, or the number where it has none, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def forget(settings: AgentSettings, device: str) -> str:
    """Drop the state, rows and history of a device, and its folder if that is in the state of the agent."""
    known = StoreClient(settings.state).states()  # says so if there is no store, or one of another version
    if device not in known:
        raise SettingsError(f"There is no device {device!r}; the devices are {', '.join(list(known)[:8])}.")
    with holding(settings.state / "agent.lock", "The agent runs, and knows the device; stop it first."):
        store = Store(settings.state / "agent.sqlite")
        try:
            store.forget_device(device)
            store.commit()
        finally:
            store.close()
        found = settings.admitting([device]).named.get(device)
        folder = Path(found.learning.folder) if found is not None else None
        if folder is not None and folder.is_relative_to(settings.state) and folder.is_dir():
            shutil.rmtree(folder)
    return f"{device} is forgotten."
