"""What a SuperNode is doing, found out from its log: Flower offers no other way."""

import signal
from enum import Enum

from fedkad.fleet.shared.devicefolder import REMEDY
from fedkad.fleet.shared.processes import LogFile

LOST = 70  # exit status of a SuperNode that gave up its connection
STILL_COUNTED = 75.0  # seconds for which the server counts a device that vanished, and refuses it again
COLLECTED = 15.0  # seconds in which the server collects a reply; it drops those of a device that has left
LONGEST_ANSWER = 3600.0  # seconds that an app may take to answer, beyond the time that the server gives it


class SuperNodeEvent(Enum):
    """What a SuperNode reports in its log, and the words it uses."""

    CONNECTED = "SuperNode ID:"
    REQUEST_RECEIVED = "Receiving:"
    REPLY_SENT = "Sent successfully"
    CALL_FAILED = "Connection attempt failed, retrying"
    CALL_SUCCEEDED_AGAIN = "Connection successful after"
    RUN_ENDED = "`RUNNING` status"
    RECEIVING_FAILED = "Failed to receive message"
    SENDING_FAILED = "Failed to send message"
    KEY_UNREADABLE = "Exit Code: 302"
    NOT_ADMITTED = "[code: 2004]"
    UNANSWERED = "The app ended without an answer."
    OVERDUE = "The app hangs."


CALL_OVER = (
    *(SuperNodeEvent.CALL_SUCCEEDED_AGAIN, SuperNodeEvent.RUN_ENDED),
    *(SuperNodeEvent.RECEIVING_FAILED, SuperNodeEvent.SENDING_FAILED),
)
"""How a call that failed and was repeated ends: the server answers, be it that the run is over meanwhile."""


class SuperNodeEnding(Enum):
    """Why a SuperNode ended, as a sentence to be formatted with the device's folder and the exit status."""

    REVOKED = "The server no longer accepts {0.device}: it was revoked or has a new key; ask the server's operator."
    FORGOTTEN = "The server lost track of {0.device}, and still knows its key; connecting again."
    NOT_YET_ADMITTED = (
        "The server knows the key of {0.device}, and does not let it in yet: it is starting, or another client uses "
        "the same key; trying again."
    )
    SIGNATURE_REFUSED = "The server does not accept the signature of {0.device}; check the clock of this device."
    CONNECTION_LOST = "The connection of {0.device} to {0.server} was lost; connecting again."
    UNANSWERED = "{0.device} began to answer the server and did not finish; connecting again (see {0.log})."
    OVERDUE = "{0.device} has not answered the server an hour after it should have; connecting again (see {0.log})."
    KEY_UNREADABLE = f"{{0.key}}: Flower cannot read this key; {REMEDY}."
    NOT_ADMITTED = (
        "The server does not know the key of {0.device}: it was not added there, or was revoked, or another client "
        "uses it; ask the server's operator."
    )
    OTHER = "The connection of {0.device} ended with status {1}; see {0.log}."


OUR_ENDINGS = {
    SuperNodeEvent.UNANSWERED: SuperNodeEnding.UNANSWERED,
    SuperNodeEvent.OVERDUE: SuperNodeEnding.OVERDUE,
}
"""Endings of ours, by what the SuperNode says before."""

IF_STILL_REGISTERED = {
    SuperNodeEnding.REVOKED: SuperNodeEnding.FORGOTTEN,
    SuperNodeEnding.NOT_ADMITTED: SuperNodeEnding.NOT_YET_ADMITTED,
}
"""Endings that mean something else if the server knows the key of the device, as after the loss of its database."""


class SuperNodeLog:
    """Counts the events in the log of one SuperNode from now on; reads each byte of the file once."""

    def __init__(self, log: LogFile) -> None:
        self.counts = dict.fromkeys(SuperNodeEvent, 0)
        self._log, self._offset, self._tail = log, log.size, b""

    def read(self) -> None:
        """Take in new output; the words may be split between two reads, and the file may have been truncated."""
        if self._log.size < self._offset:
            self._offset, self._tail = 0, b""
        fresh = self._log.read(self._offset)
        self._offset += len(fresh)
        for event in self.counts:
            sought = event.value.encode()
            self.counts[event] += (self._tail[1 - len(sought) :] + fresh).count(sought)
        self._tail = (self._tail + fresh)[-max(len(event.value) for event in self.counts) :]

    def ending(self, status: int) -> SuperNodeEnding:
        """Return why the SuperNode ended with this exit status.

        If the server refuses its signature, Flower sends itself SIGINT and ends with status 0. If it does so twice,
        because both its heartbeat and a request were refused, the second signal may kill it, or interrupt its exit,
        which `main` completes.
        """
        self.read()
        if status in (0, -signal.SIGINT):
            is_known = self.counts[SuperNodeEvent.CONNECTED] > 0
            return SuperNodeEnding.REVOKED if is_known else SuperNodeEnding.SIGNATURE_REFUSED
        if status == LOST:
            return next(
                (ending for event, ending in OUR_ENDINGS.items() if self.counts[event]), SuperNodeEnding.CONNECTION_LOST
            )
        if self.counts[SuperNodeEvent.KEY_UNREADABLE]:
            return SuperNodeEnding.KEY_UNREADABLE
        return SuperNodeEnding.NOT_ADMITTED if self.counts[SuperNodeEvent.NOT_ADMITTED] else SuperNodeEnding.OTHER
