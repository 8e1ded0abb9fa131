"""Which tests are slow, and in which order they run."""

import pytest

SLOW = (
    # A fleet of real processes: Flower, nginx, TLS.
    *("fleet_cuts", "fleet_attacks", "fleet_faults", "fleet_operation", "fleet_wire", "fleet_engines", "fleet_page"),
    # Agents as real processes, with a real broker.
    *("edge_mqtt", "edge_agent", "edge_kills", "edge_examples", "edge_disk", "edge_connection", "edge_contracts"),
    # Training of networks, whole runs of the benchmark, real data, wheels.
    *("bench_studies", "bench_runner", "bench_neural", "bench_methods", "cli_bench", "real_data", "wheel"),
)
"""Test modules that start real processes, use a network or train for long; the longest ones come first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow modules, keep each module in one worker, and begin with those that take longest.

    A long module that is begun last is what everybody waits for. The tests of a slow module share what they start, so
    they must not be spread over workers; all other tests may be.
    """
    ranks = {f"test_{name}.py": k for k, name in enumerate(SLOW)}
    for item in items:
        if item.path.name in ranks:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
