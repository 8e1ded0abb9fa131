"""A whole federation on the servers of SMD: against the bare matrix products that it needs."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fedkad import federate
from fedkad.federation.inprocess import Federation
from fedkad.koopman.operator import Reduced
from fedkad.koopman.snapshots import BLOCK, Statistics
from fedkad.koopman.subspace import OWN_STEPS
from measurements.measure import Array, heading, load, one_blas_thread

ROUNDS = 30
STEPS = 5
Product = tuple[int, int, int]  # rows, inner, columns


def counted_federation(fleet: dict[str, Array]) -> tuple[Federation, float, float, int]:
    """Run it: wall-clock seconds, processor seconds, and how often statistics were reduced to a subspace."""
    calls = 0
    original = Reduced.at.__func__  # type: ignore[attr-defined]

    def counting(cls: type[Reduced], statistics: Statistics, subspace: Array) -> Reduced:
        nonlocal calls
        calls += 1
        reduced: Reduced = original(cls, statistics, subspace)
        return reduced

    Reduced.at = classmethod(counting)  # type: ignore[method-assign, assignment]
    began, busy = time.perf_counter(), time.process_time()
    federation = federate(fleet, rounds=ROUNDS)
    return federation, time.perf_counter() - began, time.process_time() - busy, calls


def statistics_products(rows: int, channels: int, window: int, observables: int) -> dict[Product, int]:
    """Products of the statistics: observables, lags, and the observables among themselves, block by block."""
    blocks = -(-rows // BLOCK)
    return {
        (BLOCK, channels * window, observables): blocks,
        (observables + channels, BLOCK, channels * (window + 2)): blocks,
        (observables, BLOCK, observables): 2 * blocks,
    }


def time_products(products: dict[Product, int]) -> float:
    """Processor seconds of so many bare products of these shapes."""
    seconds = 0.0
    for (rows, inner, columns), times in products.items():
        left, right = np.ones((rows, inner)), np.ones((inner, columns))
        out = np.empty((rows, columns))
        seconds += _seconds(lambda left=left, right=right, out=out: np.matmul(left, right, out=out), times)  # type: ignore[misc]
    return seconds


def _seconds(action: Callable[[], object], times: int) -> float:
    action()
    began = time.process_time()  # with one thread, and whatever else the machine does meanwhile
    for _ in range(times):
        action()
    return time.process_time() - began


def main() -> None:
    """Print the seconds, the ratio and what the fleet exchanged."""
    one_blas_thread()
    heading(f"Federation of the SMD servers: {ROUNDS} rounds, 25 % a round, all included, one BLAS thread")
    fleet = {machine.name: machine.train for machine in load("SMD")}
    federation, seconds, busy, reductions = counted_federation(fleet)
    detector = next(iter(federation.detectors.values()))
    lifting, rank = detector.lifting_, detector.rank
    rounds = sum(len(record.participants) * STEPS for record in federation.history if record.phase == "admm")
    needed = rounds + len(fleet) * (OWN_STEPS + 1) + len(fleet)  # local steps, warm messages, final operators
    bare = 0.0
    for train in fleet.values():
        rows = round(len(train) * (1.0 - detector.validation))
        bare += time_products(statistics_products(rows, lifting.channels, lifting.window, lifting.observables))
    statistics = bare
    bare += time_products({(lifting.dimension, lifting.dimension, rank): 3 * needed})
    up, down = (sum(record[key] for record in federation.history) for key in ("bytes_up", "bytes_down"))
    total = sum(map(len, fleet.values()))
    print(f"  {len(fleet)} machines, {total} rows: {seconds:.1f} s, {busy:.1f} s of processor time")
    print(f"  bare products {bare:.1f} s ({statistics:.1f} s of them for the statistics): {busy / bare:.2f} x of them")
    print(f"  reductions to a subspace: {reductions} made, {needed} counted as needed")
    print(f"  payload {up / 1e6:.2f} MB up, {down / 1e6:.2f} MB down")


if __name__ == "__main__":
    main()
