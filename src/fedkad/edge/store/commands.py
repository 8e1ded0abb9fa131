"""What operators told, until it is answered, and the replies; other processes write there as well."""

from __future__ import annotations

from dataclasses import astuple

from fedkad.edge.commands.command import Command
from fedkad.edge.store.database import Database

MAX_COMMANDS = 1000
"""Commands remembered after they were answered; one that comes again with an id of these acts only once."""

PUT_COMMAND = (
    "INSERT INTO command (id, device, verb, argument, sender, time, published) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (device, id, verb, argument) DO UPDATE SET published = min(published, excluded.published)"
)
"""Keep a command; one that is there already only gets its reply published again, if it came over a broker."""

THIS_COMMAND = "device = ? AND id = ? AND verb = ? AND argument = ?"


class CommandTable:
    """The commands about all devices."""

    def __init__(self, database: Database) -> None:
        self._read, self._collect = database.read, database.collect

    def unanswered(self) -> list[Command]:
        """The commands that are not answered yet, the oldest first."""
        query = "SELECT id, device, verb, argument, sender, time FROM command WHERE reply IS NULL ORDER BY number"
        return [Command(*row) for row in self._read(query)]

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
        return [(Command(*row[:6]), bool(row[6]), row[7]) for row in self._read(query)]

    def put(self, command: Command, *, published: bool) -> None:
        """Keep a command until it is answered; `published` if the reply need not go to a broker."""
        self._collect(PUT_COMMAND, *astuple(command), published)

    def answer(self, command: Command, reply: str, *, accepted: bool) -> None:
        """Answer a command, so that it never acts again."""
        self._collect(f"UPDATE command SET reply = ?, accepted = ? WHERE {THIS_COMMAND}", reply, accepted, *command.key)
        older = "SELECT number FROM command ORDER BY number DESC LIMIT 1 OFFSET ?"
        self._collect(f"DELETE FROM command WHERE reply IS NOT NULL AND number <= ({older})", MAX_COMMANDS)

    def mark_published(self, command: Command) -> None:
        """Note that a reply was published."""
        self._collect(f"UPDATE command SET published = 1 WHERE {THIS_COMMAND}", *command.key)
