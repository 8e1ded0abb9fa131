"""The agent's alarms on real servers: eight machines of SMD, the first half learned from, the second judged.

    python -m measurements.servers [--set alarm.min_duration=3m] [--against learning.first=10080]

Each recording of five weeks goes through a real agent on a simulated clock (`measurements.replay`), a row a minute,
with `budget = "1/week"`; it collects the first half for its first model, and goes on learning after that. Labels are
used only to count, in the second half: an incident that overlaps no labelled anomaly nor the hour after one is a false
alarm, and an anomaly is found if an incident overlaps it. Labels of SMD are not complete, so some "false" alarms may be
true.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from fedkad_bench.data.datasets import Entity, read_smd
from fedkad_bench.metrics.segments import Flags, segments
from measurements.house import AFTERMATH, at
from measurements.house_model import MINUTE, WEEK
from measurements.measure import heading, one_blas_thread, require_data
from measurements.replay import IncidentSpan, add_options, incidents, merged, processes, replay, setting, variants

MACHINES = tuple(f"machine-{name}" for name in ("1-1", "1-6", "2-1", "2-5", "2-9", "3-2", "3-7", "3-11"))


class Watched(NamedTuple):
    """What an agent made of the second half of a machine's recording."""

    weeks: float
    false: int
    anomalies: int
    found: int
    updates: int
    open: float  # share of the time in which an incident was open


def machine(name: str) -> Entity:
    """One machine of SMD."""
    folder = require_data() / "SMD"
    found = next(iter(read_smd(folder, name)), None)
    if found is None:
        sys.exit(f"{name} is not in {folder}; name other machines with --machines.")
    return found


def arriving(values: np.ndarray[Any, Any], channels: Sequence[str]) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """The rows of a recording, a minute apart."""
    for row, sample in enumerate(values.tolist()):
        yield at(row), [{"time": at(row), **dict(zip(channels, sample, strict=True))}]


def watch(name: str, settings: Sequence[str]) -> Watched:
    """Let an agent watch one machine, and compare its incidents with the labels."""
    entity = machine(name)
    channels = [f"c{k}" for k in range(entity.train.shape[1])]
    document: dict[str, Any] = {
        "devices": [name],
        "sampling": {"period": "1m", "channels": channels},
        "alarm": {"budget": "1/week"},
        "learning": {"first": len(entity.train)},
    }
    document = reduce(merged, map(setting, settings), document)
    found = incidents(replay(document, arriving(np.vstack([entity.train, entity.test]), channels)))
    return compared(found, len(entity.train), entity.labels.astype(bool))


def compared(found: Sequence[IncidentSpan], half: int, labels: Flags) -> Watched:
    """Incidents from row `half` on, against the labels of these rows."""
    judged = [each for each in found if each.kind != "health" and each.start >= at(half)]
    anomalies = segments(labels)
    spans = [(at(half + a), at(half + b - 1)) for a, b in zip(anomalies.starts, anomalies.stops, strict=True)]
    late = AFTERMATH * MINUTE
    false = sum(not any(each.start <= end + late and each.end >= start for start, end in spans) for each in judged)
    hits = sum(any(each.start <= end and each.end >= start for each in judged) for start, end in spans)
    lasted = sum(min(each.end, at(half + len(labels))) - each.start for each in judged) / MINUTE / len(labels)
    return Watched(len(labels) / WEEK, false, len(spans), hits, sum(each.updates for each in judged), lasted)


def main() -> None:
    """Print a line for every machine, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", nargs="+", default=MACHINES)
    add_options(parser)
    chosen = parser.parse_args()
    one_blas_thread()
    require_data()
    heading(f"The agent's alarms on {len(chosen.machines)} servers, second half, budget 1/week")
    with processes(chosen.jobs) as pool:
        for title, settings in variants(chosen):
            print(f"  {title}", flush=True)
            every = []
            for name, each in zip(chosen.machines, pool.map(watch, chosen.machines, repeat(settings)), strict=True):
                every.append(each)
                found = f"{each.found:2} of {each.anomalies:2} found, {each.updates:4} updates, {each.open:.0%} open"
                print(f"    {name:14}{each.false / each.weeks:6.1f} false alarms a week, {found}", flush=True)
            rates = [each.false / each.weeks for each in every]
            hits, anomalies = sum(each.found for each in every), sum(each.anomalies for each in every)
            spread = f"({min(rates):.1f} to {max(rates):.1f})"
            print(f"    mean          {np.mean(rates):6.1f} {spread}, {hits} of {anomalies} found")


if __name__ == "__main__":
    main()
