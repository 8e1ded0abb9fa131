"""Taking part in a fleet: the agent itself looks at the notice for its devices, and starts `fedkad client` when called.

It does so in a thread, because a look may wait for the network. The libraries for certificates are loaded there, so
that the agent does not begin later.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad.edge.settings import AgentSettings
from fedkad.locks import holding
from fedkad.repeats import RepeatFilter

if TYPE_CHECKING:
    from fedkad.fleet.device.idleclient import IdleLoop
    from fedkad.fleet.shared.processes import ChildProcess

logger = logging.getLogger(__name__)

TICK = 0.5
LONGEST_END = 30.0
"""Seconds for clients to leave when the agent stops."""


def member_folders(settings: AgentSettings) -> dict[str, Path]:
    """The folders of the devices that are in a fleet, by the agent's names of them."""
    folders = {name: Path(device.learning.folder) for name, device in settings.named.items()}
    return {name: folder for name, folder in folders.items() if (folder / "device.toml").exists()}


class Membership:
    """Follows the notice for some devices until it is closed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders, self._over = folders, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        members = [FleetMember(folder) for folder in self._folders]
        while not self._over.wait(TICK):
            for member in members:
                member.attend()
        for member in members:
            member.leave()

    def close(self) -> None:
        """Have clients leave, and stop."""
        self._over.set()
        self._thread.join(LONGEST_END)


class FleetMember:
    """One device: it waits, or its client runs."""

    def __init__(self, folder: Path) -> None:
        from fedkad.fleet.shared.processes import Backoff, LogFile

        self.folder, self.pause, self._failures = folder, Backoff(), RepeatFilter()
        self.log = LogFile(folder / "logs" / "client.log")
        self.waiting: IdleLoop | None = None
        self.client: ChildProcess | None = None
        self._lock = ExitStack()  # of a client, held while the device waits

    def attend(self) -> None:
        """Look if it is time, and do what the notice says; what fails is said once and tried again."""
        if not self.pause.over:
            return
        try:
            self._attend()
            self._failures.clear()
        except Exception as error:  # even a bug must not end the thread, and with it all other devices
            is_expected = isinstance(error, ValueError | OSError)
            sentence = str(error) if is_expected else f"{self.folder}: a bug in the agent ({error!r}); it tries again."
            self._failures.log(logger, sentence)
            self.pause.lengthen()

    def _attend(self) -> None:
        if self.client is not None:
            status = self.client.status
            if status is None:
                self.log.bound()
                return
            self.client = None
            if status:
                raise ValueError(f"{self.folder}: its client ended with status {status}; see logs/client.log there.")
            self.pause.clear()
        if self.waiting is None:
            self.waiting = self._begin()
        if self.waiting.is_called():
            self._call()
        else:
            self.waiting.obtain()

    def _begin(self) -> IdleLoop:
        from fedkad.fleet.device.idleclient import IdleArguments, IdleLoop
        from fedkad.fleet.device.noticeclient import NoticeClient
        from fedkad.fleet.device.settings import load_device

        known = load_device(self.folder)
        refusal = f"{known.root}: a client is already running in this folder; stop it, or remove [fleet]."
        self._lock.enter_context(holding(known.lock, refusal))
        wait = IdleArguments(str(known.root), known.device, known.server, known.data_file(None), once=False, idle=None)
        return IdleLoop(wait, NoticeClient(known))

    def _call(self) -> None:
        """Start a client, which leaves by itself when its device is no longer called."""
        from fedkad.fleet.shared.processes import ChildProcess

        self.leave()
        self.log.bound()
        command = [sys.executable, "-Pm", "fedkad", "client", str(self.folder), "--while-called"]
        self.client = ChildProcess(command, self.log, os.environ)

    def leave(self) -> None:
        """Have the client leave, if there is one, and let others have the folder."""
        if self.client is not None:
            self.client.end()
        self._lock.close()
        self.waiting = self.client = None
