"""Lines from standard input, and from a file that another program appends to."""

from __future__ import annotations

import hashlib
import logging
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from fedkad.edge.sources import BATCH, RawMessage
from fedkad.edge.store import Store
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

CHUNK = 1 << 16
MAX_LINE = 4 << 20  # longer lines are handed out in pieces, for the decoder to refuse them
CONTEXT = 256  # bytes before a position by which a file is recognised
LOOKS = 2  # times in a row that a file is missing before that is logged: log rotation removes it for a moment


class LineSplitter:
    r"""Joins chunks of bytes into whole lines, which wait here until they are asked for.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"1,2\n3,")
    >>> next(splitter.lines()), splitter.held
    (b'1,2', 2)
    >>> splitter.feed(b"4\r\n5")
    >>> splitter.end()
    >>> list(splitter.lines()), splitter.held
    ([b'3,4', b'5'], 0)

    Attributes
    ----------
    held : int
        Bytes of all that was not asked for, and of a line that is not complete yet.
    """

    def __init__(self) -> None:
        self._begun, self.held = b"", 0
        self._whole = deque[bytes]()

    @property
    def has_lines(self) -> bool:
        """Whether whole lines wait; they may be blank."""
        return bool(self._whole)

    def feed(self, piece: bytes) -> None:
        """Take a piece, which may complete lines."""
        self.held += len(piece)
        *lines, self._begun = (self._begun + piece).split(b"\n")
        self._whole.extend(line + b"\n" for line in lines)
        if len(self._begun) > MAX_LINE:
            self.end()

    def end(self) -> None:
        """Take what there is of the last line for all of it: it will not be completed."""
        if self._begun:
            self._whole.append(self._begun)
            self._begun = b""

    def lines(self) -> Iterator[bytes]:
        """The lines that wait and are not blank; one that was not asked for goes on waiting."""
        while self._whole:
            line = self._whole.popleft()
            self.held -= len(line)
            if content := _content(line):
                yield content


def _content(line: bytes) -> bytes:
    """A line without its end, empty if it is blank; a tab at the end is an empty cell."""
    return line.rstrip(b"\r\n") if line.strip() else b""


class _LineSource:
    """What both sources have in common; their acknowledgements are not waited for."""

    unacknowledged = 0

    def __init__(self, has_header: bool) -> None:
        self._has_header, self._splitter = has_header, LineSplitter()
        self.header: bytes | None = None

    def _messages(self) -> Iterator[RawMessage]:
        """The lines that wait, without the header, which is kept."""
        now = time.time()
        for line in self._splitter.lines():
            if self._has_header and self.header is None:
                self.header = line
            else:
                yield RawMessage(line, now)

    def acknowledge(self) -> None:
        """Nothing to do."""


class StdinSource(_LineSource):
    """Lines from a pipe or a terminal. Lines that a killed agent had read and not committed are lost."""

    def __init__(self, *, has_header: bool = False, descriptor: int = 0) -> None:
        super().__init__(has_header)
        self._descriptor, self._has_ended = descriptor, False

    @property
    def is_finished(self) -> bool:
        """Whether the input has ended and all of it was handed out."""
        return self._has_ended and not self._splitter.has_lines

    def poll(self, timeout: float) -> Iterator[RawMessage]:
        """The next lines, a batch at most: what they cause is told before the rest of a recording is read."""
        has_lines = self._splitter.has_lines
        if not has_lines and not self._has_ended and select.select([self._descriptor], [], [], timeout)[0]:
            if piece := os.read(self._descriptor, CHUNK):
                self._splitter.feed(piece)
            else:
                self._has_ended = True
                self._splitter.end()
        return islice(self._messages(), BATCH)

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
        self._resume_at: Mapping[str, Any] | None = store.states.position(self.name)
        self._file: Any = None
        self._inode = self._read = 0
        self._last = b""
        self._repeats, self._missed = RepeatFilter(), 0

    def poll(self, timeout: float) -> Iterator[RawMessage]:
        """The lines that were appended; sleeps for `timeout` if there are none."""
        try:
            has_more = self._splitter.has_lines or self._read_on()
        except OSError as error:
            self._let_go(error)
            has_more = False
        if not has_more:
            time.sleep(timeout)
        return self._messages()

    def _read_on(self) -> bool:
        """Read the next piece of the file; False if it has not grown."""
        if self._file is None:
            self._open()
        piece = self._next_piece()
        if not piece and self._was_replaced():
            piece = self._next_piece()  # written just before it was replaced
            is_whole = os.fstat(self._file.fileno()).st_size >= self._read  # not truncated
            if not piece and is_whole and self._splitter.held:
                self._splitter.end()  # this line will not be completed; the new file is next
                return True
            if not piece:
                self._follow(self._path.open("rb"))
                piece = self._next_piece()
        self._splitter.feed(piece)
        return bool(piece)

    def _next_piece(self) -> bytes:
        last = self._last
        content = os.pread(self._file.fileno(), len(last) + CHUNK, self._read - len(last))
        # A truncated file is noticed by its size; if its writer kept its offset, there is a hole of zeros here.
        if len(content) >= len(last) and not content.startswith(last) and content[: len(last)].strip(b"\0"):
            self._rewind()
            return self._next_piece()
        piece = content[len(last) :]
        if piece:
            self._read += len(piece)
            self._last = content[-CONTEXT:]
            self._repeats.clear()
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
        elif self._repeats.allows("failure"):
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
            status = self._path.stat()
        except FileNotFoundError:
            self._note_missing()
            return False
        except OSError:
            return False
        self._missed = 0
        if status.st_ino != self._inode:
            return status.st_size > 0  # while the new file is empty, its writer may still write to the old one
        return status.st_size < self._read

    def put_position(self) -> None:
        """Put the file and the end of the last whole line handed out into the store."""
        position = self._resume_at if self._file is None else self._position()
        if position is not None:
            self._store.states.put_position(self.name, position)

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
    status = os.fstat(file.fileno())
    if status.st_ino != position["inode"] or status.st_size < position["offset"]:
        return False
    return position.get("before") in (None, _digest_before(file, position["offset"]))


def _digest_before(file: BinaryIO, offset: int) -> str:
    return hashlib.blake2b(_bytes_before(file, offset), digest_size=8).hexdigest()


def _bytes_before(file: BinaryIO, offset: int) -> bytes:
    start = max(offset - CONTEXT, 0)
    return os.pread(file.fileno(), offset - start, start)


def first_line(file: BinaryIO) -> bytes | None:
    """The first line that is not blank, which names the columns of a table."""
    return next(filter(None, map(_content, iter(lambda: file.readline(MAX_LINE), b""))), None)
