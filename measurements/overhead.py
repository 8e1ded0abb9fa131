"""What a round costs beyond the devices' computation, against an empty Flower app on the same machine in the same run.

The empty app sends a message to every device and waits for the replies: with the same short poll as ours, and with
Flower's own loop. Beside it, what starting an answer costs a device, and its memory. `python -m measurements.overhead`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkad.tables import write_table
from measurements.loopback import Loopback, megabytes, wait
from measurements.measure import heading, one_blas_thread

DEVICES, ROUNDS = 4, 10
EMPTY = Path(__file__).parent / "emptyapp"


class EmptyLoopback(Loopback):
    """A fleet that runs the empty app, on the server and in the place of the one that is installed on devices."""

    def start_server(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the server with the other app."""
        self._start("server", ["server", str(self.server_folder), "--app", str(EMPTY)], environment or {})

    def start(self, *names: str, environment: Mapping[str, str] | None = None) -> None:
        """Start devices with the other app."""
        path = os.pathsep.join(filter(None, (str(EMPTY / "device"), os.environ.get("PYTHONPATH"))))
        super().start(*names, environment={"PYTHONPATH": path, **(environment or {})})


def write_data(folder: Path) -> dict[str, Path]:
    """Small tables: what is computed does not matter here."""
    folder.mkdir()
    generator, paths = np.random.default_rng(0), {}
    for k in range(DEVICES):
        rows = np.sin(np.arange(1500)[:, None] / (5.0 + k + np.arange(25))) + 0.1 * generator.normal(size=(1500, 25))
        paths[f"device-{k}"] = folder / f"device-{k}.csv"
        write_table(paths[f"device-{k}"], {f"c{c}": column for c, column in enumerate(rows.T)})
    return paths


APP = "import flwr.supernode.cli, fedkad.fleet.device.clientapp"
START = """
import os, resource, statistics, subprocess, sys
def spent():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    return total
def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
def median(start, times):
    seconds = []
    for _ in range(times):
        before = spent()
        start()
        seconds.append(spent() - before)
    return statistics.median(seconds)
fresh = median(lambda: subprocess.run([sys.executable, "-W", "ignore", "-c", {app!r}], check=True), 5)
exec({app!r})
print(fresh, median(fork, 50))
"""


def start_costs() -> tuple[float, float]:
    """Processor seconds until an app can answer: in a new Python, as Flower does, and in a fork, as our devices do."""
    code = START.format(app=APP)
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    fresh, forked = map(float, printed.split())
    return fresh, forked


def ready(fleet: Loopback) -> None:
    """Start everything and wait until it is there."""
    fleet.start_server()
    fleet.start()
    fleet.wait_online(seconds=240)
    fleet.train()


def main() -> None:
    """Print the medians and their ratios."""
    one_blas_thread()
    heading(f"Overhead of a round with {DEVICES} devices, all of which take part")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = write_data(root / "data")
        os.mkdir(root / "empty")
        os.mkdir(root / "ours")
        with EmptyLoopback(root / "empty", data) as fleet:
            ready(fleet)
            wait(lambda: "short" in fleet.status(), 600, "the empty app done")
            empty = fleet.status()
        with Loopback(root / "ours", data, "--rounds", str(ROUNDS), "--participation", "1") as fleet:
            ready(fleet)
            ours = fleet.wait_done(600)
            memory = max(megabytes(process.pid) for name, process in fleet.running.items() if name != "server")
    spent = np.array(ours["round_seconds"]) - np.array(ours["round_computing"])
    short, usual, own = (float(np.median(values)) for values in (empty["short"], empty["usual"], spent[1:]))
    print(f"  empty app, polled every half second    {short:6.2f} s a round (median of {len(empty['short'])})")
    print(f"  empty app, Flower's own loop           {usual:6.2f} s")
    print(f"  FedKAD, beyond the slowest computation {own:6.2f} s (median of {len(spent) - 1}, after the first)")
    fresh, forked = start_costs()
    print(f"  starting an answer, processor time     {fresh:6.2f} s in a new Python, {1e3 * forked:.1f} ms in a fork")
    print(f"  memory of an idle device               {memory:6.0f} MB, pages shared by its processes counted once")
    print(f"  ratio {own / short:.2f} to the empty app with the same poll, {own / usual:.2f} to Flower's own loop")


if __name__ == "__main__":
    main()
