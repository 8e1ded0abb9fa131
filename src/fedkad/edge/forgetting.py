"""``fedkad-agent forget``: nothing is left of a device that is gone, and it no longer counts among those that publish.

An agent that runs has the device in memory, so it must be stopped. A device that publishes again is a new one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fedkad.edge.settings import AgentSettings, SettingsError
from fedkad.edge.store import Store
from fedkad.edge.visiting import StoreVisitor
from fedkad.locks import holding


def forget(settings: AgentSettings, device: str) -> str:
    """Drop the state, rows and history of a device, and its folder if that is in the state of the agent."""
    known = StoreVisitor(settings.state).states()  # says so if there is no store, or one of another version
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
