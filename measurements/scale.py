"""The server with 100, 1,000 and 10,000 clients: its seconds and its resident memory, each in a new process.

The messages are those of the network, headers, tickets and all. The clients' computation is not the server's: eight
devices compute, and the others send what one of these does under their own names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.federation.client import Client
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.participant import Participant, pack
from fedkad.federation.protocol import Reply, Request, Terms
from fedkad.federation.settings import Consensus
from fedkad.koopman.lifting import Lifting
from measurements.measure import heading, one_blas_thread

NUMBERS = (100, 1000, 10000)
CHANNELS, ROWS, DEVICES = 25, 1200, 8


def resident() -> float:
    """Resident memory now, and at most so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmHWM"))


def devices() -> list[Client]:
    """A few devices with 25 channels."""
    generator = np.random.default_rng(0)
    clients = []
    for k in range(DEVICES):
        periods = generator.uniform(5.0, 40.0, size=CHANNELS)
        series = np.sin(np.arange(ROWS)[:, None] / periods) + 0.1 * generator.normal(size=(ROWS, CHANNELS))
        clients.append(Client(f"device-{k}", KoopmanDetector().prepare(series).memory_.statistics, Consensus()))
    return clients


def answers(clients: list[Client], request: Request, shared: NDArray[np.float64]) -> list[bytes]:
    """What each of the few devices says in this round; they keep no state, which only the devices would hold."""
    said = []
    for client in clients:
        if request.kind == "warm":
            message = client.warm_message()
        else:
            message = client.reply(client.local_round(client.begin(shared), shared))
        said.append(pack(Participant(client.name), request, message, shared).payload)
    return said


def measure(number: int) -> dict[str, float]:
    """Eight rounds with so many clients; what the server spent."""
    clients = devices()
    lifting = Lifting(CHANNELS, 20, 128, 0)
    channels = tuple(map(str, range(CHANNELS)))
    terms = Terms.of("scale", lifting, channels, horizon=1, encoding="float32", consensus=Consensus())
    names = [f"device-{k}" for k in range(number)]
    with tempfile.TemporaryDirectory() as folder:
        training = Coordinator(terms, TrainingPlan(), Path(folder))
        said = answers(clients, Request(terms, "warm", 0, ""), training.shared)
        for client in clients:
            client.local_round(client.begin(training.shared), training.shared)
        before, server = resident(), 0.0
        while not training.finished:
            began = time.process_time()
            requests = training.open(training.choose(names))
            server += time.process_time() - began
            said = answers(clients, next(iter(requests.values())), training.shared)
            began = time.process_time()
            for k, (name, request) in enumerate(requests.items()):
                training.take(name, Reply(name, said[k % DEVICES], {"seconds": 0.0}).header(request))
            training.close()
            server += time.process_time() - began
    replies = sum(len(record.participants) for record in training.state.records)
    held = number * lifting.dimension * 24 * 8 / 4 / 2**20
    return {"seconds": server, "replies": replies, "before": before, "peak": resident(), "held": held}


def main() -> None:
    """Print a row for each number of clients."""
    one_blas_thread()
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    heading("The server of 25-channel devices: 8 rounds, 25 % a round, replies in float32, added up as they arrive")
    print("  clients   replies   seconds   ms a reply   resident MB before   at most   replies of a round, if kept")
    for number in NUMBERS:
        printed = subprocess.run(
            [sys.executable, "-m", "measurements.scale", str(number)], capture_output=True, text=True, check=True
        ).stdout
        row = json.loads(printed)
        each = 1e3 * row["seconds"] / row["replies"]
        print(
            f"  {number:7,d} {row['replies']:9,d} {row['seconds']:9.2f} {each:12.3f} {row['before']:20.0f}"
            f" {row['peak']:9.0f} {row['held']:22.0f} MB"
        )


if __name__ == "__main__":
    main()
