"""Which command, commit and machine made a result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from fedkad import __version__

REPOSITORY = Path(__file__).resolve().parents[3]


def provenance(command: str | None = None, machine: str | None = None) -> dict[str, str]:
    """What a reader needs to make a result again: command, commit, machine, date.

    >>> sorted(provenance("fedkad bench run paper"))
    ['command', 'commit', 'date', 'machine']
    """
    return {
        "command": command or " ".join(["fedkad", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine or describe_machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def commit() -> str:
    """The commit of the code, marked if it was changed since; `FEDKAD_COMMIT` where the history is not at hand."""
    named = os.environ.get("FEDKAD_COMMIT")
    if named:
        return named
    try:
        changed = [line.split(maxsplit=1)[1] for line in _git("status", "--porcelain").splitlines()]
        dirty = any(not path.startswith("results/") for path in changed)
        return _git("rev-parse", "--short", "HEAD") + (" with changes" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def describe_machine() -> str:
    """Processor, cores, system and Python."""
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _git(*arguments: str) -> str:
    if not (REPOSITORY / ".git").exists():
        raise OSError("not a checkout")
    command = ["git", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    if described.exists():
        names = [line for line in described.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0].partition(":")[2].strip()
    return platform.processor() or platform.machine()
