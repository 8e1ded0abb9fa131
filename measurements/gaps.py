"""What missing samples cost: rows that are dropped at random, and a channel that dies.

    python -m measurements.gaps

Rows: 2 % of the test rows of simulated pumps are dropped; printed are the share of the others that has a score, and
VUS-PR by steps beside that of the complete recordings. Channels: each channel of healthy pumps in turn is missing from
row 200 on; printed are alarm events beside those of the complete recordings.
"""

from __future__ import annotations

import warnings
from unittest.mock import patch

import numpy as np

from fedkad import Federation, KoopmanDetector, federate
from fedkad.detect import dynamics
from fedkad.simulate import CHANNELS, Fleet, simulate_fleet
from fedkad_bench.metrics.missing import ranked
from fedkad_bench.metrics.vus import vus_pr_steps
from measurements.measure import heading, one_blas_thread

DROPPED = 0.02
SEEDS = 10


def dropped_rows(federation: Federation, fleet: Fleet) -> None:
    """Print how many rows are scored, and how well."""
    sick = [device for device in fleet.test if fleet.faults_of(device)]
    whole = np.mean([_quality(federation.detectors[d].decision_function(fleet.test[d]), fleet, d) for d in sick])
    scored, quality = [], []
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        for device in sick:
            series = fleet.test[device].copy()
            dropped = generator.random(len(series)) < DROPPED
            series[dropped] = np.nan
            scores = federation.detectors[device].decision_function(series)
            scored.append(float((~np.isnan(scores[~dropped])).mean()))
            quality.append(_quality(scores, fleet, device))
    print(
        f"  {DROPPED:.0%} of the rows dropped, {SEEDS} seeds: {100 * np.mean(scored):.1f} % of the others scored; "
        f"VUS-PR {100 * np.mean(quality):.1f}, complete {100 * whole:.1f}"
    )


def _quality(scores: np.ndarray, fleet: Fleet, device: str) -> float:
    return vus_pr_steps(fleet.labels_of(device), ranked(scores))


def dead_channels(detectors: dict[str, KoopmanDetector], fleet: Fleet) -> None:
    """Print the events of healthy pumps without each of their channels."""
    complete = sum(len(detector.events(fleet.test[device])) for device, detector in detectors.items())
    print(f"  {len(detectors)} healthy pumps, {len(fleet.test['pump-01'])} rows each: {complete} events when complete")
    for anchor in (1e9, dynamics.ANCHOR):
        with patch.object(dynamics, "ANCHOR", anchor):
            found = {name: _without(detectors, fleet, channel) for channel, name in enumerate(CHANNELS)}
        total = sum(rows for _, rows in found.values())
        way = "predicted only" if anchor > 1.0 else "predicted, and corrected by what the other channels say"
        print(f"  missing values are {way}: {total} rows of alarm")
        for name, (events, rows) in found.items():
            print(f"    without {name:15} {events:4} events, {rows:5} rows of alarm")


def _without(detectors: dict[str, KoopmanDetector], fleet: Fleet, channel: int) -> tuple[int, int]:
    """Events and rows of alarm of all pumps without a channel."""
    events = rows = 0
    for device, detector in detectors.items():
        series = fleet.test[device].copy()
        series[200:, channel] = np.nan
        events += len(detector.events(series))
        rows += int(detector.predict(series).sum())
    return events, rows


def main() -> None:
    """Print both."""
    one_blas_thread()
    warnings.simplefilter("ignore")
    heading("Missing samples")
    fleet = simulate_fleet(12)
    dropped_rows(federate(fleet.train), fleet)
    healthy = simulate_fleet(4, faults_per_device=0, test_rows=3000, seed=1)
    dead_channels(dict(federate(healthy.train).detectors), healthy)


if __name__ == "__main__":
    main()
