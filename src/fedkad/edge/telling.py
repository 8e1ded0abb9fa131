"""``fedkad-agent tell``: leave a command for the agent, and wait a moment for its reply."""

from __future__ import annotations

import getpass
import os
import time
from pathlib import Path

from fedkad.edge.commands import Command, CommandError, check, new_id
from fedkad.edge.settings import AgentSettings
from fedkad.edge.visiting import StoreVisitor, with_known
from fedkad.locks import is_held

INTERVAL = 0.1
"""Seconds between two looks for the reply."""

PROMPT = 1.0
"""Seconds in which an agent that is idle replies."""


def tell(settings: AgentSettings, device: str, verb: str, argument: str, sender: str, wait: float) -> str:
    """Tell something about a device; returns the reply, or what is known after `wait` seconds.

    Raises a `CommandError` with the reply if it is refused, and a `KeyboardInterrupt` that says what holds if nobody
    wants to wait any more.
    """
    command = Command(new_id(), device, verb, argument, sender or user_name(), time.time())
    visitor = StoreVisitor(settings.state)
    visitor.leave(check(command, with_known(settings).named))
    try:
        return _answer(visitor, command, settings.state / "agent.lock", wait)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Accepted; the agent has not replied yet, and acts on it as soon as it can.") from None


def _answer(visitor: StoreVisitor, command: Command, lock: Path, wait: float) -> str:
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
