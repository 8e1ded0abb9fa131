"""The order of the tests: those that wait for real processes come first, so that the others run meanwhile."""

import pytest

LONGEST = ("faults", "cuts", "wire", "attacks", "page", "operation", "engines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, a long file that is begun last is what everybody waits for."""
    ranks = {f"test_fleet_{name}.py": k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
