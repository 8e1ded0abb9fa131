"""Which tests are slow, in which order they run, how many examples they draw, and what makes all of them faster."""

import gc
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fixtures import draws  # noqa: F401  # the profiles of `make test` and `make fast`

# Before numpy and torch are imported: on busy cores several threads of several workers wait for one another.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Hundreds of processes import the package, and compiling it takes longer than all else that most of them do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests leave few cycles, and looking for them among all that was collected takes a tenth of the time.
gc.set_threshold(100_000, 50, 50)

# Thousands of small files that are synchronised wait for a disk; nothing here needs one that outlives a power cut.
MEMORY, ENOUGH = Path("/dev/shm"), 2 * 2**30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.load_profile("all")

if find_spec("fedkad_bench") is None:  # the product alone is tested
    collect_ignore = ["bench", "measurements", "checks/methods.py", "fixtures/memoryuse.py"]

FLEETS = ("faults", "cuts", "operation", "attacks", "engines", "wire", "page")
"""Fleets of real processes: Flower, nginx, TLS. One keeps a core busy."""

BENCHMARK = ("studies", "runner", "methods", "neural", "cost", "commands", "real_data")
"""Training of networks, whole runs of the benchmark, real data."""

AGENTS = ("mqtt", "agent", "kills", "examples", "disk", "connection", "contracts")
"""Agents as real processes, with a real broker."""

SLOW = [
    "fleet/test_call.py",
    "fleet/test_versions.py",
    *(
        f"{folder}/test_{name}.py"
        for names in zip(FLEETS, BENCHMARK, AGENTS, strict=True)
        for folder, name in zip(("fleet", "bench", "edge"), names, strict=True)
    ),
    "fleet/flower/test_proxy.py",
    "test_processors.py",
    "edge/commands/test_tell.py",
    "edge/test_faults.py",
    "edge/test_examples_timing.py",
    "test_wheel.py",
    "report/test_browser.py",
    "edge/test_pages.py",
    "docs/test_commands.py",
    "docs/test_site.py",
]
"""Modules that start real processes, use a network or train for long, in the order in which workers take them.

The longest come first, because a long module that is begun last is what everybody waits for; fleets, networks and
agents take turns, because several fleets at once are too much for two cores.
"""


@pytest.fixture(scope="module")
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Datasets are read anew for these tests, and their copies are kept elsewhere."""
    from fedkad_bench.data.sources import fetch

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        fetch.cache_clear()
        yield
        fetch.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules, and begin with them."""
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(SLOW)}
    assert all(path.exists() for path in ranks), "a slow module was moved: name its new place"
    for item in items:
        if item.path in ranks:
            item.add_marker(pytest.mark.slow)
    gc.collect()
    gc.freeze()
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_unconfigure() -> None:
    """Let go of what was kept from the collector: DuckDB complains otherwise."""
    gc.unfreeze()
