"""The libraries that only a fleet over a network needs, and what is said where they are missing."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtraError(ValueError):
    """A library of the extra `fleet` is not installed."""


def require() -> None:
    """Refuse to go on without Flower and cryptography, in one sentence and before anything is written."""
    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"A fleet over a network needs {' and '.join(missing)}; install it with pip install 'fedkad[fleet]'."
        )
