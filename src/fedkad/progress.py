"""How a long computation says how far it is."""

from collections.abc import Callable

Report = Callable[[int, int], None]
"""Told how much of how much is done."""


def unheard(done: float, of: int) -> None:
    """Do nothing, where no progress is wanted."""
