"""A fleet of eight real servers over TLS on loopback, with two kills and a latecomer, against the run in one process.

Eight `fedkad client` processes have machine-1-* of SMD as their private data. Two are killed without warning in the
middle of the training and started again, one joins late. At the end every detector is compared with that of
`federate` on the same schedule of participants. `python -m benchmarks.fleet`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.loopback import Loopback, Wire, wait
from benchmarks.measure import heading, load, one_blas_thread
from fedkad import KoopmanDetector, federate
from fedkad.bench.studies.rounds import optimal_loss, statistics_of
from fedkad.detect.series import Series
from fedkad.federation.client import Client
from fedkad.federation.inprocess import Exchange
from fedkad.federation.server import Server
from fedkad.federation.settings import Consensus
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import relative_loss
from fedkad.tables import read_fleet, write_table

ROUNDS, PARTICIPATION = 12, 0.5
TOLERANCE = 1e-6


def write_data(folder: Path) -> dict[str, Path]:
    """The machines as tables, one for each device."""
    folder.mkdir()
    paths = {}
    for machine in load("SMD"):
        if machine.name.startswith("machine-1-"):
            paths[machine.name] = folder / f"{machine.name}.csv"
            write_table(paths[machine.name], {f"c{k}": column for k, column in enumerate(machine.train.T)})
    return paths


class Meter(threading.Thread):
    """Reads the bytes on the wire whenever a round is closed."""

    def __init__(self, fleet: Loopback, wire: Wire) -> None:
        super().__init__(daemon=True)
        self.fleet, self.wire = fleet, wire
        self.begin = wire.up + wire.down
        self.after: dict[int, int] = {}

    def run(self) -> None:
        """Look until the training is done."""
        state = ""
        while state != "done":
            status = self.fleet.status()
            state = status.get("state", "")
            self.after.setdefault(status.get("round", 0), self.wire.up + self.wire.down - self.begin)
            time.sleep(0.1)


def ratios(series: dict[str, list[Series]], schedule: list[list[str]]) -> list[float]:
    """After every round, the mean relative loss over that of a centralised solver on the same statistics."""
    detectors = {name: KoopmanDetector().prepare(rows) for name, rows in series.items()}
    devices, optimum = statistics_of(detectors), optimal_loss(detectors)
    clients = {name: Client(name, detector.kept()[0], Consensus()) for name, detector in detectors.items()}
    dimension = next(iter(detectors.values())).lifting_.dimension
    exchange = Exchange(clients, Server(dimension, Consensus()), "float32")
    found = []
    for participants in schedule:
        exchange.round(participants)
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


def compare(fleet: Loopback, series: dict[str, list[Series]], schedule: list[list[str]]) -> None:
    """Print how far each detector is from that of the same schedule in one process."""
    reference = federate(series, schedule=schedule)
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


def main() -> None:
    """Run the fleet and print what it did."""
    one_blas_thread()
    heading("Eight servers of SMD as a fleet on loopback: TLS, keys, reverse proxy, a process for every device")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = write_data(root / "data")
        names = sorted(data)
        options = ("--rounds", str(ROUNDS), "--participation", str(PARTICIPATION), "--deadline", "45")
        with Loopback(root, data, *options) as fleet:
            wire = Wire(fleet.port)
            fleet.through(wire)
            fleet.start_server()
            fleet.start(*names[:7])
            fleet.wait_online(seconds=240)
            idle_up, idle_down, began = wire.up, wire.down, time.monotonic()
            meter = Meter(fleet, wire)
            meter.start()
            fleet.train()
            told: list[str] = []
            teller = threading.Thread(target=lambda: told.extend(story(fleet, names)))
            teller.start()
            fleet.wait_done(900)
            seconds = time.monotonic() - began
            teller.join()
            wait(lambda: set(names) <= set(fleet.status()["delivered"]), 300, "the result delivered to all")
            status = fleet.status()
            up, down = wire.up - idle_up, wire.down - idle_down
        print("\n".join(f"  {line}" for line in told))
        devices = read_fleet(root / "data")
        series = {name: [Series(v, device.channels) for v in device.series()] for name, device in devices.items()}
        near, payload = ratios(series, status["participants"]), 0
        print("  round        seconds  computing  loss/optimum  payload MB  wire MB   participants")
        for k, (phase, participants) in enumerate(zip(status["phases"], status["participants"], strict=True)):
            payload += status["round_bytes"][k]
            print(
                f"  {k + 1:2d} {phase:4s} {status['round_seconds'][k]:12.1f} {status['round_computing'][k]:10.2f}"
                f" {near[k]:13.4f} {payload / 1e6:11.3f} {meter.after.get(k + 1, 0) / 1e6:8.3f}"
                f"   {', '.join(participants)}"
            )
        messages = sum(map(len, status["participants"]))
        print(
            f"  {status['round']} rounds with {messages} replies in {seconds:.0f} s, "
            f"delivered to {len(status['delivered'])}"
        )
        print(f"  payload: {status['bytes_up'] / 1e6:.3f} MB up, {status['bytes_down'] / 1e6:.3f} MB down")
        print(f"  on the wire, polling and delivery and TLS included: {up / 1e6:.3f} MB up, {down / 1e6:.3f} MB down")
        print(f"  refused: {status['refusals']}")
        for refused in status["refused"]:
            print(f"    {refused['device']}, round {refused['round'] + 1}: {refused['reason']}")
        compare(fleet, series, status["participants"])


if __name__ == "__main__":
    main()
