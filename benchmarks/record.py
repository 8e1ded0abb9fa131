"""Run benchmarks and keep what they print: `python -m benchmarks.record statistics stream` writes results/*.txt."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def record(name: str) -> None:
    """Run one benchmark; its output goes below the command, the commit and the machine that made it."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    printed = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout
    header = {
        "command": f"python -m benchmarks.{name}",
        "commit": _git("rev-parse", "--short", "HEAD") + ("" if _is_clean() else " with changes"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "date": datetime.now(UTC).date().isoformat(),
    }
    text = "".join(f"# {key}: {value}\n" for key, value in header.items()) + printed
    (RESULTS / f"{name}.txt").write_text(text)
    print(text)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout.strip()


def _is_clean() -> bool:
    changed = [line.split(maxsplit=1)[1] for line in _git("status", "--porcelain").splitlines()]
    return all(path.startswith("results/") for path in changed)


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    if described.exists():
        names = [line for line in described.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0].partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Record the benchmarks named on the command line."""
    RESULTS.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        record(name)


if __name__ == "__main__":
    main()
