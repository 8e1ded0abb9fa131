"""A million rows of ten channels: reading against pandas, `fit` and `detect` against the bare computation, and memory.

All in one run on the same file, each in a process of its own; processor time, because the machine may be busy.

Memory is by how much the work raises the highest resident memory of its process (VmHWM), so that the interpreter and
the libraries that it has imported do not count. What a command reads from the file counts; the array that a bare
computation is given does not, since it is loaded before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from measurements.engines import CHANNELS, ROWS, write_million
from measurements.measure import heading, one_blas_thread

FOUND = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
"""So that a process in another folder finds the measurements."""

NUMBERS = ROWS * CHANNELS * 8 / 1e6
MEASURED = """
import io, sys, time, contextlib, numpy as np
from measurements.measure import peak_memory
{before}
base, began, cpu = peak_memory(), time.perf_counter(), time.process_time()
{work}
print(time.process_time() - cpu, time.perf_counter() - began, peak_memory() - base)
"""
LOADED = "from fedkad import KoopmanDetector; values = np.load('million.npy')"
COMMAND = """
import fedkad.cli.app, duckdb
duckdb.connect().execute('SELECT 1')
out = io.StringIO()
"""
STRICT = """
import fedkad.cli.app, fedkad.intake.reading
fedkad.intake.reading.is_installed = lambda: False
out = io.StringIO()
"""
RUN = "with contextlib.redirect_stdout(out): fedkad.cli.app.app({arguments}, standalone_mode=False)"
FIT = RUN.format(arguments="['fit', 'million.csv', '-o', 'million.safetensors']")
DETECT = RUN.format(arguments="['detect', 'million.safetensors', 'million.csv']")
SCORES = RUN.format(arguments="['detect', 'million.safetensors', 'million.csv', '--scores', 'scores.csv']")
FIT_HOLES = RUN.format(arguments="['fit', 'holes.csv', '-o', 'holes.safetensors']")
DETECT_HOLES = RUN.format(arguments="['detect', 'holes.safetensors', 'holes.csv']")
PROGRAMS = {
    "pandas.read_csv": ("import pandas", "pandas.read_csv('million.csv', parse_dates=['time'])"),
    "pandas.read_csv, numbers to the bit": (
        "import pandas",
        "pandas.read_csv('million.csv', parse_dates=['time'], float_precision='round_trip')",
    ),
    "read_recording": (
        "import duckdb; from fedkad.intake import read_recording; duckdb.connect().execute('SELECT 1')",
        "read_recording('million.csv')",
    ),
    "KoopmanDetector.fit": (LOADED, "KoopmanDetector().fit(values).save('bare.safetensors')"),
    "fedkad fit": (COMMAND, FIT),
    "fedkad fit, strict reader": (STRICT, FIT),
    "decision_function": (
        f"{LOADED}; detector = KoopmanDetector.load('bare.safetensors', statistics=False)",
        "detector.decision_function(values)",
    ),
    "fedkad detect": (COMMAND, DETECT),
    "fedkad detect, strict reader": (STRICT, DETECT),
    "fedkad detect --scores": (COMMAND, SCORES),
    "fedkad fit, holes and spikes": (COMMAND, FIT_HOLES),
    "fedkad detect, holes and spikes": (COMMAND, DETECT_HOLES),
}


def main() -> None:
    """Print seconds, ratios and memory."""
    one_blas_thread()
    heading(f"{ROWS:,} rows of {CHANNELS} channels, {NUMBERS:.0f} MB as numbers")
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", f"import measurements.reading as m; m.prepare({folder!r})"], check=True)
        for name, (before, work) in PROGRAMS.items():
            program = MEASURED.format(before=before, work=work)
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, cwd=folder, env=FOUND, capture_output=True, text=True, check=True)
            took[name], wall, memory = map(float, done.stdout.split()[-3:])
            times = memory / NUMBERS
            print(f"  {name:<37}{took[name]:6.1f} s of processor time, {wall:5.1f} s, {memory:6.0f} MB ({times:.1f}x)")
    for ours, theirs in (
        ("read_recording", "pandas.read_csv"),
        ("read_recording", "pandas.read_csv, numbers to the bit"),
        ("fedkad fit", "KoopmanDetector.fit"),
        ("fedkad fit, strict reader", "KoopmanDetector.fit"),
        ("fedkad detect", "decision_function"),
        ("fedkad detect, strict reader", "decision_function"),
    ):
        print(f"  {ours} takes {took[ours] / took[theirs]:.2f}x {theirs}")


def prepare(folder: str) -> None:
    """Write the files; in a process of its own."""
    write_million(Path(folder))
    write_holes(Path(folder))


def write_holes(folder: Path) -> None:
    """The same with one cell in two hundred missing, fifty rows missing, and thirty spikes beyond ten deviations."""
    import polars

    rng = np.random.default_rng(1)
    values = np.load(folder / "million.npy")
    values[rng.integers(0, ROWS, ROWS // 20), rng.integers(0, CHANNELS, ROWS // 20)] = np.nan
    values[rng.integers(0, ROWS, 50)] = np.nan
    for start in rng.integers(0, ROWS - 3, 30):
        values[start : start + 3, rng.integers(CHANNELS)] = 15.0
    frame = polars.read_csv(folder / "million.csv", columns=["time"])
    columns = polars.DataFrame(values, [f"c{k}" for k in range(CHANNELS)]).fill_nan(None)
    frame.hstack(columns).write_csv(folder / "holes.csv")


if __name__ == "__main__":
    main()
