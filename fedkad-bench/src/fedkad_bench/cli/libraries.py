"""Libraries that may be missing where the benchmark was installed without its dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from fedkad_bench.methods.registry import LIBRARIES

FOR_THE_REPORT = ("matplotlib", "scipy")


def lacking(modules: Iterable[str]) -> str:
    """Name the libraries that are not installed; empty if all are."""
    return " and ".join(LIBRARIES.get(name, name) for name in modules if find_spec(name) is None)
