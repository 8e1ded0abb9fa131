"""TOML as the files of a fleet are read and written: `fleet.toml` of a server, `device.toml` of a device."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any


class FleetFileError(ValueError):
    """A file of the fleet that cannot be used; the message says which, why and what to do."""


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """What a file says; `remedy` is what to do where there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FleetFileError(f"{path}: there is no such file; {remedy}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FleetFileError(f"{path}: {error}; correct it.") from None


def toml_text(value: Any) -> str:
    r"""A value as TOML writes it.

    >>> print(toml_text('a "b"'), toml_text(True), toml_text(("x", "y")), toml_text(0.5))
    "a \"b\"" true ["x", "y"] 0.5
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows a bare DEL, TOML does not
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_text(entry) for entry in value) + "]"
    return repr(value)
