"""``fedkad fleet``, ``server`` and ``client`` as a user runs them, as far as they need no other process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedkad import locks
from fedkad.federation import training_files
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.server import registry, requests, settings
from fedkad.fleet.shared import extra
from tests.fixtures.commandline import Done, fails
from tests.fixtures.trainings import make_terms

pytest.importorskip("cryptography", reason="the extra `fleet` is not installed")

from fedkad.fleet.device import connection
from fedkad.fleet.device.deliveries import Delivery
from fedkad.fleet.flower.supernodelog import COLLECTED
from fedkad.fleet.shared import certificates
from fedkad.fleet.shared.devicefolder import DeviceFolder
from tests.fixtures.certificates import names_of

CHANNELS = ("--channels", "flow,heat")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "my fleet"
    done = Done("fleet", "init", folder, "--address", "fleet.example", *CHANNELS)
    assert done.status == 0, done.err
    return folder


def document(*arguments: object) -> Any:
    done = Done(*arguments, "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)


def status_of(fleet: Path, *, exit_status: int = 1) -> Any:
    """The status as a document; a server that is down, or holds its lock only, does not answer."""
    done = Done("fleet", "status", fleet, "--json")
    assert done.status == exit_status, done.err
    return json.loads(done.out)


def wrong(*arguments: object) -> str:
    """The message about wrong usage, without the frame around it."""
    done = Done(*arguments)
    assert done.status == 2, done.out + done.err
    return " ".join(done.err.replace("│", " ").split())


# -- init -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("former", "present"),
    [("--least", "--min-devices"), ("--invite", "--devices-per-training"), ("--by-call", "--on-demand")],
)
def test_a_former_switch_is_answered_with_its_present_name(tmp_path: Path, former: str, present: str) -> None:
    for words in ((former, "3"), (f"{former}=3",), (former,)):
        told = wrong("fleet", "init", tmp_path / "f", "--address", "localhost", *CHANNELS, *words)
        assert f"{former} is now {present}" in told
    assert not (tmp_path / "f").exists()


def test_a_new_fleet_is_private_and_complete(fleet: Path) -> None:
    modes = {path.relative_to(fleet).as_posix(): path.stat().st_mode & 0o777 for path in fleet.rglob("*")}
    assert fleet.stat().st_mode & 0o777 == 0o700
    assert {name for name in modes if modes[name] not in (0o600, 0o700)} == {"public", "public/models", "public/join"}
    assert modes["ca/ca.key"] == modes["server/server.key"] == modes["flower/superexec.secret"] == 0o600
    needed = {"fleet.toml", "ca/ca.crt", "server/server.crt", "devices.json", "flower/config.toml", "nginx.conf"}
    needed |= {"server/notice.key", "server/notice.crt"}
    assert needed <= set(modes)
    names = names_of((fleet / "server" / "server.crt").read_bytes())
    assert names == ["fleet.example", "localhost", "127.0.0.1", "::1"]


def test_options_reach_the_settings(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"port": 20443, "control_port": 20800, "window": 10, "rank": 6, "observables": 16}
    chosen |= {"horizon": 2, "seed": 3, "rounds": 5, "participation": 0.5, "encoding": "float16", "quorum": 0.75}
    chosen |= {"deadline": 60.0, "every": "24h"}
    options = [text for name, value in chosen.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    made = document("fleet", "init", tmp_path / "f", "--address", "10.0.0.1", *CHANNELS, *options)
    assert made["server"] == "10.0.0.1:20443"
    found = settings.load(tmp_path / "f")
    assert found.model.channels == ("flow", "heat")
    written = {**vars(found.place), **vars(found.model), **vars(found.training)}
    assert {name: written[name] for name in chosen} == chosen


def test_channels_come_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "pump.csv").write_text("time,flow,heat\n0,1,2\n1,2,3\n2,3,4\n")
    made = document("fleet", "init", tmp_path / "f", "--address", "localhost", "--like", tmp_path / "pump.csv")
    assert made["channels"] == ["flow", "heat"]


def test_an_existing_folder_is_never_touched(fleet: Path, tmp_path: Path) -> None:
    before = (fleet / "ca" / "ca.key").read_bytes()
    assert "not an empty folder" in fails("fleet", "init", fleet, "--address", "localhost", *CHANNELS)
    assert (fleet / "ca" / "ca.key").read_bytes() == before
    file = tmp_path / "file"
    file.touch()
    assert "not an empty folder" in fails("fleet", "init", file, "--address", "localhost", *CHANNELS)


@pytest.mark.parametrize("address", ["https://x", "x:8443", "a b", "", "-x", "[::1]", "x..y"])
def test_an_address_is_a_host_without_a_port(tmp_path: Path, address: str) -> None:
    assert "neither a host name" in fails("fleet", "init", tmp_path / "f", "--address", address, *CHANNELS)
    assert not (tmp_path / "f").exists()


def test_wrong_usage_is_reported_before_anything_is_created(tmp_path: Path) -> None:
    folder, base = tmp_path / "f", ("fleet", "init", tmp_path / "f", "--address", "localhost")
    assert "either --like" in wrong(*base)
    assert "either --like" in wrong(*base, *CHANNELS, "--like", "x.csv")
    assert "must be unique" in wrong(*base, "--channels", "a,a")
    assert "none of them empty" in wrong(*base, "--channels", "a,,b")
    assert "24h" in wrong(*base, *CHANNELS, "--every", "often")
    assert "lifted dimension" in wrong(*base, *CHANNELS, "--rank", "1000")
    assert "9000 must be different from port" in wrong(*base, *CHANNELS, "--port", "9000", "--control-port", "9000")
    assert not folder.exists()


# -- devices ----------------------------------------------------------------------------------------------------


def test_adding_a_device_prints_what_to_copy_and_run(fleet: Path) -> None:
    done = Done("fleet", "add", fleet, "pump-1")
    assert done.status == 0, done.err
    place = fleet / "devices" / "pump-1"
    assert f"scp -r '{place}' USER@pump-1:pump-1" in done.out
    assert "fedkad client pump-1 --data" in done.out
    found = load_device(place)
    assert (found.device, found.server) == ("pump-1", "fleet.example:8443")
    public = certificates.public_part(found.key.read_bytes()).decode()
    assert registry.read(fleet / "devices.json")["pump-1"].public_key == public
    assert found.ca_certificate.read_bytes() == (fleet / "ca" / "ca.crt").read_bytes()


def test_a_key_can_stay_on_its_device(fleet: Path, tmp_path: Path) -> None:
    made = certificates.make_device_key()
    (tmp_path / "device.pub").write_bytes(made.public)
    done = Done("fleet", "add", fleet, "pump-1", "--public-key", tmp_path / "device.pub")
    assert "as pump-1/device.key" in done.out
    assert not (fleet / "devices" / "pump-1" / "device.key").exists()
    assert registry.read(fleet / "devices.json")["pump-1"].public_key == made.public.decode()
    (tmp_path / "device.pub").write_text("junk")
    sentence = fails("fleet", "add", fleet, "pump-2", "--public-key", tmp_path / "device.pub")
    assert "device.pub: the file is not a public key" in sentence
    assert "ssh-keygen" in sentence
    assert "No such file" in fails("fleet", "add", fleet, "pump-2", "--public-key", tmp_path / "none.pub")


def test_names_are_checked_and_stay_taken(fleet: Path) -> None:
    document("fleet", "add", fleet, "pump-1")
    assert "already registered" in fails("fleet", "add", fleet, "pump-1")
    assert "cannot be the name" in fails("fleet", "add", fleet, "../x")
    assert document("fleet", "revoke", fleet, "pump-1")["refused"] == "from the next start of the server"
    assert not (fleet / "devices" / "pump-1").exists()
    assert "fedkad fleet renew" in fails("fleet", "add", fleet, "pump-1")
    assert "no device pump-9" in fails("fleet", "revoke", fleet, "pump-9")


def test_a_new_key_replaces_the_old_one(fleet: Path) -> None:
    document("fleet", "add", fleet, "pump-1")
    before = registry.read(fleet / "devices.json")["pump-1"]
    document("fleet", "revoke", fleet, "pump-1")
    told = document("fleet", "renew", fleet, "pump-1")
    key = fleet / "devices" / "pump-1" / "device.key"
    assert (told["key"], told["key_made"]) == (str(key), True)
    assert told["copy"] == f"scp '{key}' USER@pump-1:pump-1/device.key"
    after = registry.read(fleet / "devices.json")["pump-1"]
    assert after.public_key != before.public_key
    assert after.public_key == certificates.public_part(key.read_bytes()).decode()
    assert after.revoked is None
    assert {path.name for path in key.parent.iterdir()} == {"device.key", "ca.crt"}


def test_only_a_renewed_key_is_copied_to_the_device(fleet: Path, tmp_path: Path) -> None:
    document("fleet", "add", fleet, "pump-1")
    place = fleet / "devices" / "pump-1"
    (place / "device.toml").write_text(mine := 'device = "pump-1"\nserver = "x:1"\ndata = "mine.csv"\n')
    out = Done("fleet", "renew", fleet, "pump-1").out
    assert f"scp '{place / 'device.key'}' USER@pump-1:pump-1/device.key" in out
    assert "scp -r" not in out
    assert "fedkad client pump-1 --data" in out
    assert f"remove '{place / 'device.key'}' here" in out
    assert (place / "device.toml").read_text() == mine
    (tmp_path / "device.pub").write_bytes(certificates.make_device_key().public)
    kept = ("fleet", "renew", fleet, "pump-1", "--public-key", tmp_path / "device.pub")
    out = Done(*kept).out
    assert "as pump-1/device.key" in out
    assert "scp" not in out
    (tmp_path / "device.pub").write_bytes(certificates.make_device_key().public)
    told = document(*kept)
    assert (told["key"], told["copy"], told["key_made"]) == (None, None, False)


def test_a_new_server_certificate_has_the_same_authority(fleet: Path) -> None:
    before = (fleet / "server" / "server.crt").read_bytes(), (fleet / "ca" / "ca.crt").read_bytes()
    done = Done("fleet", "renew", fleet)
    assert "will use it from its next start" in done.out
    after = (fleet / "server" / "server.crt").read_bytes(), (fleet / "ca" / "ca.crt").read_bytes()
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)
    assert "name one" in wrong("fleet", "renew", fleet, "--public-key", "x")


def test_devices_are_listed(fleet: Path) -> None:
    assert "no devices yet" in Done("fleet", "list", fleet).out
    document("fleet", "add", fleet, "pump-1")
    document("fleet", "add", fleet, "pump-2")
    document("fleet", "revoke", fleet, "pump-2")
    listed = document("fleet", "list", fleet)
    assert [(entry["device"], entry["revoked"] is None) for entry in listed] == [("pump-1", True), ("pump-2", False)]
    assert "pump-2" in Done("fleet", "list", fleet).out


@pytest.mark.parametrize("command", ["add", "revoke", "list", "status", "train", "renew"])
def test_a_folder_that_is_not_a_fleet_is_named(tmp_path: Path, command: str) -> None:
    device = ["x"] if command in ("add", "revoke") else []
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        sentence = fails("fleet", command, place, *device)
        assert f"{place}/fleet.toml: there is no such file; make the folder with `fedkad fleet init`." in sentence


# -- status and training without a server -----------------------------------------------------------------------


def test_a_stopped_server_is_reported(fleet: Path) -> None:
    document("fleet", "add", fleet, "pump-1")
    found = status_of(fleet)
    assert found["server"] == {"running": False, "answering": False, "address": "fleet.example:8443"}
    assert found["devices"] == [{"device": "pump-1", "state": None, "since": None}]
    assert found["training"] is None
    done = Done("fleet", "status", fleet, "--follow")
    assert (done.status, done.err.count("\n")) == (1, 1), "there is nothing to follow"
    assert "no server is running here; start it with fedkad server" in done.err
    assert "1 registered; who is online is known while the server answers" in done.out
    with locks.holding(fleet / "server.lock", ""):
        done = Done("fleet", "status", fleet)
    assert (done.status, "the server is running, but Flower does not answer" in done.err) == (1, True)
    assert "no server is running here" in fails("fleet", "train", fleet)


def test_the_last_training_is_shown(fleet: Path) -> None:
    told = {
        "run": "r",
        "state": "running",
        "round": 2,
        "rounds": 8,
        "participants": [["a"], ["a", "b"]],
        "left_out": ["b"],
        "loss": 0.0123,
        "gate": {"judges": 8, "ratio": 0.98, "worse": False},
        "refused": [{"device": "c", "round": 1, "reason": "other channels"}],
        "bytes_up": 12_345,
        "bytes_down": 500,
        "seconds": 7.25,
        "delivered": [],
    }
    (fleet / "training" / "status.json").write_text(json.dumps(told))
    assert status_of(fleet)["training"] == told
    out = Done("fleet", "status", fleet).out
    for expected in ("2 of 8", "2 in the last round: a, b", "12.3 KB up, 0.5 KB down", "other channels", "0 of 0"):
        assert expected in out
    assert "0.0123 in the last round" in out
    assert "b: the others would lose by their directions" in out
    assert "0.98 times the loss of the model before, by 8 devices" in out
    (fleet / "training" / "status.json").write_text('{"state": "done"}')
    assert "done" in Done("fleet", "status", fleet).out
    (fleet / "training" / "status.json").write_text('{"state": "do')
    done = Done("fleet", "status", fleet)
    assert "status.json: this is not the report of a training" in done.err


def test_what_a_training_waits_for_is_shown_while_the_server_runs(fleet: Path) -> None:
    (fleet / "training" / "waits").write_text("is due, and waits for devices; 1 of 3 online, 2 needed")
    assert status_of(fleet)["waits"] is None
    with locks.holding(fleet / "server.lock", ""):
        assert (
            "A training is due, and waits for devices; 1 of 3 online, 2 needed." in Done("fleet", "status", fleet).out
        )


def test_a_training_is_requested_from_a_running_server(fleet: Path) -> None:
    with locks.holding(fleet / "server.lock", ""):
        assert document("fleet", "train", fleet) == {"wanted": True, "already": False}
        assert (fleet / "training" / "wanted").exists()
        assert "already requested or under way" in Done("fleet", "train", fleet).out
        assert document("fleet", "train", fleet) == {"wanted": True, "already": True}
        (fleet / "training" / "result.json").write_text('{"run": "r", "delivered": []}')
        assert status_of(fleet)["wanted"] is False
        assert "The server begins a training." in Done("fleet", "train", fleet).out


def test_in_a_fleet_that_is_called_the_status_shows_the_notice(tmp_path: Path) -> None:
    from fedkad.fleet.server.noticeboard import NoticeBoard
    from fedkad.fleet.server.settings import ServerFolder
    from fedkad.fleet.shared.notice import invitation_for

    folder = tmp_path / "called"
    document(
        "fleet", "init", folder, "--address", "localhost", *CHANNELS, "--devices-per-training", "3", "--period", "10m"
    )
    for k in range(5):
        document("fleet", "add", folder, f"pump-{k}")
    assert status_of(folder)["notice"] is None
    names = list(registry.read(folder / "devices.json"))
    NoticeBoard(ServerFolder(folder)).show(600.0, invitation_for("salt", names, 3), len(names))
    notice = status_of(folder)["notice"]
    assert (len(notice["called"]), notice["model"]) == (3, None)
    assert f"{notice['number']}, calls 3 devices, no model" in Done("fleet", "status", folder).out
    assert "remove delivered.json from its folder" in fails("fleet", "deliver", folder, "pump-1")
    assert "raise it" in fails(
        "fleet", "init", tmp_path / "f", "--address", "localhost", *CHANNELS, "--devices-per-training", "2"
    )
    begun = ("fleet", "init", tmp_path / "f", "--address", "x", *CHANNELS)
    assert all("from 1s to 6h" in wrong(*begun, "--period", period) for period in ("soon", "7h"))


def test_the_status_shows_counts_and_exceptions_of_a_large_fleet(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkad.cli import fleetstatus
    from fedkad.fleet.flower.control import Node

    with registry.changing(fleet / "devices.json") as devices:
        for k in range(1000):
            registry.add(devices, f"pump-{k}", f"key {k}")
        registry.revoke(devices, "pump-999")
    known = settings.load(fleet)
    settings.save(fleet, replace(known, notice=replace(known.notice, on_demand=False)))
    nodes = {f"key {k}": Node(k, f"pump-{k}", "online", "2026-01-01T00:00:00") for k in range(30, 998)}
    nodes["key 0"] = Node(0, "pump-0", "offline", "2026-02-03T04:05:06.789")
    monkeypatch.setattr(fleetstatus, "_nodes", lambda server: (nodes, ""))
    with locks.holding(fleet / "server.lock", ""):
        assert status_of(fleet, exit_status=0)["counts"] == {
            "registered": 999,
            "online": 968,
            "waiting": 0,
            "offline": 1,
            "never seen": 30,
            "revoked": 1,
        }
        out = Done("fleet", "status", fleet).out
        assert "999 registered: 968 online, 1 offline, 30 never seen" in out
        assert "2026-02-03 04:05:06" in out
        assert "and 11 more; --all lists every device." in out
        assert "pump-500" not in out
        assert len(out.splitlines()) < 40
        assert Done("fleet", "status", fleet, "--all").out.count("pump-") == 1000


def test_the_status_shows_privacy_and_ends_of_certificates(fleet: Path, tmp_path: Path) -> None:
    assert "neither masked nor noisy" in Done("fleet", "status", fleet).out
    ends = {owner: end[:10] for owner, end in status_of(fleet)["certificates"].items()}
    assert set(ends) == {"server", "notices", "authority"}
    assert f"server until {ends['server']}" in Done("fleet", "status", fleet).out
    document("fleet", "init", tmp_path / "f", "--address", "x", *CHANNELS, "--noise", "20", "--rounds", "8")
    assert "noise 20: ε = 1.06 of a device with 8 replies in a training" in Done("fleet", "status", tmp_path / "f").out


def wait_for_training(fleet: Path, ended: Callable[[], None]) -> tuple[Done, list[Any]]:
    """Ask for a training and wait for it; what was asked for, as it ends."""
    asked: list[Any] = []

    def end() -> None:
        while (request := training_files.read_request(fleet / "training")) is None:
            time.sleep(0.01)
        asked.append(request)
        ended()

    with locks.holding(fleet / "server.lock", ""):
        thread = threading.Thread(target=end)
        thread.start()
        done = Done("fleet", "train", fleet, "--wait")
        thread.join()
    return done, asked


def test_waiting_for_a_training_tells_its_outcome(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.cli.fleettrainings.PAUSE", 0.01)
    wanted = fleet / "training" / "wanted"

    def finish() -> None:
        finish_trainings(fleet, "run-1")
        wanted.unlink()

    done, _ = wait_for_training(fleet, finish)
    assert (done.status, done.out) == (0, "Training run-1 is done.\n")

    def keep_back() -> None:
        training = Coordinator(make_terms("run-2"), TrainingPlan(), fleet / "training")
        training.state.gate = {"judges": 5, "ratio": 1.25, "worse": True}
        training.delivery.keep_back()
        wanted.unlink()

    done, _ = wait_for_training(fleet, keep_back)
    assert done.status == 1
    assert "training run-2 is not delivered: 5 devices lose 1.25 times as much" in done.err
    done, asked = wait_for_training(fleet, wanted.unlink)
    assert (done.status, asked[0].after) == (1, "run-2")
    assert "error: The training broke off" in done.err


def test_waiting_outlasts_a_status_that_cannot_be_read_and_tells_what_a_training_waits_for(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkad.cli.fleettrainings.PAUSE", 0.01)
    training = fleet / "training"

    def finish() -> None:
        (training / "status.json").write_text("junk")
        time.sleep(0.3)
        (training / "waits").write_text("waits for devices; 1 online, 3 needed")
        time.sleep(0.3)
        finish_trainings(fleet, "run-1")
        (training / "wanted").unlink()

    done, _ = wait_for_training(fleet, finish)
    assert (done.status, done.out) == (0, "Training run-1 is done.\n")
    assert done.err.count("status.json: this is not the report of a training") == 1
    assert done.err.count("The training waits for devices; 1 online, 3 needed.") == 1


def test_an_operator_cancels_a_training(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.cli.fleettrainings.SHORT_PAUSE", 0.01)
    training = fleet / "training"
    assert "there is no training to cancel" in fails("fleet", "train", fleet, "--cancel")
    requests.request_training(training)
    assert document("fleet", "train", fleet, "--cancel") == {"wanted": False, "cancelled": True}
    assert status_of(fleet)["wanted"] is False
    (training / "wanted").unlink()
    for end, said in (
        ((training / "wanted").unlink, "The training is cancelled."),
        (lambda: finish_trainings(fleet, "run-1"), "too late to cancel. Training run-1 is done."),
    ):
        requests.request_training(training)
        with locks.holding(fleet / "server.lock", ""):
            thread = threading.Thread(target=when_cancelled, args=(training, end))
            thread.start()
            done = Done("fleet", "train", fleet, "--cancel")
            thread.join()
        assert said in done.out + done.err
    monkeypatch.setattr("fedkad.cli.fleettrainings.LONGEST_END", 0.0)
    requests.request_training(training)
    with locks.holding(fleet / "server.lock", ""):
        assert "its run has not ended yet" in fails("fleet", "train", fleet, "--cancel")


def when_cancelled(training: Path, end: Callable[[], None]) -> None:
    """Do what a server does once a training is cancelled."""
    while training_files.is_requested(training):
        time.sleep(0.01)
    end()
    (training / "wanted").unlink(missing_ok=True)


def test_waiting_ends_with_the_server(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.cli.fleettrainings.PAUSE", 0.01)
    monkeypatch.setattr("fedkad.cli.fleettrainings.AWAY", 0.0)
    held = iter([True])
    monkeypatch.setattr(locks, "is_held", lambda path: next(held, False))
    assert "The training then goes on." in fails("fleet", "train", fleet, "--wait")
    assert (fleet / "training" / "wanted").exists()


# -- server and client, refused ---------------------------------------------------------------------------------


def test_one_server_and_one_client_per_folder(fleet: Path) -> None:
    pytest.importorskip("flwr", reason="the extra `fleet` is not installed")
    document("fleet", "add", fleet, "pump-1")
    device = fleet / "devices" / "pump-1"
    with locks.holding(fleet / "server.lock", ""), locks.holding(device / "client.lock", ""):
        assert "a server is already running in this folder" in fails("server", fleet)
        assert "a client is already running in this folder" in fails("client", device)


def test_a_server_needs_nginx(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="the extra `fleet` is not installed")
    monkeypatch.setattr("fedkad.fleet.flower.proxy.shutil.which", lambda name, path: None if name == "nginx" else name)
    for name in ("PATH", "FLWR_HOME", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "/nowhere")  # put back what the server sets
    assert "needs nginx" in fails("server", fleet)


def test_a_port_in_use_is_reported(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="the extra `fleet` is not installed")
    for name in ("PATH", "FLWR_HOME", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr("fedkad.fleet.server.operation.FREED_WITHIN", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = (fleet / "fleet.toml").read_text().replace("control_port = 8000", f"control_port = {port}")
        (fleet / "fleet.toml").write_text(text)
        sentence = fails("server", fleet)
    assert f"cannot listen on port {port}" in sentence or "port 8443" in sentence


def test_a_client_reports_what_its_folder_lacks(fleet: Path, tmp_path: Path) -> None:
    document("fleet", "add", fleet, "pump-1")
    device = fleet / "devices" / "pump-1"
    assert "device.toml: there is no such file" in fails("client", tmp_path)
    assert "correct --data" in fails("client", device, "--data", tmp_path / "none.csv")
    (device / "device.key").write_text("junk")
    assert "device.key: the file is not a private key" in fails("client", device)
    (device / "device.key").unlink()
    assert "device.key: there is no such file" in fails("client", device)


def test_an_idle_client_leaves_with_a_sentence(fleet: Path) -> None:
    document("fleet", "add", fleet, "pump-1")
    device = fleet / "devices" / "pump-1"
    toml = (device / "device.toml").read_text().replace("fleet.example:8443", "127.0.0.1:9")
    (device / "device.toml").write_text(toml)
    done = Done("client", device, "--idle", "0.01")
    assert done.status == 1
    assert "127.0.0.1:9 cannot be reached" in done.err
    assert "No request came from 127.0.0.1:9 for 0.01 minutes" in done.err.splitlines()[-1]


ACTIVATION_REFUSED = "Exit Code: 305\n[code: 2004] Failed to activate SuperNode.\n"


@pytest.mark.parametrize(
    ("status", "output", "was_connected", "sentence"),
    [
        (0, "SuperNode ID: 5", False, "no longer accepts pump"),
        (-2, "SuperNode ID: 5", False, "no longer accepts pump"),
        (0, "", False, "check the clock"),
        (1, "Exit Code: 302", False, "cannot read this key"),
        (1, ACTIVATION_REFUSED, True, "still counts the last connection"),
        (1, ACTIVATION_REFUSED, False, "does not know the key"),
        (-9, "SuperNode ID: 5", True, "ended with status -9"),
        (70, "SuperNode ID: 5", True, "of pump to localhost:1 was lost; connecting again"),
    ],
)
def test_the_end_of_a_connection_is_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, output: str, was_connected: bool, sentence: str
) -> None:
    folder = DeviceFolder(tmp_path, "pump", "localhost:1")
    client = connection.DeviceClient(folder, "")
    client.log.append(output)
    folder.flower.mkdir()
    if was_connected:
        (folder.flower / "connected").touch()
    client._explain_end(status)
    assert sentence in caplog.text
    assert not client.wait.over


@pytest.mark.parametrize(("owes_for", "settled_after"), [(0.0, 0.0), (7.0, 7.0), (1e9, 61.0)])
def test_a_delivery_is_settled_once_the_server_had_time_to_learn_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owes_for: float, settled_after: float
) -> None:
    delivered = DeviceFolder(tmp_path, "pump", "localhost:1").delivered
    assert delivered == tmp_path / "delivered.json"
    delivered.touch()
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    delivery = Delivery(delivered)
    (tmp_path / "model.safetensors").touch()  # an agent renews its own
    assert not delivery.is_settled(False)
    (tmp_path / "new").touch()
    (tmp_path / "new").replace(delivered)
    while not delivery.is_settled(now - 1000.0 < owes_for):
        now += 1.0
    assert now - 1000.0 == settled_after + COLLECTED


# -- the extra --------------------------------------------------------------------------------------------------


def test_a_missing_extra_is_reported_with_its_remedy(
    tmp_path: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    remedy = "install it with pip install 'fedkad[fleet]'."
    assert remedy in fails("fleet", "init", tmp_path / "f", "--address", "localhost", *CHANNELS)
    assert remedy in fails("fleet", "add", fleet, "x")
    assert remedy in fails("fleet", "status", fleet)
    assert remedy in fails("server", fleet)
    assert remedy in fails("client", fleet)
    assert not (tmp_path / "f").exists()


@pytest.mark.slow
def test_the_command_line_starts_without_flower() -> None:
    code = "import sys, fedkad.cli.app; print([name for name in ('flwr', 'cryptography') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# -- the models that are kept ------------------------------------------------------------------------------------


def finish_trainings(fleet: Path, *runs: str) -> None:
    for run in runs:
        training = Coordinator(make_terms(run), TrainingPlan(), fleet / "training")
        training.state.ledger.delivered = ["pump-1", "pump-2"]
        training.delivery.finish()


def test_an_operator_sees_the_models_and_goes_back(fleet: Path) -> None:
    assert "no training yet" in Done("fleet", "history", fleet).out
    assert "no earlier model to go back to" in fails("fleet", "rollback", fleet)
    finish_trainings(fleet, "run-1", "run-2")
    assert [(each["run"], each["state"]) for each in document("fleet", "history", fleet)] == [
        ("run-2", "current"),
        ("run-1", "earlier"),
    ]
    assert document("fleet", "rollback", fleet) == {"current": "run-1"}
    shown = Done("fleet", "history", fleet).out
    assert shown.index("run-2") < shown.index("earlier") < shown.index("run-1") < shown.index("current")
    assert json.loads((fleet / "training" / "result.json").read_text())["delivered"] == []


def test_a_file_that_is_no_model_is_named(fleet: Path) -> None:
    finish_trainings(fleet, "run-1", "run-2")
    (fleet / "training" / "models" / "run-0.safetensors").write_bytes(b"junk")
    done = Done("fleet", "history", fleet, "--json")
    assert [each["run"] for each in json.loads(done.out)] == ["run-2", "run-1"]
    assert "run-0.safetensors" in done.err
    assert done.err.endswith("It is left out.\n")


def test_an_operator_delivers_to_one_device_again(fleet: Path) -> None:
    assert "There is no device pump-1" in fails("fleet", "deliver", fleet, "pump-1")
    document("fleet", "add", fleet, "pump-1")
    assert "no model to deliver yet" in fails("fleet", "deliver", fleet, "pump-1")
    finish_trainings(fleet, "run-1")
    assert "gets the current model" in Done("fleet", "deliver", fleet, "pump-1").out
    assert json.loads((fleet / "training" / "result.json").read_text())["delivered"] == ["pump-2"]
    with locks.holding(fleet / "training" / "app.lock", ""):
        assert "a training or a delivery is under way" in fails("fleet", "deliver", fleet, "pump-1")
