"""The running device: one Flower process that stays connected to the server, and a clear word when it cannot."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Container
from contextlib import suppress
from enum import Enum
from pathlib import Path

from fedkad.fleet import flower
from fedkad.fleet.certificates import KeyFileError, public_part
from fedkad.fleet.devicefolder import REMEDY, DeviceFolder
from fedkad.fleet.errors import FleetFileError
from fedkad.fleet.processes import Backoff, Child, Log, Say, Tally, until_stopped
from fedkad.fleet.supernode import LOST
from fedkad.locks import holding

TICK = 0.5
REACH_PATIENCE = 10.0
STILL_COUNTED = 75.0
"""Seconds for which Flower counts a device that vanished as connected, and refuses to connect it again."""

SOON = 5.0
"""Seconds between two tries while a server forgets the last connection."""

SETTLE = 60.0
"""Seconds for the news of a delivery to reach the server, at most, before a client that waited for it leaves."""

LINGER = 15.0
"""Seconds that such a client stays after that: of a device that has left, Flower does not pass on what it has sent."""

AWAY_FOR = 5.0
"""Seconds without a server after which that is said: a single request fails now and then."""

LONGEST_ANSWER = 3600.0
"""Seconds that a client which was asked stays for its answer, however soon it would leave otherwise."""

CONNECTED, RECEIVING, SENT = "SuperNode ID:", "Receiving:", "Sent successfully"
BAD_KEY, NOT_ACTIVATED = "Exit Code: 302", "[code: 2004]"
AWAY, BACK = "Connection attempt failed, retrying", "Connection successful after"
TELLING = (CONNECTED, RECEIVING, SENT, BAD_KEY, NOT_ACTIVATED, AWAY, BACK)
"""Words of Flower's by which a client knows how things stand."""


class Outcome(Enum):
    """Why a client left."""

    STOPPED = "stopped"
    DELIVERED = "delivered"
    IDLE = "idle"


def connect(folder: DeviceFolder, data: str, say: Say, *, once: bool, idle: float | None) -> Outcome:
    """Take part until SIGINT or SIGTERM; with `once` until a delivery, with `idle` until nothing came for so long."""
    refusal = f"{folder.root}: a client runs in this folder already; stop it first."
    with holding(folder.lock, refusal), until_stopped():
        check_key(folder)
        return _Client(folder, data, say).run(once=once, idle=idle)
    return Outcome.STOPPED


def check_key(folder: DeviceFolder) -> None:
    """Refuse a key that Flower could not use."""
    try:
        public_part(folder.key.read_bytes())
    except KeyFileError as error:
        raise FleetFileError(f"{folder.key}: the file {error}; {REMEDY}.") from None


def reach(server: str, ca_certificate: Path, patience: float = REACH_PATIENCE) -> str | None:
    """Why a server cannot be spoken to, in one sentence; None if it can.

    Asked before Flower is started, which would try for ever and say nothing.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        trust = ssl.create_default_context(cafile=str(ca_certificate))
    except ssl.SSLError:
        return f"{ca_certificate}: this is no certificate; {REMEDY}."
    try:
        with (
            socket.create_connection((host, int(port)), timeout=patience) as plain,
            trust.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return (
            f"The certificate of {server} does not pass with {ca_certificate} ({error.verify_message}); check the "
            "clock of this device, and copy ca.crt from the server anew."
        )
    except (OSError, ValueError) as error:
        return f"The server {server} cannot be reached ({error}); check the network and `server` in device.toml."


def reason(folder: DeviceFolder, status: int, said: Container[str], *, still_counted: bool) -> tuple[str, float | None]:
    """Why the Flower process of a device ended, in one sentence, and the wait for it; None for one that grows.

    `said` holds the telling words that it has said. Flower sends itself SIGINT, and so ends with 0, when the server
    does not accept its signature.
    """
    name = folder.device
    if status == 0 and CONNECTED in said:
        return f"The server accepts {name} no longer: it was revoked, or has a new key; ask its operator.", None
    if status == 0:
        return f"The server does not accept the signature of {name}; check the clock of this device.", None
    if status == LOST:
        return f"The connection of {name} to {folder.server} was lost; connecting again.", None
    if BAD_KEY in said:
        return f"{folder.key}: Flower cannot read this key; {REMEDY}.", None
    if NOT_ACTIVATED in said and still_counted:
        return f"The server still counts the last connection of {name}; trying until it has forgotten it.", SOON
    if NOT_ACTIVATED in said:
        return (
            f"The server does not know the key of {name}: it was not added there, or revoked, or another client uses "
            "it; ask its operator.",
            None,
        )
    return f"The connection of {name} ended with status {status}; see {folder.log}.", None


class _Client:
    """The loop of `connect` and what it must remember."""

    def __init__(self, folder: DeviceFolder, data: str, say: Say) -> None:
        self.folder, self.data, self.say = folder, data, say
        self.log, self.wait = Log(folder.log), Backoff()
        self.child: Child | None = None
        self.tally = Tally(self.log, 0, TELLING)
        self.connected = False
        self.last_said = ""
        self.delivery = Delivery(folder.delivered)
        self.came = time.monotonic()
        self.heard = 0
        self.refusal = Replaced(folder.refusal)
        self.away = self.back = 0
        self.away_since: float | None = None

    def run(self, *, once: bool, idle: float | None) -> Outcome:
        try:
            while True:
                self._tend()
                if once and self.delivery.is_settled(self._owes_reply):
                    return Outcome.DELIVERED
                if idle is not None and self._is_idle(idle):
                    return Outcome.IDLE
                time.sleep(TICK)
        finally:
            self._end()

    def _tend(self) -> None:
        if self.child is None:
            if self.wait.over:
                self._try()
        elif (status := self.child.status) is not None:
            self._ended(status)
        else:
            self._listen()
        self.log.bound()  # after it was read
        if self.refusal.is_new():
            why = self.folder.refusal.read_text(encoding="utf-8", errors="replace")
            self._tell(f"{self.folder.device} could not answer the server: {why}")

    def _try(self) -> None:
        """Start; a device without room or memory for that may have some later."""
        try:
            self._start()
        except OSError as error:
            self._tell(f"The connection of {self.folder.device} cannot be started ({error}); trying again.")
            self.wait.lengthen()

    def _start(self) -> None:
        trouble = reach(self.folder.server, self.folder.ca_certificate)
        if trouble:
            self._tell(trouble)
            self.wait.lengthen()
            return
        command, environment = flower.supernode(self.folder, self.data), flower.environment(self.folder.flower)
        self.child, self.connected, self.heard = Child("supernode", command, self.log, environment), False, 0
        self.away, self.back, self.away_since = 0, 0, None
        self.tally = Tally(self.log, self.child.log_start, TELLING)

    def _listen(self) -> None:
        """Notice that the connection stands, and that a message came."""
        self.tally.listen()
        if not self.connected and CONNECTED in self.tally.heard:
            self.connected = True
            self.wait.clear()
            self._tell(f"{self.folder.device}: connected to {self.folder.server}")
        if self.connected:
            with suppress(OSError):  # a full disk: without the mark one sentence is less exact
                self._mark.touch()
            self._notice_absence()
        if (heard := self.tally.counts[RECEIVING]) != self.heard:
            self.came, self.heard = time.monotonic(), heard

    def _notice_absence(self) -> None:
        """Say that the server does not answer, while Flower tries again by itself, and that it does."""
        counts, now = self.tally.counts, time.monotonic()
        if counts[BACK] > self.back:
            self.back, self.away_since = counts[BACK], None
            self._tell(f"{self.folder.device}: connected to {self.folder.server}")
        elif counts[AWAY] > self.away and self.away_since is None:
            self.away_since = now
        self.away = counts[AWAY]
        if self.away_since is not None and now - self.away_since >= AWAY_FOR:
            self._tell(f"{self.folder.device}: the server {self.folder.server} does not answer; trying again")

    def _ended(self, status: int) -> None:
        self.tally.listen()
        sentence, delay = reason(self.folder, status, self.tally.heard, still_counted=self._still_counted())
        if status == 0:
            self._mark.unlink(missing_ok=True)
        self._tell(sentence)
        if delay is None:
            self.wait.lengthen()
        else:
            self.wait.pause(delay)
        self.child = None

    def _end(self) -> None:
        """Leave in peace: a Flower process that is asked to end tells the server that the device is gone."""
        if self.child is not None:
            self.child.end()

    def _is_idle(self, idle: float) -> bool:
        """Tell whether nothing came for so long; an answer that is due may take longer, but not for ever."""
        return time.monotonic() - self.came > max(idle, LONGEST_ANSWER if self._owes_reply() else 0.0)

    def _owes_reply(self) -> bool:
        return self.child is not None and self.tally.counts[RECEIVING] > self.tally.counts[SENT]

    def _tell(self, sentence: str) -> None:
        """Say something once, however often it is so."""
        if sentence != self.last_said:
            self.say(sentence)
        self.last_said = sentence

    @property
    def _mark(self) -> Path:
        """A file as old as the last moment of a connection, unless it was the server that ended it."""
        return self.folder.flower / "connected"

    def _still_counted(self) -> bool:
        return self._mark.exists() and time.time() - self._mark.stat().st_mtime < STILL_COUNTED


class Replaced:
    """Notices that a file was replaced."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.before = self._identity()

    def is_new(self) -> bool:
        """Tell whether it was replaced since the last time it was asked."""
        before, self.before = self.before, self._identity()
        return self.before not in (None, before)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.file)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


class Delivery:
    """Notices that a file was replaced by a delivery, and that the server has been told."""

    def __init__(self, file: Path) -> None:
        self.replaced = Replaced(file)
        self.seen: float | None = None
        self.sent: float | None = None

    def is_settled(self, owes_reply: Callable[[], bool]) -> bool:
        """Tell whether something was delivered, and the server had the time to hear of it."""
        now = time.monotonic()
        if self.seen is None:
            if not self.replaced.is_new():
                return False
            self.seen = now
        if self.sent is None and (not owes_reply() or now - self.seen > SETTLE):
            self.sent = now
        return self.sent is not None and now - self.sent >= LINGER
