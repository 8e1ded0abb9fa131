"""The paths in a folder, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
