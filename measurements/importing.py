"""The import of the public names: its seconds, against those of numpy alone, and what it must not load."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from measurements.measure import heading

UNWANTED = ("scipy", "torch", "flwr", "sklearn", "pandas", "pyarrow", "matplotlib", "typer", "rich")
OURS = "from fedkad import KoopmanDetector, federate"
TIMED = "import time; began = time.perf_counter(); {0}; print(time.perf_counter() - began)"


def seconds(statement: str, repeats: int = 9) -> float:
    """Median over fresh interpreters."""
    runs = [subprocess.run([sys.executable, "-c", TIMED.format(statement)], capture_output=True, check=True, text=True)]
    while len(runs) < repeats:
        runs.append(subprocess.run(runs[0].args, capture_output=True, check=True, text=True))
    return float(np.median([float(run.stdout) for run in runs]))


def main() -> None:
    """Print both times and any unwanted module."""
    heading(OURS)
    listing = subprocess.run(
        [sys.executable, "-c", f"{OURS}; import sys; print(*sys.modules)"], capture_output=True, check=True, text=True
    )
    loaded = sorted({name.partition(".")[0] for name in listing.stdout.split()} & set(UNWANTED))
    ours, numpy = seconds(OURS), seconds("import numpy")
    print(f"  numpy {numpy:.3f} s, fedkad (numpy included) {ours:.3f} s")
    print(f"  of {', '.join(UNWANTED)} loaded: {', '.join(loaded) or 'none'}")


if __name__ == "__main__":
    main()
