"""What a client tells whoever looks after its device: why it could not answer, and whether the server is there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet import clientapp, connection, devicefolder


def test_why_a_device_cannot_answer_is_said_on_the_device(tmp_path: Path) -> None:
    devicefolder.write(tmp_path / "device", "pump", "localhost:8443", b"ca", b"key")
    said: list[str] = []
    client = connection._Client(devicefolder.load(tmp_path / "device"), "", said.append)
    client.wait.pause(1000.0)  # it does not connect
    client._tend()
    context: Any = SimpleNamespace(node_config={"folder": str(tmp_path / "device")})
    for why in ("It has no data.", "It has no data.", "It has too few rows."):
        clientapp._note_refusal(context, why)
        client._tend()
        client._tend()
    assert said == [
        "pump could not answer the server: It has no data.",
        "pump could not answer the server: It has too few rows.",
    ]


def test_a_client_says_that_its_server_is_away_and_that_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devicefolder.write(tmp_path / "device", "pump", "localhost:8443", b"ca", b"key")
    said: list[str] = []
    client = connection._Client(devicefolder.load(tmp_path / "device"), "", said.append)
    (tmp_path / "device" / "flower").mkdir()

    def hear(line: str, wait: float = 0.0) -> None:
        client.log.append(f"{line}\n")
        client._listen()
        monkeypatch.setattr(connection, "AWAY_FOR", -1.0 if wait else 5.0)
        client._listen()

    hear("SuperNode ID: 7")
    hear("Connection attempt failed, retrying in 0.80 seconds")  # a single one is not worth a word
    hear("Connection successful after 0.80 seconds and 1 tries.")
    hear("Connection attempt failed, retrying in 0.80 seconds", wait=6.0)
    hear("Connection attempt failed, retrying in 1.60 seconds", wait=6.0)
    hear("Connection successful after 9.80 seconds and 5 tries.")
    connected = "pump: connected to localhost:8443"
    assert said == [connected, "pump: the server localhost:8443 does not answer; trying again", connected]
