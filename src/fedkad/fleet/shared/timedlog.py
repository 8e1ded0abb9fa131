"""Puts the time in front of what a process prints: Flower's own lines have none.

A thread reads what the process prints, line by line, and appends it to the file of its log. So a supervisor that is
busy holds nobody up.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress

from fedkad.fleet.shared.logline import stamp

TIMED = re.compile(rb"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d")  # as we and nginx begin a line
OUR_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
LONGEST_LINE = 65_536  # bytes; a longer one is written in pieces
LAST_WORDS = 5.0  # seconds in which what an ended process has printed is in the file


def timed(text: str, now: float) -> str:
    r"""What a process that has ended had printed, with a time in every line.

    A line without a time has that of the line before; the first ones have that of the first line with a time.

    >>> print(timed("Start\n2026-01-02T03:04:05Z Round 1\n\nThe end", 0.0), end="")
    2026-01-02T03:04:05Z Start
    2026-01-02T03:04:05Z Round 1
    2026-01-02T03:04:05Z The end
    """
    lines = [line for line in text.splitlines() if line]
    last = next((match[0] for line in lines if (match := OUR_TIME.match(line))), stamp(now))
    done = []
    for line in lines:
        last = match[0] if (match := OUR_TIME.match(line)) else last
        done.append(f"{last}{line.removeprefix(last)}\n")
    return "".join(done)


class TimedLog:
    """Copies lines from one descriptor to another until the first ends, and closes both."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._thread = threading.Thread(target=self._run, name="fedkad-log", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all that was printed is written; call this once nobody prints any more."""
        self._thread.join(LAST_WORDS)

    def _run(self) -> None:
        begun = b""
        while piece := os.read(self._source, LONGEST_LINE):
            *lines, begun = (begun + piece).split(b"\n")
            if len(begun) > LONGEST_LINE:
                lines, begun = [*lines, begun], b""
            self._write(lines)
        self._write([begun] if begun else [])
        os.close(self._source)
        os.close(self._target)

    def _write(self, lines: list[bytes]) -> None:
        now = stamp(time.time()).encode()
        text = b"".join((b"" if not line or TIMED.match(line) else now) + line + b"\n" for line in lines)
        with suppress(OSError):  # on a full disk the process goes on, and its lines are lost
            while text:
                text = text[os.write(self._target, text) :]
