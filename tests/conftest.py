"""The order of the tests: those that wait for real processes come first, so that the others run meanwhile."""

import pytest

LONGEST = (
    *("fleet_cuts", "fleet_faults", "fleet_wire", "fleet_attacks", "fleet_operation", "fleet_engines", "fleet_page"),
    *("edge_mqtt", "edge_agent", "edge_kills"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, a long file that is begun last is what everybody waits for."""
    ranks = {f"test_{name}.py": k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
