"""What a device continues from after a restart: the only place that knows how the store has it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedkad.edge.device.overrides import Overrides, UndoRecord
from fedkad.edge.store import Store

Json = Mapping[str, Any]

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the schema; states of before it have no version and lack some of the keys."""

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a damaged state may raise."""


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """The state of a device; each of its parts makes and reads its own mapping.

    >>> SavedState.from_json({"seq": 7, "grid": {"period": 10.0}}).period
    10.0
    """

    seq: int = 0  # the number of the last row
    period: float = 0.0  # 0 while it is not known
    first: Json | None = None  # the samples that wait for the period
    counted: int = 0  # samples, where these are the clock
    refused: int = 0  # messages that could not be read
    fresh: int = 0  # what follows, up to `own`, is the learner's
    spent: int = 0
    through: int | None = None
    young: int | None = 0
    learnt: int = 0
    own: bool | None = False
    grid: Json | None = None
    alarms: Json | None = None
    health: Json | None = None
    pace: Json | None = None
    hidden: Sequence[tuple[int, list[int]]] = ()  # the channels hidden from the model, by the number of their row
    budget: Json | float | None = None
    orders: Overrides = field(default_factory=Overrides)
    settling: Json | None = None
    taken: UndoRecord = field(default_factory=UndoRecord)
    unjudged: float = 0.0  # seconds watched before there was a model
    heard: float | None = None  # when the last sample arrived
    shown: Json | None = None  # by `fedkad-agent status`, and not read back

    @classmethod
    def from_json(cls, stored: Json) -> SavedState:
        """Read a stored state of this version or an earlier one; raises one of `UNREADABLE` if it is damaged."""
        known = {each.name: stored[each.name] for each in fields(cls) if each.name in stored}
        if not known.get("period"):  # it was the grid's alone
            known["period"] = float((stored.get("grid") or {}).get("period") or 0.0)
        orders, taken = (
            Overrides.restored(known.pop("orders", {})),
            UndoRecord.restored(known.pop("taken", ())),
        )
        return cls(**known, orders=orders, taken=taken)

    def to_json(self) -> dict[str, Any]:
        """Return the state as it is stored."""
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"version": VERSION, **state, "orders": self.orders.state()}


def load_state(store: Store, device: str) -> SavedState:
    """Return the stored state of a device; one that cannot be read is logged, and an empty one takes its place."""
    try:
        return SavedState.from_json(store.states.get(device) or {})
    except UNREADABLE as error:
        return without_state(store, device, error)


def without_state(store: Store, device: str, error: Exception) -> SavedState:
    """Return the state to begin again with, after its rows that are kept, because of a logged error."""
    logger.warning("%s: its stored state cannot be read (%r); it starts again.", device, error)
    return SavedState(seq=store.rows.last_number(device))
