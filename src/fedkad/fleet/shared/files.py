"""Files of a fleet: where they are, who may read them, and the error for one that cannot be used."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedkad.atomicfile import write_atomically


class FleetFileError(ValueError):
    """A file of the fleet that cannot be used; the message says which, why and what to do."""


class FileIdentity(NamedTuple):
    """Which file it is, and which state of it."""

    number: int
    changed: int
    size: int


class Below:
    """A class attribute that is a path below the `root` of its object.

    >>> class House:
    ...     root = Path("/house")
    ...     key = Below("door/key")
    >>> print(House().key)
    /house/door/key
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, folder: Any, owner: type) -> Path:
        found: Path = folder.root / self._path
        return found


def identity(path: Path) -> FileIdentity | None:
    """Return what changes when a file is replaced or written; None if there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return FileIdentity(stat.st_ino, stat.st_mtime_ns, stat.st_size)


@contextmanager
def private() -> Iterator[None]:
    """Make everything created inside readable by the owner only.

    Changing the mode afterwards would leave a moment in which a key can be read.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600, atomically, and create its folder with mode 0700 if it is missing."""
    with private():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
