"""Flower's SuperNode as a process that ends when its connection does: `python -m fedkad.fleet.flower.supernode`.

On some errors (a TLS handshake cut short, an unexpected HTTP status) Flower swallows the exception, stops its
heartbeat and returns from its main function; but the thread of its HTTP API keeps the process alive forever, connected
to nothing. The client that watches this process must see it end in order to start another.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import NoReturn

from fedkad.fleet.flower.supernodelog import LOST

UNAUTHORIZED = 401


def main() -> NoReturn:
    """Run the SuperNode; on a signal or a refusal Flower raises `SystemExit` with a status of its own."""
    from flwr.supernode.cli import flower_supernode

    threading.excepthook = _end_with_thread
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    _leave()


def _end_with_thread(death: threading.ExceptHookArgs) -> None:
    """End with the heartbeat: the server forgets a device without one, while the main thread keeps polling.

    If the server refused the signature, Flower is already ending the process with SIGINT.
    """
    threading.__excepthook__(death)
    if getattr(getattr(death.exc_value, "response", None), "status_code", None) != UNAUTHORIZED:
        _leave()


def _leave() -> NoReturn:
    """End at once, without waiting for other threads; nothing else would flush the output."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(LOST)


if __name__ == "__main__":
    main()
