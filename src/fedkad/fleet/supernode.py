"""Flower's SuperNode as a process that ends when its connection does: `python -m fedkad.fleet.supernode`.

Flower gives up on some errors (a TLS handshake cut short, an HTTP status it does not expect), swallows them, stops its
heartbeat and returns from its main function; but the thread of its HTTP interface keeps the process alive, connected
to nobody, for ever. Who watches the process must see it end to start another.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import NoReturn

LOST = 70
"""Exit status of a SuperNode that gave up its connection."""

UNAUTHORIZED = 401


def main() -> NoReturn:
    """Run the SuperNode; an ordinary end, by a signal or a refusal, leaves as `SystemExit` with Flower's own status."""
    from flwr.supernode.cli import flower_supernode

    threading.excepthook = _thread_died
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    _leave()


def _thread_died(death: threading.ExceptHookArgs) -> None:
    """End with the heartbeat: the server forgets a device without one, while the main thread goes on asking.

    When the server refuses the signature, Flower is ending the process by SIGINT already.
    """
    threading.__excepthook__(death)
    if getattr(getattr(death.exc_value, "response", None), "status_code", None) != UNAUTHORIZED:
        _leave()


def _leave() -> NoReturn:
    """End now: no thread is waited for, so nothing else flushes what was said."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(LOST)


if __name__ == "__main__":
    main()
