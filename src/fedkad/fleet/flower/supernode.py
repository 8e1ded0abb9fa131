"""Flower's SuperNode as a process that ends when its connection does, and what its log says that it is doing.

On some errors (a TLS handshake cut short, an unexpected HTTP status) Flower swallows the exception, stops its
heartbeat and returns from its main function; but the thread of its HTTP API keeps the process alive forever, connected
to nothing. The client that watches this process must see it end in order to start another; so it is run as
`python -m fedkad.fleet.flower.supernode`. Flower offers no other way than the log to find out what it does.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import traceback
from enum import Enum
from pathlib import Path
from typing import NoReturn

from fedkad.fleet.flower.launcher import launch_beside, leave
from fedkad.fleet.shared.devicefolder import REMEDY
from fedkad.fleet.shared.processes import LogFile
from fedkad.fleet.shared.progress import MARK, ProgressMark

UNAUTHORIZED = 401
LOST = 70  # exit status of a SuperNode that gave up its connection
STILL_COUNTED = 75.0  # seconds for which the server counts a device that vanished, and refuses it again
COLLECTED = 15.0  # seconds in which the server collects a reply; it drops those of a device that has left
LONGEST_ANSWER = 3600.0  # seconds that an app may take to answer, beyond the time that the server gives it


def main() -> NoReturn:
    """Run the SuperNode; on a signal or a refusal Flower raises `SystemExit` with a status of its own."""
    from flwr.supernode.cli import flower_supernode

    from fedkad.fleet.flower.reception import stay_in_step

    given = _arguments()
    _end_with(launch_beside(f"{given.host}:{given.port}"))
    stay_in_step(ProgressMark(Path(given.node_config).with_name(MARK)))
    threading.excepthook = _end_with_thread
    try:
        flower_supernode()
    except KeyboardInterrupt:  # a second SIGINT, while Flower was ending because of the first one
        leave(0)
    except Exception:
        traceback.print_exc()
    leave(LOST)


def _end_with(launcher: int) -> None:
    """End when the launcher does, without which this device could not answer."""

    def notice(number: int, frame: object) -> None:
        if os.waitpid(launcher, os.WNOHANG) != (0, 0):
            leave(LOST)

    signal.signal(signal.SIGCHLD, notice)


def _arguments() -> argparse.Namespace:
    """Where apps reach this SuperNode, and the settings of the device, beside which it marks its progress."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--host", "--port", "--node-config"):
        parser.add_argument(option, required=True)
    return parser.parse_known_args()[0]


def _end_with_thread(death: threading.ExceptHookArgs) -> None:
    """End with the heartbeat: the server forgets a device without one, while the main thread keeps polling.

    If the server refused the signature, Flower is already ending the process with SIGINT.
    """
    threading.__excepthook__(death)
    if getattr(getattr(death.exc_value, "response", None), "status_code", None) != UNAUTHORIZED:
        leave(LOST)


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
        """Why the SuperNode ended with this exit status.

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


if __name__ == "__main__":
    main()
