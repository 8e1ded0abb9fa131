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

PATIENCE = 5.0  # seconds that an access waits while the agent writes
INTERVAL = 0.1  # seconds between two looks for the reply
PROMPT = 1.0  # seconds in which an agent that is idle replies


class CommandReply(NamedTuple):
    """The answer to a command."""

    accepted: bool
    text: str


class StoreClient:
    """Reads the store in the state folder of an agent, and leaves commands there.

    Raises a `StoreError` if there is none, or it is of another version, and an `OSError` if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agent.sqlite"

    def leave(self, command: Command) -> None:
        """Leave a command for the agent, if it is not there; once this returns, it is durable."""
        with self._opened("rw") as database:
            if not database.execute(f"SELECT 1 FROM command WHERE {THIS_COMMAND}", command.key).fetchall():
                database.execute(PUT_COMMAND, (*astuple(command), True))

    def reply(self, command: Command) -> CommandReply | None:
        """Return the answer to a command; None if there is none yet.

        A command that is gone was in a damaged file, and is left again.
        """
        answers = self._read(f"SELECT accepted, reply FROM command WHERE {THIS_COMMAND}", *command.key)
        if not answers:
            self.leave(command)
            return None
        accepted, text = answers[0]
        return None if text is None else CommandReply(bool(accepted), text)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the state of every device; those that cannot be read are left out."""
        states = {}
        for name, text in self._read("SELECT name, state FROM device ORDER BY name"):
            with suppress(ValueError):  # damaged
                states[name] = json.loads(text)
        return {name: state for name, state in states.items() if isinstance(state, dict)}

    def incidents(self, device: str = "", last: int = 1000) -> list[Alert]:
        """Return the last alerts of the last incidents, of one device or all, the oldest first."""
        query = "SELECT alert FROM incident WHERE device = ? OR ? = '' ORDER BY number DESC LIMIT ?"
        alerts: list[Alert] = []
        for (text,) in reversed(self._read(query, device, device, last)):
            with suppress(ValueError):  # damaged
                alerts.append(from_json(json.loads(text)))
        return alerts

    def undelivered(self) -> dict[str, int]:
        """Return how many alerts wait for each sink; those without any are left out."""
        return dict(self._read("SELECT sink, count(*) FROM outbox GROUP BY sink"))

    def waiting(self) -> int:
        """Return how many commands are not answered."""
        ((count,),) = self._read("SELECT count(*) FROM command WHERE reply IS NULL")
        return int(count)

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._opened("ro") as database:
            return database.execute(query, values).fetchall()

    @contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        if not self._path.exists():
            raise StoreError(f"{self._path}: there is no such file; start the agent with this configuration first.")
        try:
            address = f"{self._path.absolute().as_uri()}?mode={mode}"
            with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as database:
                database.text_factory = lambda content: content.decode(errors="replace")
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version != len(MIGRATIONS):
                    raise StoreError(
                        f"{self._path}: written by another version of fedkad (format {version}, this one has "
                        f"{len(MIGRATIONS)}); restart the agent with this version."
                    )
                database.execute("PRAGMA synchronous=FULL")
                yield database
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from None


def with_known(settings: AgentSettings) -> AgentSettings:
    """Return the settings with the devices that the agent has met, if it watches every one that publishes."""
    return settings.admitting(StoreClient(settings.state).states()) if EVERY in settings.devices else settings


def tell(settings: AgentSettings, device: str, verb: str, argument: str, sender: str, wait: float) -> str:
    """Leave a command about a device; returns the reply, or what holds after `wait` seconds without one.

    Raises a `CommandError` with the reply if it is refused, and a `KeyboardInterrupt` that says what holds.
    """
    command = Command(new_id(), device, verb, argument, sender or user_name(), time.time())
    store = StoreClient(settings.state)
    store.leave(check(command, with_known(settings).named))
    begun = time.monotonic()
    try:
        while (reply := store.reply(command)) is None:
            waited = time.monotonic() - begun
            if waited > min(PROMPT, wait) and not is_held(settings.state / "agent.lock"):
                return "Accepted; the agent does not run now, and acts on it at its next start."
            if waited > wait:
                return f"Accepted; the agent has not replied within {wait:g} s, and acts on it as soon as it can."
            time.sleep(INTERVAL)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Accepted; the agent has not replied yet, and acts on it as soon as it can.") from None
    if not reply.accepted:
        raise CommandError(reply.text)
    return reply.text


def user_name() -> str:
    """Return the name of the user, or the number where it has none, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def forget(settings: AgentSettings, device: str) -> str:
    """Drop the state, rows and history of a device, and its folder if that is in the state of the agent."""
    devices = StoreClient(settings.state).states()  # says so if there is no store, or one of another version
    if device not in devices:
        raise SettingsError(f"There is no device {device!r}; the devices are {', '.join(list(devices)[:8])}.")
    with holding(settings.state / "agent.lock", "The agent runs, and knows the device; stop it first."):
        with closing(Store(settings.state / "agent.sqlite")) as store:
            store.forget_device(device)
            store.commit()
        watched = settings.admitting([device]).named.get(device)
        folder = Path(watched.learning.folder) if watched is not None else None
        if folder is not None and folder.is_relative_to(settings.state) and folder.is_dir():
            shutil.rmtree(folder)
    return f"{device} is forgotten."
