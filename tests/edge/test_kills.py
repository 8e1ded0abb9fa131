"""An agent that is killed again and again ends where one ends that never was: nothing lost, nothing taken twice.

It is killed at every step of its work that a power cut could separate from the next, and at random moments. A process
with everything imported forks the agents, so that most kills meet an agent at work: while it reads, commits,
acknowledges, publishes, learns or writes its model. `FEDKAD_TEST_KILLS=250` makes more of the random ones.
"""

import json
import os
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.edge.store import Store
from tests.fixtures.broker import PATIENCE, Broker, Client, rows_committed, wait_for
from tests.fixtures.forge import ForkedAgent
from tests.fixtures.sabotage.killpoints import KILL_AT, POINTS

TOLD = 60
"""Rows of the device that is told again and again that they were normal."""

COMMANDS = 2
"""Commands in the time of a kill at a point."""

RANDOM_KILLS = int(os.environ.get("FEDKAD_TEST_KILLS", "30"))
CHANNELS = ("flow", "pressure", "current")
ROWS = 2500
SLICE = 20
AHEAD = 60
"""Rows that are sent before the agent has taken them: on a busy machine, all would be sent before the last kill."""
BEGIN = 1_700_000_000

CONFIG = """
name = "{name}"
state = "{name}"
devices = ["steady", "learner", "told"]
commit_every = 0.05

[source]
kind = "mqtt"
broker = "mqtt://127.0.0.1:{port}"
topics = ["plant/{{device}}"]

[sampling]
channels = {channels}
period = 1
stale_after = 3600

[alarm]
clear_after = 5
cool_down = 0

[learning]
model = "model.fedkad"
every = 0

[override.learner.learning]
every = 100

[mqtt]
prefix = "{name}"
[stdout]
enabled = false
"""


def series(rows: int, seed: int) -> NDArray[np.float64]:
    t = np.arange(rows)[:, None]
    noise = 0.05 * np.random.default_rng(seed).normal(size=(rows, len(CHANNELS)))
    values: NDArray[np.float64] = np.sin(t / np.array([5.0, 8.0, 11.0])) + noise
    return values


def message(number: int, row: NDArray[np.float64]) -> str:
    return json.dumps({"ts": 1000 * (BEGIN + number), "values": dict(zip(CHANNELS, map(float, row), strict=True))})


def messages() -> Iterator[tuple[str, str]]:
    live = series(ROWS, 1)
    for start in range(50, ROWS, 150):
        live[start : start + 8, start % 3] += 4.0
    for k, row in enumerate(live):
        payload = message(k, row)
        yield from ((f"plant/{device}", payload) for device in ("steady", "learner"))


class Plant:
    """A broker with two agents on it, one of which is killed, and a client that sends the samples to both."""

    def __init__(self, folder: Path, broker: Broker, client: Client) -> None:
        self._folder, self._client, self._left = folder, client, messages()
        self._sent = 0
        for name in ("calm", "killed"):
            text = CONFIG.format(name=name, port=broker.port, channels=list(CHANNELS))
            (folder / f"{name}.toml").write_text(text)
        client.subscribe("calm/+/alert", "killed/+/alert", "killed/told/told")
        self.commands = 0
        # The broker keeps messages only for sessions that it knows.
        for name in ("calm", "killed"):
            agent = self.start(name)
            wait_for(lambda name=name: "connected." in self.log(name), "no connection")  # type: ignore[misc]
            if name == "killed":
                client.publish_all("plant/told", [message(k, row) for k, row in enumerate(series(TOLD, 1))])
                wait_for(lambda: rows_committed(folder / "killed", "told") == TOLD, self.log("killed"))
            agent.terminate()
            agent.wait(PATIENCE)

    def start(self, name: str, **environment: str) -> ForkedAgent:
        path = self._folder / f"{name}.log"
        with path.open("ab") as log:
            agent = ForkedAgent([str(self._folder / f"{name}.toml")], {**os.environ, **environment}, log, log)
        agent.stdin.close()
        self._agent = agent
        return agent

    def close(self) -> None:
        """End what a failed test has left."""
        self._agent.kill()

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def publish(self, count: int) -> int:
        """Send the next samples; returns how many there were."""
        sent = [self._client.send(topic, payload) for topic, payload in islice(self._left, count)]
        self._sent += len(sent)
        for each in sent:
            each.wait_for_publish(PATIENCE)
        return len(sent)

    def tell(self) -> None:
        """Say once more that all rows of one device were normal."""
        command = {"id": str(self.commands), "verb": "normal", "argument": f"{BEGIN}/{BEGIN + TOLD}", "from": "test"}
        self._client.publish("killed/told/tell", json.dumps(command))
        self.commands += 1

    def kill_at(self, point: str, number: int) -> None:
        """Let the agent work until it kills itself at that point."""
        agent = self.start("killed", **{KILL_AT: f"{point}:{number}"})
        deadline = time.monotonic() + PATIENCE
        for _ in range(COMMANDS):
            self.tell()
        while agent.poll() is None:
            if self._sent // 2 - rows_committed(self._folder / "killed", "steady") < AHEAD:
                self.publish(SLICE)
            assert time.monotonic() < deadline, f"It does not come to {point!r}:\n{self.log('killed')}"
            time.sleep(0.01)
        assert agent.returncode == -9, self.log("killed")

    def kill_after(self, seconds: float) -> None:
        """Kill it at whatever it does then."""
        agent = self.start("killed")
        self.publish(SLICE)
        self.tell()
        time.sleep(seconds)
        agent.kill()
        agent.wait(PATIENCE)

    def finish(self) -> None:
        """Let both agents take and deliver all that is left."""
        while self.publish(100):
            pass
        for name in ("calm", "killed"):
            agent, folder = self.start(name), self._folder / name
            for device in ("steady", "learner"):
                wait_for(lambda folder=folder, device=device: rows_committed(folder, device) == ROWS, self.log(name))  # type: ignore[misc]
            wait_for(lambda folder=folder: not waiting(folder), f"{name} keeps alerts")  # type: ignore[misc]
            if name == "killed":
                wait_for(lambda: len(self.answered()) == self.commands, f"{len(self.answered())} replies")
            agent.terminate()
            assert agent.wait(PATIENCE) == 0

    def answered(self) -> set[str]:
        """The commands whose replies were heard; each must be that it was done."""
        replies = [heard.content for heard in self._client.on("killed/told/told")]
        assert all(reply["accepted"] for reply in replies), replies
        return {reply["id"] for reply in replies}

    def alerts(self, name: str) -> Counter[str]:
        """The alerts of the steady device that were heard, with how often."""
        return counted([heard.content for heard in self._client.on(f"{name}/steady/alert")])

    def outbox(self) -> Counter[str]:
        """Alerts that the killed agent has left, read from a copy: the next agent has to cope with the files as is."""
        scratch = self._folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        for file in (self._folder / "killed").glob("agent.sqlite*"):
            shutil.copy(file, scratch)
        store = Store(scratch / "agent.sqlite")
        try:
            return counted([alert for _, alert in store.alerts.waiting("mqtt", 1000)])
        finally:
            store.close()

    def state(self, name: str, device: str) -> dict[str, Any]:
        store = Store(self._folder / name / "agent.sqlite")
        try:
            return store.states.get(device) or {}
        finally:
            store.close()


def counted(alerts: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(alert, sort_keys=True) for alert in alerts)


def waiting(folder: Path) -> int:
    """Alerts in the outbox of a running agent."""
    database = sqlite3.connect(f"file:{folder / 'agent.sqlite'}?mode=ro", uri=True)
    try:
        return int(database.execute("SELECT count(*) FROM outbox").fetchone()[0])
    finally:
        database.close()


def test_kills_lose_nothing_and_repeat_only_what_was_in_flight(tmp_path: Path) -> None:
    detector = KoopmanDetector(window=6, rank=5, observables=16, sample_period=1.0).fit(series(3000, 0))
    detector.save(tmp_path / "model.fedkad")
    chance, left = random.Random(0), Counter[str]()
    with (
        Broker(tmp_path / "broker", lasting=False) as broker,
        broker.client() as client,
        closing(Plant(tmp_path, broker, client)) as plant,
    ):
        for number in (1, 2):
            for point in POINTS:
                plant.kill_at(point, number)
                left += plant.outbox()
        for _ in range(RANDOM_KILLS):
            plant.kill_after(chance.uniform(0.0, 0.15))
            left += plant.outbox()
        plant.finish()
        wanted = plant.alerts("calm")
        wait_for(lambda: len(plant.alerts("killed")) >= len(wanted), "alerts were lost")
        heard = plant.alerts("killed")
    assert plant.outbox() == Counter()
    calm, killed = plant.state("calm", "steady"), plant.state("killed", "steady")
    assert calm["alarms"]["incidents"] >= 10
    for key in ("seq", "grid", "alarms"):
        assert killed[key] == calm[key], key
    assert set(heard) == set(wanted)
    # An alert is repeated after a kill only if the kill came before its delivery was committed.
    for alert, times in heard.items():
        assert times - 1 <= left[alert], alert
    # A device that learns may come to other scores, as it learns at other moments; but it has seen every row once.
    learner = plant.state("killed", "learner")
    counters = learner["grid"]["counters"]
    assert counters == {"rows": ROWS, "carried": 0, "duplicates": 0, "late": 0, "off_clock": 0, "jumps": 0}
    assert learner["learnt"] >= 3
    assert KoopmanDetector.load(tmp_path / "killed" / "devices" / "learner" / "model.safetensors").model_.learnt_through
    # A device that was told: each command has added the pairs of its rows once.
    told = KoopmanDetector.load(tmp_path / "killed" / "devices" / "told" / "model.safetensors").memory_
    pairs = TOLD - detector.window - detector.horizon + 1
    assert told.statistics.count == detector.memory_.statistics.count + plant.commands * pairs
    repeated = sum(heard.values()) - len(heard)
    print(
        f"{2 * len(POINTS) + RANDOM_KILLS} kills, {len(wanted)} alerts, {repeated} repeated, {plant.commands} commands"
    )
