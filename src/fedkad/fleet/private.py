"""Files and folders that only their owner may read, from the first byte on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkad.atomicfile import write_atomically


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
