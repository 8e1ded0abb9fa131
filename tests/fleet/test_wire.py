"""What leaves a device: three trainings recorded on the wire, without TLS, and every byte of them explained."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.federation import wire
from fedkad.federation.client import Client, LocalState
from fedkad.federation.protocol import DIAGNOSTICS, IDENTITY
from fedkad.federation.server import Server
from fedkad.federation.settings import Consensus
from fedkad.fleet.server import settings
from fedkad.koopman.stiefel import retract_polar
from fedkad.settingerror import toml_text
from measurements.loopback import ENVIRONMENT, Wire, descendants, free_port, wait
from tests.fixtures.attackers import fleets

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from tests.fixtures.attackers import eavesdropper
from tests.fixtures.attackers.eavesdropper import Haystack, Request, Sent

Array = NDArray[np.float64]

APP = Path(settings.__file__).parents[1] / "app"
PROGRAMS = Path(sys.executable).parent
NAMES = ("pump-a", "pump-b", "pump-c", "pump-d")
VANISHING = "pump-d"
SECURE_ROUNDS = 2

CANARY = 1234.56789012
RARE = -98.7654321
DAY = "1987-06-05"
FILE = "quetzalcoatl"
"""In the tables, their times and their names; none of it may leave a device."""

SHAPE = (len(fleets.CHANNELS) * fleets.MODEL["window"] + fleets.MODEL["observables"], fleets.MODEL["rank"])


def samples(k: int) -> Array:
    values = fleets.series(k)
    values[40 + k :: 400, 0] = CANARY
    values[700 + k, 2] = RARE
    return values


def write_table(path: Path, k: int) -> None:
    rows = [",".join(map(repr, map(float, row))) for row in samples(k)]
    times = [f"{DAY} 04:{second // 60:02d}:{second % 60:02d}" for second in range(len(rows))]
    lines = [",".join(("when", *fleets.CHANNELS)), *(f"{time},{row}" for time, row in zip(times, rows, strict=True))]
    path.write_text("\n".join(lines) + "\n")


@dataclass
class Recorded:
    """Three trainings and everything that devices sent in them."""

    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, dict[str, KoopmanDetector]] = field(default_factory=dict)
    streams: dict[str, list[bytes]] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    requests: dict[str, list[Request]] = field(default_factory=dict)
    sent: dict[str, list[Sent]] = field(default_factory=dict)

    def decode(self) -> None:
        for name, streams in self.streams.items():
            self.requests[name] = [request for stream in streams for request in eavesdropper.requests(stream)]
            self.sent[name] = eavesdropper.replies(self.requests[name])

    def told(self, training: str, *kinds: str) -> list[Mapping[str, Any]]:
        """The headers of a training, of some kinds or of all."""
        run = self.statuses[training]["run"]
        headers = [sent.header for all_of in self.sent.values() for sent in all_of if sent.header["run"] == run]
        return [header for header in headers if not kinds or header["kind"] in kinds]

    def replies(self, training: str, *kinds: str) -> dict[tuple[str, int], Mapping[str, Any]]:
        """The headers by device and round, in a training in which no device was asked twice in a round."""
        headers = self.told(training, *kinds)
        found = {(header["device"], header["round"]): header for header in headers}
        assert len(found) == len(headers), "a device answered a question twice"
        return found


class OpenFleet:
    """Flower's own processes without TLS, each device behind its own wire."""

    def __init__(self, root: Path) -> None:
        from fedkad.fleet import flower

        self.root, self.server = root, root / "server"
        self.server.mkdir(parents=True)
        (root / "flower").mkdir()
        model = settings.ModelSettings(fleets.CHANNELS, **fleets.MODEL)
        settings.save(
            self.server, settings.FleetSettings(model=model, training=settings.TrainingSettings(min_devices=1))
        )
        self.environment = {**flower.environment(root / "flower"), **ENVIRONMENT}
        self.port, *self.node_ports = [free_port() for _ in (None, *NAMES)]
        address = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (root / "flower" / "config.toml").write_text(f'[superlink]\ndefault = "open"\n\n[superlink.open]\n{address}')
        self.wires: dict[str, Wire] = {}

    @contextmanager
    def started(self, program: str, *command: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
        with (self.root / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**self.environment, **(environment or {})},
                start_new_session=True,
            )
        try:
            yield
        finally:
            below = descendants(process.pid)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for child in below:
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    @contextmanager
    def running_all(self) -> Iterator[None]:
        with ExitStack() as all_of:
            place = ("--insecure", "--host", "127.0.0.1", "--port")
            superlink = str(PROGRAMS / "flower-superlink")
            all_of.enter_context(
                self.started("superlink", superlink, *place, str(self.port), environment=fleets.hurried())
            )
            log = self.root / "superlink.log"
            wait(lambda: "Application startup complete" in log.read_text(), 600.0, f"Flower's server ready, see {log}")
            for k, name in enumerate(NAMES):
                folder = self.device(name)
                folder.mkdir(parents=True)
                table = folder / f"{FILE}-{name}.csv"
                write_table(table, k)
                (folder / "device.toml").write_text('[reading]\ntime = "when"\n')
                node = {"device": name, "folder": str(folder), "data": str(table)}
                lines = [f"{key} = {toml_text(value)}\n" for key, value in node.items()]
                (folder / "node.toml").write_text("".join(lines))
                self.wires[name] = Wire(self.port, keep=True)
                all_of.callback(self.wires[name].close)
                script = folder / "attack.json"
                script.write_text(json.dumps({f"secure {SECURE_ROUNDS - 1}": "vanish"} if name == VANISHING else {}))
                reached = ("--superlink", f"127.0.0.1:{self.wires[name].port}", "--node-config")
                all_of.enter_context(
                    self.started(
                        *("supernode", sys.executable, "-Pm", "fedkad.fleet.flower.supernode"),
                        *("--isolation", "process", *place, str(self.node_ports[k])),
                        *(*reached, str(folder / "node.toml")),
                        environment=fleets.misbehaving(script),
                    )
                )
            nodes = self.root / "supernode.log"
            wait(
                lambda: nodes.read_text().count("SuperNode ID:") == len(NAMES), 600.0, f"all devices there, see {nodes}"
            )
            yield

    def device(self, name: str) -> Path:
        return self.root / "devices" / name

    def train(self, **changes: Any) -> dict[str, Any]:
        """One training with these settings; its status."""
        fleets.change(self.server, **changes)
        for name in NAMES:  # a device refuses a model that is far worse than its last one, such as a noisy one
            (self.device(name) / "delivered.json").unlink(missing_ok=True)
        done = subprocess.run(
            [str(PROGRAMS / "flwr"), "run", str(APP), "open", "--stream", "--run-config", f'folder="{self.server}"'],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        status = fleets.read_status(self.server)
        assert status.get("state") == "done", done.stdout + done.stderr
        return status

    def models(self) -> dict[str, KoopmanDetector]:
        return {name: KoopmanDetector.load(self.device(name) / "model.safetensors") for name in NAMES}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    fleet, found = OpenFleet(tmp_path_factory.mktemp("open")), Recorded()
    with fleet.running_all():
        found.statuses["plain"] = fleet.train(rounds=3, participation=1.0, deadline=60.0)
        found.models["plain"] = fleet.models()
        found.statuses["judged"] = fleet.train()  # the first one had nothing to be compared with
        found.statuses["noisy"] = fleet.train(rounds=1, participation=0.5, start="common", noise=0.05)
        found.statuses["secure"] = fleet.train(
            rounds=SECURE_ROUNDS, participation=1.0, noise=0.0, secure_aggregation=True, deadline=20.0
        )
        found.models["secure"] = fleet.models()
    for name, line in fleet.wires.items():
        found.streams[name] = [bytes(stream) for stream in line.kept]
        found.bytes_up[name], found.bytes_down[name] = line.up, line.down
    found.decode()
    return found


class Twin:
    """The same fleet in this process, from the samples alone: what each device must have sent in each round."""

    def __init__(self, start: Any = "warm") -> None:
        consensus = Consensus(rank=fleets.MODEL["rank"], seed=fleets.MODEL["seed"], start=start)
        self.detectors = {
            name: KoopmanDetector(**fleets.MODEL, sample_period=1.0).prepare(samples(k)) for k, name in enumerate(NAMES)
        }
        self.clients = {name: Client(name, d.memory_.statistics, consensus) for name, d in self.detectors.items()}
        self.states: dict[str, LocalState] = {}
        self.server = Server(SHAPE[0], consensus)

    @property
    def shared(self) -> Array:
        return wire.decode(wire.encode(self.server.shared, "float32"), SHAPE, "float32")

    def round(self, names: list[str]) -> dict[str, Array]:
        """Each device's message; ends the round."""
        taking_part = [self.clients[name] for name in names]
        if is_warm := self.server.begin_round(names):
            said = {client.name: client.warm_message() for client in taking_part}
        else:
            shared = self.shared
            for client in taking_part:
                self.states[client.name] = client.local_round(
                    self.states.get(client.name) or client.begin(shared), shared
                )
            said = {client.name: client.reply(self.states[client.name]) for client in taking_part}
        for name, matrix in said.items():
            self.server.receive(name, wire.decode(wire.encode(matrix, "float32"), SHAPE, "float32"))
        self.server.close_round()
        for client in () if is_warm else taking_part:
            self.states[client.name] = client.commit(self.states[client.name], self.shared)
        return said


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin()


def test_a_device_sends_only_messages_of_flowers_fleet_interface(recorded: Recorded) -> None:
    allowed = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-type", "content-length"}
    flower = {"flwr-package-name", "flwr-package-version", "flwr-component-name"}
    signature = {"flwr-public-key", "flwr-signature", "flwr-timestamp"}
    for name, said in recorded.requests.items():
        # Nothing is left unexplained, but for the last request of the device that was killed, which may be cut off.
        left = recorded.bytes_up[name] - sum(request.size for request in said)
        assert left == 0 or (name == VANISHING and 0 < left < 10_000)
        for request in said:
            assert (request.method, request.path in eavesdropper.KNOWN) == ("POST", True), request.path
            assert request.message is not None
            unknown = {key for key in request.headers if key not in allowed | flower | signature}
            assert not unknown, f"{request.path}: {sorted(unknown)}"
            assert "content-encoding" not in request.headers


IDENTITY_KEYS = {"protocol", "version", *IDENTITY, "rank", "kind", "round", "ticket", "device", "payload"}


def test_a_reply_has_only_the_entries_that_the_protocol_names(recorded: Recorded) -> None:
    objective = {f"diagnostics.{name}" for name in ("seconds", "objective", "change")}
    diagnostics = {
        "hello": set(),
        "warm": {"diagnostics.seconds"},
        "admm": objective,
        "judge": {"diagnostics.seconds", "diagnostics.loss", "diagnostics.current_loss"},
        "deliver": {"diagnostics.seconds", "diagnostics.threshold", "diagnostics.shape"},
    }
    assert {name.removeprefix("diagnostics.") for kind in diagnostics.values() for name in kind} == set(DIAGNOSTICS)
    runs = {recorded.statuses[name]["run"] for name in ("plain", "judged")}
    seen = set()
    for name, all_of in recorded.sent.items():
        for header in (sent.header for sent in all_of if sent.header["run"] in runs):
            assert set(header) == IDENTITY_KEYS | diagnostics[header["kind"]]
            assert header["device"] == name
            expected = wire.size(SHAPE, "float32") if header["kind"] in ("warm", "admm") else 0
            assert len(header["payload"]) == expected
            seen.add(header["kind"])
    assert seen == set(diagnostics)


def test_the_payload_is_what_the_device_must_send_and_nothing_else(recorded: Recorded) -> None:
    status, said, twin = recorded.statuses["plain"], recorded.replies("plain", "warm", "admm"), Twin()
    assert set(status["phases"]) == {"warm", "admm"}
    duals = 0
    for place, names in enumerate(status["participants"]):
        duals += sum(bool(name in twin.states and twin.states[name].dual.any()) for name in names)
        for name, expected in twin.round(names).items():
            found = wire.decode(said.pop((name, place))["payload"], SHAPE, "float32")
            np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not said, "a device said more than was accepted"
    assert duals, "some reply must have been P + Λ/ρ with Λ ≠ 0"
    for name, model in recorded.models["plain"].items():
        fleets.check_same(model, twin.detectors[name].adopt(retract_polar(twin.shared)))


def kept_at_home(twin: Twin, models: Mapping[str, KoopmanDetector]) -> dict[str, Any]:
    """Everything that must not leave a device, by name."""
    found: dict[str, Any] = {"canaries": [CANARY, CANARY, CANARY, CANARY], "rare values": [RARE] * 4}
    for k, name in enumerate(NAMES):
        detector, values = twin.detectors[name], samples(k)
        scaled, statistics = detector.scaling_.transform(values), detector.memory_.statistics
        found |= {
            f"samples of {name}": values,
            f"samples of {name} by channel": values.T,
            f"scaled samples of {name}": scaled,
            f"scaled samples of {name} by channel": scaled.T,
            f"rows of {name} with a canary": values[(values == CANARY).any(axis=1)],
            f"mean and scale of {name}": [*detector.scaling_.mean, *detector.scaling_.scale],
            f"xx of {name}": statistics.xx,
            f"yx of {name}": statistics.yx,
            f"yy of {name}": statistics.yy,
            f"sums of {name}": [*statistics.x_sum, *statistics.y_sum],
            f"operator of {name}": models[name].operator_,
            f"operator of {name}, transposed": models[name].operator_.T,
        }
    return found


def everything(recorded: Recorded) -> Haystack:
    """Every byte that devices sent."""
    return Haystack(stream for streams in recorded.streams.values() for stream in streams)


def test_no_sample_scaling_or_statistic_is_in_any_byte_sent(recorded: Recorded, twin: Twin) -> None:
    haystack = everything(recorded)
    needles: dict[str, NDArray[np.uint64]] = {}
    texts: dict[str, set[str]] = {"days": {DAY}, "tables": {FILE}, "folders": {"node.toml", "/devices/"}}
    for name, values in kept_at_home(twin, recorded.models["plain"]).items():
        needles |= eavesdropper.numbers(name, values)
        flat = np.ravel(np.asarray(values))
        texts[name] = eavesdropper.texts(flat[:: max(1, flat.size // 50)])
    assert sum(map(len, needles.values())) > 100_000
    assert haystack.find(needles) == []
    found = haystack.find_text(texts)
    assert found == [], haystack.around({name: texts[name] for name in found})
    for canary in (
        CANARY,
        RARE,
    ):  # by themselves also in single precision, which is too short to ask for of every sample
        for dtype in ("<f8", ">f8", "<f4", ">f4"):
            assert np.asarray(canary, dtype=dtype).tobytes() not in haystack.whole


def test_the_search_finds_what_is_there(recorded: Recorded) -> None:
    haystack = everything(recorded)
    for (name, place), header in recorded.replies("plain", "warm", "admm").items():
        numbers = wire.decode(header["payload"], SHAPE, "float32")
        found = haystack.find(eavesdropper.numbers("payload", numbers))
        assert found == ["payload in float32, little-endian"], (name, place)
    assert haystack.find_text({"flower": ["/v1/fleet/"], "nobody": ["pump-nobody"]}) == ["flower"]


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "<f2", ">f2"])
@pytest.mark.parametrize("shift", range(3))
def test_the_search_finds_numbers_in_every_disguise(dtype: str, shift: int) -> None:
    hidden = np.random.default_rng(5).normal(size=9)
    plain = bytes(shift) + hidden.astype(dtype).tobytes()
    for disguise in (plain, base64.b64encode(plain), base64.urlsafe_b64encode(plain), plain.hex().encode()):
        haystack = Haystack([b"{'x': '" + disguise + b"'}"])
        (found,) = haystack.find(eavesdropper.numbers("it", hidden))
        assert found.startswith(f"it in {np.dtype(dtype).name}")
        assert haystack.find(eavesdropper.numbers("it", hidden + 1.0)) == []
    for text in (repr(float(hidden[0])), f"{hidden[0]:.6f}"):
        assert Haystack([b"x=" + base64.b64encode(text.encode())]).find_text({"it": eavesdropper.texts(hidden)})


def test_with_noise_no_diagnostic_leaves_and_no_payload_is_the_exact_one(recorded: Recorded) -> None:
    status, twin = recorded.statuses["noisy"], Twin("common")
    assert {key for header in recorded.told("noisy") for key in header} == IDENTITY_KEYS | {"diagnostics.seconds"}
    assert status["objective"] == [None] * status["rounds"]
    said = recorded.replies("noisy", "admm")
    for name, expected in twin.round(status["participants"][0]).items():
        found = wire.decode(said[name, 0]["payload"], SHAPE, "float32")
        spread = float(np.std(found - expected))
        assert 0.02 < spread < 0.1, "noise of 0.05 times the clipping bound of 1 in every entry"


def test_with_secure_aggregation_every_payload_is_masked_and_the_sum_is_right(recorded: Recorded) -> None:
    status, twin = recorded.statuses["secure"], Twin("common")
    keys = {key for header in recorded.told("secure") for key in header if not key.startswith("masking.")}
    assert keys == IDENTITY_KEYS | {"diagnostics.seconds"}
    assert len(status["participants"]) == SECURE_ROUNDS
    assert VANISHING not in status["participants"][-1], "it was killed in the middle of the last round"
    shared_by = {(header["device"], header["round"]) for header in recorded.told("secure", "share")}
    assert (VANISHING, SECURE_ROUNDS - 1) in shared_by, "its peers hold what takes its masks out of the sum"
    said = recorded.told("secure", "admm")  # more than were accepted, where a round had to be begun anew
    for place, names in enumerate(status["participants"]):
        shared = twin.shared
        exact = {name: matrix - shared for name, matrix in twin.round(names).items()}
        for header in (header for header in said if header["round"] == place):
            check_masked(header["payload"], exact.get(header["device"]))
    assert {(header["device"], header["round"]) for header in said} >= {
        (name, place) for place, names in enumerate(status["participants"]) for name in names
    }
    samples_by_name = {name: samples(k) for k, name in enumerate(NAMES)}
    expected = fleets.replay(samples_by_name, status, start="common", sample_period=1.0)
    for name in status["delivered"]:
        shared = recorded.models["secure"][name].subspace_[:, : expected.subspace.shape[1]]
        np.testing.assert_allclose(shared, expected.subspace, atol=1e-4)
    assert set(status["delivered"]) >= set(status["participants"][-1])


def test_with_secure_aggregation_judges_send_one_masked_number_and_the_mean_is_known(recorded: Recorded) -> None:
    judged, gate = recorded.told("secure", "judge"), recorded.statuses["secure"]["gate"]
    assert gate["judges"] == len(judged) >= 3
    assert 1.0 / 1.5 <= gate["ratio"] < 1.0, "it is better than the noisy one before it"
    assert {len(header["payload"]) for header in judged} == {4}
    assert len({header["payload"] for header in judged}) == len(judged)


def check_masked(payload: bytes, exact: Array | None) -> None:
    """Integers over the whole range, uncorrelated with what they mask."""
    integers = np.frombuffer(payload, dtype="<u4").astype(np.float64) / 2.0**32
    assert integers.size == SHAPE[0] * SHAPE[1]
    assert abs(integers.mean() - 0.5) < 0.1
    assert abs(integers.std() - 12.0**-0.5) < 0.05
    signed = np.where(integers < 0.5, integers, integers - 1.0)
    assert exact is None or abs(np.corrcoef(signed, exact.ravel())[0, 1]) < 0.3


def test_the_bytes_of_a_round_are_known(recorded: Recorded, record_property: Any) -> None:
    payload = wire.size(SHAPE, "float32")
    for kind in ("hello", "warm", "admm", "deliver"):
        run = recorded.statuses["plain"]["run"]
        sizes = [
            sent.size
            for all_of in recorded.sent.values()
            for sent in all_of
            if sent.header["run"] == run and sent.header["kind"] == kind
        ]
        print(f"{kind}: {np.mean(sizes):.0f} bytes of requests a reply, {payload} of payload where there is one")
        record_property(f"bytes of a {kind} reply", float(np.mean(sizes)))
        assert min(sizes) > (payload if kind in ("warm", "admm") else 0)
    for name in NAMES:
        print(f"{name}: {recorded.bytes_up[name]} up and {recorded.bytes_down[name]} down in three trainings")
