"""The page about the agent: it names every key with its default, every state and number, and none that is not there."""

import json
import re
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad.detect.detector import KoopmanDetector
from fedkad.edge.alarms import Alarms
from fedkad.edge.alert import FaultKind
from fedkad.edge.device.grid import GridRow
from fedkad.edge.device.status import STATES, DeviceStatus
from fedkad.edge.health.faults import Beyond, Health
from fedkad.edge.health.standstill import ENOUGH, LEAST, MARGIN, SELDOM, USUAL
from fedkad.edge.settings import AgentSettings, Alarm, DeviceSettings, Maintenance, Sampling
from fedkad.edge.settings.file import parse
from fedkad.edge.sinks.prometheus import COUNTERS, GAUGES, OF_AGENT
from fedkad.settingerror import UnknownSettingError
from fedkad.settingkinds import DURATION, parse_duration
from fedkad.settingsfile import keys_of
from tests.fixtures.alerts import as_json

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agent.md").read_text(encoding="utf-8")
SMALLEST: dict[str, Any] = {"devices": ["d"], "sampling": {"channels": ["a"], "period": 60}}

IN_WORDS = {
    ("top level", "devices"): "none, needed",
    ("top level", "name"): "the host's name",
    ("sampling", "period"): "inferred",
    ("sampling", "max_gap"): "3 periods",
    ("sampling", "stale_after"): "10 periods",
    ("alarm", "cool_down"): "20 periods",
    ("[maintenance]", "from"): "none, needed",
    ("[maintenance]", "until"): "none, needed",
}
"""Defaults that follow from something else; a test below holds those that are to be worked out against the program."""


def chapter(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def tables(text: str) -> dict[str, list[list[str]]]:
    """By the first cell of their heads, without what marks it as a section: rows of cells."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
        found[re.sub(r"^`\[?|\]?`$", "", head[0])] = rows
    return found


def documented() -> dict[str, dict[str, str]]:
    """Of each section its keys, with their defaults as they are written."""
    found: dict[str, dict[str, str]] = {}
    for section, rows in tables(chapter("All keys")).items():
        keys = found[section] = {}
        for names, default, *_ in rows:
            written = re.findall("`(.+?)`", default) or [default]
            named = re.findall("`(.+?)`", names)
            assert not keys.keys() & set(named)
            keys |= zip(named, written * len(named) if len(written) == 1 else written, strict=True)
    return found


def keys() -> dict[str, dict[str, Any]]:
    """Of each section of the program its keys; those of the top level under an empty name."""
    found: dict[str, dict[str, Any]] = {"": {}}
    for section, entry in (keys_of(AgentSettings) | keys_of(DeviceSettings)).items():
        if is_dataclass(entry.kind) and isinstance(entry.kind, type):
            found[section] = keys_of(entry.kind)
        elif section not in ("maintenance", "detector"):
            found[""][section] = entry
    return found


def true_defaults() -> dict[str, dict[str, Any]]:
    settings = parse(SMALLEST, Path("/home"))
    top = {key: getattr(settings, key) for key in keys()[""]} | {"state": settings.state.name}
    detector = KoopmanDetector().get_params()
    first: Any = DeviceSettings()
    found = {
        section: {key: getattr(getattr(first if hasattr(first, section) else settings, section), key) for key in inner}
        for section, inner in keys().items()
        if section
    }
    found["top level"] = top
    found["detector"] = {key: detector[key] for key in detector if key not in ("threshold", "sample_period")}
    found["[maintenance]"] = dict.fromkeys(keys_of(Maintenance), "")
    return found


def value(key: str, written: str) -> Any:
    found = tomllib.loads(f"x = {written}")["x"]
    if isinstance(found, str) and any(key in inner and inner[key].kind is DURATION for inner in keys().values()):
        return parse_duration(found)
    return tuple(found) if isinstance(found, list) else found


def test_every_section_and_key_is_there_and_no_other() -> None:
    names: Mapping[str, set[str]] = {section: set(keys) for section, keys in documented().items()}
    assert names == {section: set(keys) for section, keys in true_defaults().items()}


def test_a_section_of_the_program_is_one_of_the_page() -> None:
    with pytest.raises(UnknownSettingError) as refused:
        parse(SMALLEST | {"": ""}, Path("/home"))
    known = refused.value.allowed.split(", ")
    assert {*documented(), *keys()[""], "maintenance", "override"} == {*known, "top level", "[maintenance]"}
    assert "`[override.DEVICE.SECTION]` sets keys" in chapter("All keys")


@pytest.mark.parametrize("section", list(documented()))
def test_the_defaults_are_the_true_ones(section: str) -> None:
    for key, written in documented()[section].items():
        if (section, key) in IN_WORDS:
            assert written == IN_WORDS[section, key]
        else:
            assert (key, value(key, written)) == (key, true_defaults()[section][key])


def test_the_defaults_in_words_are_the_true_ones() -> None:
    settings = parse(SMALLEST, Path("/home"))
    sampling, alarm = settings.devices["d"].sampling, settings.devices["d"].alarm
    assert (sampling.hold, sampling.silent_after, alarm.pause(60.0)) == (3 * 60.0, 10 * 60.0, 20 * 60.0)
    assert settings.name == socket.gethostname()


def test_every_state_is_there_and_no_other() -> None:
    rows = tables(chapter("The state of a device"))["state"]
    assert [row[0].strip("`") for row in rows] == list(STATES)


def test_what_a_state_holds() -> None:
    (text,) = re.findall(r"^The retained .*?\n\n", chapter("The state of a device"), flags=re.MULTILINE | re.DOTALL)
    assert set(DeviceStatus(state="ok").payload()) <= set(re.findall("`(.+?)`", text))


def test_every_metric_is_there_and_no_other() -> None:
    names = {f"fedkad_{name}" for name in (*GAUGES, *OF_AGENT, "build_info")} | {
        f"fedkad_{name}_total" for name in COUNTERS
    }
    assert set(re.findall(r"`(fedkad_\w+)`", PAGE)) == names


def test_the_alert_that_is_shown_has_what_alerts_have() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", chapter("Alarms"), flags=re.DOTALL)
    detector = KoopmanDetector(window=6, rank=5, observables=16).fit(np.sin(np.arange(900.0)[:, None] / 7.0))
    stream = detector.stream()
    readings = [stream.update([value]) for value in (*np.sin(np.arange(30.0) / 7.0), 9.0)]
    alarms, row = Alarms("d", Alarm(), 1.0, ["flow"]), GridRow(0.0, readings[-1].seen, True, True)
    (alert,) = as_json(alarms.update(row, readings[-1]))
    assert set(re.findall(r'"(\w+)":', shown)) == {*alert, *alert["channels"][0]}


def test_the_alert_of_a_fault_that_is_shown_has_what_such_alerts_have() -> None:
    text = chapter("Faults of sensors")
    (shown,) = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)
    health = Health("d", Sampling(channels=("flow",), period=1.0, max_gap=3.0, stale_after=10.0))
    (alert,) = as_json(health.take(GridRow(0.0, np.array([-9.0]), True, True), [Beyond(0, 0.0, 1.0)]))
    assert list(json.loads(shown)) == list(alert)
    assert [row[0].strip("`") for row in tables(text)["fault"]] == list(FaultKind)
    assert MARGIN == 3  # which is written in words
    for said in (
        f"{LEAST} rows",
        f"{100 * SELDOM:.0f} % of the rows",
        f"{100 * USUAL:.0f} % of them",
        f"{ENOUGH} times",
    ):
        assert said in text
