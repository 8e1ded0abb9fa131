"""Which tests are slow, and in which order they run."""

import pytest

SLOW = {
    # Fleets of real processes: Flower, nginx, TLS. Two at a time are enough for two cores.
    "fleet-1": ("fleet_attacks", "fleet_faults", "fleet_engines", "fleet_page"),
    "fleet-2": ("fleet_cuts", "fleet_operation", "fleet_wire"),
    # Training of networks, whole runs of the benchmark, real data, wheels.
    "bench-1": ("bench_studies", "bench_cost", "wheel"),
    "bench-2": ("bench_runner", "bench_methods", "bench_neural"),
    "bench-3": ("cli_bench", "real_data", "report_benchmark"),
    # Agents as real processes, with a real broker.
    "agent": (
        "edge_mqtt",
        "edge_agent",
        "edge_kills",
        "edge_examples",
        "edge_disk",
        "edge_connection",
        "edge_contracts",
    ),
}
"""Test modules that start real processes, use a network or train for long, by the worker that runs them in turn."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules, keep each group in one worker, and begin with the groups that take longest.

    A long module that is begun last is what everybody waits for. The tests of a slow module share what they start, so
    they must not be spread over workers; all other tests may be.
    """
    groups = {f"test_{name}.py": group for group, names in SLOW.items() for name in names}
    ranks = {name: rank for rank, name in enumerate(groups)}
    for item in items:
        if item.path.name in groups:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(groups[item.path.name]))
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
