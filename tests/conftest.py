"""Which tests are slow, and in which order they run."""

import os

import pytest

# Before numpy and torch are imported: on busy cores several threads of several workers wait for one another.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Hundreds of processes import the package, and compiling it takes longer than all else that most of them do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

FLEETS = ("attacks", "cuts", "faults", "operation", "wire", "engines", "page")
"""Fleets of real processes: Flower, nginx, TLS. One keeps a core busy."""

BENCHMARK = ("bench_studies", "bench_runner", "bench_methods", "bench_neural", "bench_cost", "cli_bench", "real_data")
"""Training of networks, whole runs of the benchmark, real data."""

AGENTS = ("mqtt", "agent", "kills", "examples", "disk", "connection", "contracts")
"""Agents as real processes, with a real broker."""

SLOW = [
    f"test_{name}.py"
    for names in zip((f"fleet_{name}" for name in FLEETS), BENCHMARK, (f"edge_{name}" for name in AGENTS), strict=True)
    for name in names
] + [
    "test_edge_tell.py",
    "test_edge_faults.py",
    "test_edge_examples_timing.py",
    "test_wheel.py",
    "test_report_browser.py",
]
"""Modules that start real processes, use a network or train for long, in the order in which workers take them.

The longest come first, because a long module that is begun last is what everybody waits for; fleets, networks and
agents take turns, because several fleets at once are too much for two cores.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules, and begin with them."""
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)
    ranks = {name: rank for rank, name in enumerate(SLOW)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
