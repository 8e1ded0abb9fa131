"""The agent's alarms on real servers: eight machines of SMD, the first half learned from, the second judged.

    python -m measurements.servers [--set alarm.min_duration=3m] [--against learning.first=10080]

Each recording of five weeks goes through a real agent on a simulated clock (`measurements.replay`), a row a minute,
with `budget = "1/week"`; the agent begins without a model and learns as it does everywhere. Labels are used only to
count, in the second half: an incident that overlaps no labelled anomaly nor the hour after one is a false alarm, and an
anomaly is found if an incident overlaps it. Labels of SMD are not complete, so some "false" alarms may be true.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from fedkad_bench.data.datasets import Entity, read_smd
from fedkad_bench.metrics.segments import segments
from measurements.house import AFTERMATH, at
from measurements.house_model import WEEK
from measurements.measure import heading, one_blas_thread, require_data
from measurements.replay import incidents, merged, replay, setting

MACHINES = tuple(f"machine-{name}" for name in ("1-1", "1-6", "2-1", "2-5", "2-9", "3-2", "3-6", "3-11"))


class Watched(NamedTuple):
    """What an agent made of the second half of a machine's recording."""

    weeks: float
    false: int
    anomalies: int
    found: int
    updates: int


def machine(name: str) -> Entity:
    """One machine of SMD."""
    return next(iter(read_smd(require_data() / "SMD", name)))


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
    }
    document = reduce(merged, map(setting, settings), document)
    half = len(entity.train)
    found = incidents(replay(document, arriving(np.vstack([entity.train, entity.test]), channels)))
    judged = [each for each in found if each.kind != "health" and each.start >= at(half)]
    anomalies = segments(entity.labels.astype(bool))
    spans = [(at(half + start), at(half + stop)) for start, stop in zip(anomalies.starts, anomalies.stops, strict=True)]
    false = [
        each
        for each in judged
        if not any(each.start <= end + AFTERMATH * 60 and each.end >= start for start, end in spans)
    ]
    hits = sum(any(each.start <= end and each.end >= start for each in judged) for start, end in spans)
    return Watched(len(entity.test) / WEEK, len(false), len(spans), hits, sum(each.updates for each in judged))


def main() -> None:
    """Print a line for every machine, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", nargs="+", default=MACHINES)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--against", action="append", default=[], metavar="KEY=VALUE,…")
    parser.add_argument("--jobs", type=int, default=1, help="machines at a time")
    chosen = parser.parse_args()
    one_blas_thread()
    require_data()
    heading(f"The agent's alarms on {len(chosen.machines)} servers, second half, budget 1/week")
    variants = [tuple(chosen.set), *((*chosen.set, *more.split(",")) for more in chosen.against)]
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for settings in variants:
            print(f"  {', '.join(settings) or 'as in the README'}", flush=True)
            every = []
            for name, each in zip(
                chosen.machines, pool.map(watch, chosen.machines, [settings] * len(chosen.machines)), strict=True
            ):
                every.append(each)
                rate = f"{each.false / each.weeks:6.1f} false alarms a week"
                print(
                    f"    {name:14}{rate}, {each.found} of {each.anomalies} found, {each.updates} updates", flush=True
                )
            rates = [each.false / each.weeks for each in every]
            hits, anomalies = sum(each.found for each in every), sum(each.anomalies for each in every)
            spread = f"({min(rates):.1f} to {max(rates):.1f})"
            print(f"    mean          {np.mean(rates):6.1f} {spread}, {hits} of {anomalies} found")


if __name__ == "__main__":
    main()
