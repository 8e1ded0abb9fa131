"""Where alerts go: each sink takes them from the outbox of the store and reports later which ones it has delivered.

An alert is committed to the outbox before any sink sees it, and is deleted after the sink has delivered it, so that
neither a power cut nor a broker that is away for a day loses any. It may be delivered twice, but not out of order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Entry = tuple[int, dict[str, Any]]
"""The key of an alert in the outbox, and the alert."""


class AlertSink(Protocol):
    """What the agent expects of a sink; `name` is its name in the outbox, which has one entry per alert and sink."""

    name: str

    def offer(self, entries: Sequence[Entry]) -> None:
        """Accept alerts that are not delivered yet, the oldest first and none left out; never waits for a network.

        They are offered again until `delivered` returns their keys: a key that is already being delivered is ignored.
        A sink may leave the newest for the next time.
        """

    def delivered(self) -> list[int]:
        """The keys that were delivered since the last call."""

    def close(self) -> None:
        """Stop soon. A delivery in progress may still succeed: ask `delivered` once more."""


def to_json(values: Mapping[str, Any]) -> str:
    """One line of strict JSON, where null stands for NaN and infinity.

    >>> to_json({"score": float("nan"), "channels": [1.0, float("inf")], "device": "Förderband"})
    '{"score":null,"channels":[1.0,null],"device":"Förderband"}'
    """
    try:
        return _encode(values)
    except ValueError:
        return _encode(_finite(values))


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value
