"""The commands of docs/fleet.md, run in order on three machines, here three folders."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.cli.fleet import app
from fedkad.tables import write_table
from measurements.loopback import Loopback, free_port, wait
from tests.fixtures.pages import PAGES, Desk, blocks, commands

pytestmark = [
    pytest.mark.skipif(find_spec("flwr") is None, reason="the extra `fleet` is not installed"),
    pytest.mark.skipif(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no nginx"),
]

DEVICES = ("pump-1", "pump-2", "pump-3")
ROUNDS = 4  # one warm round and one further round per device


def steps() -> list[tuple[str, bool, list[str]]]:
    """The machine of every block, whether it runs in the background, and its commands."""
    found = []
    for block in blocks(PAGES / "fleet.md"):
        if block.language == "sh":
            machine, _, how = block.title.partition(", ")
            assert how in ("", "left running")
            found.append((machine, bool(how), commands(block).splitlines()))
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
        return command.replace("fleet.example", "127.0.0.1")

    def run(self, machine: str, command: str) -> str:
        return self.desk.run(self.words(command), self.root / machine)

    def background(self, machine: str, command: str) -> None:
        self.running[machine] = self.desk.start(self.words(command), self.root / machine, self.root / f"{machine}.log")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with Machines(tmp_path) as made:
        yield made


def test_the_page_takes_three_machines_from_nothing_to_a_trained_fleet(machines: Machines) -> None:
    printed: dict[str, str] = {}
    for machine, background, typed in steps():
        for command in typed:
            if command.startswith("fedkad fleet status"):
                machines.wait_online(*DEVICES, seconds=600.0)
            if background:
                machines.background(machine, command)
            else:
                printed[command] = machines.run(machine, command)
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


def test_the_page_names_every_way_to_look_after_a_fleet() -> None:
    """Nobody finds a command that the page does not show."""
    named = set(re.findall(r"fedkad fleet ([a-z]+)", (PAGES / "fleet.md").read_text()))
    assert named == {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
