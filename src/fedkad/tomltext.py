"""Values as TOML writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, time
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
