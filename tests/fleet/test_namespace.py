"""A server in a network namespace of its own, as its unit runs it: devices reach it, nobody else reaches Flower."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedkad import KoopmanDetector
from fedkad.fleet.device.httpsclient import OK, HttpsClient, UnreachableError
from measurements.loopback import ENVIRONMENT, Loopback, command_line, descendants, wait
from tests.fixtures.attackers import fleets

fleets.require(nginx=True)
if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
    pytest.skip("a network namespace needs root, unshare, nsenter and ip", allow_module_level=True)

pytestmark = pytest.mark.slow

PATIENCE = 300.0
PASS_ON = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes a program to which a socket is passed as systemd does it."""


class IsolatedFleet(Loopback):
    """Its server gets a listening socket as systemd passes one, and runs where there is no other network."""

    def start_server(self, environment: object = None) -> None:
        with socket.create_server(("", self.port)) as opened, (self.root / "server.log").open("ab") as log:
            enter = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']
            passed = [sys.executable, "-c", PASS_ON, str(opened.fileno())]
            command = [sys.executable, "-m", "fedkad", "server", str(self.server_folder)]
            self.running["server"] = subprocess.Popen(
                [*enter, *passed, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT, **fleets.hurried()},
                pass_fds=(opened.fileno(),),
                start_new_session=True,
            )

    def is_connected(self, name: str) -> bool:
        return "connected to" in (self.root / f"{name}.log").read_text()

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespace, as root may."""
        enter = ["nsenter", "--net", "--target", str(self.running["server"].pid)]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)


def is_reachable(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_in_its_own_namespace_trains_and_its_control_port_is_out_of_reach(tmp_path: Path) -> None:
    names = ("pump-a", "pump-b", "pump-c")
    tables = fleets.write_tables(tmp_path / "tables", names)
    with IsolatedFleet(tmp_path, tables, *fleets.options(rounds=3, participation=1.0)) as fleet:
        fleet.start_server()
        fleet.start(environment=fleets.hurried())
        wait(lambda: all(map(fleet.is_connected, names)), PATIENCE, "all connected")
        fleet.train()
        status = fleet.wait_done(PATIENCE)
        assert set(status["delivered"]) == set(names)
        assert all(KoopmanDetector.load(fleet.device_folder(name) / "model.safetensors").rank for name in names)
        assert is_reachable(fleet.port)
        assert not is_reachable(fleet.control_port), "no user outside of the namespace starts code on devices"
        found = fleet.inside(sys.executable, "-m", "fedkad", "fleet", "status", str(fleet.server_folder))
        assert f"{len(names)} online" in found.stdout, found.stdout + found.stderr
        (master,) = (each for each in descendants(fleet.running["server"].pid) if "nginx: master" in command_line(each))
        os.kill(master, signal.SIGKILL)
        log = fleet.root / "server.log"
        wait(lambda: log.read_text().count("proxy: started") == 2, PATIENCE, "another nginx")
        wait(lambda: shows_notice(fleet), PATIENCE, "the new one has the same socket")


def shows_notice(fleet: Loopback) -> bool:
    try:
        files = HttpsClient([f"127.0.0.1:{fleet.port}"], fleet.server_folder / "ca" / "ca.crt", "")
        return files.get("/notice", {}).status == OK
    except UnreachableError:
        return False
