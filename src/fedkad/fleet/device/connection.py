"""`fedkad client` while its device is called: one process stays connected to the server, and says why if it cannot."""

import logging
import time
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from fedkad.fleet import flower
from fedkad.fleet.device.deliveries import SETTLE, Delivery, FileWatch
from fedkad.fleet.device.httpsclient import OK, HttpsClient, UnreachableError
from fedkad.fleet.device.noticeclient import NoticeClient
from fedkad.fleet.flower.proxy import WHOSE_KEY
from fedkad.fleet.flower.supernodelog import (
    CALL_OVER,
    IF_STILL_REGISTERED,
    LONGEST_ANSWER,
    STILL_COUNTED,
    SuperNodeEnding,
    SuperNodeEvent,
    SuperNodeLog,
)
from fedkad.fleet.shared.devicefolder import DeviceFolder
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.keyfiles import key_header
from fedkad.fleet.shared.notice import NoticeError
from fedkad.fleet.shared.processes import Backoff, ChildProcess, LogFile, until_stopped
from fedkad.fleet.shared.progress import MARK, ProgressWatch
from fedkad.locks import holding
from fedkad.repeats import RepeatFilter
from fedkad.systemd import SystemdNotifier

logger = logging.getLogger(__name__)

TICK = 0.5
SOON = 5.0  # seconds between attempts while the server still counts the last connection
AWAY_FOR = 5.0  # seconds without an answer before that is logged: a single request fails now and then


class ClientExit(Enum):
    """Why a client left."""

    STOPPED = auto()
    DELIVERED = auto()
    IDLE = auto()
    NOT_CALLED = auto()


def connect(folder: DeviceFolder, data: str, *, once: bool, idle: float | None) -> ClientExit:
    """Take part until SIGINT or SIGTERM, or until the notice calls the device no longer.

    With `once` until a delivery, with `idle` until no request came that long.
    """
    refusal = f"{folder.root}: a client is already running in this folder; stop it first."
    with holding(folder.lock, refusal), until_stopped():
        key_header(folder)  # Flower could not use a damaged key either
        return DeviceClient(folder, data).run(once=once, idle=idle)
    return ClientExit.STOPPED


def reach(files: HttpsClient) -> str | None:
    """Return why the server cannot be reached, in one sentence; None if it can.

    Checked before Flower is started, which would retry endlessly without saying why.
    """
    try:
        files.connect().close()
    except UnreachableError as error:
        return str(error)
    return None


def foreign_key(folder: DeviceFolder, files: HttpsClient) -> str | None:
    """Return what is wrong with a key that is another device's, in one sentence; None if it is not.

    Flower would let the device in under the other's name, and the server refuse every reply. A server of an earlier
    release does not say whose key it is; an unknown key is left to Flower.
    """
    answer = files.get(WHOSE_KEY, key_header(folder))
    owner = answer.content.decode(errors="replace")
    if answer.status != OK or owner == folder.device:
        return None
    return (
        f"{folder.key}: this is the key of {owner}, and this device is {folder.device}; copy its own "
        f"key there, or make another with `fedkad fleet renew` on the server."
    )


class DeviceClient:
    """The loop of `connect` and its state."""

    def __init__(self, folder: DeviceFolder, data: str) -> None:
        self.folder, self.data = folder, data
        self.log, self.wait, self.notices = LogFile(folder.log), Backoff(), NoticeClient(folder)
        self.delivery, self.refusal = Delivery(folder.delivered), FileWatch(folder.refusal)
        self.last_request = self.called = time.monotonic()
        self.is_notice_refused = False
        self._repeats = RepeatFilter()
        self.child: ChildProcess | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget the last connection."""
        self.events = SuperNodeLog(self.log)
        self.seen = self.events.counts.copy()
        self.away_since: float | None = None
        self.progress = ProgressWatch(self.folder.flower / MARK)

    def run(self, *, once: bool, idle: float | None) -> ClientExit:
        """Stay connected until there is a reason to leave; on leaving, Flower tells the server."""
        systemd = SystemdNotifier()
        systemd.ready(f"connects {self.folder.device}")
        try:
            while True:
                systemd.alive()
                if not self._is_called():
                    return ClientExit.NOT_CALLED
                self.tend()
                if once and self.delivery.is_settled(self._owes_reply()):
                    return ClientExit.DELIVERED
                # An answer that is due may take longer than `idle`, within limits.
                patience = None if idle is None else max(idle, LONGEST_ANSWER if self._owes_reply() else 0.0)
                if patience is not None and time.monotonic() - self.last_request > patience:
                    return ClientExit.IDLE
                time.sleep(TICK)
        finally:
            self._disconnect()

    def _is_called(self) -> bool:
        """Return whether to be connected, by polling the notice now and then; an answer that is due goes out.

        That the server cannot be reached is not said here: the connection notices it as well.
        """
        if self.notices.is_due:
            with suppress(UnreachableError):
                self._look()
        if self.notices.may_stay:
            self.called = time.monotonic()
            return True
        return self._owes_reply() and time.monotonic() - self.called < SETTLE

    def _look(self) -> None:
        """Poll the notice, and log once that it is not accepted, and that it is again."""
        before, self.is_notice_refused = self.is_notice_refused, False
        try:
            self.notices.look()
        except (NoticeError, OSError) as error:
            self.is_notice_refused = True
            self._repeats.log(logger, str(error), subject="notice")
        if before and not self.is_notice_refused:
            again = f"{self.folder.device}: accepts the notice of {self.notices.files.server} again"
            self._repeats.log(logger, again, logging.INFO, subject="notice")

    def tend(self) -> None:
        """Start the process if it is not running, follow what it does, and explain it when it ends."""
        if self.child is None:
            if self.wait.over:
                self._start()
        elif (status := self.child.status) is not None:
            self._explain_end(status)
        else:
            self.follow()
        self.log.bound()  # only after it was read
        if self.refusal.is_replaced():
            why = self.folder.refusal.read_text(encoding="utf-8", errors="replace")
            self._log(f"{self.folder.device} could not answer the server: {why}")

    def _start(self) -> None:
        """Start the process; if the device lacks disk space or memory for it, try again later."""
        try:
            trouble = reach(self.notices.files)
            if trouble is None and not self.notices.has_looked:  # it was away when this process began
                self._look()
                return
            trouble = trouble or foreign_key(self.folder, self.notices.files)
            if trouble is None:
                self._reset()
                self.folder = replace(self.folder, server=self.notices.files.server)
                command = flower.device_command(self.folder, self.data)
                self.child = ChildProcess(command, self.log, flower.environment(self.folder.flower))
                return
        except (UnreachableError, FleetFileError) as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"The connection of {self.folder.device} cannot be started ({error}); trying again."
        self._log(trouble)
        self.wait.lengthen()

    def follow(self) -> None:
        """Log that the device is connected, and note requests and absences of the server."""
        self.events.read()
        if self._is_new(SuperNodeEvent.CONNECTED):
            self.wait.clear()
            self._log_connected()
        if self.events.counts[SuperNodeEvent.CONNECTED]:
            with suppress(OSError):  # on a full disk; without the file, one explanation is less exact
                self._connected_file.touch()
            self._notice_absence()
        if self.progress.is_stuck():  # maybe while the server is away
            minutes = self.progress.patience / 60.0
            self._log(f"The connection of {self.folder.device} has hung for {minutes:g} minutes; connecting again.")
            self._disconnect()
        if self._is_new(SuperNodeEvent.REQUEST_RECEIVED):
            self.last_request = time.monotonic()
        self.seen = self.events.counts.copy()

    def _notice_absence(self) -> None:
        """Log that the server does not answer, while Flower retries by itself, and that it answers again."""
        now = time.monotonic()
        if any(map(self._is_new, CALL_OVER)):
            if self.away_since is not None:
                self._log_connected()
            self.away_since = None
        elif self._is_new(SuperNodeEvent.CALL_FAILED):
            self.progress.restart()  # it tries again and again, and marks nothing meanwhile
            self.away_since = now if self.away_since is None else self.away_since
        if self.away_since is not None and now - self.away_since >= AWAY_FOR:
            self._log(f"{self.folder.device}: the server {self.folder.server} does not answer; trying again")
            if self.notices.files.server != self.folder.server:  # found by its notice
                self._disconnect()

    def _disconnect(self) -> None:
        """End the process; the next look starts another."""
        if self.child is not None:
            self.child.end()
        self.child = None

    def _is_new(self, event: SuperNodeEvent) -> bool:
        return self.events.counts[event] > self.seen[event]

    def _explain_end(self, status: int) -> None:
        ending, connected = self.events.ending(status), self._connected_file
        is_still_counted = connected.exists() and time.time() - connected.stat().st_mtime < STILL_COUNTED
        if ending is SuperNodeEnding.NOT_ADMITTED and is_still_counted:
            self._log(f"The server still counts the last connection of {self.folder.device}; trying again.")
            self.wait.pause(SOON)
        else:
            if ending in IF_STILL_REGISTERED and self.notices.is_registered():
                ending = IF_STILL_REGISTERED[ending]
            self._log(ending.value.format(self.folder, status))
            self.wait.lengthen()
        if ending in (SuperNodeEnding.REVOKED, SuperNodeEnding.FORGOTTEN, SuperNodeEnding.SIGNATURE_REFUSED):
            connected.unlink(missing_ok=True)
        self.child = None

    def _owes_reply(self) -> bool:
        counts = self.events.counts
        return self.child is not None and counts[SuperNodeEvent.REQUEST_RECEIVED] > counts[SuperNodeEvent.REPLY_SENT]

    def _log_connected(self) -> None:
        self._log(f"{self.folder.device}: connected to {self.folder.server}", logging.INFO)

    def _log(self, sentence: str, level: int = logging.WARNING) -> None:
        self._repeats.log(logger, sentence, level)

    @property
    def _connected_file(self) -> Path:
        """Touched while the device is connected, and removed if the server ended the connection."""
        return self.folder.flower / "connected"
