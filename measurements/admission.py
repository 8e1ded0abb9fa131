"""A new device with few samples on SMD: admitted to a fleet, fitted alone, and fitted on all of its training data.

The fleet are machine-1-1 to machine-1-6; machine-1-7 and machine-1-8 come later. Printed are the average precision of
the score, and the share of normal and of anomalous test rows that are flagged. The rule for the threshold of a newcomer
was chosen on these two machines: this shows what it does, not how well it would do elsewhere.
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.metrics import average_precision_score

from fedkad import FewRowsWarning, KoopmanDetector, federate
from fedkad_bench.data.datasets import Entity, read_smd
from measurements.measure import heading, require_data

SAMPLES = (100, 200, 400, 700)
BEGINS = (5_000, 12_000)
"""Rows of the training data at which the new device wakes up."""


def quality(detector: KoopmanDetector, entity: Entity) -> str:
    """Average precision, and the flagged shares, in percent."""
    scores, alarms = detector.decision_function(entity.test), detector.predict(entity.test)
    valid = ~np.isnan(scores)
    precision = average_precision_score(entity.labels[valid], scores[valid])
    normal, anomalous = alarms[~entity.labels].mean(), alarms[entity.labels].mean()
    return f"{100 * precision:8.1f}{100 * normal:8.2f}{100 * anomalous:8.1f}"


def main() -> None:
    """Print a line a device, a number of samples and a beginning."""
    warnings.simplefilter("ignore", FewRowsWarning)
    heading("A new device on SMD: average precision, % of normal rows flagged, % of anomalous rows flagged")
    machines = list(read_smd(require_data() / "SMD", "machine-1-*"))
    federation = federate({machine.name: machine.train for machine in machines[:6]})
    print(f"  {'':30}{'admitted':>24}{'alone':>24}{'alone, all rows':>24}")
    for machine in machines[6:]:
        whole = quality(KoopmanDetector().fit(machine.train), machine)
        for rows in SAMPLES:
            for begin in BEGINS:
                few = machine.train[begin : begin + rows]
                admitted = quality(federation.admit(f"{machine.name}/{rows}/{begin}", few), machine)
                alone = quality(KoopmanDetector().fit(few), machine)
                print(f"  {f'{machine.name}, {rows} rows at {begin}':30}{admitted}{alone}{whole}", flush=True)


if __name__ == "__main__":
    main()
