"""The notice and the models on a server's board: when they are written, how the real nginx serves them, who follows."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad import KoopmanDetector
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.delivery import current_delivery, read_delivery, write_delivery
from fedkad.federation.protocol import ProtocolError
from fedkad.fleet.device import idleclient
from fedkad.fleet.device.connection import DeviceClient
from fedkad.fleet.device.httpsclient import HttpsClient, UnreachableError
from fedkad.fleet.device.idleclient import AdoptionError, IdleArguments, IdleLoop
from fedkad.fleet.device.noticeclient import JITTER, NoticeClient
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.flower import proxy
from fedkad.fleet.server import enrolment, lastseen
from fedkad.fleet.server.lastseen import LastSeenTracker
from fedkad.fleet.server.noticeboard import NOTICE, PACE, NoticeBoard
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Place, ServerFolder
from fedkad.fleet.shared import certificates, devicefolder
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.notice import EVERYBODY, LIFE, REPORT_EVERY, Invitation, NamedModel, NoticeError
from fedkad.fleet.shared.processes import LogFile, SupervisedProcess, ending_all
from measurements.loopback import free_port, wait
from tests.fixtures.trainings import MODEL, make_terms, series

PATIENCE = 120.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Desk:
    """A server's folder with its board, and a device."""

    folder: ServerFolder
    clock: Clock
    board: NoticeBoard
    device: devicefolder.DeviceFolder

    def show(self, invitation: Invitation | None = None, *, devices: int = 1, period: float = 60.0) -> int:
        self.board.show(period, invitation, devices)
        found = self.board.last()
        assert found is not None
        return found.sequence

    def finish(self, run: str) -> None:
        """A training that is done."""
        coordinator = Coordinator(make_terms(run), TrainingPlan(), self.folder.training)
        coordinator.delivery.finish()

    @property
    def model(self) -> NamedModel | None:
        """The model that the notice names."""
        found = self.board.last()
        assert found is not None
        return found.body.model

    def notices(self) -> NoticeClient:
        return NoticeClient(self.device, clock=self.clock)


def make_desk(root: Path, port: int = 8443) -> Desk:
    place = Place("127.0.0.1", port, free_port(), bind="127.0.0.1")
    model = ModelSettings(("0", "1"), **MODEL)
    folder = enrolment.make_fleet(root / "server", FleetSettings(place, model))
    shutil.copytree(enrolment.add_device(folder, "pump", None), root / "pump")
    enrolment.prepare(folder)
    clock = Clock(time.time())
    return Desk(folder, clock, NoticeBoard(folder, clock), load_device(root / "pump"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return make_desk(tmp_path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Desk]:
    """A desk whose files the real nginx serves."""
    if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{proxy.ELSEWHERE}") is None:
        pytest.skip("a server needs nginx")
    made = make_desk(tmp_path, free_port())
    process = SupervisedProcess(
        "proxy", proxy.command(made.folder.root), LogFile(made.folder.logs / "proxy.log"), os.environ
    )
    with ending_all([process]):
        process.tend()
        wait(lambda: is_listening(made.folder.settings.place.port), PATIENCE, "nginx listening")
        yield made


def is_listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


# -- the board ---------------------------------------------------------------------------------------------------


def test_a_notice_is_written_when_there_is_something_new_to_say(desk: Desk) -> None:
    first = desk.show()
    assert desk.show() == first
    second = desk.show(EVERYBODY)
    assert second > first
    assert desk.show(EVERYBODY) == second
    assert desk.show(EVERYBODY, period=120.0) > second


def test_a_notice_is_renewed_long_before_it_expires(desk: Desk) -> None:
    first = desk.show()
    desk.clock.now += LIFE / 2 - 10
    assert desk.show() == first
    desk.clock.now += 20
    assert desk.show() > first


def test_a_board_knows_that_its_notice_should_have_been_renewed(desk: Desk) -> None:
    assert not desk.board.is_overdue, "there is none"
    desk.show()
    assert not desk.board.is_overdue
    desk.clock.now += LIFE / 2 + 10
    assert desk.board.is_overdue
    desk.show()
    assert not desk.board.is_overdue


def test_a_notice_of_a_clock_that_was_ahead_is_not_valid_for_longer_than_others(desk: Desk) -> None:
    desk.clock.now += 365 * LIFE
    ahead = desk.show()
    desk.clock.now -= 365 * LIFE
    assert desk.show() > ahead, "devices accept no smaller number"
    found = desk.board.last()
    assert found is not None
    assert found.expires == int(desk.clock.now) + LIFE
    assert desk.show() == found.sequence


def test_a_notice_that_no_device_would_accept_is_not_written(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.show(EVERYBODY)
    shown = (desk.folder.public / NOTICE).read_bytes()
    with monkeypatch.context() as earlier:
        earlier.setattr(certificates, "HEAD_START", timedelta(days=certificates.SERVER_DAYS + 1))
        enrolment.renew_server(desk.folder)
    with pytest.raises(FleetFileError, match=r"notice\.crt: .* check the clock of this machine, or make another"):
        desk.show()
    assert (desk.folder.public / NOTICE).read_bytes() == shown
    enrolment.renew_server(desk.folder)
    desk.show()
    assert (desk.folder.public / NOTICE).read_bytes() != shown


def test_no_two_notices_have_the_same_tag(desk: Desk) -> None:
    """nginx makes it of the time of the file, in seconds, and its size; here all are written within one second."""
    seen = set()
    for k in range(20):
        desk.show(Invitation("salt", 1000 + k))
        found = (desk.folder.public / NOTICE).stat()
        seen.add((int(found.st_mtime), found.st_size))
    assert len(seen) == 20


def test_a_server_restored_from_a_backup_is_not_behind_its_devices(desk: Desk, tmp_path: Path) -> None:
    desk.show(EVERYBODY)
    shutil.copytree(desk.folder.public, tmp_path / "backup")
    desk.clock.now += 100
    last = desk.show()
    shutil.rmtree(desk.folder.public)
    shutil.copytree(tmp_path / "backup", desk.folder.public)
    desk.clock.now += 100
    assert desk.show() > last


def test_a_new_key_signs_at_once_and_the_old_one_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.show(EVERYBODY)
    old = (desk.folder.public / NOTICE).read_bytes()
    notices = desk.notices()
    notices._accept(old)
    monkeypatch.setattr(certificates, "HEAD_START", 0.5 * certificates.HEAD_START)
    enrolment.renew_server(desk.folder)
    desk.show(EVERYBODY)
    fresh = (desk.folder.public / NOTICE).read_bytes()
    assert fresh != old
    notices._accept(fresh)
    with pytest.raises(NoticeError, match="older key than the last one"):
        notices._accept(old)


def test_a_fleet_of_an_earlier_release_gets_its_key(desk: Desk) -> None:
    desk.folder.notice_key.unlink()
    desk.folder.notice_certificate.unlink()
    shutil.rmtree(desk.folder.public)
    enrolment.prepare(desk.folder)
    assert desk.show(EVERYBODY)


def test_the_current_model_is_a_file_that_every_device_can_adopt(desk: Desk) -> None:
    desk.show()
    assert desk.model is None
    runs: list[str] = []
    for run in ("run-1", "run-2", "run-3"):
        desk.finish(run)
        desk.clock.now += 10
        desk.show(devices=1_000_000)
        model = desk.model
        assert model is not None
        content = (desk.folder.public / "models" / model.sha256).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (model.sha256, model.size)
        assert model.spread == round(1_000_000 * model.size / PACE)
        runs.append(read_delivery(desk.folder.public / "models" / model.sha256).terms.run)
    assert runs == ["run-1", "run-2", "run-3"]
    assert len(list((desk.folder.public / "models").iterdir())) == 2


def test_a_delivery_in_a_file_is_the_one_that_the_server_sends(desk: Desk, tmp_path: Path) -> None:
    desk.finish("run-1")
    sent = current_delivery(desk.folder.training)
    assert sent is not None
    write_delivery(tmp_path / "file", sent)
    assert read_delivery(tmp_path / "file") == sent
    (tmp_path / "file").write_bytes(b"junk")
    with pytest.raises(ProtocolError, match="not a delivery"):
        read_delivery(tmp_path / "file")


# -- nginx and a device ------------------------------------------------------------------------------------------


def ask(desk: Desk, path: str, method: str = "GET", **headers: str) -> int:
    trust = ssl.create_default_context(cafile=str(desk.folder.ca_certificate))
    port = desk.folder.settings.place.port
    line = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=PATIENCE)
    line.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = line.getresponse()
    answer.read()
    line.close()
    return answer.status


def test_anybody_may_read_the_notice_and_nothing_else(served: Desk) -> None:
    served.finish("run-1")
    served.show()
    assert ask(served, "/notice") == 200
    assert ask(served, "/notice", "POST") == ask(served, "/notice", "DELETE") == 403
    assert served.model is not None
    digest = served.model.sha256
    assert ask(served, f"/models/{digest}") == ask(served, f"/models/{digest}", flwr_public_key="x") == 401
    for path in (
        "/models/",
        "/models",
        "/",
        "/public/notice",
        "/models/../../ca/ca.key",
        "/../ca/ca.key",
        "/ca/ca.key",
    ):
        assert ask(served, path) in (400, 403), path
    assert ask(served, "/models/%2e%2e/%2e%2e/ca/ca.key") in (400, 403)


def test_a_device_asks_with_the_tag_and_resumes_its_session(served: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, resumed = [], []
    get, connect = HttpsClient.get, HttpsClient.connect

    def noted(files: HttpsClient, *arguments: Any) -> Any:
        answer = get(files, *arguments)
        statuses.append((answer.status, len(answer.content) > 0))
        return answer

    def opened(files: HttpsClient) -> ssl.SSLSocket:
        line = connect(files)
        resumed.append(line.session_reused)
        return line

    monkeypatch.setattr(HttpsClient, "get", noted)
    monkeypatch.setattr(HttpsClient, "connect", opened)
    served.show()
    notices = served.notices()
    notices.look()
    notices.look()
    assert not notices.is_called
    served.show(EVERYBODY)
    notices.look()
    assert notices.is_called
    assert statuses == [(200, True), (304, False), (200, True)]
    assert resumed == [False, True, True]


def test_the_next_look_is_a_period_away_more_or_less(served: Desk) -> None:
    served.show(period=100.0)
    timer = Clock()
    notices = NoticeClient(served.device, timer=timer)
    notices.look()
    waits = []
    for _ in range(20):
        notices.look()
        waits.append(notices.next_look)
    assert 100 * (1 - JITTER) <= min(waits) < max(waits) <= 100 * (1 + JITTER)
    assert not notices.is_due
    timer.now = max(waits)
    assert notices.is_due


def test_looks_of_a_clock_that_was_wrong_do_not_hide_for_long_that_a_device_is_silent(desk: Desk) -> None:
    future, kept = time.time() + 30 * 86_400.0, LastSeenTracker(desk.folder)
    kept.poll_log.parent.mkdir(exist_ok=True)
    kept.poll_log.write_text(f"{future:.3f} pump\n176350{future:.3f} press\n{future:.3f} stranger\n")
    kept.take({"pump": None, "press": None})
    assert set(kept.last) == {"pump", "press"}
    assert max(kept.last.values()) <= time.time()
    desk.folder.seen.write_text(json.dumps({"pump": future}))
    assert lastseen.read(desk.folder)["pump"] <= time.time()


def test_a_device_says_once_an_hour_that_it_looks_and_strangers_are_not_written_down(served: Desk) -> None:
    served.show()
    timer, book = Clock(), served.folder.root / proxy.POLL_LOG
    notices = NoticeClient(served.device, timer=timer)
    kept = LastSeenTracker(served.folder, timer=timer)
    for _ in range(3):
        notices.look()
    wait(lambda: book.stat().st_size > 0, PATIENCE, "a line of nginx")
    served.device.key.write_bytes(certificates.make_device_key().key)
    timer.now = REPORT_EVERY
    notices.look()
    assert book.read_text().endswith(" pump\n")
    assert book.read_text().count("\n") == 1
    kept.take({"pump": None})
    assert book.stat().st_size == 0
    assert abs(kept.last["pump"] - time.time()) < PATIENCE
    assert lastseen.read(served.folder) == kept.last == LastSeenTracker(served.folder).last


def test_an_old_notice_is_refused_even_after_a_restart_of_the_device(served: Desk) -> None:
    notice = served.folder.public / NOTICE
    served.show(EVERYBODY)
    old = notice.read_bytes()
    served.show()
    served.notices().look()
    notice.write_bytes(old)
    again = served.notices()
    with pytest.raises(NoticeError, match="was here before"):
        again.look()
    assert not again.is_called


def test_a_device_from_which_notices_are_withheld_does_nothing_about_the_last_one(served: Desk) -> None:
    served.finish("run-1")
    served.show(EVERYBODY)
    notices = served.notices()
    notices.look()
    assert notices.is_called
    assert notices.model is not None
    served.clock.now += LIFE
    assert not notices.is_called
    assert notices.model is None
    for _ in ("it has not changed since", "here it is in full"):
        with pytest.raises(NoticeError, match="has expired"):
            notices.look()
        assert not notices.tag
    with pytest.raises(NoticeError, match="has expired"):
        served.notices().look()
    served.show(EVERYBODY)
    notices.look()
    assert notices.is_called
    assert notices.model is not None


def test_a_connected_device_says_once_that_its_notice_has_expired_and_stays(
    served: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedkad.fleet.device.connection")
    served.device.flower.mkdir()
    served.show(EVERYBODY)
    client = DeviceClient(served.device, "")
    client.notices = served.notices()

    def is_called() -> bool:
        client.notices.next_look = 0.0
        return client._is_called()

    assert is_called()
    assert not caplog.messages
    served.clock.now += LIFE
    for _ in range(3):
        assert is_called()
        client._log("pump: something else")
    assert len([message for message in caplog.messages if "The notice has expired" in message]) == 1
    served.show(EVERYBODY)
    assert is_called()
    assert is_called()
    assert caplog.messages[-1] == f"pump: accepts the notice of {served.device.server} again"
    served.clock.now += LIFE
    assert is_called()
    served.show()
    assert not is_called(), "the new notice calls nobody"
    served.clock.now += LIFE
    assert not is_called(), "and it does not begin to by getting old"


def test_a_server_without_notices_has_its_devices_connected_as_before(served: Desk) -> None:
    served.show()
    notices = served.notices()
    assert notices.is_called, "as long as nobody has said anything"
    notices.look()
    assert not notices.is_called
    (served.folder.public / NOTICE).unlink()
    notices.look()
    assert notices.is_called


def test_a_device_that_cannot_reach_its_server_goes_by_what_it_knows(tmp_path: Path) -> None:
    desk = make_desk(tmp_path, free_port())  # where no nginx runs
    desk.show()
    desk.notices()._accept((desk.folder.public / NOTICE).read_bytes())
    notices = desk.notices()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        notices.look()
    assert not notices.is_called


def test_a_device_that_was_here_before_does_not_look_at_once(desk: Desk) -> None:
    """A site whose power comes back looks as often as ever."""
    assert NoticeClient(desk.device, timer=Clock(7.0)).is_due, "a new device has nothing to go by"
    desk.show(period=100.0)
    desk.notices()._accept((desk.folder.public / NOTICE).read_bytes())
    waits = [NoticeClient(desk.device, timer=Clock(7.0)).next_look - 7.0 for _ in range(50)]
    assert 0.0 <= min(waits) < 30.0 < 70.0 < max(waits) <= 100.0


def test_a_damaged_memory_of_the_last_notice_is_no_notice(served: Desk) -> None:
    served.show()
    served.notices().look()
    served.device.notice.write_bytes(b"fedkad notice 1\njunk")
    assert served.notices().last is None


# -- fetching a model --------------------------------------------------------------------------------------------


def waiting_at(desk: Desk) -> IdleLoop:
    notices = desk.notices()
    notices.look()
    known = IdleArguments(str(desk.device.root), "pump", desk.device.server, "", once=False, idle=None)
    return IdleLoop(known, notices)


def test_a_device_fetches_what_the_notice_names_and_puts_it_in_use(served: Desk) -> None:
    KoopmanDetector(**MODEL).fit(series("a")).save(served.device.model)
    served.finish("run-1")
    served.show()
    device = waiting_at(served)
    assert device.obtain()
    assert idleclient.held_run(served.device) == "run-1"
    assert not served.device.fetched.exists()
    assert not device.obtain(), "it holds it now"
    served.finish("run-2")  # going back is a newer notice as well
    served.show()
    device.notices.look()
    assert device.obtain()
    assert idleclient.held_run(served.device) == "run-2"


def test_a_device_that_cannot_use_a_model_says_why_and_tries_again_later(
    served: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served.finish("run-1")
    served.show()
    device, now = waiting_at(served), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tried: list[float] = []
    while len(tried) < 4:
        before = device.wait.until
        assert not device.obtain()
        if device.wait.until != before:
            tried.append(now)
        now += 10.0
    assert [b - a for a, b in pairwise(tried)] == [60.0, 120.0, 240.0]
    assert len(caplog.messages) == 1
    assert "has neither a table" in caplog.messages[0]
    assert served.device.fetched.exists(), "it need not be fetched again"


def test_a_device_whose_key_is_damaged_names_it_and_goes_on_waiting(
    served: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    served.finish("run-1")
    served.show()
    device = waiting_at(served)
    served.device.key.write_bytes(b"junk")
    assert not device.obtain()
    assert f"{served.device.key}: the file is not a private key" in caplog.messages[-1]


def test_a_device_that_was_revoked_says_so_when_there_is_a_new_model(
    served: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    served.finish("run-1")
    served.show()
    device = waiting_at(served)
    served.device.key.write_bytes(certificates.make_device_key().key)
    assert not device.obtain()
    assert "the server does not know the key of this device, which was revoked" in caplog.messages[-1]


def test_a_waiting_device_that_was_revoked_says_so_once_an_hour_and_when_it_is_known_again(
    served: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedkad")
    served.show()
    device, key = waiting_at(served), served.device.key.read_bytes()

    def said_an_hour_later() -> str:
        device.notices.next_report = device.notices.timer()
        device._look()
        device._look()
        return caplog.messages[-1]

    for _ in range(2):
        assert said_an_hour_later().startswith("pump: waits until ")
        served.device.key.write_bytes(certificates.make_device_key().key)
        assert said_an_hour_later().startswith("pump is not called any more: the server does not know the key")
        served.device.key.write_bytes(key)
    assert said_an_hour_later().startswith("pump: waits until ")
    assert len([line for line in caplog.messages if "pump" in line]) == 5, "each is said once"


def test_only_the_file_that_the_notice_names_counts(served: Desk) -> None:
    served.finish("run-1")
    served.show()
    notices = served.notices()
    notices.look()
    assert notices.model is not None
    path = served.folder.public / "models" / notices.model.sha256
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(AdoptionError, match="not the file that its notice names"):
        idleclient.fetch(served.device, notices, notices.model)
    path.unlink()
    with pytest.raises(AdoptionError, match="answers 404"):
        idleclient.fetch(served.device, notices, notices.model)
    assert not served.device.fetched.exists()


# -- the process that waits --------------------------------------------------------------------------------------


def start_waiting(desk: Desk, *, once: bool = False, idle: float | None = None) -> subprocess.Popen[str]:
    known = IdleArguments(str(desk.device.root), "pump", desk.device.server, "", once, idle)
    command = [sys.executable, "-Pm", "fedkad.fleet.device.idleclient", json.dumps(vars(known))]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_with_once_it_leaves_when_it_has_a_model(served: Desk) -> None:
    KoopmanDetector(**MODEL).fit(series("a")).save(served.device.model)
    served.finish("run-1")
    served.show()
    process = start_waiting(served, once=True)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    assert "a new model was delivered" in said.splitlines()[-1]
    assert idleclient.held_run(served.device) == "run-1"


def test_with_idle_it_leaves_with_a_sentence_if_nobody_calls(served: Desk) -> None:
    served.show()
    process = start_waiting(served, idle=0.6)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    assert said.splitlines()[-1] == f"error: No request came from {served.device.server} for 0.01 minutes."


def test_it_leaves_in_peace_and_there_is_only_one(served: Desk) -> None:
    served.show()
    process = start_waiting(served)
    assert process.stderr is not None
    assert "waits until" in process.stderr.readline()
    other = start_waiting(served)
    assert "a client is already running in this folder" in other.communicate(timeout=PATIENCE)[1]
    assert other.returncode == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    process.stderr.close()


def test_it_becomes_the_client_with_the_same_options_when_it_is_called(
    served: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BecomesError(Exception):
        pass

    def become(program: str, words: list[str]) -> None:
        raise BecomesError(words[1:])

    monkeypatch.setattr(os, "execv", become)
    served.show(EVERYBODY)
    known = IdleArguments(str(served.device.root), "pump", served.device.server, "/table.csv", once=True, idle=90.0)
    with pytest.raises(BecomesError) as client:
        IdleLoop(known, served.notices()).run()
    root = str(served.device.root)
    assert client.value.args[0] == ["-Pm", "fedkad", "client", root, "--data", "/table.csv", "--once", "--idle", "1.5"]
    with pytest.raises(BecomesError) as again:
        known.begin()
    assert again.value.args[0][:2] == ["-Pm", "fedkad.fleet.device.idleclient"]
    assert IdleArguments(**json.loads(again.value.args[0][2])) == known


def test_it_needs_neither_numpy_nor_flower() -> None:
    code = "import sys, fedkad.fleet.device.idleclient; print(sorted({'numpy', 'flwr', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
