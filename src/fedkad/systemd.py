"""What a service tells systemd: that it is ready, that it is alive, that it stops."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress


class SystemdNotifier:
    """Writes to the socket that systemd names in the environment; does nothing without one."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        # Twice as often as required: systemd restarts a service after a single late notification.
        self._interval = float(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
        self._next = 0.0

    def ready(self, status: str) -> None:
        """Report that the service does its work."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Report that the service stops because it was asked to."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Reset the watchdog, as often as systemd requires."""
        if self._interval and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError):  # systemd restarts a service that it does not hear from
            self._socket.sendto(text.encode(), address)
