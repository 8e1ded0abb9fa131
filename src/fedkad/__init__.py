"""FedKAD: anomaly detection that a fleet of devices learns together while every raw sample stays on its device."""

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.federation.inprocess import Federation, federate

__all__ = ["Federation", "FewRowsWarning", "KoopmanDetector", "federate"]
__version__ = "0.1.0"
