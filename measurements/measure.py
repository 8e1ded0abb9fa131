"""Measuring: medians of alternating repeats, one BLAS thread, and the real data."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad_bench.data.datasets import Entity, data_folder, read_nasa, read_smd

Array = NDArray[np.float64]


def one_blas_thread() -> None:
    """Start this process again with one BLAS thread, which the libraries read when they load."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def alternate(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action; they take turns, so that a noisy neighbour disturbs all of them alike."""
    seconds: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(repeats):
        for action, times in zip(actions, seconds, strict=True):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
    return [float(np.median(times)) for times in seconds]


@contextmanager
def earlier_tree(commit: str) -> Iterator[Path]:
    """The working tree of an earlier commit, for as long as it is needed."""
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "-C", str(here), "worktree", "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", str(here), "worktree", "remove", "--force", str(tree)], check=True)


def require_data() -> Path:
    """The folder of the datasets; without it a measurement on real data says so and exits."""
    folder = data_folder()
    if folder is None:
        sys.exit("This measurement needs the public datasets: name their folder in FEDKAD_DATA.")
    return folder


def load(name: str) -> list[Entity]:
    """All entities of SMD, SMAP or MSL."""
    folder = require_data()
    return list(read_smd(folder / "SMD") if name == "SMD" else read_nasa(folder / "NASA", name))


def peak_memory() -> float:
    """The most memory that this process has had, in MB; unlike getrusage it forgets what was before an exec."""
    status = Path("/proc/self/status").read_text()
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1e3


def heading(title: str) -> None:
    """Print what is measured, and on what."""
    print(f"{title}\n  {platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
