"""What only a fleet over a network needs to be installed."""

from importlib.util import find_spec


class MissingRequirementError(ValueError):
    """A library or program that a fleet needs is not installed."""


def require() -> None:
    """Check that Flower and cryptography are installed, before anything is written."""
    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise MissingRequirementError(
            f"A fleet over a network needs {' and '.join(missing)}; install it with pip install 'fedkad[fleet]'."
        )
