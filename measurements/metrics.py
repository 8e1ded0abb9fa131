"""Metrics: VUS-PR against aeon's, and all metrics of a benchmark's worth of clients."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from fedkad_bench.evaluation import SMOOTHINGS, evaluate_client, smoothed
from fedkad_bench.metrics.vus import BUFFER, vus_pr
from measurements.measure import Array, alternate, heading, one_blas_thread

ROWS = 20_000
CLIENTS = 105
"""Clients of SMD, SMAP, MSL and PSM; 1.1 million test rows in all."""
CLIENT_ROWS = 10_500


def recording(rows: int, seed: int) -> tuple[NDArray[np.bool_], Array]:
    """Labels of short and long anomalies, and scores that see some of each."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(rows, dtype=bool)
    for start in generator.integers(0, rows, 10):
        labels[start : start + int(generator.choice([3, 40, 300]))] = True
    return labels, generator.exponential(size=rows) * (1.0 + 2.0 * labels)


def compare_with_aeon() -> None:
    """Print the time of both, their ratio and how far they are apart."""
    from aeon.benchmarking.metrics.anomaly_detection import range_pr_vus_score

    labels, scores = recording(ROWS, 0)
    integers = labels.astype(int)
    theirs, ours = alternate(
        5,
        lambda: range_pr_vus_score(integers, scores, max_buffer_size=BUFFER),
        lambda: vus_pr(labels, scores),
    )
    apart = abs(vus_pr(labels, scores) - range_pr_vus_score(integers, scores, max_buffer_size=BUFFER))
    print(
        f"  VUS-PR of {ROWS} rows, buffers 0 to {BUFFER}: aeon {1e3 * theirs:.0f} ms, "
        f"ours {1e3 * ours:.2f} ms: {theirs / ours:.0f} x faster, {apart:.1e} apart"
    )


def evaluate_fleet() -> None:
    """Print the time that all metrics of all clients take, a smoothing at a time."""
    fleet = [recording(CLIENT_ROWS, seed) for seed in range(CLIENTS)]
    for kind in SMOOTHINGS:
        began = time.perf_counter()
        for labels, scores in fleet:
            test = smoothed(scores, kind, "window")
            evaluate_client(test[~labels][:3000], test, labels, sample_period=60.0)
        seconds = time.perf_counter() - began
        print(f"  all metrics, smoothing {kind}: {CLIENTS} clients of {CLIENT_ROWS} rows in {seconds:.2f} s")


def main() -> None:
    """Print both."""
    one_blas_thread()
    heading("Metrics, one thread")
    compare_with_aeon()
    evaluate_fleet()


if __name__ == "__main__":
    main()
