"""Lines: from standard input, and from a file that somebody else appends to."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Any

from fedkad.edge.sources import Message

AT_ONCE = 1 << 16
LONGEST = 4 << 20
"""A line longer than this is noise: it is handed out cut, for the reader to refuse it."""


class LineSplitter:
    r"""Bytes in any pieces to whole lines.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"1,2\n3,"), splitter.feed(b"4\r\n"), splitter.rest()
    ([b'1,2'], [b'3,4'], [])
    """

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that the piece completes."""
        *lines, self._begun = (self._begun + piece).split(b"\n")
        if len(self._begun) > LONGEST:
            lines.append(self._begun)
            self._begun = b""
        return [line for line in (line.strip() for line in lines) if line]

    def rest(self) -> list[bytes]:
        """The last line, where the end of the input ends it."""
        rest, self._begun = self._begun.strip(), b""
        return [rest] if rest else []

    @property
    def held(self) -> int:
        """Bytes of a line that has begun."""
        return len(self._begun)


class Stdin:
    """Lines from a pipe or a terminal. What a killed agent had read and not committed is lost: a pipe has no memory."""

    name = "stdin"

    def __init__(self, *, headed: bool = False, descriptor: int = 0) -> None:
        self._descriptor, self._splitter, self._headed = descriptor, LineSplitter(), headed
        self.is_finished, self.in_hand = False, 0
        self.header: bytes | None = None

    def poll(self, timeout: float) -> list[Message]:
        """What has arrived, up to 64 kB."""
        if self.is_finished or not select.select([self._descriptor], [], [], timeout)[0]:
            return []
        piece = os.read(self._descriptor, AT_ONCE)
        self.is_finished = not piece
        lines = self._splitter.feed(piece) if piece else self._splitter.rest()
        if self._headed and self.header is None and lines:
            self.header = lines.pop(0)
        now = time.time()
        return [Message(line, now) for line in lines]

    def position(self) -> Any:
        """Nowhere that one could go back to."""

    def committed(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        """Standard input is not ours to close."""


class GrowingFile:
    """A file that is followed as it grows, from its beginning; one that is replaced or cut is begun anew.

    The position is committed with what was read: after a kill nothing is lost and nothing is read twice.
    """

    name = "file"
    is_finished = False
    in_hand = 0

    def __init__(self, path: Path, position: Any = None, *, headed: bool = False) -> None:
        self._path, self._wanted, self._headed = path, position, headed
        self.header: bytes | None = None
        self._file: Any = None
        self._splitter = LineSplitter()
        self._read = 0

    def poll(self, timeout: float) -> list[Message]:
        """The lines that were appended; looks once a `timeout`, but reads on while there is more."""
        piece = self._next_piece()
        if not piece:
            time.sleep(timeout)
            return []
        self._read += len(piece)
        lines = self._splitter.feed(piece)
        if self._headed and self.header is None and lines:
            self.header = lines.pop(0)
        now = time.time()
        return [Message(line, now) for line in lines]

    def _next_piece(self) -> bytes:
        if self._file is None and not self._open():
            return b""
        piece: bytes = self._file.read(AT_ONCE)
        if piece or not self._was_replaced():
            return piece
        self._file.close()
        self._file = None
        return b""

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return False
        self._splitter, self._read, self.header = LineSplitter(), 0, None
        found, wanted = os.fstat(self._file.fileno()), self._wanted
        if wanted and wanted["inode"] == found.st_ino and wanted["offset"] <= found.st_size:
            if self._headed and wanted["offset"]:
                self.header = self._file.readline(LONGEST).strip()
            self._read = wanted["offset"]
            self._file.seek(self._read)
        self._wanted = None
        return True

    def _was_replaced(self) -> bool:
        """Whether another file has this name now, or this one was cut; only asked at its end."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return found.st_ino != os.fstat(self._file.fileno()).st_ino or found.st_size < self._read

    def position(self) -> Any:
        """The file and the end of the last whole line that was handed out."""
        if self._file is None:
            return None
        return {"inode": os.fstat(self._file.fileno()).st_ino, "offset": self._read - self._splitter.held}

    def committed(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
