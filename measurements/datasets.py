"""Loading SMD: from its text, and from the binary copy that the first load leaves; and the skews of the datasets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np

from fedkad_bench.data.datasets import PartialDatasetWarning, load
from fedkad_bench.data.heterogeneity import skew_table
from measurements.measure import heading, one_blas_thread, require_data

TIMED = """
import time, warnings
from pathlib import Path
from fedkad_bench.data.datasets import load
warnings.simplefilter("ignore")
began = time.perf_counter()
dataset = load("SMD", Path({folder!r}), cache={cache})
print(time.perf_counter() - began)
"""
REPEATS = 5


def seconds(folder: str, place: str, *, cache: bool = True) -> float:
    """One load in a fresh interpreter, with a cache in the folder `place` or with none."""
    command = [sys.executable, "-c", TIMED.format(folder=folder, cache=cache)]
    environment = os.environ | {"FEDKAD_CACHE": place}
    return float(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)


def three_loads(folder: str) -> tuple[float, float, float]:
    """A load of the text alone, one that leaves a copy in an empty cache, and one of that copy."""
    with tempfile.TemporaryDirectory() as place:
        return seconds(folder, place, cache=False), seconds(folder, place), seconds(folder, place)


def main() -> None:
    """Print the times, their ratio, and the skews beside the paper's."""
    one_blas_thread()
    folder = require_data()
    heading("Loading SMD, a fresh process each time")
    text, first, second = np.median([three_loads(str(folder)) for _ in range(REPEATS)], axis=0)
    print(f"  text alone {text:.2f} s, text and writing the copy {first:.2f} s, copy {second:.3f} s")
    print(f"  copy {text / second:.0f} x faster than the text, {first / second:.0f} x faster than the first load")
    print("\nSkews of the clients, and the paper's\n")
    for name in ("SMD", "SMAP", "MSL"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PartialDatasetWarning)
            dataset = load(name, folder)
        for row in skew_table(dataset):
            ours, paper = f"{row.low:.3g} - {row.high:.3g}", f"{row.paper_low:g} - {row.paper_high:g}"
            print(f"  {row.dataset:<24} {row.kind:<9} {ours:>16} {paper:>16}")


if __name__ == "__main__":
    main()
