"""The fleet of real processes that the tests of faults share, and what they do to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.detect.detector import FewRowsWarning
from fedkad.detect.modelfile import read_model
from fedkad.detect.series import Series
from fedkad.federation.durable import STATE
from fedkad.fleet import settings
from fedkad.tables import read_device
from measurements.loopback import Loopback, Wire, wait
from tests.attackers import fleets
from tests.sabotage import sitecustomize as sabotage
from tests.sabotage.sitecustomize import Points

Array = NDArray[np.float64]
Status = dict[str, Any]

MODEL: dict[str, Any] = {"rank": 6, "observables": 32}
OPTIONS = ("--rank", "6", "--observables", "32", "--rounds", "4", "--participation", "1.0")
PUMPS = ("pump-0", "pump-1", "pump-2")
CHANNELS = ("a", "b", "c")
SABOTAGE = Path(__file__).parent
PATIENCE = 300.0
"""Seconds for anything to happen: only a fleet that is stuck takes so long."""

SHORT, LONG = 20.0, 120.0
"""Deadlines of a round: for one that is to miss somebody, and for one that is to wait."""


def recorded(number: int, rows: int = 1500) -> Array:
    t = np.arange(float(rows))[:, None]
    noise = 0.05 * np.random.default_rng(number).normal(size=(rows, 3))
    return np.asarray(np.sin(t / np.array([[7.0 + number, 11.0, 5.0]])) + noise)


def write_table(folder: Path, number: int) -> Path:
    path = folder / f"pump-{number}.csv"
    np.savetxt(path, recorded(number), delimiter=",", header=",".join(CHANNELS), comments="", fmt="%.6f")
    return path


class Fleet(Loopback):
    """The fleet of this module: one that can be sabotaged, and whose results are held against the replay in process."""

    look_every = 0.5

    def __init__(self, root: Path) -> None:
        (root / "data").mkdir()
        super().__init__(root, {name: write_table(root / "data", k) for k, name in enumerate(PUMPS)}, *OPTIONS)
        self.agents: set[str] = set()  # devices that train from their own models
        self.wires = {name: self.wired(name) for name in PUMPS}

    def wired(self, name: str) -> Wire:
        wire = Wire(self.port)
        self.through(wire, name)
        return wire

    def points(self, name: str) -> Points:
        folder = self.root / "sabotage" / name
        folder.mkdir(parents=True, exist_ok=True)
        return Points(folder)

    def start_server(self) -> None:
        self._start("server", ["server", str(self.server_folder)], fleets.hurried())

    def start(self, *names: str, environment: Mapping[str, str] | None = None) -> None:
        for name in names or tuple(self.data):
            data = () if name in self.agents else ("--data", str(self.data[name]))
            troubled = {**fleets.hurried(), sabotage.SABOTAGE: str(self.points(name).armed.parent)}
            self._start(name, ["client", str(self.device_folder(name)), *data], troubled)

    def leave(self, name: str) -> None:
        """Stop a device, which tells the server so."""
        process = self.running.pop(name)
        process.terminate()
        process.wait(60)

    def plan(self, **changes: Any) -> None:
        """How the next training goes."""
        known = settings.load(self.server_folder)
        settings.save(self.server_folder, replace(known, training=replace(known.training, **changes)))

    def online(self) -> set[str]:
        """As `fedkad fleet status` says it, without a process for every look."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower imports
            from fedkad.fleet.flower.control import ControlError, open_control
        with open_control(self.control_port, self.server_folder / "ca" / "ca.crt") as control:
            try:
                return {node.name for node in control.nodes().values() if node.state == "online"}
            except ControlError:
                return set()

    def stop(self) -> None:
        super().stop()
        for wire in self.wires.values():
            wire.close()

    # -- what is waited for -------------------------------------------------------------------------------------

    def begin(self, **changes: Any) -> str:
        """Have everybody there and a training under way; the run before it."""
        self.plan(**{"deadline": LONG, "quorum": 1.0, "rounds": 4, **changes})
        self.wait_online(seconds=PATIENCE)
        self.wait_idle()
        before = str(self.status().get("run", ""))
        self.train()
        return before

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Say how far the training was when something did not happen."""
        try:
            yield
        except TimeoutError as error:
            raise TimeoutError(f"{error} The status is {self.status()}.") from None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something."""
        with self.telling():
            wait(condition, PATIENCE, what)

    def wait_idle(self) -> None:
        wanted = self.server_folder / "training" / "wanted"
        self.until(lambda: not wanted.exists(), "the last training settled")

    def wait_round(self, number: int, before: str) -> Status:
        """Wait until so many rounds of the training are closed."""

        def is_closed() -> bool:
            status = self.status()
            return status.get("run", before) != before and bool(status["round"] >= number)

        self.until(is_closed, f"{number} rounds closed after run {before or 'none'}")
        return self.status()

    def wait_fired(self, name: str, point: str) -> None:
        self.until(self.points(name).fired.exists, f"{name} at the point {point!r}")

    def arm(self, name: str, point: str) -> None:
        """Let a device stay at that point when it gets there."""
        self.points(name).arm(point)

    def hold(self, name: str) -> Points:
        """Wait until a device computes, and let it stay there: the round is open as long as it does."""
        self.arm(name, sabotage.COMPUTING)
        self.wait_fired(name, sabotage.COMPUTING)
        return self.points(name)

    @contextmanager
    def in_next_round(self, points: Mapping[str, str], pacemaker: str) -> Iterator[None]:
        """Arm points between two rounds, so that all are reached in the same one, which the pacemaker then holds open.

        It does so until this ends: what takes long in between, such as a start after a kill, costs no rounds.
        """
        held = self.hold(pacemaker)
        answered = f"{sorted(points)} answered in the round that {pacemaker} holds open"
        self.until(lambda: all(self.has_answered(name) for name in points), answered)
        for name, point in points.items():
            self.arm(name, point)
        held.hold_again(sabotage.COMPUTING)
        yield
        held.release()

    def has_answered(self, name: str) -> bool:
        """Tell whether a device has computed its reply of the open round."""
        path = self.device_folder(name) / "consensus.safetensors"
        return path.exists() and bool(self.kept(name)["pending"] == self.status().get("round"))

    def kill_at(self, name: str, point: str) -> None:
        """Kill a device at the point that is armed."""
        self.wait_fired(name, point)
        self.kill(name)
        self.points(name).release()

    @contextmanager
    def pause(self, *names: str) -> Iterator[None]:
        """Let these devices compute as long as this takes; where nobody else is there, no round closes meanwhile."""
        for name in names:
            self.arm(name, sabotage.COMPUTING)
        for name in names:
            self.wait_fired(name, sabotage.COMPUTING)
        yield
        for name in names:
            self.points(name).release()

    def start_again(self, *names: str) -> None:
        """Start devices that were killed, and wait until they are let in: the server counts them for a while yet."""
        before = {name: self.connections(name) for name in names}
        self.start(*names)
        self.until(lambda: all(self.connections(name) > before[name] for name in names), f"{names} connected again")

    def connections(self, name: str) -> int:
        """How often a device has told that it is connected."""
        return (self.root / f"{name}.log").read_text().count(": connected to")

    def finish(self, before: str) -> Status:
        """Wait until the training is done and everybody has its result, and hold it against the replay."""
        with self.telling():
            self.wait_done(PATIENCE, before)
        self.wait_idle()
        expected = set(self.running) - {"server"}
        self.until(lambda: expected <= set(self.status()["delivered"]), f"all of {sorted(expected)} delivered")
        status = self.status()
        self.check(status, expected)
        return status

    def finish_with(self, before: str, closed: list[list[str]], names: set[str]) -> Status:
        """Finish; what was closed must have stayed so, and these devices have taken part in what came after."""
        status = self.finish(before)
        later = status["participants"][len(closed) :]
        assert status["participants"][: len(closed)] == closed
        assert names <= {name for participants in later for name in participants}, later
        return status

    def finish_as(self, before: str, closed: Status) -> None:
        """Finish; the training must be the one that it was, with the rounds closed before and all that were missing."""
        status = self.finish(before)
        assert status["run"] == closed["run"]
        assert status["participants"][: closed["round"]] == closed["participants"]
        assert len(status["participants"]) == status["rounds"] == closed["rounds"]

    # -- the oracle ---------------------------------------------------------------------------------------------

    def series(self, name: str) -> list[Series]:
        device = read_device(self.data[name])
        return [Series(values, device.channels) for values in device.series()]

    def check(self, status: Status, names: set[str]) -> None:
        """The models on the devices are those of the recorded schedule, trained in process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRowsWarning)
            fleet = {name: self.series(name) for name in self.data}
            expected = federate(fleet, schedule=status["participants"], **MODEL)
        for name in sorted(names - self.agents):
            found, reference = self.model(name), expected.detectors[name]
            np.testing.assert_allclose(found.subspace_, reference.subspace_, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(found.operator_, reference.operator_, atol=1e-6, err_msg=name)
        self.shared = expected.subspace

    def model(self, name: str) -> KoopmanDetector:
        return KoopmanDetector.load(self.device_folder(name) / "model.safetensors")

    def kept(self, name: str) -> dict[str, Any]:
        """The header of a device's side of the consensus, which is whole: a damaged file raises."""
        return read_model(self.device_folder(name) / "consensus.safetensors", STATE)[0]

    def told(self) -> str:
        """What the logs say, for whoever must find out why a test failed."""
        server = self.server_folder / "logs"
        paths = [*self.root.glob("*.log"), server / "app.log", server / "superlink.log"]
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in paths if path.exists())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_server()
        fleet.start(*PUMPS)
        yield fleet


@pytest.fixture
def fleet(running: Fleet) -> Iterator[Fleet]:
    yield running
    for name in (*PUMPS, *running.agents):
        running.points(name).release()
    for name in ("server", *PUMPS):
        if name not in running.running:
            running.start_server() if name == "server" else running.start(name)
    for wire in running.wires.values():
        wire.mend()
    print(running.told())
