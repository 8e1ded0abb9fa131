"""Flower's SuperNode as a process that ends when its connection does.

On some errors (a TLS handshake cut short, an unexpected HTTP status) Flower swallows the exception, stops its
heartbeat and returns from its main function; but the thread of its HTTP API keeps the process alive forever, connected
to nothing. The client that watches this process must see it end in order to start another; so it is run as
`python -m fedkad.fleet.flower.supernode`.
"""

import argparse
import os
import signal
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from flwr.supernode.cli import flower_supernode

from fedkad.fleet.flower.launcher import launch_beside, leave
from fedkad.fleet.flower.reception import stay_in_step
from fedkad.fleet.flower.supernodelog import LOST
from fedkad.fleet.shared.progress import MARK, ProgressMark

UNAUTHORIZED = 401


def main() -> NoReturn:
    """Run the SuperNode; on a signal or a refusal Flower raises `SystemExit` with a status of its own."""
    arguments = _arguments()
    _end_with(launch_beside(f"{arguments.host}:{arguments.port}"))
    stay_in_step(ProgressMark(Path(arguments.node_config).with_name(MARK)))
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
    """Return where apps reach this SuperNode, and the settings of the device, beside which it marks its progress."""
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


if __name__ == "__main__":
    main()
