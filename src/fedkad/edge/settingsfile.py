"""`agent.toml` as a file: read in one place, and refused by key, value and what is allowed."""

from __future__ import annotations

import os
import re
import socket
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import date, datetime, time, tzinfo
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.threshold import METHODS, parse_budget
from fedkad.durations import parse_duration
from fedkad.edge.settings import (
    BY_PERIOD,
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
from fedkad.edge.timestamps import find_zone

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

LONGEST = 10 * 365 * 86400.0
"""Seconds that a duration may have: ten years."""

SHORTEST_PERIOD = 1e-4
"""Seconds between two rows; a time since 1970 is not much finer."""

MOST_ROWS = 1_000_000
"""Rows that may be gathered before something is learnt from them: they lie on the disk, and in memory while it is."""

MOST_CHARACTERS, MOST_BYTES = 100, 200
"""Of a name: it stands in topics, and folders are called so."""

LARGEST = sys.float_info.max
NEEDED = {"webhook": ("url", '"https://…"'), "prometheus": ("port", "9108")}
"""Of a section the key that it does nothing without, and what that may be."""

Where = Callable[[str, str], str]
"""Takes a section and a key; says in which section the value was written, that of all devices or that of one."""


def load(path: Path) -> AgentSettings:
    """Read and check a configuration; raises `SettingsError`."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file; begin with one of the examples.") from None
    except IsADirectoryError:
        raise SettingsError(f"{path}: this is a folder; name a file, such as {path / 'agent.toml'}.") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name a file that can be read.") from None
    except RecursionError:
        raise SettingsError(f"{path}: lists or tables lie too deep in each other; correct it.") from None
    except ValueError as error:
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
    sections = {name: kind(**_given(name, name, document.get(name, {}), kind, home)) for name, kind in SECTIONS.items()}
    for name in ("mqtt", "homeassistant"):
        if name in document and "enabled" not in document[name]:  # whoever writes the section wants it
            sections[name] = replace(sections[name], enabled=True)
    for name, (key, example) in NEEDED.items():
        if name in document and key not in document[name]:
            raise SettingsError(f"[{name}] has no {key}; add {key} = {example}, or remove the section.")
    state = document.get("state", "state")
    if not isinstance(state, str) or not state or "\0" in state:
        raise _refused("", "state", state, "the name of a folder")
    devices = _devices(document, home, home / state)
    settings = AgentSettings(
        name=_text(document, "name", socket.gethostname()),
        state=home / state,
        commit_every=_duration("", "commit_every", document.get("commit_every", 1.0), most=3600.0),
        devices=devices,
        maintenance=_maintenance(document.get("maintenance", []), devices, document),
        **sections,
    )
    _check_source(settings.source)
    _check_zones(settings, document)
    _check_clocks(settings, document)
    _check_sinks(settings)
    return settings


def _devices(document: Mapping[str, Any], home: Path, state: Path) -> dict[str, DeviceSettings]:
    names = document.get("devices")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise _refused("", "devices", names, 'a list of names, such as ["pump-1"]')
    for name in names:
        if names.count(name) > 1:
            raise _refused("", "devices", names, f"without repeats, and {name!r} is there twice")
        if re.search(r"[/+#\x00-\x1f\x7f{}]", name) or name in (".", ".."):
            raise _refused("", "devices", name, "a name without / + # { } and control characters")
        if _is_long(name):
            raise _refused("", "devices", name, f"a name of at most {MOST_CHARACTERS} characters")
    overrides = _table("override", document.get("override", {}))
    for name in overrides:
        if name not in names:
            raise SettingsError(f"[override.{name}] is of no device; the devices are {_listed(names)}.")
    devices = {
        name: _device(name, document, _table(f"override.{name}", overrides.get(name, {})), home, state)
        for name in names
    }
    _check_folders(devices, document)
    return devices


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
        common = _given(section, section, document.get(section, {}), kind, home)
        own = _given(f"override.{name}.{section}", section, override.get(section, {}), kind, home)
        parts[section] = kind(**{**common, **own})
    detector = {
        **_detector("detector", document.get("detector", {})),
        **_detector(f"override.{name}.detector", override.get("detector", {})),
    }
    where = partial(_where, document, name)
    learning, sampling = parts["learning"], _completed(parts["sampling"])
    _check_sampling(sampling, where)
    _check_alarm(parts["alarm"], where)
    _check_rank(detector, len(sampling.channels), where)
    folder = Path(learning.folder.replace("{device}", name))
    model = learning.model.replace("{device}", name)
    parts["learning"] = replace(learning, folder=str(state / folder), model=model)
    return DeviceSettings(sampling, parts["alarm"], parts["learning"], detector)


def _where(document: Mapping[str, Any], device: str, section: str, key: str) -> str:
    own = document.get("override", {}).get(device, {}).get(section, {})
    return f"override.{device}.{section}" if key in own else section


def _completed(sampling: Sampling) -> Sampling:
    """Fill in what follows from the period: a last value stands for three rows, and ten without one are stale."""
    gap = 3.0 * sampling.period if sampling.max_gap == BY_PERIOD else sampling.max_gap
    stale = sampling.stale_after
    if stale == BY_PERIOD:
        stale = max(10.0 * sampling.period, 2.0 * gap, 10.0)
    return replace(sampling, max_gap=gap, stale_after=stale)


def _given(where: str, section: str, given: Any, kind: type[Any], home: Path) -> dict[str, Any]:
    """The keys that are written in a section, each checked by itself; `where` is what the file calls the section."""
    defaults, known, found = kind(), {entry.name for entry in fields(kind)}, dict[str, Any]()
    for key, value in _table(where, given).items():
        if key not in known:
            raise SettingsError(f"[{where}] has no {key!r}; it knows {', '.join(sorted(known))}.")
        found[key] = _value(where, key, value, getattr(defaults, key))
        is_fine, allowed = RULES.get((section, key), (None, ""))
        if is_fine is not None and not is_fine(found[key]):
            raise _refused(where, key, value, allowed)
        if key in FILES and found[key]:
            found[key] = str(home / found[key])
    return found


def _value(section: str, key: str, value: Any, default: Any) -> Any:
    """The value of a key, of the type of its default; durations as numbers of seconds."""
    if key == "threshold":
        fine = type(value) in (int, float, str)
        allowed = "a number, a method or a budget"
    elif key in DURATIONS:
        return _duration(section, key, value)
    elif isinstance(default, tuple):
        fine = isinstance(value, list) and all(isinstance(entry, str) and "\0" not in entry for entry in value)
        allowed = "a list of texts"
    elif isinstance(default, float):
        fine, allowed = type(value) in (int, float) and abs(value) <= LARGEST, "a finite number"
    else:
        fine = type(value) is type(default) and not (isinstance(value, str) and "\0" in value)
        allowed = {bool: "true or false", int: "a whole number", str: "text"}[type(default)]
    if not fine:
        raise _refused(section, key, value, allowed)
    return tuple(value) if isinstance(value, list) else value


def _duration(section: str, key: str, value: Any, most: float = LONGEST) -> float:
    seconds = parse_duration(value) if isinstance(value, str) else value
    if seconds is None or type(seconds) not in (int, float) or not seconds >= 0.0:
        raise _refused(section, key, value, 'seconds, or text such as "90s", "5m", "2h", "1d"')
    if seconds > most:
        raise _refused(section, key, value, "at most " + ("ten years" if most == LONGEST else f"{most:g} s"))
    return float(seconds)


def _is_topic(text: str) -> bool:
    """Whether it can be the beginning of a topic to publish on."""
    return re.fullmatch(r"[^\s\x00-\x1f\x7f+#/]+(/[^\s\x00-\x1f\x7f+#/]+)*", text) is not None


def _is_address(text: str) -> bool:
    try:
        return text == "localhost" or bool(ip_address(text))
    except ValueError:
        return False


def _is_web_address(text: str) -> bool:
    parts = _split(text)
    if parts is None or parts.scheme not in ("http", "https"):
        return False
    return (parts.path + parts.query).isascii()  # all that urllib sends; it finds the host by its name in any script


def _split(url: str) -> SplitResult | None:
    """The parts of an address; None if it has no host or no port that exists, a user, or a space."""
    try:
        parts = urlsplit(url)
        fine = bool(parts.hostname) and parts.port != 0  # one out of range is a ValueError
    except ValueError:
        return None
    return parts if fine and "@" not in parts.netloc and not re.search(r"[\s\x00-\x1f\x7f]", url) else None


def _is_long(name: str) -> bool:
    return len(name) > MOST_CHARACTERS or len(name.encode(errors="replace")) > MOST_BYTES


Rule = tuple[Callable[[Any], bool], str]
TOPIC: Rule = (_is_topic, "the beginning of a topic, such as a/b, without + and #, spaces and empty levels")
RULES: dict[tuple[str, str], Rule] = {
    ("source", "kind"): (KINDS.__contains__, f"one of {', '.join(KINDS)}"),
    ("source", "format"): (FORMATS.__contains__, f"one of {', '.join(FORMATS)}"),
    ("sampling", "clock"): (CLOCKS.__contains__, f"one of {', '.join(CLOCKS)}"),
    ("sampling", "period"): (lambda value: value >= SHORTEST_PERIOD, f"above 0, at least {SHORTEST_PERIOD:g} s"),
    ("alarm", "release"): (lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    ("alarm", "rate_limit"): (lambda value: 0.0 <= value <= 1.0, "a share, 0 to 1"),
    ("alarm", "critical"): (lambda value: value >= 1.0, "1 or above"),
    ("learning", "first"): (lambda value: 200 <= value <= MOST_ROWS, f"200 rows or more, at most {MOST_ROWS:,}"),
    ("learning", "every"): (
        lambda value: value == 0 or 100 <= value <= MOST_ROWS,
        f"0 for never, or 100 rows or more, at most {MOST_ROWS:,}",
    ),
    ("learning", "forgetting"): (lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    ("mqtt", "prefix"): TOPIC,
    ("homeassistant", "prefix"): TOPIC,
    ("prometheus", "address"): (_is_address, "an IP address of this machine, or localhost"),
    ("prometheus", "port"): (lambda value: 0 <= value < 65536, "a port, 1 to 65535, or 0 for none"),
    ("webhook", "timeout"): (lambda value: 0.0 < value <= 3600.0, "above 0 and at most an hour"),
    ("webhook", "url"): (
        lambda value: not value or _is_web_address(value),
        "http://… or https://… with a host, a port from 1 to 65535 if any, and neither a user nor spaces",
    ),
}
"""Of each key what it may be, and how that is said."""


def _check_source(source: Source) -> None:
    if source.kind == "file" and not source.path:
        raise _refused("source", "path", "", "the file to follow")
    if source.kind != "mqtt":
        return
    split_broker(source.broker, "source")
    if not source.topics:
        raise _refused("source", "topics", [], 'topics such as ["factory/{device}"]')
    for topic in source.topics:
        _check_topic(topic, source)
    _check_login("source", source)


def _check_topic(topic: str, source: Source) -> None:
    levels = topic.split("/")
    placed = [level for level in levels if "{" in level or "}" in level]
    strange = any(level not in ("{device}", "{channel}") for level in placed) or len(set(placed)) < len(placed)
    wild = any(level not in ("+", "#") and re.search("[+#]", level) for level in levels)
    everything = topic in ("", "#") or "#" in levels[:-1]
    if strange or wild or everything or re.search(r"[\x00-\x1f\x7f]", topic):
        allowed = "levels of text, +, {device} and {channel}, each of these once, or # as the last of several levels"
        raise _refused("source", "topics", topic, allowed)
    if "{device}" not in levels and not source.device_key:
        raise _refused("source", "topics", topic, "with a level {device}, or device_key must name one in the message")


def _check_zones(settings: AgentSettings, document: Mapping[str, Any]) -> None:
    """What does not say whose it is before it is read must mean the same by a time, whosever it is."""
    source = settings.source
    if source.kind == "mqtt" and all("{device}" in topic.split("/") for topic in source.topics):
        return
    first, common = next((name, device.sampling.zone) for name, device in settings.devices.items())
    for name, device in settings.devices.items():
        zone = device.sampling.zone
        if zone != common:
            where, other = (_where(document, each, "sampling", "zone") for each in (name, first))
            allowed = f"the same for all devices of one input, and {first} has {common!r} by [{other}]"
            raise _refused(where, "zone", zone, allowed)


def _check_clocks(settings: AgentSettings, document: Mapping[str, Any]) -> None:
    """A message with one channel is not a row, so that their number is no time."""
    if settings.source.kind != "mqtt" or not any("{channel}" in topic for topic in settings.source.topics):
        return
    for name, device in settings.devices.items():
        if device.sampling.clock == "count":
            where = _where(document, name, "sampling", "clock")
            raise _refused(where, "clock", "count", "message or arrival, since topics in [source] have {channel}")


def _check_folders(devices: Mapping[str, DeviceSettings], document: Mapping[str, Any]) -> None:
    owners: dict[str, str] = {}
    for name, device in devices.items():
        folder = device.learning.folder
        owner = owners.setdefault(os.path.realpath(folder), name)
        if owner != name:
            where, other = (_where(document, each, "learning", "folder") for each in (name, owner))
            allowed = (
                f"another than that of {owner} by [{other}]: each device needs a folder of its own; use {{device}}"
            )
            raise _refused(where, "folder", folder, allowed)


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
        _check_login("mqtt", sink)
    if settings.homeassistant.enabled and not sink.enabled:
        raise SettingsError("[homeassistant] needs [mqtt]; add that section, or remove this one.")


def split_broker(url: str, section: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is used.

    >>> split_broker("mqtts://broker.example", "source")
    ('broker.example', 8883, True)
    """
    parts = _split(url)
    if parts is None or parts.scheme not in ("mqtt", "mqtts") or parts.path.strip("/") or re.search("[?#]", url):
        allowed = "mqtt://host:port or mqtts://host:port, and nothing else"
        if "@" in url:
            allowed += "; a user goes into username, and a password into the file that password_file names"
        raise _refused(section, "broker", url, allowed)
    secure = parts.scheme == "mqtts"
    return str(parts.hostname), parts.port or (8883 if secure else 1883), secure


def _check_sampling(sampling: Sampling, where: Where) -> None:
    channels = sampling.channels
    if not channels or not all(channels) or len(set(channels)) < len(channels):
        allowed = "the names of all channels, none empty and none twice"
        raise _refused(where("sampling", "channels"), "channels", list(channels), allowed)
    _zone(where("sampling", "zone"), sampling.zone)
    if sampling.stale_after < sampling.period:
        allowed = f"at least the period, {sampling.period:g} s in [{where('sampling', 'period')}]"
        raise _refused(where("sampling", "stale_after"), "stale_after", sampling.stale_after, allowed)


def _zone(section: str, name: str) -> tzinfo | None:
    try:
        return find_zone(name)
    except ValueError:
        raise _refused(section, "zone", name, "local, UTC, or a name such as Europe/Berlin") from None


def _check_alarm(alarm: Alarm, where: Where) -> None:
    if alarm.budget and alarm.threshold != "":
        places = where("alarm", "budget"), where("alarm", "threshold")
        if places[0] == places[1]:
            raise SettingsError(f"budget and threshold in [{places[0]}] exclude each other; keep one.")
        raise SettingsError(f"budget in [{places[0]}] and threshold in [{places[1]}] exclude each other; keep one.")
    if alarm.budget and parse_budget(alarm.budget) is None:
        allowed = 'a number of false alarms, such as "1/week" or "2/day"'
        raise _refused(where("alarm", "budget"), "budget", alarm.budget, allowed)
    if isinstance(alarm.threshold, str):
        fine = not alarm.threshold or alarm.threshold in METHODS
        allowed = f"a number, or one of {', '.join(METHODS)}; false alarms are allowed by budget"
    else:
        fine, allowed = 0.0 < alarm.threshold <= LARGEST, "above 0 and finite"
    if not fine:
        raise _refused(where("alarm", "threshold"), "threshold", alarm.threshold, allowed)


def _detector(where: str, given: Any) -> dict[str, Any]:
    """The parameters of a first model that a section gives."""
    known = KoopmanDetector().get_params()
    for left_out in ("threshold", "sample_period"):  # these are said in [alarm] and [sampling]
        del known[left_out]
    for key, value in _table(where, given).items():
        if key not in known:
            raise SettingsError(f"[{where}] has no {key!r}; it knows {', '.join(sorted(known))}.")
        _value(where, key, value, known[key])
    try:
        KoopmanDetector(**given).check_parameters()
    except (ValueError, TypeError) as error:
        raise SettingsError(f"[{where}]: {error}") from None
    return dict(given)


def _check_rank(given: Mapping[str, Any], channels: int, where: Where) -> None:
    """Refuse what no data can be fitted with; it would be found out only after all rows were gathered."""
    detector = KoopmanDetector(**given)
    most = channels * detector.window + detector.observables
    if detector.rank > most:
        sizes = f"{channels} channel(s) x window {detector.window} + {detector.observables} observables"
        places = [where("detector", key) for key in ("rank", "window", "observables")]
        place = next((place for place in places if place != "detector"), "detector")
        raise _refused(place, "rank", detector.rank, f"at most {most}, the numbers of a lifted state ({sizes})")


def _maintenance(
    given: Any, devices: Mapping[str, DeviceSettings], document: Mapping[str, Any]
) -> tuple[Maintenance, ...]:
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise SettingsError("maintenance must be sections; write [[maintenance]] above each.")
    common = document.get("sampling", {}).get("zone", Sampling.zone)
    return tuple(_one_maintenance(entry, devices, common) for entry in given)


def _one_maintenance(entry: Mapping[str, Any], devices: Mapping[str, DeviceSettings], common_zone: str) -> Maintenance:
    for key in entry:
        if key not in ("device", "from", "until"):
            raise SettingsError(f"[[maintenance]] has no {key!r}; it knows device, from, until.")
    device = entry.get("device", "")
    if not isinstance(device, str) or (device and device not in devices):
        raise _refused("[maintenance]", "device", device, f"one of {_listed(devices)}")
    zone = _zone("sampling", devices[device].sampling.zone if device else common_zone)
    start, end = (_moment(key, entry.get(key), zone) for key in ("from", "until"))
    if start >= end:
        raise _refused("[maintenance]", "until", entry["until"], f"after {_shown(entry['from'])}")
    return Maintenance(start, end, device)


def _moment(key: str, value: Any, zone: tzinfo | None) -> float:
    """Seconds of a TOML date and time, or of text like one; in the zone of the samples if it names none."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        raise _refused("[maintenance]", key, value, "a date and time such as 2026-03-01T08:00") from None


def _table(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SettingsError(f"{name} = {_shown(given)} must be a section; write [{name}] and its keys below it.")
    return given


def _text(document: Mapping[str, Any], key: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str) or not value or re.search(r"[/+#\s\x00-\x1f\x7f]", value) or _is_long(value):
        raise _refused("", key, value, f"a name of at most {MOST_CHARACTERS} characters without spaces, / + and #")
    return value


def _listed(names: Any, most: int = 8) -> str:
    found = list(names)
    return ", ".join(found[:most]) + (" …" if len(found) > most else "")


def _refused(section: str, key: str, value: Any, allowed: str) -> SettingsError:
    where = f" in [{section}]" if section else ""
    if value is None:
        return SettingsError(f"{key} is missing{where}; it must be {allowed}.")
    if key in ("broker", "url") and isinstance(value, str):
        value = _without_login(value)
    return SettingsError(f"{key} = {_shown(value)}{where} must be {allowed}.")


def _without_login(url: str) -> str:
    """An address as it may be shown: passwords are nobody's business.

    >>> _without_login("mqtt://me:secret@host:1883"), _without_login("mqtt://host")
    ('mqtt://…@host:1883', 'mqtt://host')
    """
    login, at, host = url.rpartition("@")
    scheme, mark, _ = login.partition("://")
    return f"{scheme + mark if mark else ''}…@{host}" if at else url


def _shown(value: Any, most: int = 200) -> str:
    """A value as a person may recognise it."""
    try:
        text = _as_toml(value)
    except (ValueError, RecursionError):  # Python does not write the digits of a very large number
        return "…"
    return text if len(text) <= most else text[:most] + "…"


def _as_toml(value: Any) -> str:
    """A value as it may stand in the file.

    >>> print(_as_toml({"a": [True, "x", time(20)], "b": date(2026, 3, 1)}))
    {a = [true, 'x', 20:00:00], b = 2026-03-01}
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_as_toml(entry)}' for key, entry in value.items())}}}"
    return repr(value)
