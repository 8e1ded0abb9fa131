"""A synthetic fleet of industrial pumps and their usual faults, for demonstrations and tests.

>>> fleet = simulate_fleet(3, train_rows=600, test_rows=500)
>>> [fault.kind for fault in fleet.faults_of("pump-02")]
['decoupling', 'spikes']
>>> int(fleet.labels_of("pump-03").sum())  # every third device stays healthy
0

The modules, from the inside out: ``recursion`` (lags and noise without a loop), ``duty`` (the set points of a
device), ``pump`` (its physics), ``faults`` (one function per kind), ``placement`` (when and where they
happen), ``fleet`` (all devices) and ``files`` (CSV). Nothing here is evidence of how well faults are found.
"""

from fedkad.simulate.faults import FAULTS, Fault, labels
from fedkad.simulate.files import write_fleet
from fedkad.simulate.fleet import START, Fleet, simulate_fleet, timestamps
from fedkad.simulate.pump import CHANNEL_UNITS, CHANNELS, Pump, draw_pump, run_pump

__all__ = [
    "CHANNELS",
    "CHANNEL_UNITS",
    "FAULTS",
    "START",
    "Fault",
    "Fleet",
    "Pump",
    "draw_pump",
    "labels",
    "run_pump",
    "simulate_fleet",
    "timestamps",
    "write_fleet",
]
