"""JSON lines on standard output, for a pipe or a log collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from fedkad.edge.sinks import Entry, to_json


class Lines:
    """Alerts, and readings where they are asked for, as one line of JSON each.

    An alert is taken once its line is flushed. A reader that has gone raises `BrokenPipeError`; the lines before are
    taken nevertheless.

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
        self._taken: dict[int, None] = {}

    def offer(self, entries: Sequence[Entry]) -> None:
        """Write what is not written yet."""
        for key, alert in entries:
            if key not in self._taken:
                self._write("alert", alert)
                self._taken[key] = None

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

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        self._stream.write(to_json({"type": kind, **values}) + "\n")
        self._stream.flush()
