"""A server and its devices as real processes on this machine: the story of one fleet, in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedkad.fleet.server import requests
from measurements.loopback import descendants, free_port, online
from tests.fixtures.attackers import fleets
from tests.fixtures.flowerapp import TRACE, write_app
from tests.fixtures.sabotage.sitecustomize import DEVICE_APP

pytestmark = [
    pytest.mark.skipif(find_spec("flwr") is None, reason="the extra `fleet` is not installed"),
    pytest.mark.skipif(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no nginx"),
]

PATIENCE = 300.0
"""Seconds for anything to happen: only a fleet that is stuck takes this long."""

FEDKAD = (sys.executable, "-m", "fedkad")

FINISH = """

def finish(training, context, status):
    kept = training / "result.json"
    is_new = context.run_config["job"] == "train"
    run = str(context.run_id) if is_new else json.loads(kept.read_text())["run"]
    kept.write_text(json.dumps({"run": run, "delivered": status["delivered"]}))
    write(training, {**status, "run": run})
"""
DELIVERED = """
    (folder / "delivered.part").write_text("{}")
    os.replace(folder / "delivered.part", folder / "delivered.json")
"""


def write_delivering_app(folder: Path) -> Path:
    """The small app, extended to report as FedKAD's own does which run is done and which devices have its result."""
    package = write_app(folder) / "tinyapp"
    replace(package / "server.py", 'write(training, {"state": "done"', 'finish(training, context, {"state": "done"')
    replace(package / "server.py", "\n\n\n@app.main()", f"{FINISH}\n\n@app.main()")
    replace(folder / "tinyclient.py", 'folder / "model.safetensors")\n', f'folder / "model.safetensors"){DELIVERED}')
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


class Story:
    """A fleet in a folder with a name that needs quoting, and the processes that were started for it."""

    def __init__(self, root: Path) -> None:
        self.root, self.server = root, root / "the fleet's"
        self.port, self.control_port = free_port(), free_port()
        self.app = write_delivering_app(root / "app")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def fleet(self, command: str, *arguments: object) -> Any:
        """The result of ``fedkad fleet``."""
        words = [*FEDKAD, "fleet", command, str(self.server), *map(str, arguments), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, name: str, *words: object) -> None:
        variables = {**os.environ, **fleets.hurried(), DEVICE_APP: str(self.app)}
        with (self.root / f"{name}.err").open("ab") as file:
            self.processes[name] = subprocess.Popen(
                [*FEDKAD, *map(str, words)], stderr=file, stdout=file, env=variables
            )

    def join(self, device: str, *options: object) -> None:
        """Add a device, copy its folder to where it lives, and start it."""
        self.fleet("add", device)
        shutil.copytree(self.server / "devices" / device, self.home(device))
        self.start(device, "client", self.home(device), *options)

    def home(self, device: str) -> Path:
        return self.root / f'home of "{device}"'

    def said(self, name: str) -> str:
        return (self.root / f"{name}.err").read_text()

    def states(self) -> dict[str, str]:
        return {entry["device"]: entry["state"] for entry in self.fleet("status")["devices"]}

    def training(self) -> dict[str, Any]:
        path = self.server / "training" / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def answer(self, path: str, method: str, headers: dict[str, str] | None = None) -> int:
        """The status of a request from outside."""
        trust = ssl.create_default_context(cafile=str(self.server / "ca" / "ca.crt"))
        given = {"content-type": "application/protobuf", **(headers or {})}
        request = urllib.request.Request(f"https://localhost:{self.port}{path}", b"", given, method=method)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with opener.open(request, timeout=PATIENCE) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def running(self) -> dict[int, str]:
        """All processes of this fleet."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.root) in words:
                found[int(entry.parent.name)] = words
        return found

    def process(self, program: str) -> int:
        return next(number for number, words in self.running().items() if program in words.split(" --")[0])


class Tunnel:
    """A relay to a port that can be cut: it then accepts connections, and closes them before the handshake is over."""

    def __init__(self, port: int) -> None:
        self.port, self.is_cut, self.refused = port, False, 0
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            near = self.listener.accept()[0]
            if self.is_cut:
                near.recv(65536)  # all of it: unread bytes would turn the close into a reset
                near.close()
                self.refused += 1
                continue
            far = socket.create_connection(("127.0.0.1", self.port))
            self.open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(source, target), daemon=True).start()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        self.is_cut = True
        for end in self.open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    told = Story(tmp_path_factory.mktemp("fleet"))
    ports = ("--port", told.port, "--control-port", told.control_port)
    told.fleet("init", "--address", "localhost", *ports, "--channels", "a,b", "--rank", 2, "--min-devices", 1)
    told.start("server", "server", told.server, "--app", told.app)
    until(lambda: "proxy: started" in told.said("server"))
    yield told
    for process in told.processes.values():
        process.kill()
        process.wait()
    until(lambda: not told.running())


def test_devices_come_online(story: Story) -> None:
    story.join("pump-1")
    story.join("pump-2")
    until(lambda: all("connected" in story.said(name) for name in ("pump-1", "pump-2")))
    assert story.states() == {"pump-1": "online", "pump-2": "online"}
    assert story.fleet("status")["server"] == {
        "running": True,
        "answering": True,
        "address": f"localhost:{story.port}",
    }


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "/docs",
        "/",
    ],
)
def test_only_the_devices_part_of_flower_can_be_reached_from_outside(story: Story, path: str, method: str) -> None:
    assert story.answer(path, method) == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [("activate-node", 412), ("register-node", 403), ("pull-messages", 401), ("send-node-heartbeat", 401)],
)
def test_nobody_takes_part_without_a_key(story: Story, path: str, status: int) -> None:
    assert story.answer(f"/v1/fleet/{path}", "POST") == status


def test_an_unregistered_key_cannot_register_itself(story: Story) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = ec.generate_private_key(ec.SECP384R1())
    public = public_key_to_bytes(key.public_key())
    authority = (story.server / "ca" / "ca.crt").read_bytes()
    signing = [NodeAuthHttpInterceptor(key, key.public_key())]
    with (
        FleetHttpClient.from_server_address(f"localhost:{story.port}", False, authority, signing) as client,
        pytest.raises(Exception, match="403"),
    ):
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public))


def test_a_training_on_request_reaches_all_devices(story: Story) -> None:
    assert story.fleet("train") == {"wanted": True, "already": False}
    until(lambda: "is done" in story.said("server"))
    found = story.fleet("status")
    assert (found["training"]["state"], found["wanted"]) == ("done", False)
    assert found["training"]["delivered"] == ["pump-1", "pump-2"]
    assert "asked 2" in (story.server / "logs" / "app.log").read_text()


def test_no_device_runs_or_keeps_code_that_the_server_sends(story: Story) -> None:
    assert not (story.app / TRACE).exists()
    assert not list(story.home("pump-1").rglob("tinyapp*"))


def test_logs_have_times_and_do_not_tell_every_look(story: Story) -> None:
    kept = (story.server / "logs" / "server.log").read_text()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \S", line) for line in kept.splitlines())
    assert "train: run" in kept
    assert re.search(r"\dZ pump-1: connected to", story.said("pump-1"))
    assert "ListNodes" not in (story.server / "logs" / "superlink.log").read_text()
    assert story.answer("/v1/fleet/pull-messages", "POST", {"flwr-public-key": "unknown"}) == 401
    until(lambda: 'device "" key unknown' in (story.server / "logs" / "proxy.log").read_text())


def test_a_latecomer_receives_the_result_and_may_leave_then(story: Story) -> None:
    story.join("pump-3", "--once")
    until(lambda: story.processes["pump-3"].poll() is not None)
    assert story.processes["pump-3"].returncode == 0, story.said("pump-3")
    assert "a new model was delivered" in story.said("pump-3")
    assert story.home("pump-3").joinpath("model.safetensors").exists()
    until(lambda: "deliver: run" in story.said("server") and "ended" in story.said("server"))
    assert "pump-3" in story.training()["delivered"]
    assert story.states()["pump-3"] == "offline"


def test_a_device_whose_connection_is_cut_notices_and_goes_on_at_another_address(story: Story) -> None:
    tunnel = Tunnel(story.port)
    story.fleet("add", "pump-4")
    shutil.copytree(story.server / "devices" / "pump-4", story.home("pump-4"))
    replace(story.home("pump-4") / "device.toml", f"localhost:{story.port}", tunnel.address)
    story.start("pump-4", "client", story.home("pump-4"))
    until(lambda: "pump-4" in story.training().get("delivered", ()))
    tunnel.cut()
    until(lambda: f"The connection of pump-4 to {tunnel.address} was lost" in story.said("pump-4"))
    until(lambda: f"connected to localhost:{story.port}" in story.said("pump-4"))
    assert tunnel.refused
    story.processes["pump-4"].send_signal(signal.SIGTERM)
    assert story.processes["pump-4"].wait(PATIENCE) == 0


def test_a_revoked_device_is_refused(story: Story) -> None:
    story.fleet("revoke", "pump-2")
    until(lambda: "no longer accepts pump-2" in story.said("pump-2"))
    until(lambda: "does not know the key of pump-2" in story.said("pump-2"))
    assert story.states()["pump-2"] == "revoked"


def test_a_killed_server_process_is_restarted(story: Story) -> None:
    before = story.process("flower-superlink")
    os.kill(before, signal.SIGKILL)
    until(lambda: "superlink: ended with status -9" in story.said("server"))
    until(lambda: story.said("server").count("superlink: started") == 2)
    assert story.process("flower-superlink") != before
    until(lambda: "pump-1" in online(story.server, story.control_port))
    assert story.fleet("status")["server"]["answering"]


def test_a_new_certificate_is_used_without_a_restart_of_the_server_or_of_the_proxy(story: Story) -> None:
    def shown() -> str:
        trust = ssl.create_default_context(cafile=str(story.server / "ca" / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", story.port), PATIENCE) as plain,
            trust.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            return ssl.DER_cert_to_PEM_cert(line.getpeercert(binary_form=True) or b"")

    proxy, superlink = story.process("nginx"), story.process("flower-superlink")
    story.fleet("renew")
    until(lambda: shown() == (story.server / "server" / "server.crt").read_text())
    until(lambda: superlink not in story.running())
    until(lambda: "pump-1" in online(story.server, story.control_port))
    assert story.process("nginx") == proxy


def test_a_damaged_database_is_moved_aside_and_nobody_is_told_to_be_revoked(story: Story) -> None:
    before, database = len(story.said("pump-1")), story.server / "flower" / "state.db"
    superlink = story.process("flower-superlink")
    for journal in database.parent.glob("state.db-*"):
        journal.unlink()
    database.write_bytes(b"no database" * 4096)
    os.kill(superlink, signal.SIGKILL)
    until(lambda: "state.db was damaged and is now state.db.damaged-" in story.said("server"))
    until(lambda: "pump-1" in online(story.server, story.control_port))
    until(lambda: story.said("pump-1").rstrip().endswith(f"connected to localhost:{story.port}"))
    said = story.said("pump-1")[before:]
    assert "revoked" not in said
    assert "ask the server's operator" not in said
    (aside,) = database.parent.glob("state.db.damaged-*")
    assert aside.read_bytes().startswith(b"no database")


def test_a_device_that_could_no_longer_answer_connects_again(story: Story) -> None:
    alike = [number for number, words in story.running().items() if "flower.supernode" in words and "pump-1" in words]
    (launcher,) = {child for number in alike for child in descendants(number)}
    connections = story.said("pump-1").count("connected to")
    os.kill(launcher, signal.SIGKILL)
    until(lambda: "The connection of pump-1 to" in story.said("pump-1"))
    until(lambda: story.said("pump-1").count("connected to") > connections)


def test_no_process_is_left_behind(story: Story) -> None:
    for name in ("pump-1", "pump-2", "server"):
        story.processes[name].send_signal(signal.SIGTERM)
    for name in ("pump-1", "pump-2", "server"):
        assert story.processes[name].wait(PATIENCE) == 0, story.said(name)
    until(lambda: not story.running())
    assert "stopped" in story.said("server")


# -- what the server does with Flower, without Flower ------------------------------------------------------------


def test_only_a_damaged_database_is_moved_aside(tmp_path: Path) -> None:
    import sqlite3

    from fedkad.atomicfile import set_aside
    from fedkad.fleet.server.guards import is_damaged

    path = tmp_path / "state.db"
    assert not is_damaged(path)
    with sqlite3.connect(path) as filled:
        filled.execute("CREATE TABLE node (name TEXT)")
        filled.executemany("INSERT INTO node VALUES (?)", [(f"pump {k}" * 50,) for k in range(500)])
    filled.close()
    assert not is_damaged(path)
    with sqlite3.connect(path) as busy:
        busy.execute("BEGIN EXCLUSIVE")
        assert not is_damaged(path)
    busy.close()
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"x" * 4096  # a page in the middle
    path.write_bytes(content)
    (tmp_path / "state.db-wal").write_bytes(b"")
    assert is_damaged(path)
    aside = set_aside(path)
    assert aside.read_bytes() == content
    assert {each.name for each in tmp_path.iterdir()} <= {aside.name, f"{aside.name}-wal", f"{aside.name}-shm"}
    path.write_bytes(b"damaged again")
    assert set_aside(path) != aside
    assert aside.read_bytes() == content


def test_a_server_says_that_its_certificate_is_for_another_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from fedkad.fleet.server import enrolment, settings
    from fedkad.fleet.server.operation import warn_of_certificates
    from fedkad.fleet.server.settings import ServerFolder

    place, model = settings.Place("old.example"), settings.ModelSettings(("a",))
    root = enrolment.make_fleet(tmp_path / "fleet", settings.FleetSettings(place, model)).root
    warn_of_certificates(ServerFolder(root))
    assert not caplog.messages
    replace(root / "fleet.toml", "old.example", "new.example")
    warn_of_certificates(ServerFolder(root))
    assert "server.crt is not for new.example" in caplog.messages[0]
    enrolment.renew_server(ServerFolder(root))
    caplog.clear()
    warn_of_certificates(ServerFolder(root))
    assert not caplog.messages


class Book:
    """A fake control interface; like Flower, it refuses a key that was used before."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.used: list[str] = []
        self.stopped = 0

    def nodes(self) -> dict[str, Any]:
        from fedkad.fleet.flower.control import Node

        return {key: Node(self.used.index(key), name, "online", None) for key, name in self.known.items()}

    def register(self, name: str, public_key: str) -> None:
        from fedkad.fleet.flower.control import RefusedError

        if public_key in self.used:
            raise RefusedError(409, "in use")
        self.known[public_key] = name
        self.used.append(public_key)

    def unregister(self, node: Any) -> None:
        del self.known[self.used[node.id]]

    def stop_all(self) -> None:
        self.stopped += 1


class CountingBook(Book):
    """Counts how often it is asked for all devices."""

    looks = 0

    def nodes(self) -> dict[str, Any]:
        self.looks += 1
        return super().nodes()


def test_flower_knows_exactly_the_devices_that_may_take_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from fedkad.fleet.server import enrolment, registry, settings
    from fedkad.fleet.server.supervisor import Supervisor

    tmp_path = tmp_path / "fleet"
    model = settings.ModelSettings(("a",), rank=2, window=4)
    book: Any = Book()
    supervisor = Supervisor(enrolment.make_fleet(tmp_path, settings.FleetSettings(model=model)), book, tmp_path)
    (tmp_path / "devices.json").unlink()
    assert not supervisor.attend()
    registry.write(tmp_path / "devices.json", {})
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.add(devices, "a", "key a")
        registry.add(devices, "b", "key b")
    assert supervisor.attend()
    assert book.known == {"key a": "a", "key b": "b"}
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.revoke(devices, "a")
        registry.renew(devices, "b", "new key b")
    assert supervisor.attend()
    assert book.known == {"new key b": "b"}
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.renew(devices, "b", "key b")  # a key of the past
        registry.add(devices, "c", "key c")
    assert supervisor.attend()
    assert supervisor.attend()
    assert book.known == {"key c": "c"}
    assert sum("b: Flower refuses its key" in line for line in caplog.messages) == 1
    (tmp_path / "devices.json").write_text("{")
    assert not supervisor.attend()
    assert "restore it from a backup" in caplog.messages[-1]


def test_flower_knows_only_those_who_are_called_in_a_large_fleet(tmp_path: Path) -> None:
    from fedkad.fleet.server import enrolment, registry, settings
    from fedkad.fleet.server.supervisor import Supervisor

    model = settings.ModelSettings(("a",), rank=2, window=4)
    known = settings.FleetSettings(model=model, notice=settings.NoticeSettings(devices_per_training=3))
    folder = enrolment.make_fleet(tmp_path / "fleet", known)
    with registry.changing(folder.registry) as devices:
        for k in range(3):
            registry.add(devices, f"pump-{k}", f"key {k}")
    book: Any = CountingBook()
    book.submit, book.has_ended = lambda app, config: 1, lambda run: False
    supervisor = Supervisor(folder, book, tmp_path)
    assert supervisor.attend()
    assert set(book.known.values()) == {f"pump-{k}" for k in range(3)}, "a small fleet stays connected"
    notice = supervisor.board.last()
    assert notice is not None
    assert notice.calls("pump-0", time.time())
    with registry.changing(folder.registry) as devices:
        for k in range(3, 300):
            registry.add(devices, f"pump-{k}", f"key {k}")
    assert supervisor.attend()
    before = book.looks
    assert supervisor.attend()
    assert book.looks == before, "nobody is asked for when no training is open"
    assert len(book.known) == 3
    notice = supervisor.board.last()
    assert notice is not None
    assert notice.body.invitation is None
    requests.request_training(folder.training)
    assert supervisor.attend()
    assert supervisor.attend()
    notice = supervisor.board.last()
    assert notice is not None
    called = {name for name in registry.read(folder.registry) if notice.calls(name, time.time())}
    assert len(called) == 3
    assert called <= set(book.known.values())
    assert len(book.known) <= 6
    again = Supervisor(folder, book, tmp_path)
    assert again.attend()
    assert again.board.last() == notice, "a server that is started again calls those whom it called before"


def test_a_full_disk_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedkad")
    from fedkad.fleet.server import enrolment, registry, settings
    from fedkad.fleet.server.supervisor import Supervisor

    def no_room(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    tmp_path = tmp_path / "fleet"
    model = settings.ModelSettings(("a",), rank=2, window=4)
    told = settings.ReportingSettings(metrics=str(metrics := tmp_path.with_name("fedkad.prom")))
    known = settings.FleetSettings(model=model, training=settings.TrainingSettings(min_devices=1), reporting=told)
    folder = enrolment.make_fleet(tmp_path, known)
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.add(devices, "a", "key a")
    book: Any = Book()
    book.submit, book.has_ended, book.log = lambda app, config: 1, lambda run: True, lambda run: "words"
    supervisor = Supervisor(folder, book, tmp_path)
    assert supervisor.attend()
    requests.request_training(tmp_path / "training")
    assert supervisor.attend()
    assert "train: run 1 started" in caplog.messages
    assert book.stopped == 2, "at the start, and before each run because an earlier one may have begun unnoticed"
    (tmp_path / "training" / "result.json").write_text('{"run": "r", "delivered": ["a"]}')
    with monkeypatch.context() as full:
        full.setattr(requests, "write_private", no_room)
        assert not supervisor.attend()
        assert not supervisor.attend()
    assert sum("No space left on device" in line for line in caplog.messages) == 1
    assert supervisor.attend()
    assert not (tmp_path / "training" / "wanted").exists()
    assert supervisor.reporter.outcomes == {"done": 1}
    assert 'fedkad_fleet_devices{state="never seen"} 1' in metrics.read_text(), "Flower did not know it yet"
    assert (tmp_path / "logs" / "app.log").read_text().endswith("Z words\n")


def test_a_server_that_cannot_renew_its_notice_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedkad.fleet.server import enrolment, noticeboard, registry, settings
    from fedkad.fleet.server.supervisor import Supervisor
    from fedkad.fleet.shared.notice import LIFE

    def no_room(path: Path, content: bytes, moment: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    folder = enrolment.make_fleet(tmp_path / "fleet", settings.FleetSettings(model=settings.ModelSettings(("a",))))
    with registry.changing(folder.registry) as devices:
        registry.add(devices, "a", "key a")
    book: Any = Book()
    supervisor = Supervisor(folder, book, tmp_path)
    assert supervisor.attend()
    said = "is older than half its life of 24 hours and cannot be renewed"
    with monkeypatch.context() as full:
        full.setattr(noticeboard, "_write_public", no_room)
        full.setattr(supervisor.board, "clock", lambda: time.time() + 0.4 * LIFE)
        assert supervisor.attend()
        full.setattr(supervisor.board, "clock", lambda: time.time() + 0.6 * LIFE)
        assert not supervisor.attend()
        assert not supervisor.attend()
    assert caplog.text.count(said) == 1
    assert supervisor.attend()
    monkeypatch.setattr(supervisor.board, "clock", lambda: time.time() + 0.6 * LIFE)
    monkeypatch.setattr(book, "nodes", lambda: (_ for _ in ()).throw(OSError("no answer")))
    assert not supervisor.attend()
    assert caplog.text.count(said) == 2, "whatever keeps it from its work"


def test_the_end_of_a_run_counts_even_if_its_output_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from fedkad.fleet.server import settings
    from fedkad.fleet.server.settings import ServerFolder
    from fedkad.fleet.server.supervisor import AppRuns

    settings.save(tmp_path, settings.FleetSettings(model=settings.ModelSettings(("a",))))
    (tmp_path / "logs").write_text("no folder")
    book: Any = Book()
    book.has_ended, book.log = lambda run: True, lambda run: "words"
    assert AppRuns(ServerFolder(tmp_path), book, tmp_path).has_ended(3)
    assert "app.log: the output of run 3 cannot be kept" in caplog.messages[0]
