"""``fedkad-agent tell``: leave a command for the agent, and wait a moment for its reply."""

from __future__ import annotations

import getpass
import time

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

    Raises a `CommandError` with the reply if it is refused.
    """
    sender = sender or getpass.getuser()
    command = check(Command(new_id(), device, verb, argument, sender, time.time()), with_known(settings).named)
    visitor = StoreVisitor(settings.state)
    visitor.leave(command)
    begun = time.monotonic()
    while (reply := visitor.reply(command)) is None:
        waited = time.monotonic() - begun
        if waited > min(PROMPT, wait) and not is_held(settings.state / "agent.lock"):
            return "Accepted; the agent does not run now, and acts on it at its next start."
        if waited > wait:
            return f"Accepted; the agent has not replied within {wait:g} s, and acts on it as soon as it can."
        time.sleep(INTERVAL)
    if not reply.accepted:
        raise CommandError(reply.text)
    return reply.text
