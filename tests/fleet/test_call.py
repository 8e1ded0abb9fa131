"""A fleet that is called, with real processes: few train over Flower, and all fetch the result as a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.edge import main
from fedkad.federation.training_files import is_requested
from fedkad.fleet.server import registry
from fedkad.fleet.server.settings import ServerFolder
from measurements.loopback import Loopback, command_line, wait
from tests.fixtures.attackers import fleets

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet.server.noticeboard import NoticeBoard
from fedkad.fleet.shared.notice import FleetNotice

fleets.require(nginx=True)

pytestmark = pytest.mark.slow

NAMES = tuple(f"pump-{k}" for k in range(6))
CALLED, PATIENCE = 4, 300.0


class CalledFleet(Loopback):
    """Six devices, of which a training calls four."""

    def notice(self) -> FleetNotice:
        found = NoticeBoard(ServerFolder(self.server_folder)).last()
        assert found is not None
        return found

    def called(self) -> set[str]:
        now = time.time()
        return {name for name in registry.read(self.server_folder / "devices.json") if self.notice().calls(name, now)}

    def connected(self) -> set[str]:
        """Devices that run Flower."""
        return {name for name in self.running if name != "server" and self.processes(name, "flower.supernode")}

    def waits(self, name: str) -> bool:
        """Whether a device is the small process that only looks at the notice."""
        return "fedkad.fleet.device.idleclient" in command_line(self.running[name].pid)

    def held(self, name: str) -> str:
        path = self.device_folder(name) / "delivered.json"
        return str(json.loads(path.read_text())["run"]) if path.exists() else ""

    def counts(self) -> dict[str, int]:
        return dict(json.loads(self.command("fleet", "status", str(self.server_folder), "--json"))["counts"])

    def trained(self, after: str = "") -> dict[str, Any]:
        self.train()
        status = self.wait_done(after=after)
        wait(lambda: not is_requested(self.server_folder / "training"), PATIENCE, "the request closed")
        return status

    def detector(self, name: str) -> KoopmanDetector:
        return KoopmanDetector.load(self.device_folder(name) / "model.safetensors")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalledFleet]:
    root = tmp_path_factory.mktemp("called")
    data = fleets.write_tables(root / "data", NAMES)
    given = fleets.options(rounds=5, participation=1.0, period="2s", devices_per_training=CALLED)
    with CalledFleet(root, data, *given) as made:
        made.start_server(fleets.hurried())
        made.start(*NAMES[:-1], environment=fleets.hurried())
        yield made


def test_devices_that_nobody_calls_run_no_flower(fleet: CalledFleet) -> None:
    wait(lambda: all(map(fleet.waits, NAMES[:-1])), PATIENCE, "all wait")
    assert fleet.connected() == fleet.online() == set()
    wait(lambda: fleet.counts()["waiting"] > 0, PATIENCE, "somebody seen to look at the notice")


def test_a_training_calls_as_many_as_it_needs_and_everybody_has_its_result(fleet: CalledFleet) -> None:
    fleet.train()
    wait(lambda: len(fleet.called()) >= CALLED, PATIENCE, "a call")
    called = fleet.called()
    status = fleet.wait_done()
    took_part = set().union(*status["participants"])
    assert took_part <= fleet.called() | called
    for name in set(NAMES[:-1]) - fleet.called() - called:
        assert not (fleet.device_folder(name) / "logs" / "supernode.log").exists(), "it never ran Flower"
    wait(lambda: all(fleet.held(name) == status["run"] for name in NAMES[:-1]), PATIENCE, "all hold the result")
    assert set(status["delivered"]) <= took_part, "the others have fetched it"
    check_equal(fleet, status, NAMES[:-1])


def check_equal(fleet: CalledFleet, status: dict[str, Any], names: tuple[str, ...]) -> None:
    """Whoever took part and whoever fetched the result has, to the bit, what one process computes."""
    expected = fleets.replay(fleets.read_tables(fleet.data), status)
    for name in names:
        found, own = fleet.detector(name), expected.detectors[name]
        np.testing.assert_array_equal(found.subspace_[:, : found.rank], own.subspace_[:, : own.rank])
        np.testing.assert_array_equal(found.operator_, own.operator_)
        assert found.threshold_ == own.threshold_


def test_those_who_were_called_leave_when_the_training_is_over(fleet: CalledFleet) -> None:
    wait(lambda: all(map(fleet.waits, NAMES[:-1])), PATIENCE, "all wait again")
    assert fleet.notice().body.invitation is None
    wait(lambda: not fleet.online(), PATIENCE, "nobody is connected")


def test_a_latecomer_fetches_the_model_without_a_training(fleet: CalledFleet) -> None:
    late, status = NAMES[-1], fleet.status()
    fleet.start(late, environment=fleets.hurried())
    wait(lambda: fleet.held(late) == status["run"], PATIENCE, "the latecomer has it")
    check_equal(fleet, status, (late,))
    assert not (fleet.device_folder(late) / "logs" / "supernode.log").exists()


def test_more_are_called_when_they_do_not_come(fleet: CalledFleet) -> None:
    before = fleet.status()["run"]
    for name in NAMES[:3]:
        process = fleet.running.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, "it leaves in peace"
    status = fleet.trained(after=before)
    assert set().union(*status["participants"]) == set(NAMES[3:]), "all that are there, and so all were called"
    fleet.start(*NAMES[:3], environment=fleets.hurried())
    wait(lambda: all(fleet.held(name) == status["run"] for name in NAMES), PATIENCE, "all hold the second one")
    check_equal(fleet, status, NAMES)


def test_going_back_is_a_newer_notice(fleet: CalledFleet) -> None:
    before = fleet.notice().sequence
    back = json.loads(fleet.command("fleet", "rollback", str(fleet.server_folder), "--json"))["current"]
    wait(lambda: all(fleet.held(name) == back for name in NAMES), PATIENCE, "all are back")
    assert fleet.notice().sequence > before


def test_a_killed_server_and_killed_devices_go_on(fleet: CalledFleet) -> None:
    before = fleet.status()["run"]
    fleet.train()
    wait(lambda: len(fleet.connected()) >= 3, PATIENCE, "devices that were called")
    fleet.kill("server")
    victim = sorted(fleet.connected())[0]
    fleet.kill(victim)
    fleet.start_server(fleets.hurried())
    fleet.start(victim, environment=fleets.hurried())
    status = fleet.wait_done(after=before)
    wait(lambda: all(fleet.held(name) == status["run"] for name in NAMES), PATIENCE, "all hold the third one")
    check_equal(fleet, status, NAMES)
    wait(lambda: all(map(fleet.waits, NAMES)), PATIENCE, "all wait again")
    assert not [name for name in NAMES if (fleet.device_folder(name) / "fetched.safetensors").exists()]


AGENT = """
name = "hall"
state = "state"
devices = ["{device}"]

[source]
kind = "file"
path = "rows.jsonl"

[sampling]
channels = {channels}
period = 1

[learning]
folder = "{folder}"

[fleet]
"""


def test_an_agent_follows_the_notice_itself_and_runs_a_client_only_while_it_is_called(fleet: CalledFleet) -> None:
    device, before = NAMES[0], fleet.status()["run"]
    for name in (device, *NAMES[3:]):  # so that those who stay are called
        fleet.kill(name)
    path = fleet.root / "agent.toml"
    text = AGENT.format(device=device, channels=json.dumps(fleets.CHANNELS), folder=fleet.device_folder(device))
    path.write_text(text)
    main.run(path, check=True)
    log = (fleet.root / "agent.log").open("wb")
    command = [sys.executable, "-m", "fedkad.edge.main", str(path)]
    fleet.running[device] = subprocess.Popen(command, stderr=log, env={**os.environ, **fleets.hurried()})
    wait(lambda: "waits until" in (fleet.root / "agent.log").read_text(), PATIENCE, "the agent looks at the notice")
    assert fleet.processes(device, "fedkad") == []
    status = fleet.trained(after=before)
    assert device in set().union(*status["participants"])
    wait(lambda: fleet.held(device) == status["run"], PATIENCE, "the agent's device has the result")
    wait(lambda: fleet.processes(device, "fedkad") == [], PATIENCE, "the client has left")
    back = json.loads(fleet.command("fleet", "rollback", str(fleet.server_folder), "--json"))["current"]
    wait(lambda: fleet.held(device) == back, PATIENCE, "and fetches what it was not called for")
    assert "client ended" not in (fleet.root / "agent.log").read_text()
    fleet.train()
    wait(lambda: bool(fleet.processes(device, "fedkad client")), PATIENCE, "a client again")
    clients = fleet.processes(device, "fedkad")
    process = fleet.running.pop(device)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    log.close()
    wait(lambda: not any(map(command_line, clients)), PATIENCE, "its client has left with it")
