"""File locks for one process at a time; the system releases them when their holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldError(ValueError):
    """Another process holds the lock."""


@contextmanager
def holding(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock inside the context, or raise `HeldError` with this message if another process holds it."""
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
    """Wait until the lock is free, then hold it inside the context."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Tell whether a process holds the lock."""
    if not path.exists():
        return False
    try:
        with holding(path, "held"):
            return False
    except HeldError:
        return True
