"""Errors for settings that cannot be used, wherever they came from: Python, a TOML file or the command line."""

from __future__ import annotations

from dataclasses import MISSING
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedkad.tomltext import shown


class SettingsError(ValueError):
    """Settings that cannot be used; the message says what is wrong and what to do."""

    def in_file(self, path: Path | str) -> SettingsError:
        """The same error with the file in front."""
        return SettingsError(f"{path}: {self}")


class SettingError(SettingsError):
    """A setting has a value that is not allowed.

    The fields let each front end say it in its own words: `rank=0` in Python, `rank = 0 in [model]` in a file,
    `--rank 0` on the command line.

    >>> print(SettingError("rank", 0, "a positive integer"))
    rank=0 must be a positive integer.
    >>> print(SettingError("rank", 0, "a positive integer", "model").in_file("fleet.toml"))
    fleet.toml: rank = 0 in [model] must be a positive integer.

    Attributes
    ----------
    name : str
    value : object
        `dataclasses.MISSING` where a file lacks a key that it needs.
    allowed : str
        What the setting must be; reads on after "must be".
    section : str, optional
        The section of a file; empty for its top level, None outside of files.
    file : str
    """

    def __init__(self, name: str, value: Any, allowed: str, section: str | None = None, file: str = "") -> None:
        super().__init__(name, value, allowed, section, file)
        self.name, self.value, self.allowed, self.section, self.file = name, value, allowed, section, file

    def __str__(self) -> str:
        if self.section is None:
            return f"{self.name}={self.value!r} must be {self.allowed}."
        return (f"{self.file}: " if self.file else "") + self._in_words(f"[{self.section}]" if self.section else "")

    def _in_words(self, section: str) -> str:
        place = f" in {section}" if section else ""
        if self.value is MISSING:
            return f"{self.name} is missing{place}; it must be {self.allowed}."
        return f"{self.name} = {shown(self.value)}{place} must be {self.allowed}."

    def in_file(self, path: Path | str) -> SettingError:
        """The same error in a file."""
        return type(self)(self.name, self.value, self.allowed, self.section or "", str(path))


class UnknownSettingError(SettingError):
    """A file has a key that does not exist; `allowed` has those that do.

    >>> print(UnknownSettingError("rang", 3, "rank, window", "model"))
    [model] has no key 'rang', did you mean 'rank'? It knows rank, window.
    """

    def _in_words(self, section: str) -> str:
        nearest = get_close_matches(self.name, self.allowed.split(", "), n=1)
        guess = f", did you mean {nearest[0]!r}? It" if nearest else "; it"
        return f"{section or 'The file'} has no key {self.name!r}{guess} knows {self.allowed}."
