"""The error for a setting that has a wrong value, wherever it came from: Python, a TOML file or the command line."""

from __future__ import annotations

from typing import Any


class SettingError(ValueError):
    """A setting has a value that is not allowed.

    The fields let each front end say it in its own words: `rank=0` in Python, `--rank 0` on the command line.

    >>> print(SettingError("rank", 0, "a positive integer"))
    rank=0 must be a positive integer.

    Attributes
    ----------
    name : str
    value : object
    allowed : str
        What the setting must be; reads on after "must be".
    """

    def __init__(self, name: str, value: Any, allowed: str) -> None:
        super().__init__(name, value, allowed)
        self.name, self.value, self.allowed = name, value, allowed

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} must be {self.allowed}."
