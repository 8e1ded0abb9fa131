"""One process at a time, by locks that the system takes back whenever their holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldError(ValueError):
    """Somebody else holds the lock."""


@contextmanager
def holding(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock for a while, or raise `HeldError` with the sentence given."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(refusal) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold the lock for a while, after whoever has it now."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Tell whether somebody holds the lock."""
    if not path.exists():
        return False
    try:
        with holding(path, "held"):
            return False
    except HeldError:
        return True
