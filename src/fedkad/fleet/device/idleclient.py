"""A device that is not called: it polls the notice, and fetches the model that the notice names.

A small process does that, or a thread of the device's agent. `fedkad client` becomes this process (`exec`) when its
device is not called, and this one becomes `fedkad client` again when it is, so that an idle device holds neither Flower
nor numpy in memory.
"""

import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedkad.fleet.device.httpsclient import OK, UNAUTHORIZED, UnreachableError
from fedkad.fleet.device.noticeclient import NoticeClient
from fedkad.fleet.shared.devicefolder import DeviceFolder
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.fleet.shared.logs import LogLine
from fedkad.fleet.shared.notice import LIFE, NamedModel, NoticeError
from fedkad.fleet.shared.processes import Backoff, until_stopped
from fedkad.locks import HeldError, holding
from fedkad.repeats import RepeatFilter
from fedkad.systemd import SystemdNotifier

logger = logging.getLogger(__name__)

TICK = 0.5
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # seconds until a model that could not be used is tried again
LONGEST_ADOPTION = 3600.0
FAILED = 1

UNKNOWN = (
    "the server does not know the key of this device, which was revoked, has a new key or was not added there; "
    "ask the server's operator."
)


class AdoptionError(Exception):
    """The model that the notice names could not be put in use, in one sentence."""


@dataclass(frozen=True)
class IdleArguments:
    """An idle device: its folder, its data, and when it leaves."""

    root: str
    device: str
    server: str
    data: str
    once: bool
    idle: float | None

    @property
    def folder(self) -> DeviceFolder:
        """The folder of the device."""
        return DeviceFolder(Path(self.root), self.device, self.server)

    def begin(self) -> NoReturn:
        """Become the idle process; `-P` keeps modules in the working directory from shadowing ours."""
        _become("fedkad.fleet.device.idleclient", json.dumps(vars(self)))

    def end(self) -> NoReturn:
        """Become the client, which connects."""
        options = [*(("--data", self.data) if self.data else ()), *(("--once",) if self.once else ())]
        options += () if self.idle is None else ("--idle", str(self.idle / 60.0))
        _become("fedkad", "client", self.root, *options)


def _become(module: str, *arguments: str) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, "-Pm", module, *arguments])


class IdleLoop:
    """The loop of an idle device, and its state."""

    def __init__(self, arguments: IdleArguments, notices: NoticeClient) -> None:
        self.arguments, self.folder, self.notices = arguments, arguments.folder, notices
        self.systemd, self.began = SystemdNotifier(), time.monotonic()
        self.named, self.wait = "", Backoff(FIRST_PAUSE, LONGEST_PAUSE)  # for the model that the notice names
        self.is_unknown = False  # whether the server does not know the key of the device
        self._repeats = RepeatFilter()

    def run(self) -> int:
        """Wait until there is a reason to leave; returns the exit status."""
        self.systemd.ready(f"{self.arguments.device} waits to be called")
        while True:
            self.systemd.alive()
            if self.is_called():
                return self.arguments.end()
            if self.obtain() and self.arguments.once:
                print(f"{self.folder.model}: a new model was delivered", file=sys.stderr)
                return 0
            if self.arguments.idle is not None and time.monotonic() - self.began > self.arguments.idle:
                minutes = self.arguments.idle / 60.0
                print(f"error: No request came from {self.arguments.server} for {minutes:g} minutes.", file=sys.stderr)
                return FAILED
            time.sleep(TICK)

    def is_called(self) -> bool:
        """Return whether the device is called, by a look at the notice if it is time."""
        if self.notices.is_due:
            self._look()
        if self.notices.is_called:
            self._log(f"{self.arguments.device}: called by {self.arguments.server}", logging.INFO)
        return self.notices.is_called

    def _look(self) -> None:
        try:
            last_report = self.notices.next_report
            self.notices.look()
            if self.notices.next_report != last_report:  # once an hour
                self.is_unknown = self.notices.is_registered() is False
            if self.is_unknown:
                self._log(f"{self.arguments.device} is not called any more: {UNKNOWN}")
            else:
                self._log(f"{self.arguments.device}: waits until {self.arguments.server} calls it", logging.INFO)
        except (NoticeError, UnreachableError, OSError) as error:
            self._log(str(error))

    def obtain(self) -> bool:
        """Put the current model in use if the device lacks it and its time has come; True if that was done."""
        model = self.notices.model
        if model is None or model.run == held_run(self.folder):
            return False
        if model.run != self.named:
            self.named = model.run
            self.wait.clear()
            self.wait.pause(random.uniform(0.0, min(model.spread, LIFE)))
        if not self.wait.over:
            return False
        try:
            fetch(self.folder, self.notices, model)
            adopt(self.folder, self.arguments.data, self.systemd.alive)
        except (AdoptionError, FleetFileError, UnreachableError, OSError) as error:
            self._log(f"{self.arguments.device} could not use the model of {model.run}, and tries again: {error}")
            self.wait.lengthen()
            return False
        self._log(f"{self.arguments.device}: has the model of {model.run}", logging.INFO)
        return True

    def _log(self, sentence: str, level: int = logging.WARNING) -> None:
        self._repeats.log(logger, sentence, level)


def held_run(folder: DeviceFolder) -> str:
    """Return the training whose result the device holds; empty if none."""
    try:
        return str(json.loads(folder.delivered.read_text())["run"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def fetch(folder: DeviceFolder, notices: NoticeClient, model: NamedModel) -> None:
    """Fetch the file that the notice names into the device's folder; it counts only if its digest is right."""
    if _is_that(folder.fetched.read_bytes() if folder.fetched.exists() else b"", model):
        return
    answer = notices.fetch_model(model.sha256)
    if answer.status == UNAUTHORIZED:
        raise AdoptionError(UNKNOWN)
    if answer.status != OK:
        raise AdoptionError(f"the server answers {answer.status} when asked for it.")
    if not _is_that(answer.content, model):
        raise AdoptionError("what the server sends is not the file that its notice names.")
    write_private(folder.fetched, answer.content)


def _is_that(content: bytes, model: NamedModel) -> bool:
    return len(content) == model.size and hashlib.sha256(content).hexdigest() == model.sha256


def adopt(folder: DeviceFolder, data: str, while_waiting: Callable[[], None]) -> None:
    """Put the fetched file in use, in another process."""
    command = [sys.executable, "-Pm", "fedkad.fleet.device.adoption", str(folder.root), folder.device, data]
    deadline = time.monotonic() + LONGEST_ADOPTION
    command.append(str(folder.fetched))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            errors = _stderr_of(process, deadline, while_waiting)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise AdoptionError((errors.strip().splitlines() or ["the process that adopts it was killed."])[-1])
    folder.fetched.unlink(missing_ok=True)


def _stderr_of(process: subprocess.Popen[str], deadline: float, while_waiting: Callable[[], None]) -> str:
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=TICK)[1]
        while_waiting()
    raise AdoptionError(f"it was not done within {LONGEST_ADOPTION:g} s.")


def main() -> None:
    """Wait for the device that the command line names, until SIGINT or SIGTERM."""
    arguments = IdleArguments(**json.loads(sys.argv[1]))
    handler = logging.StreamHandler()
    handler.setFormatter(LogLine.on_stderr())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    refusal = f"{arguments.root}: a client is already running in this folder; stop it first."
    status = 0
    try:
        with holding(arguments.folder.lock, refusal), until_stopped():
            status = IdleLoop(arguments, NoticeClient(arguments.folder)).run()
    except HeldError as error:
        print(f"error: {error}", file=sys.stderr)
        status = FAILED
    sys.exit(status)


if __name__ == "__main__":
    main()
