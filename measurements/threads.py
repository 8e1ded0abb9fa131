"""BLAS threads: a federation and a large statistic, on idle cores and with one core kept busy.

Every setting runs in a process of its own, which reads it when it loads its BLAS library; the processes take turns.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import timeit
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from fedkad import federate
from fedkad.blasthreads import VARIABLES, single_threaded
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.snapshots import collect
from fedkad_bench.data.datasets import data_folder, read_nasa
from measurements.measure import Array, heading

REPEATS = 3
MOST = 1.2
SETTINGS = {"default": None, "one thread": "1", "all threads": str(os.cpu_count())}


def msl_fleet() -> dict[str, Array]:
    """The 27 devices of MSL with 55 channels, or random ones of that size where the datasets are missing."""
    folder = data_folder()
    if folder is not None:
        return {entity.name: entity.train for entity in read_nasa(folder / "NASA", "MSL")}
    generator = np.random.default_rng(0)
    return {f"device-{k}": generator.normal(size=(2160, 55)).cumsum(axis=0) for k in range(27)}


def federate_msl() -> bytes:
    """The bytes of all that was fitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detectors = federate(msl_fleet()).detectors.values()
    return b"".join(detector.subspace_.tobytes() + detector.operator_.tobytes() for detector in detectors)


def collect_server() -> bytes:
    """The statistics of 25,000 rows of 38 channels, lifted to 888 coordinates."""
    series = np.random.default_rng(0).normal(size=(25_000, 38))
    return collect(series, Lifting(channels=38, window=20, observables=128, seed=0)).xx.tobytes()


WORK = {"federate MSL": federate_msl, "statistics, D = 888": collect_server}


def work() -> None:
    """Do the work that is named on each line of the input, and answer with seconds and a digest."""
    for line in sys.stdin:
        began = time.perf_counter()
        fitted = WORK[line.strip()]()
        print(time.perf_counter() - began, hashlib.sha256(fitted).hexdigest(), flush=True)


@contextmanager
def process(*arguments: str, threads: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process with this setting of the threads and no other."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {} if threads is None else {"OPENBLAS_NUM_THREADS": threads}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = subprocess.Popen([sys.executable, *arguments], env=environment, **pipes)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def ask(worker: subprocess.Popen[str], name: str) -> tuple[float, str]:
    """Seconds and digest of one piece of work."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(name, file=worker.stdin, flush=True)
    seconds, digest = worker.stdout.readline().split()
    return float(seconds), digest


def compare(name: str) -> float:
    """Print the medians of all settings; the default's, in units of that with one thread."""
    with ExitStack() as stack:
        command = ("-m", "measurements.threads", "work")
        workers = {
            setting: stack.enter_context(process(*command, threads=threads)) for setting, threads in SETTINGS.items()
        }
        rival = ask(workers["all threads"], name)  # once: on busy cores it takes minutes
        answers = [
            {setting: ask(workers[setting], name) for setting in ("default", "one thread")} for _ in range(REPEATS)
        ]
    medians = {setting: float(np.median([answer[setting][0] for answer in answers])) for setting in answers[0]}
    medians["all threads"] = rival[0]
    cells = "   ".join(f"{setting} {seconds:6.2f} s" for setting, seconds in medians.items())
    same = "equal" if rival[1] == answers[0]["one thread"][1] else "not equal"
    print(f"    {name:<20} {cells}   one and all threads: {same} to the bit", flush=True)
    return medians["default"] / medians["one thread"]


def main() -> None:
    """Print times and the ratio that the default must keep."""
    heading(f"BLAS threads, medians of {REPEATS}")
    print("  cores as they are")
    for name in WORK:
        compare(name)
    print("  one core kept busy")
    with process("-c", "while True: pass"):
        ratio, _ = (compare(name) for name in WORK)
    entering = min(timeit.repeat(single_threaded()(lambda: None), number=1000, repeat=5))
    print(f"  federating by default takes {ratio:.2f} x what it takes with one thread (at most {MOST})")
    print(f"  entering and leaving the limit takes {1000 * entering:.1f} µs")
    sys.exit(ratio > MOST)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
