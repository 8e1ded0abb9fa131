"""Settings that are read again: each key is taken at once or named, and none is forgotten."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fedkad.edge.reloading import AT_ONCE, reloaded
from fedkad.edge.settings import AgentSettings, DeviceSettings, Maintenance
from fedkad.edge.settings.file import parse

SMALLEST: dict[str, Any] = {"devices": ["a", "b"], "sampling": {"channels": ["x"]}}
OLD = parse(SMALLEST, Path("/home"))


def other(value: Any) -> Any:
    """A value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, Path):
        return value / "other"
    return {"z": 1} if isinstance(value, dict) else type(value)((*value, "z")) if isinstance(value, tuple) else "other"


PLACES = [
    (place, section.name, key.name)
    for place, owner in (("agent", OLD), ("device", OLD.devices["b"]))
    for section in fields(owner)
    if section.name not in ("devices", "maintenance", "name", "state", "commit_every", "detector", "most_devices")
    for key in fields(getattr(owner, section.name))
]


@pytest.mark.parametrize(("place", "section", "key"), PLACES)
def test_every_key_is_taken_at_once_or_named(place: str, section: str, key: str) -> None:
    owner: AgentSettings | DeviceSettings = OLD if place == "agent" else OLD.devices["b"]
    changed = replace(getattr(owner, section), **{key: other(getattr(getattr(owner, section), key))})
    part: Any = replace(owner, **{section: changed})
    new = part if place == "agent" else replace(OLD, devices={**OLD.devices, "b": part})
    found = reloaded(OLD, new)
    at_once = AT_ONCE.get(section, ())
    if at_once is None or key in at_once:
        assert (found.settings, found.changed, found.refused) == (new, [f"{key} in [{section}]"], [])
    else:
        assert (found.settings, found.changed, found.refused) == (OLD, [], [f"{key} in [{section}]"])


def test_the_rest_of_the_file() -> None:
    planned = (Maintenance(0.0, 1.0),)
    assert reloaded(OLD, replace(OLD, maintenance=planned)).settings.maintenance == planned
    assert reloaded(OLD, replace(OLD, commit_every=5.0)).settings.commit_every == 5.0
    assert reloaded(OLD, replace(OLD, most_devices=5)).settings.most_devices == 5
    for key in ("name", "state"):
        found = reloaded(OLD, replace(OLD, **{key: other(getattr(OLD, key))}))
        assert (found.settings, found.refused) == (OLD, [key])
    fewer = reloaded(OLD, parse({**SMALLEST, "devices": ["a"]}, Path("/home")))
    assert (fewer.settings, fewer.refused) == (OLD, ["devices"])
    assert str(reloaded(OLD, OLD)) == "nothing has changed"


def test_what_follows_from_a_key_is_not_named() -> None:
    slower = parse({**SMALLEST, "sampling": {"channels": ["x"], "period": 60}}, Path("/home"))
    found = reloaded(OLD, slower)
    assert (found.settings, found.refused) == (OLD, ["period in [sampling]"])
