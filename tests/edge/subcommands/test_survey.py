"""What publishes on a broker becomes a configuration by which an agent finds exactly that."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.settings import SettingsError, SourceSettings
from fedkad.edge.settings.file import parse
from fedkad.edge.sources import RawMessage
from fedkad.edge.sources.decoding import Decoder
from fedkad.edge.sources.topics import Topics
from fedkad.edge.subcommands.survey import Survey

BROKER = SourceSettings("mqtt://broker.example", "anna", "/etc/secret", kind="mqtt")
ROOM = {"temperature": 21.5, "humidity": 43, "linkquality": 80, "last_seen": "2026-03-01T08:00:00Z"}

HOMES: dict[str, tuple[dict[str, Any], dict[str, set[str]]]] = {
    "zigbee2mqtt": (
        {
            "zigbee2mqtt/kitchen": ROOM,
            "zigbee2mqtt/hall": ROOM,
            "zigbee2mqtt/Küche Süd": ROOM,
            "zigbee2mqtt/door": {"contact": True, "battery": 97},
            "zigbee2mqtt/bridge/info": {"coordinator": {"meta": {"revision": 3}}},
            "zigbee2mqtt/hall/availability": "online",
            "zigbee2mqtt/hall/lamp": {"brightness": 254},
            "zigbee2mqtt/cellar/lamp": {"brightness": 1},
            "zigbee2mqtt/cellar/lamp/set": {"brightness": 1},
            "zigbee2mqtt/cellar/lamp/set/brightness": 1,
        },
        {room: {"temperature", "humidity"} for room in ("kitchen", "hall", "Küche Süd")}
        | {"door": {"contact"}, "hall/lamp": {"brightness"}, "cellar/lamp": {"brightness"}},
    ),
    "Tasmota, one plug": (
        {
            "tele/plug/SENSOR": {"Time": "2026-03-01T08:00:00", "ENERGY": {"Power": 3, "Voltage": 231}},
            "tele/plug/LWT": "Online",
            "stat/plug/RESULT": {"POWER": "ON"},
        },
        {"plug": {"ENERGY.Power", "ENERGY.Voltage"}},
    ),
    "Tasmota, two plugs": (
        {
            **{f"tele/{plug}/SENSOR": {"Time": "2026-03-01T08:00:00", "ENERGY": {"Power": 3}} for plug in "ab"},
            **{f"tele/{plug}/STATE": {"Time": "2026-03-01T08:00:00", "Vcc": 3.1, "Heap": 25} for plug in "ab"},
        },
        {plug: {"ENERGY.Power", "Vcc"} for plug in "ab"},
    ),
    "bare numbers": (
        {f"hall/{device}/{channel}": 1.5 for device in ("pump", "fan") for channel in ("flow", "heat")},
        {"pump": {"flow", "heat"}, "fan": {"flow", "heat"}},
    ),
    "ThingsBoard": ({"v1/gw/telemetry": [{"ts": 1772366400000, "values": {"flow": 12.4}}]}, {"gw": {"flow"}}),
    "Telegraf": (
        {
            f"telegraf/{host}/{name}": {"metrics": [{"name": name, "fields": {field: 1.0}, "tags": {}, "timestamp": 1}]}
            for host in ("one", "two")
            for name, field in (("cpu", "usage_idle"), ("mem", "used"))
        },
        {host: {"cpu.usage_idle", "mem.used"} for host in ("one", "two")},
    ),
    "the device comes first": ({f"{name}/data": {"flow": 1} for name in ("a", "b")}, {"a": {"flow"}, "b": {"flow"}}),
    "another agent": (
        {
            "plant/pump-1": {"flow": 1},
            "site/watch/pump-1/state": DeviceStatus(state="ok", score=1.5, threshold=2.5).payload(),
            "site/watch/pump-1/alert": {"id": "pump-1-20260301T120000Z-1", "peak": 9.5, "duration": 60.0},
        },
        {"pump-1": {"flow"}},
    ),
    "one level": ({"pump": {"flow": 1}}, {"pump": {"flow"}}),
}


def surveyed(messages: dict[str, Any]) -> Survey:
    survey = Survey()
    for second in range(2):
        for topic, content in messages.items():
            text = content if isinstance(content, str) else json.dumps(content)
            survey.note(topic, text.encode(), float(second))
    return survey


@pytest.mark.parametrize("home", HOMES)
def test_an_agent_finds_by_the_configuration_what_was_published(home: str) -> None:
    messages, expected = HOMES[home]
    text = surveyed(messages).plan().text(BROKER)
    settings = parse(tomllib.loads(text), Path("/etc/fedkad"))
    assert (settings.source.broker, settings.source.username) == ("mqtt://broker.example", "anna")
    assert settings.source.password_file == "/etc/secret"
    assert settings.mqtt.enabled
    assert settings.homeassistant.enabled == (home == "zigbee2mqtt")
    assert {name: set(device.sampling.channels) for name, device in settings.devices.items()} == expected
    # What an agent with these settings makes of the messages.
    topics = Topics(settings.source.topics, settings.devices)
    refused: list[str] = []
    decoder = Decoder(settings.source, settings.devices, refused.append)
    found: dict[str, set[str]] = {}
    for topic, content in messages.items():
        if place := topics.place(topic):
            for sample in decoder.decode(RawMessage(json.dumps(content).encode(), 0.0, *place)):
                found.setdefault(sample.device or "", set()).update(sample.values)
    assert (found, refused) == (expected, [])
    # Somebody who writes "*" instead of the names hears the same devices.
    every = Topics(settings.source.topics, ["*"])
    assert {each[0] for each in map(every.place, messages) if each is not None} >= expected.keys()


def test_what_is_left_out_is_said_and_nothing_else_is_written() -> None:
    text = surveyed(HOMES["zigbee2mqtt"][0]).plan().text(BROKER)
    assert '# Left out: ["battery", "linkquality"]' in text or '# Left out: ["linkquality", "battery"]' in text
    with pytest.raises(SettingsError, match="No message had a number in it; listen longer"):
        surveyed({"a/b": "online"}).plan().text(BROKER)
    for topic, content in (("temperature", 21.5), ("$SYS/load", {"cpu": 1.0})):
        with pytest.raises(
            SettingsError, match=re.escape(f"No level of the topic {topic!r} can name the device; publish")
        ):
            surveyed({topic: content}).plan().text(BROKER)
    assert Survey().table() == "Nothing was published."


def test_what_is_too_much_is_said() -> None:
    survey = surveyed({f"a/b{k}/c{k}": {f"x{k}": 1} for k in range(2100)})
    assert "There are more than these 2000 topics" in survey.table()
    plan = survey.plan()
    assert (len(plan.devices), plan.unused) == (100, 1900)
    assert "# 1900 more topics have numbers" in plan.text(BROKER)


NAMES = st.text(max_size=6)


@given(
    st.dictionaries(
        st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        st.recursive(
            st.floats() | st.booleans() | NAMES | st.none() | st.integers(),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_whatever_is_published_the_configuration_is_one_or_the_reason_is_said(messages: dict[str, Any]) -> None:
    survey = Survey()
    for topic, content in messages.items():
        survey.note(topic, json.dumps(content).encode(), 0.0)
    assert survey.table().replace("\n", "").isprintable()
    try:
        text = survey.plan().text(BROKER)
    except SettingsError:
        return
    text.encode()
    parse(tomllib.loads(text), Path("/etc/fedkad"))
