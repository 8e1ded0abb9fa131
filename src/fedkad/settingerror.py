"""Errors for settings that cannot be used, from Python, a TOML file or the command line, and values as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING
from datetime import date, time
from pathlib import Path
from typing import Any


def toml_text(value: Any) -> str:
    r"""A value as it is written in a TOML file.

    >>> print(toml_text('a "b"'), toml_text(("x", True)), toml_text({"a b": date(2026, 3, 1), "c": 0.5}))
    "a \"b\"" ["x", true] {"a b" = 2026-03-01, c = 0.5}
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows a bare DEL, TOML does not
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {toml_text(entry)}' for key, entry in value.items())}}}"
    return repr(value)


def shown(value: Any, most: int = 200) -> str:
    """A value as a message quotes it: as TOML, and cut after `most` characters."""
    try:
        text = toml_text(value)
    except (ValueError, RecursionError):  # Python refuses to print the digits of a huge integer
        return "…"
    return text if len(text) <= most else text[:most] + "…"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else toml_text(name)


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
    [model] has no key 'rang'; did you mean 'rank'? Valid keys: rank, window.
    """

    def _in_words(self, section: str) -> str:
        from difflib import get_close_matches  # this module is imported by all others, and hardly ever needs it

        nearest = get_close_matches(self.name, self.allowed.split(", "), n=1)
        guess = f"; did you mean {nearest[0]!r}?" if nearest else "."
        return f"{section or 'The file'} has no key {self.name!r}{guess} Valid keys: {self.allowed}."
