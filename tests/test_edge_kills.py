"""An agent that is killed hundreds of times ends where one ends that never was: nothing lost, nothing taken twice.

A process with everything imported forks the agents, so that a start costs milliseconds and most kills meet an agent at
work: while it reads, commits, acknowledges, publishes, learns or writes its model.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paho.mqtt.client as paho
import pytest
from numpy.typing import NDArray
from paho.mqtt.enums import CallbackAPIVersion

from fedkad import KoopmanDetector
from fedkad.edge.store import Store
from tests.broker import Broker, rows_committed

KILLS = 250
CHANNELS = ("flow", "pressure", "current")
ROWS = 2500
BEGIN = 1_700_000_000

CONFIG = """
name = "{name}"
state = "{name}"
devices = ["steady", "learner"]
commit_every = 0.05

[source]
kind = "mqtt"
broker = "mqtt://127.0.0.1:{port}"
topics = ["plant/{{device}}"]

[sampling]
channels = {channels}
period = 1

[alarm]
clear_after = 5
cool_down = 0

[learning]
model = "model.fedkad"
every = 0

[override.learner.learning]
every = 150

[mqtt]
prefix = "{name}"
[stdout]
enabled = false
"""

FORGE = """
import os, sys
from pathlib import Path
from fedkad.edge.agent import watch
from fedkad.edge.settingsfile import load
import fedkad.edge.sinks.mqtt, fedkad.edge.sources.mqtt
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(line.strip() + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        watch(load(Path(line.strip())))
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Forge:
    """Makes agents, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, config: Path) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{config}\n")
        self._process.stdin.flush()
        return int(self._line())

    def end(self, agent: int, how: signal.Signals) -> None:
        os.kill(agent, how)
        assert self._line() == "gone"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


def series(rows: int, seed: int) -> NDArray[np.float64]:
    t = np.arange(rows)[:, None]
    noise = 0.05 * np.random.default_rng(seed).normal(size=(rows, len(CHANNELS)))
    values: NDArray[np.float64] = np.sin(t / np.array([5.0, 8.0, 11.0])) + noise
    return values


def messages() -> list[tuple[str, str]]:
    live = series(ROWS, 1)
    for start in range(150, ROWS, 300):
        live[start : start + 8, start % 3] += 4.0
    rows = [dict(zip(CHANNELS, map(float, row), strict=True)) for row in live]
    return [
        (f"plant/{device}", json.dumps({"ts": 1000 * (BEGIN + k), "values": row}))
        for k, row in enumerate(rows)
        for device in ("steady", "learner")
    ]


class Ears:
    """Hears the alerts of both agents, and publishes."""

    def __init__(self, port: int) -> None:
        self.alerts: dict[str, list[dict[str, Any]]] = {"calm": [], "killed": []}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id="ears")
        self.client.on_message = self._hear
        self.client.connect("127.0.0.1", port)
        self.client.subscribe([("calm/+/alert", 1), ("killed/+/alert", 1)])
        self.client.loop_start()

    def _hear(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        self.alerts[message.topic.partition("/")[0]].append(json.loads(message.payload))

    def publish(self, pieces: list[tuple[str, str]], pause: float) -> None:
        for topic, payload in pieces:
            self.client.publish(topic, payload, qos=1).wait_for_publish(60)
            time.sleep(pause)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def state(folder: Path, device: str) -> dict[str, Any]:
    store = Store(folder / "agent.sqlite", print)
    try:
        return store.device_state(device) or {}
    finally:
        store.close()


def outbox(folder: Path, scratch: Path) -> list[dict[str, Any]]:
    """Alerts that a killed agent has left, read from a copy: it is the next agent that has to cope with the rest."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for file in folder.glob("agent.sqlite*"):
        shutil.copy(file, scratch)
    store = Store(scratch / "agent.sqlite", print)
    try:
        return [alert for _, alert in store.waiting("mqtt", 1000)]
    finally:
        store.close()


def wait_for_all(folder: Path) -> None:
    deadline = time.monotonic() + 120
    for device in ("steady", "learner"):
        while (seen := rows_committed(folder, device)) < ROWS:
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)


def names(alerts: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(alert, sort_keys=True) for alert in alerts)


def test_hundreds_of_kills_lose_nothing_and_repeat_only_what_was_in_flight(tmp_path: Path, forge: Forge) -> None:
    KoopmanDetector(window=6, rank=5, observables=16, sample_period=1.0).fit(series(3000, 0)).save(
        tmp_path / "model.fedkad"
    )
    with Broker(tmp_path / "broker", lasting=False) as broker:
        configs = {name: tmp_path / f"{name}.toml" for name in ("calm", "killed")}
        for name, path in configs.items():
            path.write_text(CONFIG.format(name=name, port=broker.port, channels=list(CHANNELS)))
        ears = Ears(broker.port)
        try:
            # The broker keeps messages only for sessions that it knows.
            for path in configs.values():
                agent = forge.start(path)
                time.sleep(1.0)
                forge.end(agent, signal.SIGTERM)
            publishing = threading.Thread(target=ears.publish, args=(messages(), 0.002), daemon=True)
            publishing.start()
            chance, left = random.Random(0), Counter[str]()
            for _ in range(KILLS):
                agent = forge.start(configs["killed"])
                time.sleep(chance.uniform(0.0, 0.25))
                forge.end(agent, signal.SIGKILL)
                left += names(outbox(tmp_path / "killed", tmp_path / "scratch"))
            publishing.join()
            for name, path in configs.items():
                agent = forge.start(path)
                wait_for_all(tmp_path / name)
                forge.end(agent, signal.SIGTERM)
            time.sleep(0.5)
        finally:
            ears.close()
    calm, killed = state(tmp_path / "calm", "steady"), state(tmp_path / "killed", "steady")
    assert calm["alarms"]["incidents"] >= 5
    for key in ("seq", "grid", "alarms"):
        assert killed[key] == calm[key], key
    wanted = names([alert for alert in ears.alerts["calm"] if alert["device"] == "steady"])
    heard = names([alert for alert in ears.alerts["killed"] if alert["device"] == "steady"])
    assert set(heard) == set(wanted)
    # An alert is said again after a kill only if the kill came before its delivery was noted.
    for name, times in heard.items():
        assert times - 1 <= left[name], name
    for folder in ("calm", "killed"):
        assert outbox(tmp_path / folder, tmp_path / "scratch") == []
    repeated = sum(heard.values()) - len(heard)
    # One that learns may come to other scores, as it learns at other moments; but it has seen every row once.
    learner = state(tmp_path / "killed", "learner")
    counters = learner["grid"]["counters"]
    assert counters == {"rows": ROWS, "carried": 0, "duplicates": 0, "late": 0, "off_clock": 0, "jumps": 0}
    assert learner["learnt"] >= 3
    assert KoopmanDetector.load(tmp_path / "killed" / "devices" / "learner" / "model.safetensors").learnt_through_
    print(f"{KILLS} kills, {len(wanted)} alerts, {repeated} repeated")
