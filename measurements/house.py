"""Whether people can trust the agent's alarms: twelve weeks in a simulated house, with faults and without.

    python -m measurements.house [--seeds 3] [--weeks 12] [--set alarm.min_duration=3m] [--against learning.first=10080]

Three devices of a house (`measurements.house_model` describes it, and the seven kinds of fault with their sizes) report
once a minute to a real agent on a simulated clock (`measurements.replay`), which begins without a model and has the
README's settings, `budget = "1/week"`; the set-point and position of the heating are `inputs` of its detector. Each
seed runs with faults, each kind three times per device after the first week and more than a day apart, and as a twin:
the same house without them.

- *False alarms* per device-week, after the first week: incidents that overlap no fault nor the hour after one, and all
  incidents of the twin. Health alerts are counted apart.
- *Found while it lasts*: an incident or a health alert begins between the start and the end of the fault; 25 minutes
  later is soon enough for spikes and blips, which are in the window of the score that long. What begins when a fault
  ends is too late. *By chance* is how often the twin, which has no fault, passes the same test.
- *New set-point*: in a third run the set-point rises by 3 °C for good at the beginning of week 6. What belongs to it
  are the incidents that begin within two days after it, less those of the twin in the same time. One that is over and
  comes back within hours is told as the same one: that is an update here, and one more false alarm above.

With `--answered-after 8` somebody acknowledges each incident that is a fault, and no other, eight hours after it was
told; by default nobody answers. `--set` holds for every run; each `--against` adds a variant, of one setting or several
with spaces between them. With `--hour "day and week"` (or `day`, and as controls `17 h`, `17 h and 5 d`, which mean
nothing) every message also carries sin and cos of one and two such turns, which are inputs of the detector; several
may be named, and each is a variant.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from measurements.harmonics import HOURS, hour_values, with_hour
from measurements.house_model import (
    BEGAN,
    DAY,
    DECIMALS,
    DURATIONS,
    INPUTS,
    MINUTE,
    WEEK,
    House,
    HouseFault,
    simulate_house,
    with_faults,
)
from measurements.measure import heading, one_blas_thread
from measurements.replay import (
    Alert,
    IncidentSpan,
    Operator,
    add_options,
    incidents,
    merged,
    processes,
    replay,
    setting,
    variants,
)

REPEATS = 3
AFTERMATH = 60
"""Rows after a fault in which an incident still belongs to it."""

SLACK = {"spike": 25, "blip": 25}
"""Rows after the end of a fault in which it is still found; 0 for the others."""

WARMER = 5 * WEEK
"""The row at which the set-point rises."""

RUNS = ("faults", "twin", "warmer")


class HouseRun(NamedTuple):
    """One run of an agent."""

    run: str
    seed: int
    weeks: int
    settings: tuple[str, ...]
    answered_after: float  # hours until somebody acknowledges an incident that is a fault
    hour: str  # which harmonics messages carry


class Measured(NamedTuple):
    """What came of it."""

    faults: tuple[HouseFault, ...]
    incidents: list[IncidentSpan]
    seconds: float


Pair = tuple[Measured, Measured]
"""A run with faults, and its twin."""


def configuration(house: House, settings: Sequence[str], hour: str = "without") -> dict[str, Any]:
    """The README's agent.toml for the devices of the house, with other settings, and with the hour."""
    document = {
        "devices": list(house.rows),
        "sampling": {"period": "1m"},
        "alarm": {"budget": "1/week"},
        "override": {
            device: with_hour(
                {"sampling": {"channels": list(channels)}, "detector": {"inputs": list(INPUTS.get(device, ()))}}, hour
            )
            for device, channels in house.rows.items()
        },
    }
    return reduce(merged, map(setting, settings), document)


def arriving(house: House, rows: int, hour: str = "without") -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """The messages of the house, minute by minute."""
    for row in range(rows):
        moment, more = BEGAN + row * MINUTE, hour_values(hour, row)
        yield moment, [{"device": name, "last_seen": moment, **values, **more} for name, values in house.messages(row)]


def house_of(run: str, seed: int, weeks: int) -> House:
    """The house of one run; all runs of a seed have the same weather, people and noise."""
    house = simulate_house(seed, 7 * weeks, WARMER if run == "warmer" else None)
    if run == "warmer":
        return replace(house, rows={device: house.rows[device] for device in ("climate", "heating")})
    if run == "faults":
        return with_faults(house, seed, WEEK, max(round(REPEATS * (weeks - 1) / 11), 1))
    return house


def measure(case: HouseRun) -> Measured:
    """Run one case from its first message to its last."""
    house = house_of(case.run, case.seed, case.weeks)
    before = time.process_time() + os.times().children_user
    operator = Operator(lambda alert: not is_false(begun(alert), house.faults), case.answered_after * 3600.0)
    document = configuration(house, case.settings, case.hour)
    alerts = replay(document, arriving(house, case.weeks * WEEK, case.hour), operator)
    return Measured(house.faults, incidents(alerts), time.process_time() + os.times().children_user - before)


def at(row: float) -> float:
    """The time of a row."""
    return BEGAN + row * MINUTE


def begun(alert: Alert) -> IncidentSpan:
    """An incident as its first alert tells it."""
    known = incidents([alert])[0]
    return known._replace(end=known.told)


def is_false(incident: IncidentSpan, faults: Sequence[HouseFault]) -> bool:
    """Whether an incident overlaps no fault of its device, nor the hour after one."""
    return not any(
        fault.device == incident.device
        and incident.start <= at(fault.end + AFTERMATH)
        and incident.end >= at(fault.start)
        for fault in faults
    )


def delay(fault: HouseFault, found: Sequence[IncidentSpan]) -> float | None:
    """Minutes until a fault was told while it lasted, None if it was not."""
    until = at(fault.end + SLACK.get(fault.kind, 0))
    told = [each.told for each in found if each.device == fault.device and at(fault.start) <= each.told < until]
    return (min(told) - at(fault.start)) / MINUTE if told else None


def false_alarms(measured: Measured, weeks: int, *, health: bool = False, device: str = "") -> float:
    """False alarms per device-week after the first week, of one device or of all three."""
    counted = [
        each
        for each in measured.incidents
        if (each.kind == "health") == health
        and each.start >= at(WEEK)
        and device in ("", each.device)
        and is_false(each, measured.faults)
    ]
    return len(counted) / (weeks - 1) / (1 if device else 3)


def time_open(measured: Measured, weeks: int, device: str = "") -> float:
    """Share of the time after the first week in which an incident is open, of one device or of all three."""
    spans = [
        min(each.end, at(weeks * WEEK)) - max(each.start, at(WEEK))
        for each in measured.incidents
        if each.kind != "health" and device in ("", each.device)
    ]
    return sum(max(span, 0.0) for span in spans) / ((weeks - 1) * WEEK * MINUTE) / (1 if device else 3)


def after_change(measured: Measured, device: str, weeks: int) -> tuple[int, int, float]:
    """Incidents that begin within two days after the change, their updates, and the hours that they were open."""
    begun = [
        each
        for each in measured.incidents
        if each.device == device and each.kind != "health" and at(WARMER) <= each.start < at(WARMER + 2 * DAY)
    ]
    hours = sum(min(each.end, at(weeks * WEEK)) - each.start for each in begun) / 3600.0
    return sum(not each.is_again for each in begun), sum(each.updates for each in begun), hours


def print_false(seeds: Sequence[int], pairs: Sequence[Pair], weeks: int) -> None:
    """Print the false alarms of each seed and of each device."""
    print("    false alarms per device-week   with faults    twin   health alerts, both   incident open, twin")
    rows = [(f"seed {seed}", [pair], "") for seed, pair in zip(seeds, pairs, strict=True)]
    for title, some, device in [*rows, *((name, pairs, name) for name in DECIMALS), ("all", pairs, "")]:
        faulty, twin = (sum(false_alarms(pair[k], weeks, device=device) for pair in some) / len(some) for k in (0, 1))
        health = sum(false_alarms(one, weeks, health=True, device=device) for pair in some for one in pair) / len(some)
        share = 100.0 * sum(time_open(twin, weeks, device) for _, twin in some) / len(some)
        print(f"      {title:28}{faulty:12.1f}{twin:8.1f}{health:22.1f}{share:20.0f} %")


def print_found(pairs: Sequence[Pair]) -> None:
    """Print how many faults of each kind were found, how fast, and on which devices."""
    print("    found while it lasts   found   of   share   median delay   by chance   ", end="")
    print("".join(f"{device:>9}" for device in DECIMALS))
    for kind in DURATIONS:
        faults = [(fault, *pair) for pair in pairs for fault in pair[0].faults if fault.kind == kind]
        told = [(fault.device, delay(fault, faulty.incidents)) for fault, faulty, _ in faults]
        found = [wait for _, wait in told if wait is not None]
        chance = sum(delay(fault, twin.incidents) is not None for fault, _, twin in faults)
        typical = f"{median(found):.0f} min" if found else "–"
        share, by_chance = (f"{100 * count / len(told):.0f} %" for count in (len(found), chance))
        print(f"      {kind:20}{len(found):6}{len(told):5}{share:>8}{typical:>15}{by_chance:>12}   ", end="")
        own = [[wait is not None for name, wait in told if name == device] for device in DECIMALS]
        print("".join(f"{f'{sum(hits)}/{len(hits)}':>9}" for hits in own))


def print_change(seed: int, warmer: Measured, twin: Measured, weeks: int) -> None:
    """Print what a new set-point brings about."""
    for device in ("climate", "heating"):
        count, updates, hours = after_change(warmer, device, weeks)
        usual = after_change(twin, device, weeks)[0]
        told = f"{count} incident(s) in two days ({usual} in the twin), {updates} updates, {hours:.0f} h open"
        print(f"    new set-point, seed {seed}, {device:8} {told}", flush=True)


def main() -> None:
    """Run every variant on every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--weeks", type=int, default=12)
    parser.add_argument("--answered-after", type=float, default=math.inf, help="hours; never unless it is given")
    parser.add_argument("--hour", nargs="+", choices=HOURS, default=["without"], help="harmonics in every message")
    add_options(parser)
    chosen = parser.parse_args()
    one_blas_thread()
    names = RUNS if chosen.weeks * WEEK > WARMER else RUNS[:2]
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    heading(f"The agent's alarms in a house: {chosen.weeks} weeks, {chosen.seeds} seed(s), budget 1/week")
    with processes(chosen.jobs) as pool:
        for (name, settings), hour in product(variants(chosen), chosen.hour):
            cases = [
                HouseRun(run, seed, chosen.weeks, settings, chosen.answered_after, hour)
                for run in names
                for seed in seeds
            ]
            measured = iter(pool.map(measure, cases))
            runs = {run: [next(measured) for _ in seeds] for run in names}
            spent = sum(each.seconds for some in runs.values() for each in some) / len(seeds)
            with_hours = f", hour: {hour}" if HOURS[hour] else ""
            print(f"  {name}{with_hours} ({spent:.0f} s of processor time per seed)")
            pairs = list(zip(runs["faults"], runs["twin"], strict=True))
            print_false(seeds, pairs, chosen.weeks)
            print_found(pairs)
            for seed, warmer, (_, twin) in zip(seeds, runs.get("warmer", ()), pairs, strict=False):
                print_change(seed, warmer, twin, chosen.weeks)


if __name__ == "__main__":
    main()
