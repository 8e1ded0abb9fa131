"""How the constants of the calibrated score were chosen: average precision on SMD machine-1-* and simulated pumps.

Only these were looked at for choosing; no other real entity was. Average precision is taken per device, over entries
that have a score, and averaged over the devices that have anomalies. The simulated fleet is no evidence of quality: it
is here because its faults (slow, in few channels) are unlike those of servers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from unittest.mock import patch

import numpy as np
from sklearn.metrics import average_precision_score

from fedkad import Federation, KoopmanDetector, federate
from fedkad.detect import calibration, scoring
from fedkad.simulate import simulate_fleet
from fedkad_bench.data.datasets import Entity, read_smd
from fedkad_bench.methods.koopman import ScoreName, scoring_of
from measurements.measure import Array, heading, require_data

FLOORS = (0.05, 0.1, 0.2, 0.3, 0.5)
Score = Callable[[KoopmanDetector, Array], Array]


def servers() -> list[Entity]:
    """The machines that defaults may be chosen on."""
    return list(read_smd(require_data() / "SMD", "machine-1-*"))


def pumps(seed: int) -> list[Entity]:
    """A simulated fleet in the same form."""
    fleet = simulate_fleet(12, seed=seed)
    return [Entity(name, fleet.train[name], fleet.test[name], fleet.labels_of(name)) for name in fleet.train]


def precision(federation: Federation, entities: Iterable[Entity], score: Score) -> float:
    """Mean average precision over the devices with anomalies, in percent."""
    found = []
    for entity in entities:
        scores = score(federation.detectors[entity.name], entity.test)
        valid = ~np.isnan(scores)
        if entity.labels[valid].any():
            found.append(average_precision_score(entity.labels[valid], scores[valid]))
    return 100.0 * float(np.mean(found))


def main() -> None:
    """Print a line a variant."""
    warnings.simplefilter("ignore")
    heading("Average precision x 100, causal / offline, of variants of the score")
    fleets = {"SMD machine-1-*": servers(), "pumps, seed 0": pumps(0), "pumps, seed 1": pumps(1)}
    print(f"  {'':22}" + "".join(f"{name:>20}" for name in fleets))
    variants: list[tuple[ScoreName, float]] = [
        ("paper", scoring.SPREAD_FLOOR),
        *(("calibrated", floor) for floor in FLOORS),
    ]
    for kind, floor in variants:
        cells = []
        for entities in fleets.values():
            with patch.object(calibration, "SPREAD_FLOOR", floor):
                federation = federate({entity.name: entity.train for entity in entities}, scoring=scoring_of(kind))
            causal = precision(federation, entities, KoopmanDetector.decision_function)
            offline = precision(federation, entities, KoopmanDetector.score_series)
            cells.append(f"{f'{causal:.1f} / {offline:.1f}':>20}")
        label = kind if kind == "paper" else f"{kind}, floor {floor}"
        chosen = " <- default" if kind != "paper" and floor == scoring.SPREAD_FLOOR else ""
        print(f"  {label:22}" + "".join(cells) + chosen, flush=True)


if __name__ == "__main__":
    main()
