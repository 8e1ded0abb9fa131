"""``fedkad-agent``: the agent without a command-line framework, for small machines."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

from fedkad import __version__

MMAP_THRESHOLD, LARGE = -3, 1 << 17
"""The parameter of glibc for the size from which freed memory is returned to the system at once, and that size."""


def main() -> int:
    """Run ``fedkad-agent``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="fedkad-agent", description="Watch devices, live: score, explain, alert.")
    parser.add_argument("config", type=Path, metavar="CONFIG.toml")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"fedkad {__version__}")
    given = parser.parse_args()
    limit_memory()
    try:
        run(given.config, check=given.check)
    except OSError as error:
        sentence = f"{error.filename}: {error.strerror}." if error.filename else f"{error}."
    except ValueError as error:
        sentence = str(error)
    else:
        return 0
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    return 1


def limit_memory() -> None:
    """Use little memory; to be called before numpy is loaded, since its library keeps a buffer per thread.

    glibc would raise its threshold with the first large array that is freed, and keep the memory that learning used.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with suppress(OSError, AttributeError):  # not on other systems
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)


def run(config: Path, *, check: bool) -> None:
    """Run the agent with a configuration, or only check it."""
    from fedkad.edge.settingsfile import load

    settings = load(config)
    if check:
        from fedkad.edge.checking import check as checked

        print(f"{config}: {checked(settings)}")
        return
    from fedkad.edge.agent import watch
    from fedkad.edge.assembly import require_extra

    require_extra(settings)
    watch(settings)


if __name__ == "__main__":
    sys.exit(main())
