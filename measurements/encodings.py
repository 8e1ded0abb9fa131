"""Bytes against the objective reached, for every encoding, on the servers machine-1-* of SMD.

The measure is the mean relative loss at the orthonormal Z over that of a centralised solver on the same statistics.
Payload only; what a network adds to it, `python -m measurements.fleet` counts on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedkad import KoopmanDetector
from fedkad.federation.client import Client
from fedkad.federation.local import LocalTraining
from fedkad.federation.server import Sampler
from fedkad.federation.settings import ENCODINGS, PRESETS, Encoding
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import relative_loss
from fedkad_bench.studies.rounds import optimal_loss, statistics_of
from measurements.measure import heading, load, one_blas_thread

NEAR = 1.02
SEEDS = range(3)
Detectors = dict[str, KoopmanDetector]


def curve(
    detectors: Detectors, preset: str, encoding: Encoding, rounds: int, seed: int, optimum: float
) -> tuple[list[float], list[int], int]:
    """After every round the loss over the optimum and the bytes so far; and the bytes of the delivery at the end."""
    chosen = PRESETS[preset]
    clients = {
        name: Client(name, detector.memory_.statistics, chosen.consensus) for name, detector in detectors.items()
    }
    sampler = Sampler(list(detectors), 0.25, chosen.sampling, seed)
    exchange = LocalTraining(clients, encoding, [sampler.next() for _ in range(rounds)])
    devices, ratios, spent = statistics_of(detectors), [], [0]
    for record in exchange.rounds():
        spent.append(spent[-1] + record.bytes_up + record.bytes_down)
        ratios.append(relative_loss(devices, retract_polar(exchange.server.shared)) / optimum)
    return ratios, spent[1:], exchange.delivery_bytes


def until_near(ratios: Sequence[float], spent: Sequence[int]) -> tuple[int, float] | None:
    """Rounds and MB until the loss is near the optimum, if ever."""
    near = [k for k, ratio in enumerate(ratios) if ratio <= NEAR]
    return (near[0] + 1, spent[near[0]] / 1e6) if near else None


def main() -> None:
    """Print a row for every encoding and order of participants, and the paper's preset below."""
    one_blas_thread()
    fleet = {machine.name: machine.train for machine in load("SMD") if machine.name.startswith("machine-1-")}
    heading(
        f"Payload of a training until <= {NEAR} of the centralised objective: SMD, {len(fleet)} servers, 25 % a round"
    )
    detectors = {name: KoopmanDetector().prepare(train) for name, train in fleet.items()}
    optimum = optimal_loss(detectors)
    print("  encoding  order   rounds   MB until near   delivery MB   loss after 8 rounds   after 30   MB of 8 rounds")
    for encoding in ENCODINGS:
        for seed in SEEDS:
            ratios, spent, delivered = curve(detectors, "default", encoding, 30, seed, optimum)
            rounds, near = until_near(ratios, spent) or (0, float("nan"))
            print(
                f"  {encoding:8s} {seed:6d} {rounds:8d} {near:15.3f} {delivered / 1e6:13.3f} {ratios[7]:21.5f}"
                f" {ratios[29]:10.5f} {spent[7] / 1e6:16.3f}",
                flush=True,
            )
    for seed in SEEDS:
        ratios, spent, delivered = curve(detectors, "paper", "float32", 30, seed, optimum)
        print(
            f"  the paper's preset, order {seed}: {spent[29] / 1e6:.3f} MB in 30 rounds, "
            f"delivery {delivered / 1e6:.3f} MB, loss {ratios[29]:.3f} of the optimum"
        )


if __name__ == "__main__":
    main()
