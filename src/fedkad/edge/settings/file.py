"""`agent.toml` as a file: what holds for all devices and what for one, put together and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkad.edge.settings import AgentSettings, DeviceSettings, Maintenance
from fedkad.edge.settings.rules import EVERY, DeviceNames
from fedkad.edge.sources.payload import find_zone
from fedkad.settingerror import SettingError, SettingsError, toml_text
from fedkad.settingkinds import Surroundings
from fedkad.settingsfile import FileSection, keys_of, read, read_file

Sections = Mapping[str, FileSection]


def load(path: Path) -> AgentSettings:
    """Read and check a configuration; raises `SettingsError`."""
    path = Path(path)
    return read_file(path, "begin with one of the examples", lambda document: parse(document, path.resolve().parent))


def parse(document: Mapping[str, Any], home: Path) -> AgentSettings:
    """Settings from a TOML document whose file is in the folder `home`."""
    whole = FileSection.of(document, around=Surroundings(home))
    whole.refuse_unknown([*keys_of(AgentSettings), *keys_of(DeviceSettings), "override"])
    settings = read(AgentSettings, whole.only(keys_of(AgentSettings)), devices={}, maintenance=())
    sections = _sections(whole, whole.read("devices", DeviceNames))
    state = home / settings.state
    devices = {name: _device(name, section, state) for name, section in sections.items()}
    settings = replace(settings, state=state, devices=devices)
    _check_folders(settings, sections)
    _check_zones(settings, sections)
    _check_clocks(settings, sections)
    return replace(settings, maintenance=_maintenance(document, devices))


def _sections(whole: FileSection, names: tuple[str, ...]) -> dict[str, FileSection]:
    """By device: what holds for all devices, overridden by what holds for it.

    Where every device is watched, one that something is said of here is one of those that are named.
    """
    common, override = whole.only(keys_of(DeviceSettings)), whole.inner("override")
    mentioned = [name for _, table in override.tables for name in table]
    if EVERY in names:
        listed = list(dict.fromkeys((*names, *mentioned)))
        names = FileSection.of({"devices": listed}).read("devices", DeviceNames)
    for name in mentioned:
        if name not in names:
            raise SettingsError(f"[override.{name}] is for an unknown device; the devices are {_listed(names)}.")
    return {name: replace(common, tables=(*common.tables, *override.inner(name).tables)) for name in names}


def _device(name: str, section: FileSection, state: Path) -> DeviceSettings:
    device = read(DeviceSettings, section)
    if name != EVERY:
        device = device.of(name)
    elif "{device}" not in device.learning.folder:
        place = section.inner("learning").place("folder")
        raise SettingError("folder", device.learning.folder, "with {device}, because devices has *", place)
    return replace(device, learning=replace(device.learning, folder=str(state / device.learning.folder)))


def _check_folders(settings: AgentSettings, sections: Sections) -> None:
    """Raise an error where two devices would share a folder."""
    owners: dict[str, str] = {}
    for name, device in settings.devices.items():
        folder = device.learning.folder
        owner = owners.setdefault(os.path.realpath(folder), name)
        if owner != name:
            place, other = (sections[each].inner("learning").place("folder") for each in (name, owner))
            allowed = f"another than that of {owner} in [{other}]: each device needs its own folder; use {{device}}"
            raise SettingError("folder", folder, allowed, place)


def _check_zones(settings: AgentSettings, sections: Sections) -> None:
    """Raise an error where a time is read before its device is known, and zones differ."""
    source = settings.source
    if source.kind == "mqtt" and all("{device}" in topic.split("/") for topic in source.topics):
        return
    first, common = next((name, device.sampling.zone) for name, device in settings.devices.items())
    for name, device in settings.devices.items():
        if device.sampling.zone != common:
            place, other = (sections[each].inner("sampling").place("zone") for each in (name, first))
            allowed = f"the same for all devices of one input, and {first} has {common!r} by [{other}]"
            raise SettingError("zone", device.sampling.zone, allowed, place)


def _check_clocks(settings: AgentSettings, sections: Sections) -> None:
    """Raise an error where a message has one channel and is not a row, so that messages cannot be counted as time."""
    if settings.source.kind != "mqtt" or not any("{channel}" in topic for topic in settings.source.topics):
        return
    for name, device in settings.devices.items():
        if device.sampling.clock == "count":
            place = sections[name].inner("sampling").place("clock")
            raise SettingError("clock", "count", "message or arrival, since topics in [source] have {channel}", place)


def _maintenance(document: Mapping[str, Any], devices: Mapping[str, DeviceSettings]) -> tuple[Maintenance, ...]:
    """Planned times; one without a zone is in the zone of its device's samples."""
    given, maintenance = document.get("maintenance", []), []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise SettingError("maintenance", given, "a list of sections; write [[maintenance]] above each", "")
    for entry in given:
        device = entry.get("device", "")
        if device not in ("", *devices) and EVERY not in devices:
            raise SettingError("device", device, f"one of {_listed(devices)}", "[maintenance]")
        common = document.get("sampling", {}).get("zone", "local")
        zone = find_zone((devices.get(device) or devices[EVERY]).sampling.zone if device else common)
        planned = read(Maintenance, FileSection.of(entry, "[maintenance]", Surroundings(zone=zone)))
        if planned.start >= planned.end:
            raise SettingError("until", entry["until"], f"after {toml_text(entry['from'])}", "[maintenance]")
        maintenance.append(planned)
    return tuple(maintenance)


def _listed(names: Any, most: int = 8) -> str:
    return ", ".join(list(names)[:most]) + (" …" if len(names) > most else "")
