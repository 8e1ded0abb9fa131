"""Where alerts go: each sink takes them from the outbox of the store and says later which it has delivered.

An alert is committed to the outbox before any sink sees it and is deleted after a sink has taken it, so that a power
cut or a broker that is away for a day loses none. It may be delivered twice, but not out of order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Entry = tuple[int, dict[str, Any]]
"""The key of an alert in the outbox, and the alert."""


class Sink(Protocol):
    """A way out for alerts.

    Attributes
    ----------
    name : str
        Its name in the outbox, which has one entry for each alert and sink.
    """

    name: str

    def offer(self, entries: Sequence[Entry]) -> None:
        """Take on alerts that were not delivered yet, the oldest first and none left out; never waits for a network.

        They are offered again until `taken` names them: a key that is under way is ignored. A sink may leave the newest
        for the next time.
        """

    def taken(self) -> list[int]:
        """Keys that were delivered since the last call."""

    def close(self) -> None:
        """Stop soon. What is under way may still be delivered: ask `taken` once more."""


def to_json(values: Mapping[str, Any]) -> str:
    """One line of strict JSON, which has no NaN and no infinity: null stands for them.

    >>> to_json({"score": float("nan"), "channels": [1.0, float("inf")], "device": "Förderband"})
    '{"score":null,"channels":[1.0,null],"device":"Förderband"}'
    """
    try:
        return _dump(values)
    except ValueError:
        return _dump(_finite(values))


def _dump(values: Any) -> str:
    return json.dumps(values, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value
