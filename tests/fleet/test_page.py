"""The commands of docs/fleet.md and docs/runbook.md, run in order on several machines, here folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.cli.fleet import app
from fedkad.fleet.device.httpsclient import UnreachableError
from fedkad.fleet.device.noticeclient import NoticeClient
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.server import registry
from fedkad.fleet.shared import certificates
from fedkad.tables import write_table
from measurements.loopback import Loopback, free_port, wait
from tests.fixtures.pages import PAGES, Desk, blocks, commands

pytestmark = [
    pytest.mark.skipif(find_spec("flwr") is None, reason="the extra `fleet` is not installed"),
    pytest.mark.skipif(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no nginx"),
]

LEFT_RUNNING, STOPPED = "left running", "stopped"
DEVICES = ("pump-1", "pump-2", "pump-3")
ROUNDS = 4  # one warm round and one further round per device


def steps(page: str) -> list[tuple[str, str, list[str]]]:
    """The machine of every block, how it runs there, and its commands."""
    found = []
    for block in blocks(PAGES / f"{page}.md"):
        if block.language == "sh":
            machine, _, how = block.title.partition(", ")
            assert how in ("", LEFT_RUNNING, STOPPED)
            found.append((machine, how, commands(block).splitlines()))
    return found


class Machines(Loopback):
    """A folder for each machine."""

    def __init__(self, root: Path) -> None:
        self.root, self.running = root, {}
        self.server_folder = root / "server" / "fleet"
        self.port, self.control_port = free_port(), free_port()
        for k, name in enumerate(DEVICES):
            (root / name).mkdir()
            t = np.arange(1500.0)
            columns = {
                f"c{c}": np.sin(t / (5 + c + k)) + 0.1 * np.random.default_rng(k).normal(size=1500) for c in range(3)
            }
            write_table(root / name / f"{name}.csv", columns)
        (root / "server").mkdir()
        shutil.copy(root / "pump-1" / "pump-1.csv", root / "server")
        self.desk = Desk(root)
        self.desk.program("scp", f'cp -r "$2" "{root}/$(echo "$3" | cut -d: -f1)/$(echo "$3" | cut -d: -f2)"')

    def words(self, command: str) -> str:
        """A command of the page with the addresses of this machine, and fewer rounds to save time."""
        if command.startswith("fedkad fleet init"):
            command = f"{command} --port {self.port} --control-port {self.control_port} --rounds {ROUNDS}"
        return command.replace("fleet.example", "127.0.0.1").replace("new.example", "127.0.0.2")

    def run(self, machine: str, command: str) -> str:
        return self.desk.run(self.words(command), self.root / machine)

    def background(self, machine: str, command: str, *, called: str = "") -> None:
        """Start a command; what it prints is told by its name, that of its machine unless it is `called` otherwise."""
        name = called or machine
        self.running[name] = self.desk.start(self.words(command), self.root / machine, self.root / f"{name}.log")

    def said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with Machines(tmp_path) as made:
        yield made


def test_the_page_takes_three_machines_from_nothing_to_a_trained_fleet(machines: Machines) -> None:
    printed: dict[str, str] = {}
    for machine, how, typed in steps("fleet"):
        for command in typed:
            if command.startswith("fedkad fleet status"):
                machines.wait_online(*DEVICES, seconds=600.0)
            if how == LEFT_RUNNING:
                machines.background(machine, command)
            else:
                printed[command] = machines.run(machine, command)
            if command == "fedkad fleet status fleet":
                machines.background("server", f"{command} --follow", called="notices")
            if command.startswith("fedkad fleet train"):
                wait(lambda: len(machines.status()["delivered"]) == len(DEVICES), 600, "all delivered")
    assert "3 registered: 3 online" in printed["fedkad fleet status fleet"]
    assert "is done." in printed["fedkad fleet train fleet --wait"]
    assert "revoked" in printed["fedkad fleet revoke fleet pump-2"]
    models = [KoopmanDetector.load(machines.root / name / name / "model.safetensors") for name in DEVICES]
    shared = [model.subspace_[:, : model.rank] for model in models]
    np.testing.assert_array_equal(shared[0], shared[1])
    assert not (machines.server_folder / "devices" / "pump-1").exists()
    left = json.loads(machines.run("server", "fedkad fleet list fleet --json"))
    assert [device["device"] for device in left] == list(DEVICES)
    check_follower(machines)


def check_follower(machines: Machines) -> None:
    """`fedkad fleet status --follow` has shown the training from its request on, and ends with the server."""
    machines.running["server"].terminate()
    assert machines.running.pop("server").wait(120) == 0
    assert machines.running.pop("notices").wait(120) == 1
    said = machines.said("notices")
    story = (
        "3 registered: 3 online",
        "A training is requested or under way.",
        "training      training",
        "training      done",
        "not running",
        "no server is running here; start it with",
    )
    seen = [said.find(words) for words in story]
    assert -1 not in seen
    assert seen == sorted(seen)
    rounds = re.findall(rf"^round +(\d) of {ROUNDS}$", said, flags=re.MULTILINE)
    assert rounds == sorted(rounds)
    assert len(set(rounds)) > 1, "no progress was shown"
    assert "Traceback" not in said


def test_the_page_names_every_way_to_look_after_a_fleet() -> None:
    """Nobody finds a command that the page does not show."""
    named = set(re.findall(r"fedkad fleet ([a-z]+)", (PAGES / "fleet.md").read_text()))
    assert named == {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }


def test_the_commands_of_the_runbook_run(machines: Machines) -> None:
    old, new = machines.root / "server", machines.root / "new server"
    new.mkdir()
    machines.run("server", "fedkad fleet init fleet --address fleet.example --like pump-1.csv")
    (old / "names.txt").write_text("\n".join(DEVICES))
    for machine, how, typed in steps("runbook"):
        if machine.startswith("pump"):
            (token,) = re.findall(rf"^.*//{machine}:.*$", (old / "tokens.txt").read_text(), flags=re.MULTILINE)
            (machines.root / machine / "token.txt").write_text(token)
        if machine == "new server":
            shutil.copy(old / "backup.tar.gz", new)
        is_running = "server" in machines.running
        if is_running and (how == STOPPED or machine == "new server"):
            machines.running["server"].terminate()
            assert machines.running.pop("server").wait(120) == 0
        elif not is_running and how == "" and machine != "new server":
            machines.background("server", "fedkad server fleet")
            wait(lambda: is_listening(machines.port), 300, "the server listening")
        for command in typed:
            if command.endswith("--cancel"):
                machines.run("server", "fedkad fleet train fleet")
            (machines.background if how == LEFT_RUNNING else machines.run)(machine, command)
    device = load_device(machines.root / "pump-1" / "pump-1")
    key = certificates.public_part(device.key.read_bytes()).decode()
    first = registry.read(machines.server_folder / "devices.json")["pump-1"]
    assert first.public_key != key, "it was renewed"
    wait(lambda: is_listening(machines.port), 300, "the server at its new place")
    shutil.copy(new / "fleet" / "ca" / "ca.crt", device.ca_certificate)  # as for a device that was off all the time
    wait(
        lambda: is_told(NoticeClient(device), f"127.0.0.2:{machines.port}"), 300, "a device that learns the new address"
    )


def is_listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.2", port)) == 0


def is_told(notices: NoticeClient, address: str) -> bool:
    with suppress(UnreachableError):
        notices.look()
    return address in notices.files.servers
