"""What systemd is told: that the agent is ready, alive, and how it fares."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress


class Notifier:
    """Talks to the socket that systemd names in the environment; silent without one."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        # Twice as often as systemd asks: it restarts an agent that is late once.
        self._interval = float(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
        self._next = 0.0

    def ready(self, status: str) -> None:
        """Say that samples are being taken."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Say that the agent ends because it was asked to."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Say so, as often as systemd asks."""
        if self._interval and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError):  # systemd restarts whoever it does not hear
            self._socket.sendto(text.encode(), address)
