"""A fleet of real processes under attack, with TLS, keys and the proxy: attacks are refused and the rest continues."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.federation.client import Client, LocalState
from fedkad.federation.server import Server
from fedkad.federation.settings import Consensus
from fedkad.fleet.server import registry
from fedkad.koopman.stiefel import retract_polar
from measurements.loopback import Loopback, megabytes, wait
from tests.fixtures.attackers import fleets
from tests.fixtures.attackers.sitecustomize import poison

fleets.require(nginx=True)

Array = NDArray[np.float64]

CONSENSUS = Consensus(rank=fleets.MODEL["rank"], seed=fleets.MODEL["seed"])
SHAPE = (len(fleets.CHANNELS) * fleets.MODEL["window"] + fleets.MODEL["observables"], fleets.MODEL["rank"])
POISONED_ROUNDS = 2

HONEST = ("pump-a", "pump-b", "pump-c")
VICTIM, ATTACKER = "pump-c", "mallory"
REVOKED, STRANGER, FOREIGN, KEYLESS = "retired", "stranger", "foreign", "keyless"
ROUNDS = 6
DEADLINE = 120.0
"""Seconds of a round, more than any honest device needs; no round waits for its end."""

PATIENCE, SOON = 600.0, 120.0
"""Seconds for anything to happen, and for what happens every few seconds."""

LAST = ROUNDS - 1
SCRIPTS = {
    ATTACKER: {"0": "nan", "2": "shape"},
    "moriarty": {"0": f"name {HONEST[0]}", "2": "old"},
    "moran": {"0": "huge", "2": "huge"},
}
"""They are not asked in round 1, which is for the devices whose warm replies were accepted. Round 2 begins with them
alone, because they still have a turn, and again with all devices; after three refusals they are excluded."""


@dataclass
class Attacked:
    """The fleet, and the results of a training under attack."""

    fleet: Loopback
    status: dict[str, Any]
    forged: dict[str, str]
    keyless: str

    def says(self, name: str) -> str:
        """What the program of a device has printed."""
        return (self.fleet.root / f"{name}.log").read_text()

    def script(self, name: str) -> Path:
        """Where a device reads how to misbehave."""
        return self.fleet.root / f"{name}.attack.json"

    def model(self, name: str) -> KoopmanDetector:
        """The model on a device."""
        return KoopmanDetector.load(self.fleet.device_folder(name) / "model.safetensors")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    root = tmp_path_factory.mktemp("attacked")
    tables = fleets.write_tables(root / "tables", (*HONEST, *SCRIPTS, REVOKED))
    given = fleets.options(rounds=ROUNDS, participation=1.0, deadline=DEADLINE, min_devices=1)  # a round loses a device
    with Loopback(root, tables, *given) as fleet:
        found = Attacked(fleet, {}, {}, "")
        fleet.start_server({**fleets.hurried(), "FLWR_LOG_LEVEL": "INFO"})  # which tells what gets through
        for name, script in SCRIPTS.items():
            start_misbehaving(found, name, script)
        start_misbehaving(found, VICTIM, {str(LAST): f"wait for {forgery(fleet)}"})
        fleet.start("pump-a", "pump-b", REVOKED, environment=fleets.hurried())
        make_strangers(fleet, tables["pump-a"])
        fleet.start(STRANGER, FOREIGN, environment=fleets.hurried())
        found.keyless = refused_at_once(fleet, KEYLESS)
        fleet.wait_online(*HONEST, *SCRIPTS, REVOKED, seconds=PATIENCE)
        fleet.command("fleet", "revoke", str(fleet.server_folder), REVOKED)
        forger = start_forger(fleet)
        try:
            fleet.train()
            found.status = fleet.wait_done(PATIENCE)
            said, _ = forger.communicate(timeout=PATIENCE)
        finally:
            forger.kill()
        found.forged = json.loads(said) if said else {}
        wait(lambda: "no longer accepts retired" in found.says(REVOKED), PATIENCE, "the revoked device told so")
        yield found


def start_misbehaving(found: Attacked, name: str, script: dict[str, str]) -> None:
    found.script(name).write_text(json.dumps(script))
    found.fleet.start(name, environment=fleets.misbehaving(found.script(name)))


def make_strangers(fleet: Loopback, table: Path) -> None:
    """Folders of devices that this server never added: another operator's keys, and another operator's authority."""
    other = fleet.root / "other"
    channels = ",".join(fleets.CHANNELS)
    fleet.command("fleet", "init", str(other), "--address", "127.0.0.1", "--channels", channels)
    for name in (STRANGER, FOREIGN, KEYLESS):
        fleet.command("fleet", "add", str(other), name)
        folder = fleet.device_folder(name)
        shutil.copytree(other / "devices" / name, folder)
        settings = folder / "device.toml"
        settings.write_text(settings.read_text().replace("127.0.0.1:8443", f"127.0.0.1:{fleet.port}"))
        if name != FOREIGN:
            shutil.copy(fleet.server_folder / "ca" / "ca.crt", folder / "ca.crt")
        fleet.data[name] = table
    (fleet.device_folder(KEYLESS) / "device.key").unlink()


def refused_at_once(fleet: Loopback, name: str) -> str:
    """The error of a client that does not even start."""
    with pytest.raises(RuntimeError) as told:
        fleet.command("client", str(fleet.device_folder(name)), "--data", str(fleet.data[name]))
    return str(told.value)


def forgery(fleet: Loopback) -> Path:
    """Exists once the forger has answered; its victim waits for that."""
    return fleet.root / "forged"


def start_forger(fleet: Loopback) -> subprocess.Popen[str]:
    facts = {
        "server": f"127.0.0.1:{fleet.port}",
        "ca": str(fleet.device_folder(ATTACKER) / "ca.crt"),
        "key": str(fleet.device_folder(ATTACKER) / "device.key"),
        "database": str(fleet.server_folder / "flower" / "state.db"),
        "training": str(fleet.server_folder / "training"),
        "attacker": ATTACKER,
        "victim": VICTIM,
        "round": LAST,
        "done": str(forgery(fleet)),
    }
    path = fleet.root / "forger.json"
    path.write_text(json.dumps(facts))
    with (fleet.root / "forger.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fixtures.attackers.forger", str(path)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def test_dishonest_replies_are_refused_with_a_sentence(attacked: Attacked) -> None:
    expected = {
        (ATTACKER, 0): "not finite numbers",
        (ATTACKER, 2): "bytes are not a matrix of 56 x 6 numbers",
        ("moriarty", 0): "name differs: the reply has pump-a; the request has moriarty",
        ("moriarty", 2): "round differs: the reply has 1; the request has 2",
        ("moran", 0): "for a valid reply",
        ("moran", 2): "for a valid reply",
    }
    told = {(e["device"], e["round"]): e["reason"] for e in attacked.status["refused"] if e["device"] in SCRIPTS}
    assert set(told) == set(expected), told  # and nothing later: three refusals exclude a device
    for place, words in expected.items():
        assert words in told[place]
    assert attacked.status["refusals"] == len(attacked.status["refused"])


def test_refused_replies_affect_no_round_and_no_model(attacked: Attacked) -> None:
    assert all(set(SCRIPTS).isdisjoint(names) for names in attacked.status["participants"])
    tables = {name: attacked.fleet.data[name] for name in HONEST}
    expected = fleets.replay(fleets.read_tables(tables), attacked.status)
    assert attacked.status["rounds"] == attacked.status["round"] == ROUNDS
    for name in HONEST:
        fleets.check_same(attacked.model(name), expected.detectors[name])


def test_a_device_cannot_answer_in_the_name_of_another(attacked: Attacked, record_property: Any) -> None:
    log = (attacked.fleet.root / "forger.log").read_text()
    assert attacked.forged, f"the forger broke down: {log}"
    record_property("forged", attacked.forged)
    print(attacked.forged)
    assert attacked.forged["as the victim"] == "401"  # the key does not belong to that node
    assert attacked.forged["reading the victim's mail"] == "401"
    assert attacked.forged["as itself in the victim's name"] == "taken"  # Flower does not compare, and so we must
    told = [entry for entry in attacked.status["refused"] if entry["device"] == VICTIM]
    assert [entry["round"] for entry in told] == [LAST]
    assert "does not show the ticket of the request; another sender made it" in told[0]["reason"]
    assert VICTIM not in attacked.status["participants"][LAST]
    assert VICTIM in attacked.status["delivered"]


def test_devices_that_were_not_admitted_take_part_in_nothing(attacked: Attacked) -> None:
    outside = {STRANGER, FOREIGN, KEYLESS, REVOKED}
    taking_part = {name for names in attacked.status["participants"] for name in names}
    assert taking_part == set(HONEST)
    assert outside.isdisjoint(attacked.status["delivered"])
    assert outside.isdisjoint(attacked.fleet.online())
    assert attacked.fleet.online() == {*HONEST, *SCRIPTS}
    assert all(not (attacked.fleet.device_folder(name) / "model.safetensors").exists() for name in outside)


def test_devices_that_were_not_admitted_are_told_so_in_a_sentence(attacked: Attacked) -> None:
    assert "The server does not know the key of stranger: it was not added there" in attacked.says(STRANGER)
    assert f"The certificate of 127.0.0.1:{attacked.fleet.port} cannot be verified" in attacked.says(FOREIGN)
    assert "The server no longer accepts retired: it was revoked" in attacked.says(REVOKED)
    assert "device.key: there is no such file; copy the folder that `fedkad fleet add` created" in attacked.keyless


def key_header(fleet: Loopback, device: str) -> str:
    """The header with the key of a device, which an attacker would first have to learn."""
    known = registry.read(fleet.server_folder / "devices.json")[device].public_key
    return f"flwr-public-key: {b64encode(known.encode()).decode()}\r\n"


def connect(fleet: Loopback) -> ssl.SSLSocket:
    """A connection to the public port."""
    trust = ssl.create_default_context(cafile=str(fleet.server_folder / "ca" / "ca.crt"))
    plain = socket.create_connection(("127.0.0.1", fleet.port), timeout=PATIENCE)
    return trust.wrap_socket(plain, server_hostname="127.0.0.1")


def ask(
    fleet: Loopback, method: str, target: str, host: str = "127.0.0.1", shown: str = "", body: Sequence[bytes] = ()
) -> int:
    """The HTTP status with which the public port answers exactly this request line, without a signature."""
    with connect(fleet) as line:
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/protobuf\r\n{shown}"
        line.sendall(f"{head}Content-Length: {sum(map(len, body))}\r\nConnection: close\r\n\r\n".encode())
        with contextlib.suppress(OSError):  # closed before all of it was sent
            for piece in body:
                line.sendall(piece)
        answer = http.client.HTTPResponse(line, method=method)
        answer.begin()
        return answer.status


CLOSED = (
    "/",
    "/docs",
    "/openapi.json",
    "/health",
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/get-nodes",
    "/v1/runtime/push-messages",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/%2E%2E%2Fcontrol/list-runs",
    "/v1/fleet/x/../../control/list-runs",
    "/v1/fleet/./../control/list-runs",
    "//v1/control/list-runs",
    "/v1//control/list-runs",
    "/v1/control//list-runs",
    "/V1/FLEET/pull-messages",
    "/v1/Fleet/../control/list-runs",
    "/../v1/control/list-runs",
    "http://127.0.0.1/v1/control/list-runs",
)
TWISTED = (
    "/v1/control/list-runs/../../fleet/",
    "/v1/control/list-runs/%2e%2e/%2e%2e/fleet/",
    "/v1/control/list-runs%3f/../../fleet/",
    "/v1/control/list-runs%3f/../../fleet/pull-messages",
    "/v1/control/list-runs%23/../../fleet/pull-messages",
    "/v1/control/list-runs#/../../fleet/pull-messages",
    "/v1/control/list-runs;/../../fleet/",
    "/v1/fleet/%2e%2e%5ccontrol/list-runs",
    "/v1/fleet/..;/control/list-runs",
    "/v1/fleet/%252e%252e/control/list-runs",
    "/v1/fleet/..%00/control/list-runs",
)
"""Targets that are inside the one path that the proxy passes if read one way, and outside if read another."""


def test_the_public_port_leads_to_the_fleet_interface_and_nowhere_else(attacked: Attacked) -> None:
    fleet, mark = attacked.fleet, "canary=xolotl"
    log = fleet.server_folder / "logs" / "superlink.log"
    for target in (*CLOSED, *TWISTED):
        for method in ("GET", "POST"):
            status = ask(fleet, method, f"{target}?{mark}" if "#" not in target else target)
            assert status in (400, 403, 404), f"{method} {target}: {status}"
    assert ask(fleet, "POST", "/v1/control/list-runs") == ask(fleet, "GET", "/docs") == 403
    assert mark not in log.read_text(), "a request got through to Flower"
    assert ask(fleet, "POST", "/v1/fleet/get-fab") == 401
    assert '/v1/fleet/get-fab HTTP/1.1" 401' not in log.read_text(), "a stranger got through to Flower"
    assert ask(fleet, "POST", "/v1/fleet/get-fab", shown=key_header(fleet, "pump-a")) == 401
    assert '/v1/fleet/get-fab HTTP/1.1" 401' in log.read_text(), "the log shows the requests that got through"


def test_twisted_paths_are_refused(attacked: Attacked) -> None:
    for target in TWISTED:
        for method in ("GET", "POST"):
            status = ask(attacked.fleet, method, target)
            assert status in (400, 403, 404), f"{method} {target}: {status}"
    for host in ("localhost/v1/control/list-runs?", "localhost/v1/control/list-runs#", "x@localhost/v1/control/"):
        assert ask(attacked.fleet, "POST", "/v1/fleet/pull-messages", host) in (400, 401), host


EMPTY_FIELDS = (b"\x12\x00" * 500_000,) * 60
"""Thirty million empty messages in a body of 60 MB, each of which becomes an object where it is parsed."""

HALF_SENT, BEHIND_TLS = 4_200, 200
"""Requests that never end; most stop within the TLS handshake, which spares this machine the rest of it."""


@dataclass
class Watch:
    """Memory and disk of a server while it is attacked, and whether its devices go on."""

    fleet: Loopback

    def __post_init__(self) -> None:
        (self.superlink,) = self.fleet.processes("server", "flower-superlink")
        self.before = self.megabytes()
        self.since = {name: since for name, (since, _) in self.heartbeats().items() if name in (*HONEST, *SCRIPTS)}

    def megabytes(self) -> tuple[float, float]:
        """Of Flower, and of all processes of the server."""
        return megabytes(self.superlink), megabytes(self.fleet.running["server"].pid)

    def check(self, allowed: float = 40.0) -> None:
        """Flower has grown by less than 40 MB, the whole server by less than what is allowed, and the disk is empty."""
        for before, after, most in zip(self.before, self.megabytes(), (40.0, allowed), strict=True):
            assert after - before < most, f"{before:.0f} MB before, {after:.0f} MB after"
        left = [path for path in (self.fleet.server_folder / "proxy").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in left) < 100_000, left

    def heartbeats(self) -> dict[str, tuple[str, float]]:
        """When Flower let each device in, and until when its last sign of life counts."""
        database = self.fleet.server_folder / "flower" / "state.db"
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as book:
            rows = book.execute("SELECT name, last_activated_at, online_until FROM node WHERE status = 'online'")
            return {name: (since, until) for name, since, until in rows}

    def wait_for_devices(self) -> None:
        """Every device that took part gives another sign of life, over the connection that it had before."""
        before, devices = self.heartbeats(), {*HONEST, *SCRIPTS}

        def is_alive(name: str) -> bool:
            return self.heartbeats().get(name, ("", 0.0))[1] > before[name][1]

        assert devices <= set(before)
        wait(lambda: all(map(is_alive, devices)), SOON, "signs of life of all devices")
        after = self.heartbeats()
        assert {name: after[name][0] for name in devices} == self.since


def test_a_body_of_empty_fields_costs_flower_nothing(attacked: Attacked) -> None:
    fleet, watch = attacked.fleet, Watch(attacked.fleet)
    assert ask(fleet, "POST", "/v1/fleet/push-messages", body=EMPTY_FIELDS) == 413
    known = key_header(fleet, "pump-a")
    assert ask(fleet, "POST", "/v1/fleet/push-messages", shown=known, body=EMPTY_FIELDS) == 413
    small = [EMPTY_FIELDS[0][:32_000]]
    assert ask(fleet, "POST", "/v1/fleet/push-messages", body=small) == 401
    assert ask(fleet, "POST", "/v1/fleet/push-messages", shown=known, body=small) == 401
    watch.check()
    watch.wait_for_devices()


def test_parallel_uploads_without_a_signature_take_neither_memory_nor_disk(attacked: Attacked) -> None:
    fleet, watch = attacked.fleet, Watch(attacked.fleet)
    known = key_header(fleet, "pump-a")
    with ThreadPoolExecutor(8) as pool:
        shown = ("", known) * 4
        uploads = [pool.submit(ask, fleet, "POST", "/v1/fleet/push-object", "x", by, EMPTY_FIELDS) for by in shown]
        watch.check()
        assert [upload.result() for upload in uploads] == [413] * 8
    watch.check()
    watch.wait_for_devices()


def test_half_sent_requests_keep_no_device_out_and_end_by_themselves(attacked: Attacked) -> None:
    fleet, watch = attacked.fleet, Watch(attacked.fleet)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < HALF_SENT + 500:
        pytest.skip(f"this attack needs {HALF_SENT + 500} open files, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HALF_SENT + 500), hard))
    lines: list[socket.socket] = []
    try:
        for _ in range(BEHIND_TLS):
            lines.append(connect(fleet))
            lines[-1].sendall(b"POST /v1/fleet/push-messages HTTP/1.1\r\nHost: x\r\nflwr-")
        for _ in range(HALF_SENT - BEHIND_TLS):
            lines.append(socket.create_connection(("127.0.0.1", fleet.port), timeout=PATIENCE))
            lines[-1].sendall(b"\x16\x03\x01")  # the first bytes of a handshake
        assert ask(fleet, "POST", "/v1/fleet/get-fab", shown=key_header(fleet, "pump-a")) == 401
        watch.check(allowed=0.05 * HALF_SENT)  # what OpenSSL needs for a handshake, until it is given up
        for line in lines:  # the server ends each of them
            with contextlib.suppress(ConnectionError):
                assert line.recv(1) == b""
    finally:
        for line in lines:
            line.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    watch.wait_for_devices()
    assert all("does not answer" not in attacked.says(name) for name in HONEST)


def consensus_clients() -> dict[str, Client]:
    """The honest devices, in this process."""
    prepared = {name: KoopmanDetector(**fleets.MODEL).prepare(fleets.series(k)) for k, name in enumerate(HONEST)}
    return {name: Client(name, detector.memory_.statistics, CONSENSUS) for name, detector in prepared.items()}


def objective(subspace: Array) -> float:
    """How well the honest devices predict in a subspace, on average."""
    return float(np.mean([client.objective(subspace) for client in consensus_clients().values()]))


def train_poisoned(attacked: Attacked) -> Array:
    """The result of a robust fleet in which one device sends a wrong subspace of the largest norm in every round."""
    attacked.script(ATTACKER).write_text(json.dumps({"*": "random"}))
    for name in (*SCRIPTS, VICTIM):
        if name != ATTACKER:
            attacked.script(name).write_text("{}")
    fleet, before = attacked.fleet, attacked.fleet.status()["run"]
    fleets.change(fleet.server_folder, robust=True, rounds=POISONED_ROUNDS, deadline=DEADLINE)
    wait(lambda: not (fleet.server_folder / "training" / "wanted").exists(), PATIENCE, "the last training settled")
    fleet.train()
    status = fleet.wait_done(PATIENCE, after=before)
    assert status["refusals"] == 0, status["refused"]
    assert all(ATTACKER in names for names in status["participants"]), "its replies look honest one by one"
    return attacked.model("pump-a").subspace_


def mean_poisoned() -> Array:
    """The same attack on the mean, in this process."""
    clients, server = consensus_clients(), Server(SHAPE[0], CONSENSUS)
    begun: dict[str, LocalState] = {}
    for _ in range(POISONED_ROUNDS):
        is_warm, shared = server.begin_round([*clients, ATTACKER]), server.shared
        for name, client in clients.items():
            if is_warm:
                server.receive(name, client.warm_message())
            else:
                first = begun.setdefault(name, client.begin(shared))
                server.receive(name, client.reply(client.local_round(first, shared)))
        server.receive(ATTACKER, poison("warm" if is_warm else "admm", *SHAPE))
        server.close_round()
    return retract_polar(server.shared)


def test_the_median_resists_a_poisoner_that_the_mean_does_not(attacked: Attacked) -> None:
    honest = {name: fleets.series(k) for k, name in enumerate(HONEST)}
    clean = objective(federate(honest, rounds=POISONED_ROUNDS, participation=1.0, **fleets.MODEL).subspace)
    robust, mean = objective(train_poisoned(attacked)), objective(mean_poisoned())
    print(f"objective of the honest: {clean:.4f} clean, {robust:.4f} with the median, {mean:.4f} with the mean")
    assert robust < 1.1 * clean
    assert mean > 3.0 * robust
