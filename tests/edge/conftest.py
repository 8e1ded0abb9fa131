"""What all tests of the agent have in common: the stores that they open are closed."""

from collections.abc import Iterator
from typing import Any

import pytest

from fedkad.edge.store import Store


@pytest.fixture(autouse=True)
def stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every store that a test has opened: since Python 3.13 SQLite complains about one that is dropped open."""
    opened: list[Store] = []
    original = Store.__init__

    def remembered(self: Store, *arguments: Any) -> None:
        original(self, *arguments)
        opened.append(self)

    monkeypatch.setattr(Store, "__init__", remembered)
    yield
    for store in opened:
        store.close()
