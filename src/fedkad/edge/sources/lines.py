"""Lines: from standard input, and from a file that somebody else appends to."""

from __future__ import annotations

import hashlib
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from fedkad.edge.sources import Message
from fedkad.edge.store import Store

Say = Callable[[str], None]

AT_ONCE = 1 << 16
LONGEST = 4 << 20
"""A line longer than this is noise: it is handed out cut, for the reader to refuse it."""

KNOWN_BY = 256
"""Bytes before a place in a file by which it is known again."""

LOOKS = 2
"""Times in a row that a file must be missing before that is said: while logs are rotated it is for a moment."""


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
        return list(_filled(lines))

    def rest(self) -> list[bytes]:
        """The last line, where the end of the input ends it."""
        rest, self._begun = self._begun, b""
        return list(_filled([rest]))

    @property
    def held(self) -> int:
        """Bytes of a line that has begun."""
        return len(self._begun)


def _filled(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without their ends, and without blank ones; a tab at the end of one is an empty cell."""
    return (line.rstrip(b"\r\n") for line in lines if line.strip())


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
    """A file that is followed as it grows, from its beginning; one that is replaced, cut or written over is begun anew.

    The position is committed with what was read: after a kill nothing is lost and nothing is read twice. A file that
    was renamed meanwhile, as logs are, is read to its end first if it lies in the same folder. One that cannot be read
    now, as in the moment of a rotation, is tried again, and its trouble is said once; so it is if it is not there.
    """

    name = "file"
    is_finished = False
    in_hand = 0

    def __init__(self, path: Path, store: Store, say: Say, *, headed: bool = False) -> None:
        self._path, self._store, self._say, self._headed = path, store, say, headed
        self._wanted: Mapping[str, Any] | None = store.position(self.name)
        self.header: bytes | None = None
        self._file: Any = None
        self._inode = self._read = 0
        self._splitter, self._last = LineSplitter(), b""
        self._is_trouble_said, self._missed = False, 0

    def poll(self, timeout: float) -> list[Message]:
        """The lines that were appended; looks once a `timeout`, but reads on while there is more."""
        try:
            lines = self._next_lines()
        except OSError as error:
            self._let_go(error)
            lines = None
        if lines is None:
            time.sleep(timeout)
            return []
        if self._headed and self.header is None and lines:
            self.header = lines.pop(0)
        now = time.time()
        return [Message(line, now) for line in lines]

    def _next_lines(self) -> list[bytes] | None:
        """The lines in the next piece of the file; None if there is no such piece now."""
        if self._file is None:
            self._open()
        piece = self._next_piece()
        if not piece and self._was_replaced():
            piece = self._next_piece()  # what was still written to it before it was replaced
            if not piece and self._is_whole() and (rest := self._splitter.rest()):
                return rest  # nobody will end this line; it counts as read from here on, and then comes the next file
            if not piece:
                self._begin(self._path.open("rb"))
                piece = self._next_piece()
        return self._splitter.feed(piece) if piece else None

    def _next_piece(self) -> bytes:
        last = self._last
        found = os.pread(self._file.fileno(), len(last) + AT_ONCE, self._read - len(last))
        # A shorter one was cut, which is seen by its size; cut under a writer that keeps its place, it has a hole here.
        if len(found) >= len(last) and not found.startswith(last) and found[: len(last)].strip(b"\0"):
            self._begin_anew()
            return self._next_piece()
        piece = found[len(last) :]
        if piece:
            self._read += len(piece)
            self._last = found[-KNOWN_BY:]
            self._is_trouble_said = False
        return piece

    def _open(self) -> None:
        """Open the file where it was left, whatever its name is now."""
        wanted = self._wanted
        file = (self._path if wanted is None else self._last_read(wanted)).open("rb")
        try:
            offset = wanted["offset"] if wanted is not None and _is_where(file, wanted) else 0
            header = first_line(file) if self._headed and offset else None
            last = _last_bytes(file, offset)
        except BaseException:
            file.close()
            raise
        self._begin(file)
        self._read, self._last, self.header = offset, last, header

    def _begin(self, file: BinaryIO) -> None:
        """Read this file from now on."""
        inode = os.fstat(file.fileno()).st_ino
        self.close()
        self._file, self._inode, self._missed = file, inode, 0
        self._wanted = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.header = None
        self._splitter, self._last, self._read = LineSplitter(), b"", 0

    def _let_go(self, error: OSError) -> None:
        """Remember where to go on once it can be read; a file that is not there yet is no trouble."""
        if self._file is not None:
            self._wanted = self._position()
            self.close()
            self._file = None
        if isinstance(error, FileNotFoundError):
            self._miss()
        elif not self._is_trouble_said:
            self._is_trouble_said = True
            self._say(f"{self._path}: it cannot be read now ({error.strerror or error}); the agent tries again.")

    def _miss(self) -> None:
        """Count that it is not there, and say it once until it is there again."""
        self._missed += 1
        if self._missed == LOOKS:
            self._say(f"{self._path}: it is not there; the agent waits for it.")

    def _last_read(self, wanted: Mapping[str, Any]) -> Path:
        """The file that was read last: it may have got another name while the agent was down.

        Where the configuration had another path then, it is another file, which is none of ours now.
        """
        others: list[Path] = []
        if wanted.get("path", str(self._path)) == str(self._path):  # older positions have no path
            with suppress(OSError):
                others = sorted(self._path.parent.iterdir())
        for path in (self._path, *others):
            try:
                if not path.is_file() or path.stat().st_ino != wanted["inode"]:
                    continue
                file = path.open("rb")
            except OSError:  # gone meanwhile, or closed to us, maybe for ever
                continue
            with file:
                if _is_where(file, wanted):
                    return path
        return self._path

    def _was_replaced(self) -> bool:
        """Whether another file has this name now, or this one was cut; only asked at its end."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._miss()
            return False
        except OSError:
            return False
        self._missed = 0
        if found.st_ino != self._inode:
            return found.st_size > 0  # until something is in it, whoever writes may still write to this one
        return found.st_size < self._read

    def _is_whole(self) -> bool:
        """Whether it was not cut: what is left of a line then is not of this file any more."""
        return bool(os.fstat(self._file.fileno()).st_size >= self._read)

    def put_position(self) -> None:
        """Commit which file it is, and the end of the last whole line that was handed out."""
        position = self._wanted if self._file is None else self._position()
        if position is not None:
            self._store.put_position(self.name, position)

    def _position(self) -> dict[str, Any]:
        offset, before = self._read - self._splitter.held, None
        with suppress(OSError):
            before = _before(self._file, offset)
        return {"path": str(self._path), "inode": self._inode, "offset": offset, "before": before}

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
    return hashlib.blake2b(_last_bytes(file, offset), digest_size=8).hexdigest()


def _last_bytes(file: BinaryIO, offset: int) -> bytes:
    start = max(offset - KNOWN_BY, 0)
    return os.pread(file.fileno(), offset - start, start)


def first_line(file: BinaryIO) -> bytes | None:
    """The first line with anything in it, which names the columns of a table."""
    return next(_filled(iter(lambda: file.readline(LONGEST), b"")), None)
