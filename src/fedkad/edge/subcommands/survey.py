"""What publishes on a broker: topics, the numbers in their messages, how often they come; and a first agent.toml.

A topic is taken apart into what is the same for all devices and the level that names the device; with bare numbers
another level names the channel. Of the ways to do so, that one is taken by which most topics have the same numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from fedkad.edge.alerttext import span
from fedkad.edge.settings import SettingsError, SourceSettings
from fedkad.edge.settings.rules import EVERY, is_device_name, is_short
from fedkad.edge.sources.payload import TIME_KEYS, PayloadError, decode_text, plain_number
from fedkad.edge.sources.topics import is_service_name
from fedkad.edge.subcommands.history import table
from fedkad.settingerror import toml_text

MOST_TOPICS, MOST_DEVICES, MOST_INTERVALS, MOST_SHOWN, WIDEST = 2000, 100, 20, 6, 60
MAX_DEPTH = 4

HOUSEKEEPING = {
    *("linkquality", "rssi", "lqi", "snr", "signal", "battery", "battery_low", "uptime", "uptimesec", "heap", "sleep"),
    *("loadavg", "mqttcount", "linkcount", "update_available", "installed_version", "latest_version"),
}
"""What devices say about themselves and not about what they measure, by the last part of the name."""

IN_GENERAL = {
    *("sensor", "state", "status", "data", "telemetry", "attributes", "info"),
    *("values", "value", "result", "up", "event"),
}
"""Levels that are the same for every device, also where there is only one."""

NO_DEVICES = {"bridge", "homeassistant", "fedkad", "lwt", "availability"}
"""Levels of topics that are about something else."""


OF_AN_AGENT = {"state", "incident", "faults", "budget"}
"""What the state of a device has that an agent publishes."""

ZIGBEE = "zigbee2mqtt"
"""The first level of topics of which the rest is the name of a device, which may have several levels."""

OF_A_HOUSE = {"homeassistant", ZIGBEE}
"""First levels of topics on a broker that Home Assistant listens to."""


@dataclass
class TopicSeen:
    """What was seen on one topic."""

    messages: int = 0
    last: float = 0.0  # when a message came
    intervals: list[float] = field(default_factory=list)
    numbers: dict[str, None] = field(default_factory=dict)  # their names, in order; empty ones are bare numbers

    @property
    def every(self) -> str:
        """How often messages come, as far as it was seen."""
        return f"{span(median(self.intervals))}" if self.intervals else "once"

    @property
    def channels(self) -> list[str]:
        """The names of what is measured."""
        return [name for name in self.numbers if name.rpartition(".")[2].lower() not in HOUSEKEEPING]


class Placed(NamedTuple):
    """A topic as one of a pattern: the device that it names, and the channel if it names one."""

    pattern: str
    device: str
    channel: str = ""


class Survey:
    """What was seen on a broker.

    >>> survey = Survey()
    >>> for second in range(3):
    ...     for room in ("kitchen", "hall"):
    ...         survey.note(f"zigbee2mqtt/{room}", b'{"temperature": 21.5, "linkquality": 80}', 10.0 * second)
    >>> survey.note("zigbee2mqtt/bridge/state", b"online", 0.0)
    >>> print(survey.table())
    topic                     numbers                   every  messages
    zigbee2mqtt/bridge/state                            once   1
    zigbee2mqtt/hall          temperature, linkquality  10 s   3
    zigbee2mqtt/kitchen       temperature, linkquality  10 s   3
    >>> found = survey.plan()
    >>> found.topics, found.devices
    (['zigbee2mqtt/{device}'], {'hall': ['temperature'], 'kitchen': ['temperature']})
    """

    def __init__(self) -> None:
        self._seen: dict[str, TopicSeen] = {}
        self._agents: set[str] = set()  # what the topics of other agents begin with

    def note(self, topic: str, payload: bytes, arrival: float) -> None:
        """Take a message that came at that time, in seconds."""
        if not topic.isprintable() or (topic not in self._seen and len(self._seen) >= MOST_TOPICS):
            return
        seen = self._seen.setdefault(topic, TopicSeen())
        if seen.messages and arrival > seen.last:
            seen.intervals = [*seen.intervals[1 - MOST_INTERVALS :], arrival - seen.last]
        seen.messages, seen.last = seen.messages + 1, arrival
        seen.numbers |= dict.fromkeys(name for name in _numbers(payload) if name.isprintable())
        if topic.endswith("/state") and topic.count("/") > 1 and _is_of_an_agent(payload):
            self._agents.add(topic.rsplit("/", 2)[0] + "/")

    def table(self) -> str:
        """All topics, for a terminal."""
        head = ("topic", "numbers", "every", "messages")
        rows = [
            (topic, _shown([name or "a number" for name in seen.numbers]), seen.every, str(seen.messages))
            for topic, seen in sorted(self._seen.items())
        ]
        if not rows:
            return "Nothing was published."
        more = f"\nThere are more than these {MOST_TOPICS} topics; listen to a part of them with --topic."
        return table(head, rows) + (more if len(rows) == MOST_TOPICS else "")

    def plan(self) -> WatchPlan:
        """The topics that measure something, as an agent would follow them."""
        told = tuple(self._agents)
        measuring = [
            topic for topic, seen in sorted(self._seen.items()) if seen.channels and not topic.startswith(told)
        ]
        places = {topic: list(_places(topic, is_bare="" in self._seen[topic].numbers)) for topic in measuring}
        nameless = next((topic for topic, found in places.items() if not found), None)
        has_house = any(topic.partition("/")[0] in OF_A_HOUSE for topic in self._seen)
        plan = WatchPlan(unused=sum(map(bool, places.values())), nameless=nameless, has_house=has_house)
        for found in _best_first(places, self._merit):
            plan.topics.append(next(iter(found.values())).pattern)
            plan.unused -= len(found)
            for topic, placed in found.items():
                names = [placed.channel] if placed.channel else self._seen[topic].channels
                plan.left_out |= dict.fromkeys(each for each in self._seen[topic].numbers if each and each not in names)
                known = plan.devices.setdefault(placed.device, [])
                known += [name for name in names if name not in known]
            if len(plan.devices) >= MOST_DEVICES:
                break
        return plan

    def _merit(self, found: Mapping[str, Placed]) -> tuple[int, bool, int, int]:
        """How good a pattern is that has these topics: best is what has most with the same numbers."""
        alike = Counter(tuple(self._seen[topic].channels) for topic in found)
        placed = list(found.values())
        is_particular = not all(each.device.lower() in IN_GENERAL for each in placed)
        return max(alike.values()), is_particular, len(found), placed[0].pattern.split("/").index("{device}")


@dataclass
class WatchPlan:
    """What an agent would follow: topics, the channels of each device, and the numbers that are not channels."""

    topics: list[str] = field(default_factory=list)
    devices: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    unused: int = 0  # topics with numbers that are not among them, because there are too many devices
    nameless: str | None = None  # a topic with numbers in which no level can name the device
    has_house: bool = False  # whether there are signs of Home Assistant

    def text(self, source: SourceSettings) -> str:
        """The configuration of an agent that follows them on that broker."""
        if not self.devices and self.nameless is not None:
            raise SettingsError(
                f"No level of the topic {self.nameless!r} can name the device; publish to topics such as "
                "plant/pump-1/flow, or listen to others with --topic."
            )
        if not self.devices:
            raise SettingsError("No message had a number in it; listen longer with --seconds, or to another --topic.")
        common = Counter(map(tuple, self.devices.values())).most_common(1)[0][0]
        login = {name: getattr(source, name) for name in ("username", "password_file", "ca_file")}
        lines = [
            "# A first configuration, by what was published. Remove devices and channels that do not matter.",
            *([f"# {self.unused} more topics have numbers; listen to a part with --topic."] * bool(self.unused)),
            f"devices = {toml_text(list(self.devices))}",
            "",
            "[source]",
            'kind = "mqtt"',
            f"broker = {toml_text(source.broker)}",
            f"topics = {toml_text(self.topics)}",
            *(f"{name} = {toml_text(value)}" for name, value in login.items() if value),
            "",
            "[sampling]",
            *([f"# Left out: {toml_text(list(self.left_out))}"] * bool(self.left_out)),
            f"channels = {toml_text(common)}",
            "",
            "[alarm]",
            'budget = "1/week"',
            "",
            "[mqtt]",
            "[homeassistant]" if self.has_house else "# [homeassistant]  # if one listens to this broker",
        ]
        for name, channels in self.devices.items():
            if tuple(channels) != common:
                lines += ["", f"[override.{toml_text(name)}.sampling]", f"channels = {toml_text(channels)}"]
        return "\n".join(lines) + "\n"


def _best_first(
    places: Mapping[str, list[Placed]], merit: Callable[[Mapping[str, Placed]], tuple[int, bool, int, int]]
) -> Iterator[dict[str, Placed]]:
    """The topics of each pattern, the best one first; a topic is of the first that has it."""
    patterns: dict[str, dict[str, Placed]] = {}
    for topic, ways in places.items():
        for placed in ways:
            patterns.setdefault(placed.pattern, {})[topic] = placed
    merits = {pattern: merit(found) for pattern, found in patterns.items()}
    while merits:
        found = dict(patterns[max(merits, key=merits.__getitem__)])
        yield found
        for topic in found:
            for placed in places[topic]:
                del patterns[placed.pattern][topic]
        for pattern in {placed.pattern for topic in found for placed in places[topic]}:
            if patterns[pattern]:
                merits[pattern] = merit(patterns[pattern])
            else:
                del merits[pattern]


def _places(topic: str, *, is_bare: bool) -> Iterator[Placed]:
    """The ways to take a topic apart: any level may name the device, and a later one the channel."""
    levels = topic.split("/")
    if any(mark in topic for mark in "+#{}$") or any(level.lower() in NO_DEVICES for level in levels):
        return
    name = "/".join(levels[1:])
    if levels[0] == ZIGBEE and is_service_name(name):
        return
    if levels[0] == ZIGBEE and not is_bare and is_device_name(name) and is_short(name):
        if name != EVERY:
            yield Placed(f"{ZIGBEE}/{{device}}", name)
        return
    for at, name in enumerate(levels):
        if not is_device_name(name) or not is_short(name) or name == EVERY:
            continue
        pattern = [*levels[:at], "{device}", *levels[at + 1 :]]
        if not is_bare:
            yield Placed("/".join(pattern), name)
            continue
        for after in range(at + 1, len(levels)):
            if levels[after] and levels[after].lower() not in IN_GENERAL:
                marked = [*pattern[:after], "{channel}", *pattern[after + 1 :]]
                yield Placed("/".join(marked), name, levels[after])


def _is_of_an_agent(payload: bytes) -> bool:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() >= OF_AN_AGENT


def _numbers(payload: bytes) -> Iterator[str]:
    """The names of the numbers in a message, as `channels` would name them; an empty one is a bare number."""
    try:
        text = decode_text(payload)
        content = json.loads(text)
    except PayloadError:
        return
    except (ValueError, RecursionError):
        content = plain_number(text)
    if _is_number(content):
        yield ""
    records = content if isinstance(content, list) else [content]
    for record in (each for each in records if isinstance(each, dict)):
        metrics = record.get("metrics")
        for each in metrics if isinstance(metrics, list) else [record]:
            if isinstance(each, dict):
                yield from _of_record(each)


def _of_record(record: Mapping[str, Any]) -> Iterator[str]:
    metric, values = record.get("name"), record.get("values")
    if isinstance(metric, str) and isinstance(record.get("fields"), dict):  # Telegraf
        yield from (f"{metric}.{name}" for name, value in record["fields"].items() if name and _is_number(value))
    elif "ts" in record and isinstance(values, dict):  # ThingsBoard
        yield from (name for name, value in values.items() if name and _is_number(value))
    else:
        plain = {key: value for key, value in record.items() if key.lower() not in TIME_KEYS}
        yield from _paths(plain, "", 1)


def _paths(record: Mapping[str, Any], prefix: str, depth: int) -> Iterator[str]:
    for key, value in record.items():
        if _is_number(value) and key:  # without a name it could not be told from a bare number
            yield prefix + key
        elif isinstance(value, dict) and depth < MAX_DEPTH:
            yield from _paths(value, f"{prefix}{key}.", depth + 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and value == value


def _shown(names: list[str]) -> str:
    """The first of these names, as many as a column of the table has room for.

    >>> _shown(["power", "volt", "amp"]), _shown(["cmps.score.suggested_display_precision"] * 3)
    ('power, volt, amp', 'cmps.score.suggested_display_precision and 2 more')
    """
    shown = names[:MOST_SHOWN]
    while len(shown) > 1 and len(", ".join(shown)) > WIDEST:
        shown.pop()
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more
