"""`agent.toml` as a file: read in one place, and refused by key, value and what is allowed."""

from __future__ import annotations

import math
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.threshold import METHODS, parse_budget
from fedkad.durations import parse_duration
from fedkad.edge.settings import (
    CLOCKS,
    FORMATS,
    KINDS,
    AgentSettings,
    Alarm,
    DeviceSettings,
    HomeAssistant,
    Learning,
    Maintenance,
    MqttSink,
    Prometheus,
    Sampling,
    SettingsError,
    Source,
    Stdout,
    Webhook,
)

SECTIONS: dict[str, type[Any]] = {
    "source": Source,
    "mqtt": MqttSink,
    "homeassistant": HomeAssistant,
    "webhook": Webhook,
    "prometheus": Prometheus,
    "stdout": Stdout,
}
OF_A_DEVICE: dict[str, type[Any]] = {"sampling": Sampling, "alarm": Alarm, "learning": Learning}
TOP = ("name", "state", "commit_every", "devices")
DURATIONS = (
    *("period", "lateness", "max_gap", "stale_after", "min_duration", "clear_after", "cool_down"),
    *("rate_window", "update_every", "state_every", "timeout", "commit_every"),
)
FILES = ("path", "password_file", "ca_file", "certificate_file", "key_file", "token_file", "model")
"""Keys that name files; relative ones are relative to the configuration."""


def load(path: Path) -> AgentSettings:
    """Read and check a configuration; raises `SettingsError`."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file; begin with one of the examples.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}; correct it.") from None
    try:
        return parse(document, path.resolve().parent)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def parse(document: Mapping[str, Any], home: Path) -> AgentSettings:
    """Settings from a TOML document that lies in the folder `home`."""
    known = (*TOP, *SECTIONS, *OF_A_DEVICE, "detector", "override", "maintenance")
    for key in document:
        if key not in known:
            raise SettingsError(f"there is no {key!r}; known are {', '.join(known)}.")
    sections = {name: _section(name, document.get(name, {}), kind, home) for name, kind in SECTIONS.items()}
    for name in ("mqtt", "homeassistant"):
        if name in document and "enabled" not in document[name]:  # whoever writes the section wants it
            sections[name] = replace(sections[name], enabled=True)
    state = document.get("state", "state")
    if not isinstance(state, str) or not state:
        raise _refused("", "state", state, "the name of a folder")
    devices = _devices(document, home, home / state)
    settings = AgentSettings(
        name=_text(document, "name", socket.gethostname()),
        state=home / state,
        commit_every=_duration("", "commit_every", document.get("commit_every", 1.0)),
        devices=devices,
        maintenance=_maintenance(document.get("maintenance", []), devices),
        **sections,
    )
    _check_source(settings.source)
    _check_zones(settings)
    _check_sinks(settings)
    return settings


def _devices(document: Mapping[str, Any], home: Path, state: Path) -> dict[str, DeviceSettings]:
    names = document.get("devices")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise _refused("", "devices", names, 'a list of names, such as ["pump-1"]')
    for name in names:
        if names.count(name) > 1:
            raise _refused("", "devices", names, f"without repeats, and {name!r} is there twice")
        if re.search(r"[/+#\x00-\x1f{}]", name) or name in (".", ".."):
            raise _refused("", "devices", name, "a name without / + # { } and control characters")
    overrides = _table("override", document.get("override", {}))
    for name in overrides:
        if name not in names:
            raise SettingsError(f"[override.{name}] is of no device; the devices are {_listed(names)}.")
    return {
        name: _device(name, document, _table(f"override.{name}", overrides.get(name, {})), home, state)
        for name in names
    }


def _device(
    name: str, document: Mapping[str, Any], override: Mapping[str, Any], home: Path, state: Path
) -> DeviceSettings:
    """Settings of one device: those of all, with its own on top."""
    allowed = (*OF_A_DEVICE, "detector")
    for key in override:
        if key not in allowed:
            raise SettingsError(f"[override.{name}] has no {key!r}; it knows {', '.join(allowed)}.")
    parts: dict[str, Any] = {}
    for section, kind in OF_A_DEVICE.items():
        given = {**_table(section, document.get(section, {})), **_table(section, override.get(section, {}))}
        parts[section] = _section(section, given, kind, home)
    detector = {**_table("detector", document.get("detector", {})), **_table("detector", override.get("detector", {}))}
    learning, sampling = parts["learning"], _completed(parts["sampling"])
    _check_sampling(sampling)
    _check_alarm(parts["alarm"])
    _check_detector(detector)
    folder = Path(learning.folder.replace("{device}", name))
    model = learning.model.replace("{device}", name)
    parts["learning"] = replace(learning, folder=str(state / folder), model=model)
    return DeviceSettings(sampling, parts["alarm"], parts["learning"], detector)


def _completed(sampling: Sampling) -> Sampling:
    """Fill in what follows from the period: a last value stands for three rows, and ten without one are stale."""
    gap = sampling.max_gap if sampling.max_gap > 0.0 else 3.0 * sampling.period
    stale = sampling.stale_after if sampling.stale_after > 0.0 else max(10.0 * sampling.period, 2.0 * gap, 10.0)
    return replace(sampling, max_gap=gap, stale_after=stale)


def _section(name: str, given: Any, kind: type[Any], home: Path) -> Any:
    defaults, known, found = kind(), {entry.name for entry in fields(kind)}, {}
    for key, value in _table(name, given).items():
        if key not in known:
            raise SettingsError(f"[{name}] has no {key!r}; it knows {', '.join(sorted(known))}.")
        found[key] = _value(name, key, value, getattr(defaults, key))
        if key in FILES and found[key]:
            found[key] = str(home / found[key])
    made = kind(**found)
    _check_numbers(name, made)
    return made


def _value(section: str, key: str, value: Any, default: Any) -> Any:
    """The value of a key, of the type of its default; durations as numbers of seconds."""
    if key == "threshold":
        fine = type(value) in (int, float, str)
        allowed = "a number, a method or a budget"
    elif key in DURATIONS:
        return _duration(section, key, value)
    elif isinstance(default, tuple):
        fine = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        allowed = "a list of texts"
    elif isinstance(default, float):
        fine, allowed = type(value) in (int, float), "a number"
    else:
        fine = type(value) is type(default)
        allowed = {bool: "true or false", int: "a whole number", str: "text"}[type(default)]
    if not fine:
        raise _refused(section, key, value, allowed)
    return tuple(value) if isinstance(value, list) else value


def _duration(section: str, key: str, value: Any) -> float:
    seconds = parse_duration(value) if isinstance(value, str) else value
    if seconds is None or type(seconds) not in (int, float) or not 0.0 <= seconds < math.inf:
        raise _refused(section, key, value, 'seconds, or text such as "90s", "5m", "2h", "1d"')
    return float(seconds)


Rule = tuple[Callable[[Any], bool], str]
RULES: dict[tuple[str, tuple[str, ...]], Rule] = {
    ("source", ("kind",)): (KINDS.__contains__, f"one of {', '.join(KINDS)}"),
    ("source", ("format",)): (FORMATS.__contains__, f"one of {', '.join(FORMATS)}"),
    ("sampling", ("clock",)): (CLOCKS.__contains__, f"one of {', '.join(CLOCKS)}"),
    ("sampling", ("period",)): (lambda value: value > 0.0, "above 0"),
    ("alarm", ("release",)): (lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    ("alarm", ("rate_limit",)): (lambda value: 0.0 <= value <= 1.0, "a share, 0 to 1"),
    ("alarm", ("critical",)): (lambda value: 1.0 <= value < math.inf, "1 or above"),
    ("learning", ("first",)): (lambda value: value >= 200, "200 rows or more"),
    ("learning", ("every",)): (lambda value: value == 0 or value >= 100, "0 for never, or 100 rows or more"),
    ("learning", ("forgetting",)): (lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    ("prometheus", ("port",)): (lambda value: 0 <= value < 65536, "a port, 1 to 65535, or 0 for none"),
    ("webhook", ("timeout",)): (lambda value: value > 0.0, "above 0"),
    ("webhook", ("url",)): (
        lambda value: not value or bool(re.match(r"https?://[^/]", value)),
        "http://… or https://…",
    ),
}
"""Of each key what it may be, and how that is said."""


def _check_numbers(section: str, made: Any) -> None:
    for (where, names), (is_fine, allowed) in RULES.items():
        for key in names if where == section else ():
            if not is_fine(getattr(made, key)):
                raise _refused(section, key, getattr(made, key), allowed)


def _check_source(source: Source) -> None:
    if source.kind == "file" and not source.path:
        raise _refused("source", "path", "", "the file to follow")
    if source.kind != "mqtt":
        return
    split_broker(source.broker, "source")
    if not source.topics:
        raise _refused("source", "topics", [], 'topics such as ["factory/{device}"]')
    for topic in source.topics:
        levels = topic.split("/")
        placed = [level for level in levels if "{" in level or "}" in level]
        wild = "#" in topic[:-1] or (topic.endswith("#") and not topic.endswith("/#"))
        if wild or any(level not in ("{device}", "{channel}") for level in placed) or len(set(placed)) < len(placed):
            raise _refused("source", "topics", topic, "levels of text, +, {device} and {channel}, each of these once")
        if "{device}" not in levels and not source.device_key:
            raise _refused(
                "source", "topics", topic, "with a level {device}, or device_key must name one in the message"
            )
    _check_login("source", source)


def _check_zones(settings: AgentSettings) -> None:
    """A line is read before it is known whose it is, so that all devices must mean the same by a time."""
    zones = {device.sampling.zone for device in settings.devices.values()}
    if settings.source.kind != "mqtt" and len(zones) > 1:
        raise SettingsError(f"zone in [sampling] must be the same for all devices of one input, not {_listed(zones)}.")


def _check_login(section: str, broker: Source | MqttSink) -> None:
    if broker.password_file and not broker.username:
        raise _refused(section, "username", "", "given where there is a password_file")
    if bool(broker.certificate_file) != bool(broker.key_file):
        raise SettingsError(f"[{section}] has certificate_file or key_file alone; give both or none.")


def _check_sinks(settings: AgentSettings) -> None:
    sink = settings.mqtt
    if sink.enabled:
        if not sink.broker and settings.source.kind != "mqtt":
            raise _refused("mqtt", "broker", "", "such as mqtt://localhost:1883, since the source has none")
        if sink.broker:
            split_broker(sink.broker, "mqtt")
        if not sink.prefix or re.search(r"[+#]", sink.prefix):
            raise _refused("mqtt", "prefix", sink.prefix, "the beginning of a topic, without + and #")
        _check_login("mqtt", sink)
    if settings.homeassistant.enabled and not sink.enabled:
        raise SettingsError("[homeassistant] needs [mqtt]; add that section, or remove this one.")
    if settings.homeassistant.enabled and (not settings.homeassistant.prefix or "#" in settings.homeassistant.prefix):
        raise _refused("homeassistant", "prefix", settings.homeassistant.prefix, "the beginning of a topic")


def split_broker(url: str, section: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is used.

    >>> split_broker("mqtts://broker.example", "source")
    ('broker.example', 8883, True)
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/") or parts.username:
        raise _refused(section, "broker", url, "mqtt://host:port or mqtts://host:port")
    secure = parts.scheme == "mqtts"
    return parts.hostname, port or (8883 if secure else 1883), secure


def _check_sampling(sampling: Sampling) -> None:
    channels = sampling.channels
    if not channels or not all(channels) or len(set(channels)) < len(channels):
        raise _refused("sampling", "channels", list(channels), "the names of all channels, none empty and none twice")
    if sampling.zone not in ("local", "UTC"):
        try:
            ZoneInfo(sampling.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise _refused("sampling", "zone", sampling.zone, "local, UTC, or a name such as Europe/Berlin") from None


def _check_alarm(alarm: Alarm) -> None:
    if alarm.budget and alarm.threshold != "":
        raise SettingsError("budget and threshold in [alarm] exclude each other; keep one.")
    if alarm.budget and parse_budget(alarm.budget) is None:
        raise _refused("alarm", "budget", alarm.budget, 'a number of false alarms, such as "1/week" or "2/day"')
    if isinstance(alarm.threshold, str):
        if alarm.threshold and alarm.threshold not in METHODS:
            allowed = f"a number, or one of {', '.join(METHODS)}; false alarms are allowed by budget"
            raise _refused("alarm", "threshold", alarm.threshold, allowed)
    elif not 0.0 < alarm.threshold < math.inf:
        raise _refused("alarm", "threshold", alarm.threshold, "above 0 and finite")


def _check_detector(given: Mapping[str, Any]) -> None:
    known = KoopmanDetector().get_params()
    for key in given:
        if key not in known or key in ("threshold", "sample_period"):
            allowed = ", ".join(sorted(set(known) - {"threshold", "sample_period"}))
            raise SettingsError(f"[detector] has no {key!r}; it knows {allowed}.")
    try:
        KoopmanDetector(**given).check_parameters()
    except (ValueError, TypeError) as error:
        raise SettingsError(f"[detector]: {error}") from None


def _maintenance(given: Any, devices: Mapping[str, Any]) -> tuple[Maintenance, ...]:
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise SettingsError("maintenance must be sections; write [[maintenance]] above each.")
    return tuple(_one_maintenance(entry, devices) for entry in given)


def _one_maintenance(entry: Mapping[str, Any], devices: Mapping[str, Any]) -> Maintenance:
    for key in entry:
        if key not in ("device", "from", "until"):
            raise SettingsError(f"[[maintenance]] has no {key!r}; it knows device, from, until.")
    device = entry.get("device", "")
    if device and device not in devices:
        raise _refused("[maintenance]", "device", device, f"one of {_listed(devices)}")
    start, end = (_moment(key, entry.get(key)) for key in ("from", "until"))
    if start >= end:
        raise _refused("[maintenance]", "until", str(entry["until"]), f"after {entry['from']}")
    return Maintenance(start, end, device)


def _moment(key: str, value: Any) -> float:
    """Seconds of a TOML date and time, or of text like one; local without a zone."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _refused("[maintenance]", key, value, "a date and time such as 2026-03-01T08:00") from None
    return moment.timestamp()


def _table(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SettingsError(f"{name} = {given!r} must be a section; write [{name}] and its keys below it.")
    return given


def _text(document: Mapping[str, Any], key: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str) or not value or re.search(r"[/+#\s]", value):
        raise _refused("", key, value, "a name without spaces, / + and #")
    return value


def _listed(names: Any, most: int = 8) -> str:
    found = list(names)
    return ", ".join(found[:most]) + (" …" if len(found) > most else "")


def _refused(section: str, key: str, value: Any, allowed: str) -> SettingsError:
    where = f" in [{section}]" if section else ""
    return SettingsError(f"{key} = {value!r}{where} must be {allowed}.")
