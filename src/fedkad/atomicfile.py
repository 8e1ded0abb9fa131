"""Files that are replaced as a whole: whatever happens, a reader finds the old file or the new one.

One that is of no use any more is not removed, but set aside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

JOURNALS = ("-wal", "-shm", "-journal")
"""The ends of the names of files beside a database of SQLite, which would damage the next one."""


def write_atomically(path: Path, *content: bytes | memoryview, mode: int = 0o666) -> None:
    """Write the content as `write_pieces` does."""
    write_pieces(path, content, mode=mode)


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o666) -> None:
    """Write the pieces to a temporary file beside `path`, flush it to the disk, and rename it into place.

    Pieces that are made while they are written need not fit into memory together.

    The temporary file is in the same folder because a rename is atomic only within one file system. Flushing the
    folder makes the rename itself survive a power cut. `mode`, less the umask, applies from the first byte on.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}.part")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Let what was renamed or removed in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def set_aside(path: Path, why: str = "damaged") -> Path:
    """Rename a file, with its journals if it is a database, to a free name that says why; returns that name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}-{number}")).exists():
        number += 1
    os.replace(path, aside)
    for journal in JOURNALS:
        part = path.with_name(path.name + journal)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + journal))
    return aside
