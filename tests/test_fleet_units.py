"""The units of systemd for a server and its devices; `python -m measurements.fleet_units` runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fedkad.fleet.processes import passed_sockets

UNITS = Path(__file__).parent.parent / "examples" / "systemd"


@pytest.mark.parametrize("name", ["fedkad-server.socket", "fedkad-server.service", "fedkad-client@.service"])
def test_a_unit_is_sound(name: str) -> None:
    try:
        found = subprocess.run(["systemd-analyze", "verify", UNITS / name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("There is no systemd-analyze on this machine to check the unit with.")
    complaints = [line for line in found.stderr.splitlines() if "fedkad-" in line]
    assert all("is not executable" in line for line in complaints), complaints


@pytest.mark.parametrize("name", ["fedkad-server.service", "fedkad-client@.service"])
def test_a_service_has_its_user_and_its_limits(name: str) -> None:
    unit = (UNITS / name).read_text()
    for needed in (
        "User=fedkad",
        "MemoryMax=",
        "TasksMax=",
        "ProtectSystem=strict",
        "Restart=always",
        "WatchdogSec=",
        "UMask=0077",
    ):
        assert needed in unit
    assert ("PrivateNetwork=yes" in unit) == ("server" in name)


def test_only_sockets_that_are_meant_for_this_process_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LISTEN_PID", raising=False)
    assert passed_sockets() == ()
    monkeypatch.setenv("LISTEN_FDS", "2")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    assert passed_sockets() == ()
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    assert passed_sockets() == (3, 4)
