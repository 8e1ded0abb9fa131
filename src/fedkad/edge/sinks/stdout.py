"""JSON lines on standard output, for a pipe or a log collector."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from fedkad.edge.sinks import Entry, to_json


class StdoutSink:
    """Writes one line of JSON per alert, and per reading if asked to.

    An alert is delivered once its whole line is written. A full disk raises an `OSError`, and a reader that has gone a
    `BrokenPipeError`; the lines before are delivered nevertheless.

    >>> import sys
    >>> sink = StdoutSink(sys.stdout)
    >>> sink.offer([(7, {"device": "pump-1", "event": "start"})])
    {"type":"alert","device":"pump-1","event":"start"}
    >>> sink.delivered(), sink.delivered()
    ([7], [])
    >>> sink.write_reading({"device": "pump-1", "score": float("nan")})
    {"type":"reading","device":"pump-1","score":null}
    """

    name = "stdout"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # A buffer would keep what could not be written, and write it again with every attempt.
        buffer = getattr(stream, "buffer", None)
        self._raw: Any = getattr(buffer, "raw", buffer)
        self._rest = b""  # of a line that was written in part
        self._key: int | None = None  # of the alert in that line
        self._delivered: dict[int, None] = {}

    def offer(self, entries: Sequence[Entry]) -> None:
        """Write the alerts that are not written yet."""
        for key, alert in entries:
            self._finish_line()  # which may be this one
            if key not in self._delivered:
                self._write("alert", alert, key)

    def write_reading(self, reading: Mapping[str, Any]) -> None:
        """Write one reading; it is lost if that fails."""
        self._write("reading", reading)

    def delivered(self) -> list[int]:
        """The keys that were written since the last call."""
        keys = list(self._delivered)
        self._delivered.clear()
        return keys

    def close(self) -> None:
        """Leave the stream open: it belongs to the caller."""

    def _write(self, kind: str, values: Mapping[str, Any], key: int | None = None) -> None:
        self._finish_line()
        line = (to_json({"type": kind, **values}) + "\n").encode()
        written = self._put(line)  # if this fails nothing is written, and the alert is offered again
        self._rest, self._key = line[written:], key
        self._finish_line()

    def _finish_line(self) -> None:
        """Write the rest of a line that was cut, for example by a full disk, before anything else."""
        while self._rest:
            self._rest = self._rest[self._put(self._rest) :]
        if self._key is not None:
            self._delivered[self._key] = None
            self._key = None

    def _put(self, content: bytes) -> int:
        """Write to the stream; returns how many bytes it has accepted."""
        if self._raw is None:  # a text stream in memory
            self._stream.write(content.decode())
            self._stream.flush()
            return len(content)
        written: int | None = self._raw.write(content)
        if not written:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return written
