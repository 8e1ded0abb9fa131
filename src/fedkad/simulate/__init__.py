"""A synthetic fleet of industrial pumps and their usual faults, for demonstrations and tests.

>>> fleet = simulate_fleet(3, train_rows=600, test_rows=500)
>>> [fault.kind for fault in fleet.faults_of("pump-02")]
['decoupling', 'spikes']
>>> int(fleet.labels_of("pump-03").sum())  # every third device stays healthy
0

The modules, from the inside out: ``recursion`` (lags and noise without a loop), ``pump`` (the duty and the physics of
a device), ``faults`` (one function per kind), ``placement`` (when and where they happen) and ``fleet`` (all devices).
Nothing here is evidence of how well faults are found.
"""

from fedkad.simulate.faults import FAULTS, Fault
from fedkad.simulate.fleet import Fleet, simulate_fleet, write_fleet
from fedkad.simulate.pump import CHANNELS

__all__ = ["CHANNELS", "FAULTS", "Fault", "Fleet", "simulate_fleet", "write_fleet"]
