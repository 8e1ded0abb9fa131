"""What a client logs for the owner of its device: why it could not answer, and whether the server is reachable."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet.device import clientapp, connection
from fedkad.fleet.device.connection import DeviceClient
from fedkad.fleet.device.httpsclient import Fetched
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.flower.supernodelog import CALL_OVER, SuperNodeEvent
from fedkad.fleet.shared import devicefolder
from fedkad.fleet.shared.certificates import make_device_key


@pytest.fixture
def client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> DeviceClient:
    caplog.set_level("INFO", "fedkad")
    devicefolder.write(tmp_path / "device", "pump", "localhost:8443", b"ca", b"key")
    (tmp_path / "device" / "flower").mkdir()
    return DeviceClient(load_device(tmp_path / "device"), "")


def test_why_a_device_cannot_answer_is_logged_on_the_device(
    client: DeviceClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.wait.pause(1000.0)  # it does not connect
    client.tend()
    context: Any = SimpleNamespace(node_config={"folder": str(client.folder.root)})
    for why in ("It has no data.", "It has no data.", "It has too few rows."):
        clientapp._note_refusal(context, why)
        client.tend()
        client.tend()
    assert caplog.messages == [
        "pump could not answer the server: It has no data.",
        "pump could not answer the server: It has too few rows.",
    ]


def test_a_client_tells_systemd_that_it_is_ready_and_alive(client: DeviceClient, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        (client.folder.root / "device.key").write_bytes(make_device_key().key)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        command = [sys.executable, "-m", "fedkad", "client", str(client.folder.root)]
        with subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL) as process:
            systemd.settimeout(300.0)
            assert systemd.recv(1000) == b"READY=1\nSTATUS=connects pump"
            assert [systemd.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            process.terminate()


def test_a_client_with_the_key_of_another_device_says_so_once_and_does_not_connect(
    client: DeviceClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.folder.key.write_bytes(make_device_key().key)
    monkeypatch.setattr(connection, "reach", lambda files: None)
    monkeypatch.setattr(client.notices.files, "get", lambda path, headers: Fetched(200, "", b"press"))
    client.notices.has_looked = True
    for _ in range(2):
        client.wait.clear()
        client.tend()
    assert client.child is None
    (said,) = caplog.messages
    assert said.startswith(f"{client.folder.key}: this is the key of press, and this device is pump; ")


@pytest.mark.parametrize("over", CALL_OVER)
def test_a_client_logs_that_its_server_is_away_and_that_it_is_back(
    client: DeviceClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, over: SuperNodeEvent
) -> None:
    def follow(event: SuperNodeEvent, *, patience: float = 1000.0) -> None:
        client.log.append(f"{event.value} and more\n")
        client.follow()
        monkeypatch.setattr(connection, "AWAY_FOR", patience)
        client.follow()

    follow(SuperNodeEvent.CONNECTED)
    follow(SuperNodeEvent.CALL_FAILED)  # a single one is not worth a message
    follow(over)
    follow(SuperNodeEvent.CALL_FAILED, patience=0.0)
    follow(SuperNodeEvent.CALL_FAILED, patience=0.0)
    follow(over)
    connected = "pump: connected to localhost:8443"
    assert caplog.messages == [connected, "pump: the server localhost:8443 does not answer; trying again", connected]
