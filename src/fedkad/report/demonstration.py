"""The whole way in one run: simulate a fleet, federate it, detect, and hold what was found against what was injected.

It shows the product at work. Simulated data is no evidence of detection quality.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fedkad.detect.events import Event, Findings, examine
from fedkad.detect.series import Series
from fedkad.federation.inprocess import Federation, federate
from fedkad.report.comparison import Comparison, Tally, compare, tally
from fedkad.simulate import CHANNELS, Fault, Fleet

Progress = Callable[[str, int, int], None]
Outcome = Literal["found", "false alarm", "missed", "quiet"]

DISCLAIMER = "Simulated data, no evidence of detection quality."


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A run and its outcome; only `seconds` differs between two runs of the same seed."""

    seed: int
    fleet: Fleet
    federation: Federation
    findings: Mapping[str, Findings]
    comparisons: tuple[Comparison, ...]
    tally: Tally
    seconds: float


@dataclass(frozen=True)
class Line:
    """One line of the table: an event, a missed fault, or a device with neither."""

    device: str
    outcome: Outcome
    event: Event | None
    faults: tuple[Fault, ...]


def demonstrate(fleet: Fleet, *, seed: int = 0, progress: Progress | None = None) -> Demonstration:
    """Federate the training series of a fleet and judge its test series.

    >>> from fedkad.simulate import simulate_fleet
    >>> fleet = simulate_fleet(2, train_rows=900, test_rows=500)
    >>> shown = demonstrate(fleet)
    >>> [comparison.device for comparison in shown.comparisons], shown.tally.faults
    (['pump-01', 'pump-02'], 4)
    """
    began = time.perf_counter()
    report = progress or (lambda what, done, of: None)
    federation = federate(
        {device: Series(series, CHANNELS) for device, series in fleet.train.items()},
        sample_period=fleet.period,
        seed=seed,
        progress=report,
    )
    findings, comparisons = {}, []
    for done, (device, detector) in enumerate(federation.detectors.items()):
        findings[device] = examine(detector, fleet.test[device])
        events, faults = findings[device].events, fleet.faults_of(device)
        comparisons.append(compare(device, events, faults, reach=detector.window))
        report("detection", done + 1, len(federation.detectors))
    counts = tally(comparisons, findings, fleet)
    return Demonstration(seed, fleet, federation, findings, tuple(comparisons), counts, time.perf_counter() - began)


def lines(shown: Demonstration) -> Iterator[Line]:
    """Everything that was flagged and everything that was missed, by device and time."""
    for comparison in shown.comparisons:
        device = comparison.device
        found = [
            (
                flagged.event.start,
                Line(device, "found" if flagged.faults else "false alarm", flagged.event, flagged.faults),
            )
            for flagged in comparison.flagged
        ]
        found += [(fault.start, Line(device, "missed", None, (fault,))) for fault in comparison.missed]
        yield from (line for _, line in sorted(found, key=lambda entry: entry[0]))
        if not found:
            yield Line(device, "quiet", None, ())
