"""Lines from standard input, and from a file that another program appends to."""

from __future__ import annotations

import hashlib
import logging
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from fedkad.edge.sources import BATCH, RawMessage
from fedkad.edge.store import Store

logger = logging.getLogger(__name__)

CHUNK = 1 << 16
MAX_LINE = 4 << 20
"""Longer lines are handed out in pieces, for the decoder to refuse them."""

CONTEXT = 256
"""Bytes before a position by which a file is recognised."""

LOOKS = 2
"""How often in a row a file must be missing before that is logged: log rotation removes it for a moment."""


class LineSplitter:
    r"""Joins chunks of bytes into whole lines.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"1,2\n3,"), splitter.feed(b"4\r\n"), splitter.rest()
    ([b'1,2'], [b'3,4'], [])
    """

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that the piece completes."""
        *lines, self._begun = (self._begun + piece).split(b"\n")
        if len(self._begun) > MAX_LINE:
            lines.append(self._begun)
            self._begun = b""
        return list(_filled(lines))

    def rest(self) -> list[bytes]:
        """The last line, if the input ends without a newline."""
        rest, self._begun = self._begun, b""
        return list(_filled([rest]))

    @property
    def held(self) -> int:
        """Bytes of a line that is not complete yet."""
        return len(self._begun)


def _filled(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines that are not blank, without their line ends; a tab at the end of a line is an empty cell."""
    return (line.rstrip(b"\r\n") for line in lines if line.strip())


class _LineSource:
    """What both sources have in common; nobody waits for their acknowledgements."""

    unacknowledged = 0

    def __init__(self, has_header: bool) -> None:
        self._has_header, self._splitter = has_header, LineSplitter()
        self.header: bytes | None = None

    def _messages(self, lines: list[bytes]) -> list[RawMessage]:
        if self._has_header and self.header is None and lines:
            self.header = lines.pop(0)
        now = time.time()
        return [RawMessage(line, now) for line in lines]

    def acknowledge(self) -> None:
        """Nothing to do."""


class StdinSource(_LineSource):
    """Lines from a pipe or a terminal. Lines that a killed agent had read and not committed are lost."""

    def __init__(self, *, has_header: bool = False, descriptor: int = 0) -> None:
        super().__init__(has_header)
        self._descriptor, self._has_ended = descriptor, False
        self._waiting: deque[RawMessage] = deque()

    @property
    def is_finished(self) -> bool:
        """Whether the input has ended and all of it was handed out."""
        return self._has_ended and not self._waiting

    def poll(self, timeout: float) -> list[RawMessage]:
        """The next lines, a batch at most: a recording that comes at once must not outrun what is learned from it."""
        if not self._waiting and not self._has_ended and select.select([self._descriptor], [], [], timeout)[0]:
            piece = os.read(self._descriptor, CHUNK)
            self._has_ended = not piece
            self._waiting.extend(self._messages(self._splitter.feed(piece) if piece else self._splitter.rest()))
        return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]

    def put_position(self) -> None:
        """A pipe has no position to return to."""

    def close(self) -> None:
        """Leave standard input open."""


class FileSource(_LineSource):
    """Follows a file as it grows, from its beginning; a file that is replaced, truncated or overwritten starts again.

    The position is committed together with what was read, so after a kill no line is lost or read twice. A file that
    was renamed meanwhile, as logs are, is first read to its end if it is in the same folder. A file that is missing or
    cannot be read, as during a rotation, is tried again, and the problem is logged once.
    """

    name = "file"
    is_finished = False

    def __init__(self, path: Path, store: Store, *, has_header: bool = False) -> None:
        super().__init__(has_header)
        self._path, self._store = path, store
        self._resume_at: Mapping[str, Any] | None = store.position(self.name)
        self._file: Any = None
        self._inode = self._read = 0
        self._last = b""
        self._is_failure_logged, self._missed = False, 0

    def poll(self, timeout: float) -> list[RawMessage]:
        """The lines that were appended; sleeps for `timeout` if there are none."""
        try:
            lines = self._next_lines()
        except OSError as error:
            self._let_go(error)
            lines = None
        if lines is None:
            time.sleep(timeout)
            return []
        return self._messages(lines)

    def _next_lines(self) -> list[bytes] | None:
        """The lines in the next piece of the file; None if it has not grown."""
        if self._file is None:
            self._open()
        piece = self._next_piece()
        if not piece and self._was_replaced():
            piece = self._next_piece()  # written just before it was replaced
            is_whole = os.fstat(self._file.fileno()).st_size >= self._read  # not truncated
            if not piece and is_whole and (rest := self._splitter.rest()):
                return rest  # nobody will complete this line; the new file is next
            if not piece:
                self._follow(self._path.open("rb"))
                piece = self._next_piece()
        return self._splitter.feed(piece) if piece else None

    def _next_piece(self) -> bytes:
        last = self._last
        found = os.pread(self._file.fileno(), len(last) + CHUNK, self._read - len(last))
        # A truncated file is noticed by its size; if its writer kept its offset, there is a hole of zeros here.
        if len(found) >= len(last) and not found.startswith(last) and found[: len(last)].strip(b"\0"):
            self._rewind()
            return self._next_piece()
        piece = found[len(last) :]
        if piece:
            self._read += len(piece)
            self._last = found[-CONTEXT:]
            self._is_failure_logged = False
        return piece

    def _open(self) -> None:
        """Open the file at the committed position, whatever its name is now."""
        position = self._resume_at
        file = (self._path if position is None else self._find(position)).open("rb")
        try:
            offset = position["offset"] if position is not None and _is_at(file, position) else 0
            header = first_line(file) if self._has_header and offset else None
            last = _bytes_before(file, offset)
        except BaseException:
            file.close()
            raise
        self._follow(file)
        self._read, self._last, self.header = offset, last, header

    def _follow(self, file: BinaryIO) -> None:
        """Read this file from now on."""
        inode = os.fstat(file.fileno()).st_ino
        self.close()
        self._file, self._inode, self._missed = file, inode, 0
        self._resume_at = None
        self._rewind()

    def _rewind(self) -> None:
        self.header = None
        self._splitter, self._last, self._read = LineSplitter(), b"", 0

    def _let_go(self, error: OSError) -> None:
        """Remember the position until the file can be read again; a file that does not exist yet is not a failure."""
        if self._file is not None:
            self._resume_at = self._position()
            self.close()
            self._file = None
        if isinstance(error, FileNotFoundError):
            self._note_missing()
        elif not self._is_failure_logged:
            self._is_failure_logged = True
            logger.warning("%s: cannot be read now (%s); the agent tries again.", self._path, error.strerror or error)

    def _note_missing(self) -> None:
        self._missed += 1
        if self._missed == LOOKS:
            logger.warning("%s: does not exist; the agent waits for it.", self._path)

    def _find(self, position: Mapping[str, Any]) -> Path:
        """The file with the committed position: it may have been renamed while the agent was down.

        A position of another configured path belongs to another file.
        """
        others: list[Path] = []
        if position.get("path", str(self._path)) == str(self._path):  # older positions have no path
            with suppress(OSError):
                others = sorted(self._path.parent.iterdir())
        for path in (self._path, *others):
            try:
                if not path.is_file() or path.stat().st_ino != position["inode"]:
                    continue
                file = path.open("rb")
            except OSError:  # removed meanwhile, or not readable
                continue
            with file:
                if _is_at(file, position):
                    return path
        return self._path

    def _was_replaced(self) -> bool:
        """Whether another file has this name now, or this one was truncated; only asked at its end."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._note_missing()
            return False
        except OSError:
            return False
        self._missed = 0
        if found.st_ino != self._inode:
            return found.st_size > 0  # while the new file is empty, its writer may still write to the old one
        return found.st_size < self._read

    def put_position(self) -> None:
        """Put the file and the end of the last whole line handed out into the store."""
        position = self._resume_at if self._file is None else self._position()
        if position is not None:
            self._store.put_position(self.name, position)

    def _position(self) -> dict[str, Any]:
        offset, before = self._read - self._splitter.held, None
        with suppress(OSError):
            before = _digest_before(self._file, offset)
        return {"path": str(self._path), "inode": self._inode, "offset": offset, "before": before}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _is_at(file: BinaryIO, position: Mapping[str, Any]) -> bool:
    """Whether a position is of this file, and not of another one that had its inode number."""
    found = os.fstat(file.fileno())
    if found.st_ino != position["inode"] or found.st_size < position["offset"]:
        return False
    return position.get("before") in (None, _digest_before(file, position["offset"]))


def _digest_before(file: BinaryIO, offset: int) -> str:
    return hashlib.blake2b(_bytes_before(file, offset), digest_size=8).hexdigest()


def _bytes_before(file: BinaryIO, offset: int) -> bytes:
    start = max(offset - CONTEXT, 0)
    return os.pread(file.fileno(), offset - start, start)


def first_line(file: BinaryIO) -> bytes | None:
    """The first line that is not blank, which names the columns of a table."""
    return next(_filled(iter(lambda: file.readline(MAX_LINE), b"")), None)
