"""A fleet of eight real servers over TLS on loopback, with two kills and a latecomer, against the run in one process.

Eight `fedkad client` processes have machine-1-* of SMD as their private data. Two are killed without warning in the
middle of the training and started again, one joins late. At the end every detector is compared with that of
`federate` on the same schedule of participants. Then the fleet trains once more, by the default settings and left in
peace, and the bytes are counted until the loss is near that of a centralised solver. `python -m measurements.fleet`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkad import KoopmanDetector, federate
from fedkad.detect.modelfile import read_model
from fedkad.detect.series import Series
from fedkad.federation.client import Client
from fedkad.federation.local import LocalTraining
from fedkad.federation.model_archive import KIND
from fedkad.federation.settings import Consensus
from fedkad.federation.training_files import RESULT
from fedkad.fleet.server import settings
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import relative_loss
from fedkad.tables import read_fleet, write_table
from fedkad_bench.studies.rounds import optimal_loss, statistics_of
from measurements.loopback import Loopback, Wire, wait
from measurements.measure import heading, load, one_blas_thread

ROUNDS, PARTICIPATION = 12, 0.5
TOLERANCE = 1e-6
NEAR = 1.02
"""Loss over that of a centralised solver at which a subspace is as good as its."""

Data = dict[str, list[Series]]


def write_data(folder: Path) -> dict[str, Path]:
    """The machines as tables, one for each device."""
    folder.mkdir()
    paths = {}
    for machine in load("SMD"):
        if machine.name.startswith("machine-1-"):
            paths[machine.name] = folder / f"{machine.name}.csv"
            write_table(paths[machine.name], {f"c{k}": column for k, column in enumerate(machine.train.T)})
    return paths


class Traffic(NamedTuple):
    """Bytes from the devices, and to them."""

    up: int
    down: int

    def since(self, before: Traffic) -> Traffic:
        """What came after."""
        return Traffic(self.up - before.up, self.down - before.down)

    def __str__(self) -> str:
        return f"{self.up / 1e6:.3f} MB up, {self.down / 1e6:.3f} MB down"


class Meter(threading.Thread):
    """Reads the bytes on the wire whenever a round of a training is closed, and when all hold its result."""

    def __init__(self, fleet: Loopback, wire: Wire) -> None:
        super().__init__(daemon=True)
        self.fleet, self.wire = fleet, wire
        self.before = fleet.status().get("run", "")
        self.begin = Traffic(wire.up, wire.down)
        self.after: dict[int, Traffic] = {}
        self.end = self.begin

    def run(self) -> None:
        """Look until the training is done."""
        status: dict[str, Any] = {}
        while status.get("state") != "done" or not set(self.fleet.data) <= set(status["delivered"]):
            time.sleep(0.1)
            self.end = Traffic(self.wire.up, self.wire.down).since(self.begin)
            status = self.fleet.status()
            if status.get("run", self.before) == self.before:
                status = {}
            else:
                self.after.setdefault(status["round"], self.end)


def ratios(series: Data, schedule: list[list[str]]) -> list[float]:
    """After every round, the mean relative loss over that of a centralised solver on the same statistics."""
    detectors = {name: KoopmanDetector().prepare(rows) for name, rows in series.items()}
    devices, optimum = statistics_of(detectors), optimal_loss(detectors)
    clients = {name: Client(name, detector.memory_.statistics, Consensus()) for name, detector in detectors.items()}
    exchange = LocalTraining(clients, "float32", schedule)
    found = []
    for _ in exchange.rounds():
        found.append(relative_loss(devices, retract_polar(exchange.server.shared)) / optimum)
    return found


def story(fleet: Loopback, names: list[str]) -> list[str]:
    """What happens during the training, as it happens."""
    told = []
    began = time.monotonic()

    def after(closed: int, what: str) -> None:
        wait(lambda: fleet.status().get("round", 0) >= closed, 300, f"{closed} rounds")
        time.sleep(3.0)  # well inside the next round
        told.append(f"{time.monotonic() - began:6.1f} s, during round {closed + 1}: {what}")

    after(2, f"{names[1]} is killed")
    fleet.kill(names[1])
    after(3, f"{names[7]} joins late")
    fleet.start(names[7])
    fleet.start(names[1])
    after(5, f"{names[2]} is killed, {names[1]} was started again")
    fleet.kill(names[2])
    fleet.start(names[2])
    return told


def compare(fleet: Loopback, series: Data, schedule: list[list[str]]) -> None:
    """Print how far each detector is from that of the same schedule in one process."""
    reference = federate(series, schedule=schedule, robust=True)  # the default of a fleet over a network
    print("  device          subspace    operator   threshold   (largest difference to the run in one process)")
    worst = 0.0
    for name, expected in reference.detectors.items():
        path = fleet.device_folder(name) / "model.safetensors"
        if not path.exists():
            print(f"  {name:14s} no model was delivered")
            worst = np.inf
            continue
        found = KoopmanDetector.load(path)
        apart = (
            float(np.abs(found.subspace_ - expected.subspace_).max()),
            float(np.abs(found.operator_ - expected.operator_).max()),
            abs(found.threshold_ / expected.threshold_ - 1.0),
        )
        worst = max(worst, *apart)
        print(f"  {name:14s} {apart[0]:9.1e} {apart[1]:11.1e} {apart[2]:11.1e}")
    print(f"  {'within' if worst <= TOLERANCE else 'NOT WITHIN'} {TOLERANCE:g}")


def train(fleet: Loopback, wire: Wire, during: Callable[[], list[str]]) -> tuple[Meter, float]:
    """A training until all hold its result, and what happens during it: the bytes and seconds until it was done."""
    meter, began, told = Meter(fleet, wire), time.monotonic(), list[str]()
    meter.start()
    fleet.train()
    teller = threading.Thread(target=lambda: told.extend(during()))
    teller.start()
    fleet.wait_done(900, after=meter.before)
    seconds = time.monotonic() - began
    teller.join()
    meter.join(300)
    if meter.is_alive():
        raise TimeoutError(f"The result was not delivered to all: {fleet.status()['delivered']}.")
    print("".join(f"  {line}\n" for line in told), end="")
    return meter, seconds


def report(fleet: Loopback, meter: Meter, seconds: float, near: list[float]) -> None:
    """Print what a training did."""
    status, payload = fleet.status(), 0
    print("  round        seconds  computing  loss/optimum  payload MB  wire MB   participants")
    for k, (phase, participants) in enumerate(zip(status["phases"], status["participants"], strict=True)):
        payload += status["round_bytes"][k]
        print(
            f"  {k + 1:2d} {phase:4s} {status['round_seconds'][k]:12.1f} {status['round_computing'][k]:10.2f}"
            f" {near[k]:13.4f} {payload / 1e6:11.3f} {sum(meter.after.get(k + 1, (0, 0))) / 1e6:8.3f}"
            f"   {', '.join(participants)}"
        )
    messages, delivered = sum(map(len, status["participants"])), len(status["delivered"])
    print(f"  {status['round']} rounds with {messages} replies in {seconds:.0f} s, delivered to {delivered}")
    print(f"  payload: {Traffic(status['bytes_up'], status['bytes_down'])}")
    print(f"  on the wire, polling and delivery and TLS included: {meter.end}")
    print(f"  refused: {status['refusals']}")
    for refused in status["refused"]:
        print(f"    {refused['device']}, round {refused['round'] + 1}: {refused['reason']}")


def report_near(fleet: Loopback, meter: Meter, near: list[float]) -> None:
    """Print what travelled until the loss was near the optimum, and what judging and delivering the result cost."""
    records = read_model(fleet.server_folder / "training" / RESULT, KIND)[0]["records"]
    closed = next(k for k, ratio in enumerate(near, start=1) if ratio <= NEAR)
    payload = Traffic(*(sum(record[way] for record in records[:closed]) for way in ("bytes_up", "bytes_down")))
    print(f"  until the loss is within {NEAR} of the optimum, after round {closed}:")
    print(f"    payload: {payload}")
    print(f"    on the wire, polling and TLS included: {meter.after[closed]}")
    status, model = fleet.status(), settings.load(fleet.server_folder).model
    judges, names, size = status["gate"]["judges"], status["delivered"], 4 * model.dimension * model.rank  # float32
    print(f"  {judges} devices judge Z beside the current one, and {len(names)} get it, after the last round:")
    print(f"    payload: {Traffic(0, (2 * judges + len(names)) * size)}")
    print(f"    on the wire, polling and TLS included: {meter.end.since(meter.after[len(records)])}")


def by_default(folder: Path) -> None:
    """Let the next training have the default settings."""
    known = settings.load(folder)
    settings.save(folder, replace(known, training=settings.TrainingSettings()))


def main() -> None:
    """Run the fleet and print what it did: in trouble, then in peace."""
    one_blas_thread()
    heading("Eight servers of SMD as a fleet on loopback: TLS, keys, reverse proxy, a process for every device")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = write_data(root / "data")
        names = sorted(data)
        devices = read_fleet(root / "data").devices
        series = {name: [Series(v, device.channels) for v in device.series()] for name, device in devices.items()}
        options = ("--rounds", str(ROUNDS), "--participation", str(PARTICIPATION), "--deadline", "45")
        with Loopback(root, data, *options) as fleet:
            wire = Wire(fleet.port)
            fleet.through(wire)
            fleet.start_server()
            fleet.start(*names[:7])
            fleet.wait_online(seconds=240)
            print(f"\n  {ROUNDS} rounds, {PARTICIPATION:.0%} of the devices a round, two killed and one late")
            meter, seconds = train(fleet, wire, lambda: story(fleet, names))
            near = ratios(series, fleet.status()["participants"])
            report(fleet, meter, seconds, near)
            compare(fleet, series, fleet.status()["participants"])
            print("\n  the default settings, and nothing happens")
            by_default(fleet.server_folder)
            meter, seconds = train(fleet, wire, list)
            near = ratios(series, fleet.status()["participants"])
            report(fleet, meter, seconds, near)
            report_near(fleet, meter, near)
            compare(fleet, series, fleet.status()["participants"])


if __name__ == "__main__":
    main()
