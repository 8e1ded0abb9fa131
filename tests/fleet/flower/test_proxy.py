"""The real nginx in front of a server, without Flower behind it: what it lets through, and what that may cost."""

from __future__ import annotations

import http.client
import http.server
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet.device.connection import foreign_key
from fedkad.fleet.device.httpsclient import HttpsClient
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.flower import proxy
from fedkad.fleet.server import enrolment, proxysupervisor, registry, settings
from fedkad.fleet.server.enrolment import largest_reply
from fedkad.fleet.server.operation import check_port
from fedkad.fleet.server.proxysupervisor import ProxySupervisor
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Place, Privacy, ServerFolder, TrainingSettings
from fedkad.fleet.shared import certificates, devicefolder
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.processes import LogFile, SupervisedProcess, ending_all
from measurements.loopback import descendants, free_port, wait

if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{proxy.ELSEWHERE}") is None:
    pytest.skip("a server needs nginx", allow_module_level=True)

PATIENCE = 120.0
MODEL = ModelSettings(("flow", "heat"), window=4, rank=3, observables=8)


@dataclass
class Fronted:
    """A folder whose nginx runs in front of something that answers like Flower and remembers what reached it."""

    folder: ServerFolder
    process: SupervisedProcess
    door: ProxySupervisor
    reached: list[tuple[str, int]] = field(default_factory=list)

    def key(self, name: str) -> str:
        """The header by which a device is known."""
        return b64encode(registry.read(self.folder.registry)[name].public_key.encode()).decode()

    def connect(self) -> ssl.SSLSocket:
        """A connection to the public port."""
        trust = ssl.create_default_context(cafile=str(self.folder.ca_certificate))
        plain = socket.create_connection(("127.0.0.1", self.folder.settings.place.port), timeout=PATIENCE)
        return trust.wrap_socket(plain, server_hostname="127.0.0.1")

    def ask(self, endpoint: str, key: str | None, *, size: int = 0, body: bytes = b"") -> int:
        """The status of a request that announces a body of `size` bytes; it need not send any."""
        with self.connect() as line:
            shown = "" if key is None else f"flwr-public-key: {key}\r\n"
            head = f"POST /v1/fleet/{endpoint} HTTP/1.1\r\nHost: x\r\n{shown}Content-Length: {size}\r\n\r\n"
            line.sendall(head.encode() + body)
            answer = http.client.HTTPResponse(line)
            answer.begin()
            return answer.status


@pytest.fixture(scope="module")
def fronted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    place = Place("127.0.0.1", free_port(), free_port(), bind="127.0.0.1")
    folder = enrolment.make_fleet(tmp_path_factory.mktemp("fronted") / "server", FleetSettings(place, MODEL))
    for name in ("pump", "press", "flood"):
        enrolment.add_device(folder, name, None)
    enrolment.prepare(folder)
    log = LogFile(folder.logs / "proxy.log")
    process = SupervisedProcess("proxy", proxy.command(folder.root), log, os.environ)
    superlink = SupervisedProcess("superlink", ["sleep", "infinity"], log, os.environ)
    found = Fronted(folder, process, ProxySupervisor(folder, process, superlink))
    with Behind(folder, found.reached), ending_all([process]):
        process.tend()
        wait(lambda: is_listening(place.port), PATIENCE, "nginx listening")
        yield found


def is_listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


class Behind:
    """A server where nginx expects Flower, which answers everything with 200 and notes what arrived."""

    def __init__(self, folder: ServerFolder, reached: list[tuple[str, int]]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = len(self.rfile.read(int(self.headers["Content-Length"])))
                reached.append((self.path, size))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", folder.settings.place.control_port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder.server_certificate, folder.server_key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    def __enter__(self) -> None:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_stranger_is_answered_before_its_body_is_read(fronted: Fronted) -> None:
    before = list(fronted.reached)
    for key in (None, "", "x", "x" * 500, fronted.key("pump")[:-8]):
        assert fronted.ask("push-object", key, size=10) == 401
        assert fronted.ask("pull-messages", key, size=10) == 401
        assert fronted.ask("activate-node", key, size=10) == 412  # as Flower says it
    assert fronted.reached == before


def test_who_was_turned_away_is_logged_in_one_line_each(fronted: Fronted) -> None:
    log = fronted.folder.logs / "proxy.log"

    def lines(word: str) -> list[str]:
        return [line for line in log.read_text().splitlines() if word in line]

    stranger = b64encode(certificates.make_device_key().public).decode()
    assert fronted.ask("pull-messages", stranger, size=10) == 401
    wait(lambda: bool(lines(stranger)), PATIENCE, "the stranger's line")
    (line,) = lines(stranger)
    assert re.match(r"\d{4}-\d\d-\d\dT\S+ refused 401 127\.0\.0\.1 ", line)
    assert '"POST /v1/fleet/pull-messages HTTP/1.1" device "" key' in line
    assert fronted.ask("activate-node", "long" * 300, size=10) == 412
    wait(lambda: bool(lines("longlong")), PATIENCE, "the line about a long key")
    assert lines("longlong")[0].endswith(f"key {'long' * 80}")
    assert fronted.ask("pull-messages", fronted.key("pump"), size=0) == 200
    assert fronted.ask("pull-messages", fronted.key("press"), size=5000) == 413
    wait(lambda: bool(lines('device "press"')), PATIENCE, "the line about a device that sends too much")
    assert not lines('device "pump"'), "what is answered is not logged"


def test_a_device_sends_what_its_fleet_sends_and_no_more(fronted: Fronted) -> None:
    key, reply = fronted.key("pump"), largest_reply(fronted.folder.settings, 3)
    for endpoint, largest in (("push-object", reply), ("push-messages", 32_768), ("pull-messages", 4_096)):
        assert fronted.ask(endpoint, key, size=largest, body=b"x" * largest) == 200
        assert fronted.reached[-1] == (f"/v1/fleet/{endpoint}", largest)
        assert fronted.ask(endpoint, key, size=largest + 1) == 413
    assert not [path for path in (fronted.folder.root / "proxy" / "body").rglob("*") if path.is_file()]


def test_endpoints_that_no_device_needs_are_closed(fronted: Fronted) -> None:
    key = fronted.key("pump")
    assert fronted.ask("register-node", key) == fronted.ask("unregister-node", key) == fronted.ask("", key) == 403


def test_a_body_in_pieces_of_unknown_length_is_limited_as_well(fronted: Fronted) -> None:
    with fronted.connect() as line:
        head = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nflwr-public-key: {fronted.key('pump')}\r\n"
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        line.sendall(b"1400\r\n" + b"x" * 0x1400 + b"\r\n")
        answer = http.client.HTTPResponse(line)
        answer.begin()
        assert answer.status == 413


def test_a_device_that_floods_is_slowed_down_and_its_neighbour_is_not(fronted: Fronted) -> None:
    """Both have the same address."""
    flooding, calm = fronted.key("flood"), fronted.key("press")
    with fronted.connect() as line:
        request = (
            f"POST /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\nflwr-public-key: {flooding}\r\nContent-Length: 0\r\n\r\n"
        )
        statuses = []
        for _ in range(20 * proxy.BURST):
            line.sendall(request.encode())
            answer = http.client.HTTPResponse(line)
            answer.begin()
            answer.read()
            statuses.append(answer.status)
            if statuses[-1] == 503:
                break
    assert statuses[: proxy.BURST] == [200] * proxy.BURST
    assert statuses[-1] == 503, "a number of requests that no honest device makes"
    assert fronted.ask("get-run", calm) == 200


def test_the_network_is_not_served_by_root(fronted: Fronted) -> None:
    assert fronted.process.child is not None
    (worker,) = descendants(fronted.process.child.process.pid)
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
    assert "0" not in facts["Uid"].split()
    assert "0" not in facts["Gid"].split()


def test_there_is_room_for_many_half_sent_requests_and_files_for_all(fronted: Fronted) -> None:
    assert fronted.process.child is not None
    (worker,) = descendants(fronted.process.child.process.pid)
    limit = next(line for line in Path(f"/proc/{worker}/limits").read_text().splitlines() if "open files" in line)
    text = (fronted.folder.root / proxy.FILE).read_text()
    connections = int(text.split("worker_connections ")[1].split(";")[0])
    assert int(limit.split()[3]) >= connections + proxy.KEPT_FILES


def test_added_and_revoked_devices_are_known_without_a_restart(fronted: Fronted) -> None:
    assert fronted.process.child is not None
    master = fronted.process.child.process.pid
    enrolment.add_device(fronted.folder, "late", None)
    key = fronted.key("late")
    assert fronted.ask("pull-messages", key) == 401
    fronted.door.attend()
    wait(lambda: fronted.ask("pull-messages", key) == 200, PATIENCE, "the new device let in")
    enrolment.revoke_device(fronted.folder, "late")
    fronted.door.attend()
    wait(lambda: fronted.ask("pull-messages", key) == 401, PATIENCE, "the revoked device turned away")
    fronted.process.tend()
    assert fronted.process.child.process.pid == master


def test_a_larger_model_may_send_more_without_a_restart(fronted: Fronted) -> None:
    known, key = fronted.folder.settings, fronted.key("press")
    larger = FleetSettings(known.place, ModelSettings(("flow", "heat"), window=40, rank=20, observables=800))
    size = largest_reply(larger, 3)
    assert fronted.ask("push-object", key, size=size) == 413
    settings.save(fronted.folder.root, larger)
    fronted.door.attend()
    wait(lambda: fronted.ask("push-object", key, size=size, body=b"x" * size) == 200, PATIENCE, "a larger reply taken")
    settings.save(fronted.folder.root, known)
    fronted.door.attend()
    wait(lambda: fronted.ask("push-object", key, size=size, body=b"x" * size) == 413, PATIENCE, "the old limit back")


def test_settings_that_cannot_be_read_leave_the_proxy_as_it_is(
    fronted: Fronted, caplog: pytest.LogCaptureFixture
) -> None:
    path = fronted.folder.root / settings.FILE
    before = path.read_text()
    path.write_text("[model")
    try:
        fronted.door.attend()
        fronted.door.attend()
        assert len([record for record in caplog.records if "fleet.toml" in record.getMessage()]) == 1
        assert fronted.ask("pull-messages", fronted.key("press")) == 200
    finally:
        path.write_text(before)


def test_newcomers_that_cannot_be_added_are_told_once(
    fronted: Fronted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(folder: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(proxysupervisor, "admit_newcomers", no_room)
        for _ in range(3):
            fronted.door.receive()
            fronted.door.attend()
    assert caplog.text.count("No space left") == 1


def test_unchanged_files_are_not_written_again(tmp_path: Path) -> None:
    chosen = (tmp_path, Place(), 20_000, {"pump": "key"}, {"press": "token"})
    assert proxy.write_configuration(*chosen)
    assert not proxy.write_configuration(*chosen)
    assert proxy.write_configuration(*chosen[:2], 30_000, {"pump": "key"}, {"press": "token"})
    assert proxy.write_configuration(*chosen[:2], 30_000, {}, {"press": "token"})
    assert proxy.write_configuration(*chosen[:2], 30_000, {}, {})


def test_masks_need_more_room_than_numbers() -> None:
    plain = FleetSettings(model=MODEL)
    masked = FleetSettings(model=MODEL, privacy=Privacy(secure_aggregation=True))
    assert largest_reply(plain, 5) == largest_reply(plain, 500) == enrolment.AROUND + 4 * 16 * 3
    assert largest_reply(masked, 5) == enrolment.AROUND + 4 * 16 * 9 + 5 * enrolment.PER_PEER
    exact = FleetSettings(model=MODEL, training=TrainingSettings(encoding="float64"))
    assert largest_reply(exact, 5) == enrolment.AROUND + 8 * 16 * 3


def test_an_address_that_this_machine_lacks_is_said_at_once() -> None:
    with pytest.raises(FleetFileError, match=r"has no address 192\.0\.2\.77; correct bind in \[place\]"):
        check_port("port", "192.0.2.77", free_port())


def test_a_port_that_cannot_be_had_is_said_with_what_to_change() -> None:
    with pytest.raises(FleetFileError, match=r"Invalid argument\); change bind or port in fleet\.toml"):
        check_port("port", "fe80::1", free_port())


def test_a_device_learns_whose_key_it_has(fronted: Fronted, tmp_path: Path) -> None:
    server = fronted.folder.settings.place.reached_at
    devicefolder.write(tmp_path / "own", "pump", server, b"", (fronted.folder.devices / "pump/device.key").read_bytes())
    devicefolder.write(tmp_path / "foreign", "x", server, b"", (tmp_path / "own/device.key").read_bytes())
    devicefolder.write(tmp_path / "unknown", "x", server, b"", certificates.make_device_key().key)
    files = HttpsClient([server], fronted.folder.ca_certificate, "")
    own, foreign, unknown = (load_device(tmp_path / name) for name in ("own", "foreign", "unknown"))
    assert foreign_key(own, files) is None
    assert foreign_key(unknown, files) is None, "Flower refuses it"
    said = foreign_key(foreign, files)
    assert said is not None
    assert said.startswith(f"{foreign.key}: this is the key of pump, and this device is x; copy its own key")
    assert files.get("/elsewhere", {}).status == 403, "as a server of an earlier release answers"


def test_nginx_accepts_what_is_written_for_many_devices(tmp_path: Path) -> None:
    folder = enrolment.make_fleet(tmp_path / "server", FleetSettings(model=MODEL))
    keys = {f"pump-{k}": f"{k:0200d}" for k in range(10_000)}
    proxy.write_configuration(
        folder.root, Place(port=free_port(), bind="::1"), 20_000, keys, {f"press-{k}": f"{k:032d}" for k in range(1000)}
    )
    done = subprocess.run([*proxy.command(folder.root), "-t"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "could not build optimal" not in done.stderr
