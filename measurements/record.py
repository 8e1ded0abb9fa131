"""Run measurements and keep what they print: `python -m measurements.record statistics stream` writes results/*.txt."""

from __future__ import annotations

import subprocess
import sys

from fedkad_bench.provenance import REPOSITORY, provenance

RESULTS = REPOSITORY / "results"


def record(name: str) -> None:
    """Run one module; its output goes below the command, the commit and the machine that made it."""
    command = [sys.executable, "-m", f"measurements.{name}"]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    header = provenance(f"python -m measurements.{name}")
    text = "".join(f"# {key}: {value}\n" for key, value in header.items()) + printed
    (RESULTS / f"{name}.txt").write_text(text)
    print(text)


def main() -> None:
    """Record the measurements named on the command line."""
    RESULTS.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        record(name)


if __name__ == "__main__":
    main()
