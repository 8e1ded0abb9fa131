"""What witnesses cost against the code before them: a streamed step, a batched score, training.

    python -m measurements.cost [COMMIT]

Each tree runs in a process of its own, on one thread, and they take turns, so that a noisy neighbour disturbs them
alike. Steps are timed one by one; of each turn the median counts, and the mean, which has the moments at which
something is outside of what training showed. Scores and training are in processor time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BEFORE = "f96038b"
"""The last commit before witnesses."""

ROWS, STEPS = 20_000, 2_000
TURNS = {"step": 15, "score": 9, "fit": 7}


def main() -> None:
    """Let both trees take turns, and print seconds and ratios."""
    if sys.argv[1:2] == ["--work"]:
        work(int(sys.argv[2]))
        return
    from measurements.measure import earlier_tree, heading

    commit, here = (sys.argv[1:] or [BEFORE])[0], Path(__file__).resolve().parents[1]
    heading(f"Witnesses against the score of {commit} (window 20, rank 24, 128 observables), one BLAS thread")
    with earlier_tree(commit) as tree:
        for channels in (25, 38):
            workers = [start(path, channels) for path in (tree, here)]
            for what, turns in TURNS.items():
                seconds = np.array([[ask(worker, what) for worker in workers] for _ in range(turns)])
                before, after = np.median(seconds, axis=0)
                print(f"  {channels} channels, {told(what, before, after)}")
            for worker in workers:
                worker.communicate()


def told(what: str, before: NDArray[np.float64], after: NDArray[np.float64]) -> str:
    """One line of the result; seconds are a median and a mean."""
    ratios = after / np.maximum(before, 1e-9)
    if what == "step":
        numbers = f"{1e6 * before[0]:.1f} µs then, {1e6 * after[0]:.1f} µs now: {ratios[0]:.2f} x"
        return f"a streamed step, median: {numbers}; mean: {ratios[1]:.2f} x"
    if what == "score":
        per_row = 1e6 / ROWS
        return f"a batched score: {per_row * before[0]:.2f} µs then, {per_row * after[0]:.2f} µs now: {ratios[0]:.2f} x"
    return f"training on {ROWS} rows: {before[0]:.2f} s then, {after[0]:.2f} s now: {ratios[0]:.2f} x"


def start(tree: Path, channels: int) -> subprocess.Popen[str]:
    """A worker with the code of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--work", str(channels)]
    worker = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ask(worker, "step")  # has the caches warm
    return worker


def ask(worker: subprocess.Popen[str], what: str) -> tuple[float, float]:
    """Seconds of one turn: median and mean."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{what}\n")
    worker.stdin.flush()
    median, mean = worker.stdout.readline().split()
    return float(median), float(mean)


def work(channels: int) -> None:
    """Time what is asked for on standard input, with the package that is imported."""
    from fedkad import KoopmanDetector

    series, clock = wandering(ROWS, channels), time.perf_counter
    detector = KoopmanDetector().fit(series)
    stream, done = detector.stream(), 0
    for line in sys.stdin:
        if line.strip() == "step":
            seconds = np.empty(STEPS)
            for k in range(STEPS):
                sample = series[(done + k) % ROWS]
                began = clock()
                stream.update(sample)
                seconds[k] = clock() - began
            done += STEPS
            # A step that was interrupted says nothing about its own cost.
            kept = seconds[seconds < 10.0 * np.median(seconds)]
            print(np.median(kept), kept.mean(), flush=True)
            continue
        began = time.process_time()
        if line.strip() == "score":
            detector.decision_function(series)
        else:
            KoopmanDetector().fit(series)
        print(time.process_time() - began, 0.0, flush=True)


def wandering(rows: int, channels: int) -> NDArray[np.float64]:
    """A smooth coupled series; what it holds does not matter for the time it takes."""
    generator = np.random.default_rng(0)
    phases = np.arange(rows)[:, None] / generator.uniform(5.0, 50.0, channels)
    mixed: NDArray[np.float64] = np.sin(phases) @ generator.normal(size=(channels, channels)) / np.sqrt(channels)
    return mixed + 0.1 * generator.normal(size=(rows, channels))


if __name__ == "__main__":
    main()
