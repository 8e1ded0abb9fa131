"""The units of systemd for a server and its devices; `python -m measurements.fleet_units` runs them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from fedkad.fleet.server.settings import Place
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.processes import passed_sockets

UNITS = Path(__file__).parents[2] / "examples" / "systemd"


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


@pytest.mark.parametrize(
    ("host", "bind", "remedy"),
    [
        ("127.0.0.1", "127.0.0.1", ""),
        ("0.0.0.0", "", ""),
        ("::", "", ""),
        ("::1", "0:0::1", ""),
        ("127.0.0.1", "", "ListenStream={port} into"),
        ("::", "127.0.0.1", "ListenStream=127.0.0.1:{port} into"),
        ("0.0.0.0", "::1", r"ListenStream=\[::1\]:{port} into"),
    ],
)
def test_a_socket_at_which_the_server_would_not_answer_is_refused(host: str, bind: str, remedy: str) -> None:
    pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")
    from fedkad.fleet.server.operation import check_passed

    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as passed:
        port = passed.getsockname()[1]
        if remedy:
            with pytest.raises(FleetFileError, match=remedy.format(port=port)):
                check_passed([passed.fileno()], Place(port=port, bind=bind))
        else:
            check_passed([passed.fileno()], Place(port=port, bind=bind))
        with pytest.raises(FleetFileError, match="correct bind and port"):
            check_passed([passed.fileno()], Place(port=port - 1, bind=bind))
        assert passed.getsockname()[1] == port, "it is still open"


def test_a_socket_of_another_kind_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")
    from fedkad.fleet.server.operation import check_passed

    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(tmp_path / "socket"))
        with pytest.raises(FleetFileError, match="where this server does not listen"):
            check_passed([passed.fileno()], Place())
