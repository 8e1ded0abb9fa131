"""Damaged keys and certificates: each is named with a remedy, and a running server goes on with what it has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet.device.httpsclient import HttpsClient, UnreachableError
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.flower.control import open_control
from fedkad.fleet.server import enrolment, registry, requests
from fedkad.fleet.server.operation import warn_of_certificates
from fedkad.fleet.server.overview import certificate_ends
from fedkad.fleet.server.proxysupervisor import ProxySupervisor
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Place, ServerFolder, TrainingSettings
from fedkad.fleet.server.supervisor import Supervisor
from fedkad.fleet.shared import certificates, devicefolder, keyfiles
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.processes import LogFile, SupervisedProcess, ending_all
from fedkad.locks import holding
from tests.fixtures.commandline import Done, fails

MODEL = ModelSettings(("a",), rank=2, window=4)
RENEW, BACKUP = "make another with `fedkad fleet renew", "restore it from a backup"
PAIRS = ("server/server.key", "server/server.crt", "server/notice.key", "server/notice.crt")
EACH = {**dict.fromkeys(PAIRS, RENEW), "ca/ca.crt": BACKUP}
"""What a running server needs, and the remedy."""


@pytest.fixture
def folder(tmp_path: Path) -> ServerFolder:
    known = FleetSettings(Place("127.0.0.1"), MODEL, TrainingSettings(min_devices=1))
    return enrolment.make_fleet(tmp_path / "fleet", known)


def spoil(path: Path) -> None:
    path.write_bytes(b"junk")


def vanish(path: Path) -> None:
    path.unlink()


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def misplace(path: Path) -> None:
    """A key of something else."""
    path.write_bytes(certificates.make_authority("other").key)


@pytest.mark.parametrize("harm", [spoil, halve])
@pytest.mark.parametrize("name", EACH)
def test_a_damaged_file_is_named_before_the_server_starts(
    folder: ServerFolder, name: str, harm: Callable[[Path], None]
) -> None:
    harm(folder.root / name)
    with pytest.raises(FleetFileError) as told:
        enrolment.prepare(folder)
    assert str(told.value).startswith(f"{folder.root / name}: ")
    assert EACH[name] in str(told.value)
    assert "https://" not in str(told.value)


@pytest.mark.parametrize(
    ("harm", "name", "words"),
    [
        (vanish, "ca/ca.crt", "there is no such file; restore it from a backup, or copy it from a device"),
        (vanish, "server/server.key", "there is no such file"),
        (misplace, "server/server.key", "is not the key of the certificate beside it"),
        (misplace, "server/notice.key", "is not the key of the certificate beside it"),
        (lambda path: path.write_bytes(b""), "flower/superexec.secret", "is empty; remove it and start the server"),
    ],
)
def test_so_is_one_that_is_missing_or_does_not_fit(
    folder: ServerFolder, harm: Callable[[Path], None], name: str, words: str
) -> None:
    harm(folder.root / name)
    with pytest.raises(FleetFileError, match=words) as told:
        enrolment.prepare(folder)
    assert str(folder.root / name) in str(told.value)


def test_what_was_interrupted_or_is_worth_nothing_by_itself_is_made_anew(
    folder: ServerFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedkad")
    folder.secret.unlink()
    folder.server_certificate.unlink()
    enrolment.prepare(folder)
    assert len(keyfiles.secret(folder)) == 48
    assert not list(keyfiles.damages(folder))
    assert caplog.messages == [
        f"{folder.secret} was missing; a new one was made",
        "the server has a new certificate, because it had none",
    ]


def test_commands_name_the_file_of_the_authority(folder: ServerFolder) -> None:
    spoil(folder.ca_key)
    assert "ca.key: the file is not a private key" in fails("fleet", "renew", folder.root)
    misplace(folder.ca_key)
    assert "is not the key of the certificate beside it" in fails("fleet", "renew", folder.root, "--authority", "begin")
    spoil(folder.ca_certificate)
    for command in (("add", folder.root, "pump"), ("token", folder.root, "pump"), ("renew", folder.root)):
        assert "ca.crt: this is not a certificate; restore it" in fails("fleet", *command)
    with (
        pytest.raises(FleetFileError, match=r"ca\.crt: this is not a certificate"),
        open_control(1, folder.ca_certificate),
    ):
        pass


def test_a_next_authority_whose_key_is_damaged_does_not_take_over(folder: ServerFolder) -> None:
    enrolment.begin_authority(folder)
    before = folder.ca_key.read_bytes(), folder.ca_certificate.read_bytes()
    spoil(folder.next_key)
    assert "next.key: the file is not a private key" in fails("fleet", "renew", folder.root, "--authority", "finish")
    assert (folder.ca_key.read_bytes(), folder.ca_certificate.read_bytes()) == before


def test_status_names_the_file_beside_all_that_it_knows(folder: ServerFolder) -> None:
    spoil(folder.server_certificate)
    with holding(folder.lock, ""):
        done = Done("fleet", "status", folder.root)
    assert done.status == 1
    assert done.err.startswith(f"error: {folder.server_certificate}: this is not a certificate; make another")
    assert "notices until" in done.out
    assert set(certificate_ends(folder)) == {"notices", "authority"}


class Desk:
    """A control interface that knows nobody."""

    def nodes(self) -> dict[str, Any]:
        return {}

    def register(self, name: str, public_key: str) -> None:
        pass

    def stop_all(self) -> None:
        pass


@pytest.mark.parametrize("name", ["server/notice.crt", "server/notice.key", "ca/ca.crt"])
def test_a_running_server_names_the_file_once_and_goes_on(
    folder: ServerFolder, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with registry.changing(folder.registry) as devices:
        registry.add(devices, "pump", "key")
    desk: Any = Desk()
    supervisor = Supervisor(folder, desk, folder.root)
    assert supervisor.attend()
    kept, before = (folder.root / name).read_bytes(), supervisor.board.last()
    spoil(folder.root / name)
    requests.request_training(folder.training)
    assert supervisor.attend()
    assert supervisor.attend()
    warn_of_certificates(folder)
    named, *others = caplog.messages
    assert named.startswith(f"{folder.root / name}: ")
    assert others == ["train: waits for devices; 0 online, 1 needed"]
    (folder.root / name).write_bytes(kept)
    assert supervisor.attend()
    assert supervisor.board.last() == before
    assert len(caplog.messages) == 2


def test_a_key_of_another_kind_signs_no_notices_and_ends_no_server(
    folder: ServerFolder, caplog: pytest.LogCaptureFixture
) -> None:
    desk: Any = Desk()
    supervisor = Supervisor(folder, desk, folder.root)
    other = keyfiles.server_pair(folder)
    folder.notice_key.write_bytes(other.key)
    folder.notice_certificate.write_bytes(other.public)
    assert supervisor.attend()
    assert "not an Ed25519 key; make another with `fedkad fleet renew`" in caplog.messages[0]


@pytest.mark.parametrize("name", ["server/server.crt", "server/server.key", "flower/superexec.secret"])
def test_processes_go_on_with_what_they_have_read_until_a_pair_fits(
    folder: ServerFolder, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedkad")
    superlink = SupervisedProcess("superlink", ["sleep", "infinity"], LogFile(folder.logs / "x.log"), os.environ)
    nginx = SupervisedProcess("proxy", [], LogFile(folder.logs / "y.log"), os.environ)  # nobody starts it
    door, secret = ProxySupervisor(folder, nginx, superlink), folder.secret.read_bytes()
    with ending_all([superlink]):
        superlink.tend()
        door.attend()
        assert superlink.child is not None
        caplog.clear()
        (vanish if "secret" in name else spoil)(folder.root / name)
        for _ in range(3):
            door.attend()
        assert len(caplog.messages) == 1
        assert str(folder.root / name) in caplog.messages[0]
        assert superlink.child.status is None, "it was not asked to start with a damaged file"
        enrolment.renew_server(folder)
        folder.secret.write_bytes(secret)
        door.attend()
        assert caplog.messages[1:] == ["the server has a new certificate"]
        assert superlink.child.status is not None


def test_a_renewal_under_way_is_no_damage(folder: ServerFolder, caplog: pytest.LogCaptureFixture) -> None:
    nginx = SupervisedProcess("proxy", [], LogFile(folder.logs / "y.log"), os.environ)
    door = ProxySupervisor(folder, nginx, nginx)
    folder.server_certificate.unlink()
    door.attend()
    enrolment.renew_server(folder)
    door.attend()
    assert not caplog.messages


def test_a_device_names_the_file_that_it_cannot_read(tmp_path: Path) -> None:
    devicefolder.write(tmp_path / "pump", "pump", "localhost:9", b"junk", b"junk")
    device = load_device(tmp_path / "pump")
    with pytest.raises(FleetFileError, match=r"device\.key: the file is not a private key .*; copy the folder"):
        keyfiles.key_header(device)
    files = HttpsClient(["localhost:9", "localhost:10"], device.ca_certificate, devicefolder.REMEDY)
    with pytest.raises(UnreachableError, match=r"^\S+ca\.crt: this is not a certificate; [^;]*$"):
        files.connect()
    device.ca_certificate.unlink()
    with pytest.raises(UnreachableError, match=r"^\S+ca\.crt: there is no such file; [^;]*$"):
        files.connect()
