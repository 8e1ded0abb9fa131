"""Commands on their way in: kept in the store until the device they are about has answered them.

They come over a broker, or another process has written them into the store. Both are durable before anything happens,
and the reply is committed together with what the command has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedkad.edge.alert import Alert
from fedkad.edge.commands.command import Command, CommandError, check, read_command
from fedkad.edge.device.pipeline import Device
from fedkad.edge.sources.payload import quoted
from fedkad.edge.store import Store

logger = logging.getLogger(__name__)


Publish = Callable[[str, Mapping[str, Any], Callable[[], None]], bool]
"""Sends the reply of a device and calls back once it is confirmed; returns False without a connection."""


class Inbox:
    """The commands about the devices of an agent."""

    def __init__(self, store: Store, devices: Mapping[str, Device]) -> None:
        self._store, self._devices = store, devices
        self._version = -1  # of the file when it was last looked at
        self._has_new = self._has_replies = True  # there may be some from before
        self.has_changed = False  # there are commands or replies that are not committed
        self._on_its_way: set[Command] = set()  # their replies are published, and that is not committed
        self._confirmed: list[Command] = []  # by the broker, and that is not committed

    def receive(self, device: str, payload: bytes) -> None:
        """Keep the command in a message about a device; what cannot be one is only answered."""
        now = time.time()
        try:
            command = read_command(payload, device, now)
        except CommandError as error:
            command = Command(f"refused-{now:.6f}", device, "", "", "", now)
            self._store.commands.put(command, published=False)
            logger.info("%s: a message that is not a command was refused: %s", device, error)
            self._answer(command, str(error), accepted=False)
        else:
            self._store.commands.put(command, published=False)
        self.has_changed = True

    def committed(self) -> None:
        """Hand out and publish what has just been committed."""
        self._on_its_way.difference_update(self._confirmed)
        self._confirmed.clear()
        if self.has_changed:
            self.has_changed, self._has_new, self._has_replies = False, True, True

    def waiting(self) -> list[Command]:
        """The committed commands that are not answered; the store is read only if it may have some."""
        if (version := self._store.data_version()) != self._version:
            self._version, self._has_new = version, True
        if not self._has_new:
            return []
        self._has_new = False
        return self._store.commands.unanswered()

    def look_again(self) -> None:
        """Hand out what is waiting once more: something could not be carried out yet."""
        self._has_new = True

    def carry_out(self, command: Command, while_waiting: Callable[[], None]) -> list[Alert]:
        """Let the device obey and keep its reply; returns its alerts. Everything must be committed just before."""
        sender = quoted(command.sender) if command.sender else "somebody"
        who = f"{command.device}: {sender} told {quoted(str(command))}"
        try:
            check(command, self._devices)
            if (first := self._store.commands.first_with_id(command)) != str(command):  # it is no repetition
                raise CommandError(f"The id {quoted(command.id)} was used for {quoted(first)} before; use another id.")
            reply, alerts = self._devices[command.device].obey(command, while_waiting)
        except (CommandError, OSError) as error:
            logger.info("%s, which is refused: %s", who, error)
            self._answer(command, str(error), accepted=False)
            return []
        except Exception as error:  # a bug; without an answer it would be tried again and again
            logger.error("%s, which failed because of a bug in the agent: %r.", who, error)
            self._answer(command, "It failed because of a bug in the agent; see its log.", accepted=False)
            return []
        logger.info("%s. %s", who, reply)
        self._answer(command, reply, accepted=True)
        return alerts

    def _answer(self, command: Command, reply: str, *, accepted: bool) -> None:
        self._store.commands.answer(command, reply, accepted=accepted)
        self.has_changed = True

    def publish_replies(self, publish: Publish) -> bool:
        """Publish the committed replies that a broker waits for; True if some were confirmed, which is to be committed.

        A reply that the broker has not confirmed is published again after a restart.
        """
        if self._has_replies:
            self._has_replies = not all(self._offer(publish, *each) for each in self._store.commands.replies())
        return bool(self._confirmed)

    def _offer(self, publish: Publish, command: Command, accepted: bool, reply: str) -> bool:
        """Publish a reply unless it is on its way; False without a connection."""
        if command in self._on_its_way:
            return True
        sent = {"id": command.id, "verb": command.verb, "argument": command.argument, "from": command.sender}

        def confirm() -> None:
            # At once: if the command comes again before the next commit, it is to be answered again after all.
            self._store.commands.mark_published(command)
            self._confirmed.append(command)

        is_sent = publish(command.device, {**sent, "accepted": accepted, "reply": reply}, confirm)
        if is_sent:
            self._on_its_way.add(command)
        return is_sent
