"""Lines: from standard input, and from a file that somebody else appends to."""

from __future__ import annotations

import hashlib
import os
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from fedkad.edge.sources import Message
from fedkad.edge.store import Store

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

    def put_position(self) -> None:
        """A pipe has no place that one could go back to."""

    def committed(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        """Standard input is not ours to close."""


class GrowingFile:
    """A file that is followed as it grows, from its beginning; one that is replaced or cut is begun anew.

    The position is committed with what was read: after a kill nothing is lost and nothing is read twice. A file that
    was renamed meanwhile, as logs are, is read to its end first if it lies in the same folder.
    """

    name = "file"
    is_finished = False
    in_hand = 0

    def __init__(self, path: Path, store: Store, *, headed: bool = False) -> None:
        self._path, self._store, self._headed = path, store, headed
        self._wanted: Mapping[str, Any] | None = store.position(self.name)
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
        piece = self._file.read(AT_ONCE)  # what was still written to it before it was replaced
        if piece:
            return piece
        self._file.close()
        self._file = None
        return self._file.read(AT_ONCE) if self._open() else b""

    def _open(self) -> bool:
        wanted, self._wanted = self._wanted, None
        try:
            file = self._file = (self._path if wanted is None else self._last_read(wanted)).open("rb")
        except FileNotFoundError:
            self._wanted = wanted
            return False
        self._splitter, self._read, self.header = LineSplitter(), 0, None
        if wanted is not None and _is_where(file, wanted):
            if self._headed and wanted["offset"]:
                self.header = file.readline(LONGEST).strip()
            self._read = wanted["offset"]
            file.seek(self._read)
        return True

    def _last_read(self, wanted: Mapping[str, Any]) -> Path:
        """The file that was read last: it may have got another name while the agent was down."""
        with suppress(OSError):
            for path in (self._path, *sorted(self._path.parent.iterdir())):
                if path.is_file() and path.stat().st_ino == wanted["inode"]:
                    with path.open("rb") as file:
                        if _is_where(file, wanted):
                            return path
        return self._path

    def _was_replaced(self) -> bool:
        """Whether another file has this name now, or this one was cut; only asked at its end."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return found.st_ino != os.fstat(self._file.fileno()).st_ino or found.st_size < self._read

    def put_position(self) -> None:
        """Commit which file it is, and the end of the last whole line that was handed out."""
        if self._file is not None:
            inode, offset = os.fstat(self._file.fileno()).st_ino, self._read - self._splitter.held
            position = {"inode": inode, "offset": offset, "before": _before(self._file, offset)}
            self._store.put_position(self.name, position)

    def committed(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _is_where(file: BinaryIO, wanted: Mapping[str, Any]) -> bool:
    """Whether it is the file of a position, and not another one that got its number."""
    found = os.fstat(file.fileno())
    if found.st_ino != wanted["inode"] or found.st_size < wanted["offset"]:
        return False
    return wanted.get("before") in (None, _before(file, wanted["offset"]))


def _before(file: BinaryIO, offset: int) -> str:
    """What stands before a place in a file, in short."""
    start = max(offset - 256, 0)
    return hashlib.blake2b(os.pread(file.fileno(), offset - start, start), digest_size=8).hexdigest()
