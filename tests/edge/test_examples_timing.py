"""Every configuration in `examples/` with messages as often as the firmware that it is for sends them by default."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad.edge.device.pipeline import Device
from fedkad.edge.settings import DeviceSettings
from fedkad.edge.settings.file import load
from fedkad.edge.sources import RawMessage
from fedkad.edge.sources.decoding import Decoder
from fedkad.edge.store import Store
from tests.fixtures.alerts import as_json
from tests.fixtures.broker import logged

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BEGIN = 1_772_366_400.0  # Sunday, 1 March 2026, 12:00 UTC
DAYLIGHT_SAVING = 1_774_746_000.0  # in Europe: Sunday, 29 March 2026, 01:00 UTC
ROWS = 900
"""Rows of a grid that each device is watched for; the first model is fitted to half of them."""

Messages = Iterator[RawMessage]


def wave(time: float, k: int, size: float = 1.0) -> float:
    """What the k-th channel measures: slow for a house, noisy as a sensor is."""
    noise = np.random.default_rng([int(1000 * time), k]).normal()
    return float(size * (np.sin(time / (1800.0 + 700.0 * k)) + 0.1 * noise))


def jitter(time: float, width: float) -> float:
    return float(np.random.default_rng(int(1000 * time)).uniform(0.0, width))


def telegraf() -> Messages:
    """Batches of `cpu` and `mem` every ten seconds, rounded to the interval, a moment after it (`flush_interval`)."""
    for k in range(ROWS):
        at = BEGIN + 10.0 * k
        metrics = [
            {
                "fields": {name: 50 + wave(at, n) for name in fields},
                "name": kind,
                "tags": {"host": host},
                "timestamp": at,
            }
            for host in ("web-1", "web-2")
            for n, (kind, fields) in enumerate({"cpu": ("usage_idle", "usage_user"), "mem": ("used_percent",)}.items())
        ]
        yield RawMessage(json.dumps({"metrics": metrics}).encode(), at + 0.2 + jitter(at, 5.0))


def tasmota() -> Messages:
    """TelePeriod 300 and Timezone 1: UTC+1 in summer as well, to the second, a sensor and energy in one message."""
    for k in range(ROWS):
        at = DAYLIGHT_SAVING + 300.0 * (k - ROWS // 2) + jitter(300.0 * k, 1.0)
        energy = {"Power": round(84 + 5 * wave(at, 1)), "Voltage": 231, "Current": round(0.41 + 0.02 * wave(at, 2), 3)}
        local = datetime.fromtimestamp(at, timezone(timedelta(hours=1))).strftime("%Y-%m-%dT%H:%M:%S")
        sensor = {"Id": "0316B501", "Temperature": round(-18.2 + wave(at, 0), 1)}
        message = {"Time": local, "DS18B20": sensor, "ENERGY": energy, "TempUnit": "C"}
        yield RawMessage(json.dumps(message).encode(), at + 0.1, "freezer")


def zigbee() -> Messages:
    """A report when the temperature changes by 0.1 or the humidity by 1, at most every ten seconds, at least hourly."""
    last: dict[str, tuple[float, float, float]] = {}
    for k in range(3 * 8640):  # three days, since the first night shows for how long values are held
        for device in ("boiler-room", "cellar"):
            at = BEGIN + 10.0 * k + jitter(10.0 * k, 2.0)
            is_night = (at / 3600.0) % 24 < 5
            swing = 0.02 if is_night else 1.0
            now = round(21.0 + swing * np.sin(at / 3000.0), 1), round(43.0 + 5.0 * swing * np.sin(at / 4000.0), 1)
            before = last.get(device, (-np.inf, -np.inf, -np.inf))
            if abs(now[0] - before[0]) < 0.1 and abs(now[1] - before[1]) < 1.0 and at - before[2] < 3600.0:
                continue
            last[device] = (*now, at)
            message: dict[str, Any] = {"temperature": now[0], "humidity": now[1], "battery": 97, "linkquality": 120}
            if device == "cellar":  # the other one sends no time, which is the default of zigbee2mqtt
                message["last_seen"] = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
            yield RawMessage(json.dumps(message).encode(), at + 0.5, device)


def numbers() -> Messages:
    """One topic per channel and no time: both within a second, every five seconds."""
    for k in range(ROWS):
        at = BEGIN + 5.0 * k + jitter(5.0 * k, 0.5)
        yield RawMessage(f"{1480 + 20 * wave(at, 0):.0f}".encode(), at, "fan-2", "speed")
        yield RawMessage(f"{0.32 + 0.05 * wave(at, 1):.3f}".encode(), at + 0.4, "fan-2", "vibration")


def thingsboard() -> Messages:
    """Telemetry of five seconds at once."""
    for k in range(0, ROWS, 5):
        readings = [
            {
                "ts": int(1000 * (BEGIN + j)),
                "values": {"force": 800 + 9 * wave(BEGIN + j, 0), "stroke": wave(BEGIN + j, 1)},
            }
            for j in range(k, k + 5)
        ]
        yield RawMessage(json.dumps(readings).encode(), BEGIN + k + 5.2, "press-4")


def gateway() -> Messages:
    for k in range(ROWS):
        at = BEGIN + k + jitter(float(k), 0.1)
        for device in ("pump-1", "pump-2", "pump-3"):
            values = {name: 10 + wave(at, n) for n, name in enumerate(("flow", "pressure", "current"))}
            yield RawMessage(json.dumps({"ts": int(1000 * at), "values": values}).encode(), at + 0.05, device)


def lines() -> Messages:
    for k in range(ROWS):
        at = datetime.fromtimestamp(BEGIN + k, UTC).isoformat()
        yield RawMessage(json.dumps({"time": at, "flow": wave(k, 0), "pressure": wave(k, 1)}).encode(), BEGIN + k)


def logger_file() -> Messages:
    for k in range(ROWS):
        yield RawMessage(f"{BEGIN + k:.0f},{wave(k, 0)},{wave(k, 1)}".encode(), BEGIN + k)


def two_pumps() -> Messages:
    for k in range(ROWS):
        at = datetime.fromtimestamp(BEGIN + k, UTC).isoformat()
        for device in ("pump-1", "pump-2"):
            yield RawMessage(f"{at},{device},{wave(k, 0)},{wave(k, 1)}".encode(), BEGIN + k)


FIRMWARE: dict[str, Callable[[], Messages]] = {
    "file-csv.toml": logger_file,
    "gateway.toml": gateway,
    "mqtt-numbers.toml": numbers,
    "mqtt-tasmota.toml": tasmota,
    "mqtt-telegraf.toml": telegraf,
    "mqtt-thingsboard.toml": thingsboard,
    "mqtt-zigbee2mqtt.toml": zigbee,
    "stdin-csv.toml": two_pumps,
    "stdin-json.toml": lines,
}
HEADERS = {"file-csv.toml": b"timestamp,flow,pressure", "stdin-csv.toml": b"time,device,flow,pressure"}


def small(device: DeviceSettings, folder: Path) -> DeviceSettings:
    """The device with a first model from few rows, so that a test is short."""
    learning = replace(device.learning, first=ROWS // 2, folder=str(folder), every=0)
    return replace(device, learning=learning, detector={"window": 6, "rank": 5, "observables": 16})


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_the_example_learns_and_judges_what_its_firmware_sends(name: str, tmp_path: Path) -> None:
    settings, store = load(EXAMPLES / name), Store(tmp_path / "agent.sqlite")
    configured = {each: small(device, tmp_path / each) for each, device in settings.devices.items()}
    told: list[dict[str, Any]] = []
    with logged() as said:
        devices = {each: Device(each, one, store) for each, one in configured.items()}
        decoder = Decoder(settings.source, configured, said.append)
        for message in FIRMWARE[name]():
            for sample in decoder.decode(message, HEADERS.get(name)):
                assert sample.device is not None
                told += as_json(devices[sample.device].take(sample, message.arrival))
                if devices[sample.device].is_learning_due:
                    for device in devices.values():
                        device.save()
                    store.commit()
                    devices[sample.device].learn()
    for each, device in devices.items():
        status, counters = device.status(), device.status().counters or {}
        assert status.state == "ok", (each, status, said)
        assert status.time == pytest.approx(message.arrival, abs=2.0 * configured[each].sampling.period)
        assert counters["rows"] >= 0.95 * ROWS
        assert (counters["off_clock"], counters["refused"]) == (0, 0)
        assert counters["late"] + counters["duplicates"] <= 0.05 * counters["rows"]
    assert [alert["text"] for alert in told if alert["kind"] == "health"] == []
    store.close()
