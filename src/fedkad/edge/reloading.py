"""Settings that are read again while the agent runs: which of them hold at once, and which need a restart."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import NamedTuple, TypeVar

from fedkad.edge.settings import AgentSettings, DeviceSettings

T = TypeVar("T")

DERIVED = {"max_gap": "period", "stale_after": "period"}
"""Keys that follow from another unless they are written: only that one is named."""

AT_ONCE: dict[str, tuple[str, ...] | None] = {
    "": ("commit_every", "maintenance", "most_devices"),
    "alarm": None,
    "learning": ("cycle", "first", "every", "forgetting"),
    "mqtt": ("state_every",),
}
"""The keys of each section that need no restart; None for all of them."""


class Reloaded(NamedTuple):
    """The settings that hold from now on, and what has changed: keys that hold, and keys that need a restart."""

    settings: AgentSettings
    changed: list[str]
    refused: list[str]

    def __str__(self) -> str:
        parts = []
        if self.changed:
            parts.append(f"from now on these hold: {', '.join(self.changed)}")
        if self.refused:
            parts.append(f"these stay as they were until a restart: {', '.join(self.refused)}")
        return "; ".join(parts) or "nothing has changed"


def reloaded(old: AgentSettings, new: AgentSettings) -> Reloaded:
    """The old settings with all of the new ones that can change while the agent runs.

    >>> from fedkad.edge.settings import Alarm, SourceSettings
    >>> old = AgentSettings({"pump-1": DeviceSettings()})
    >>> device = DeviceSettings(alarm=Alarm(critical=5.0))
    >>> found = reloaded(old, AgentSettings({"pump-1": device}, source=SourceSettings(kind="file")))
    >>> found.settings.devices["pump-1"].alarm.critical, found.settings.source.kind
    (5.0, 'stdin')
    >>> print(found)
    from now on these hold: critical in [alarm]; these stay as they were until a restart: kind in [source]
    """
    changed, refused = dict[str, None](), dict[str, None]()  # in order, and each once

    def merged(old: T, new: T, section: str = "") -> T:
        taken = {}
        for name in (field.name for field in fields(old)):  # type: ignore[arg-type]
            before, after = getattr(old, name), getattr(new, name)
            if before == after or name == "devices":
                continue
            if is_dataclass(before):
                taken[name] = merged(before, after, name)
                continue
            if name in DERIVED and getattr(old, DERIVED[name]) != getattr(new, DERIVED[name]):
                continue
            keys = AT_ONCE.get(section, ())
            is_taken = keys is None or name in keys
            (changed if is_taken else refused)[f"{name} in [{section}]" if section else name] = None
            if is_taken:
                taken[name] = after
        return replace(old, **taken)  # type: ignore[type-var]

    settings = merged(old, new)
    if set(old.devices) != set(new.devices):
        refused["devices"] = None
    devices: dict[str, DeviceSettings] = {
        name: merged(device, new.devices.get(name, device)) for name, device in old.devices.items()
    }
    return Reloaded(replace(settings, devices=devices), list(changed), list(refused))
