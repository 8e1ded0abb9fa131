"""FedKAD: anomaly detection that a fleet of devices learns together while every raw sample stays on its device."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkad.detect.detector import FewRowsWarning, KoopmanDetector, NotFittedError
    from fedkad.detect.witnesses import WITNESSES
    from fedkad.federation.inprocess import Federation, federate

__all__ = ["WITNESSES", "Federation", "FewRowsWarning", "KoopmanDetector", "NotFittedError", "federate"]
__version__ = "0.2.0"

_PLACES = {
    "Federation": "fedkad.federation.inprocess",
    "FewRowsWarning": "fedkad.detect.detector",
    "WITNESSES": "fedkad.detect.witnesses",
    "KoopmanDetector": "fedkad.detect.detector",
    "NotFittedError": "fedkad.detect.detector",
    "federate": "fedkad.federation.inprocess",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that an agent can configure numpy before it is loaded."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
