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
