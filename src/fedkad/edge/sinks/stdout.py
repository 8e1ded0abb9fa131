"""JSON lines on standard output, for a pipe or a log collector."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from fedkad.edge.sinks import Entry, to_json


class Lines:
    """Alerts, and readings where they are asked for, as one line of JSON each.

    An alert is taken once all of its line is out. What the stream does not take raises an `OSError`, and of a reader
    that has gone a `BrokenPipeError`; the lines before are taken nevertheless.

    >>> import sys
    >>> lines = Lines(sys.stdout)
    >>> lines.offer([(7, {"device": "pump-1", "event": "start"})])
    {"type":"alert","device":"pump-1","event":"start"}
    >>> lines.taken(), lines.taken()
    ([7], [])
    >>> lines.reading({"device": "pump-1", "score": float("nan")})
    {"type":"reading","device":"pump-1","score":null}
    """

    name = "stdout"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # A buffer would keep what could not be written, and write it again with every try.
        buffer = getattr(stream, "buffer", None)
        self._raw: Any = getattr(buffer, "raw", buffer)
        self._rest = b""  # what is left of a line that was cut
        self._key: int | None = None  # the alert that it tells
        self._taken: dict[int, None] = {}

    def offer(self, entries: Sequence[Entry]) -> None:
        """Write what is not written yet."""
        for key, alert in entries:
            self._finish()  # which may be this one
            if key not in self._taken:
                self._write("alert", alert, key)

    def reading(self, reading: Mapping[str, Any]) -> None:
        """Write one reading; nobody keeps it if that fails."""
        self._write("reading", reading)

    def taken(self) -> list[int]:
        """Keys that were written since the last call."""
        keys = list(self._taken)
        self._taken.clear()
        return keys

    def close(self) -> None:
        """Leave the stream open: it belongs to the caller."""

    def _write(self, kind: str, values: Mapping[str, Any], key: int | None = None) -> None:
        self._finish()
        line = (to_json({"type": kind, **values}) + "\n").encode()
        written = self._put(line)  # where this fails nothing of it is out, and it may come again
        self._rest, self._key = line[written:], key
        self._finish()

    def _finish(self) -> None:
        """Write what is left of a line that was cut, as by a disk that was full: nothing may come before that."""
        while self._rest:
            self._rest = self._rest[self._put(self._rest) :]
        if self._key is not None:
            self._taken[self._key] = None
            self._key = None

    def _put(self, content: bytes) -> int:
        """How much of it the stream has taken."""
        if self._raw is None:  # only text, which is in memory
            self._stream.write(content.decode())
            self._stream.flush()
            return len(content)
        written: int | None = self._raw.write(content)
        if not written:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return written
