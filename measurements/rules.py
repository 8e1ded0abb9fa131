"""What each tuned rule of the agent is worth: the house and the servers once more, with one rule switched off.

    python -m measurements.rules [--seeds 3] [--first-seed 50] [--weeks 12] [--machines …] [--rules …] [--list]

A rule is switched off by a value of its constants with which it does nothing, or by a setting. The runs are those of
`measurements.house` and `measurements.servers`, each in a process of its own. One row is printed for each rule, as soon
as it is done; the first has all rules. The columns: false alarms per device-week of the house with faults and of its
twin without, each with the lowest and the highest of the seeds; false health alerts per device-week; faults found while
they lasted; incidents within two days after a new set-point, beyond those of the twin; the share of time in which an
incident is open in the twin; false alarms per week on the servers, and anomalies that are told there. A rule whose row
differs from the first by no more than the seeds do earns no place.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from measurements.house import (
    RUNS,
    WARMER,
    HouseRun,
    Measured,
    after_change,
    delay,
    false_alarms,
    measure,
    time_open,
)
from measurements.house_model import WEEK
from measurements.measure import heading, one_blas_thread, require_data
from measurements.replay import processes
from measurements.servers import MACHINES, Watched, watch

PACKAGE = "fedkad."


class Rule(NamedTuple):
    """A rule, and what switches it off: other constants, by their names below `fedkad`, and settings."""

    name: str
    constants: Mapping[str, Any] = {}
    settings: tuple[str, ...] = ()


RULES = (
    Rule("all rules"),
    # when an incident begins
    Rule("rate of abnormal rows", settings=("alarm.rate_limit=0",)),
    Rule("ASTRAY: far outside counts towards the rate", {"edge.alarms.policy.ASTRAY": math.inf}),
    Rule("cool_down after an incident", settings=("alarm.cool_down=0s",)),
    Rule(
        "another cause is told", {"edge.alarms.policy.AFTER_COMMAND": math.inf, "edge.alarms.policy.MARGINAL": math.inf}
    ),
    Rule("AFTER_COMMAND: another cause after a command", {"edge.alarms.policy.AFTER_COMMAND": 1.25}),
    # when it comes back
    Rule("recurrence: echoes, and again", {"edge.alarms.policy.REST": 0.0}),
    Rule("echoes are not told", {"edge.alarms.recurrence.MARGINAL": 0.0}),
    Rule("ECHO_LASTS: an echo is brief", {"edge.alarms.recurrence.ECHO_LASTS": math.inf}),
    # how long it goes on
    Rule("release: not until the score is well below", settings=("alarm.release=1.0",)),
    Rule(
        "BACK: not while a channel of it is outside",
        {f"edge.alarms.{name}.BACK": math.inf for name in ("policy", "departures")},
    ),
    Rule("PART: a set-point that left has a part in it", {"edge.alarms.departures.PART": 0.0}),
    Rule("LONGEST_QUIET: as long as it went astray", {"edge.alarms.phases.LONGEST_QUIET": 0.0}),
    # when it becomes normal
    Rule("settling", settings=("alarm.settle=0s",)),
    Rule("GROWTH: a drift does not settle", {"edge.alarms.acceptance.GROWTH": math.inf}),
    Rule("NEAR: what is far away does not settle", {"edge.alarms.acceptance.NEAR": math.inf}),
    Rule("FARTHEST: a broken tie does not settle", {"edge.alarms.acceptance.FARTHEST": math.inf}),
    Rule("FAR: outliers are no part of a level", {"edge.alarms.acceptance.FAR": math.inf}),
    # what the budget makes of it
    Rule("the threshold follows its alarms", {"detect.tracking.GAIN": 0.0}),
    Rule("MARGINAL: only low alarms count", {"detect.tracking.MARGINAL": math.inf}),
    Rule("REST: one of several counts", {"detect.tracking.REST": 0.0}),
    Rule("BRIEF: only brief alarms count, or are learned", {"edge.device.learning.BRIEF": math.inf}),
    # what is learned from
    Rule("OFTEN: what comes often is learned", {"edge.device.learning.OFTEN": math.inf}),
    Rule("cautious learning: not from what is far", {"edge.device.modelfolder.NEAR": math.inf}),
    Rule("a young model is fitted again for a week", {"edge.device.learning.MATURE": 0.0}),
    Rule("RECOVERING: a channel that is back is no news", {"edge.health.faults.RECOVERING": ()}),
)


class Outcome(NamedTuple):
    """What came of one rule: runs of the house by their kinds, and servers."""

    house: dict[str, list[Measured]]
    servers: list[Watched]


def switch_off(rule: Rule) -> None:
    """Switch a rule off in this process."""
    for path, value in rule.constants.items():
        module, _, name = (PACKAGE + path).rpartition(".")
        if not hasattr(import_module(module), name):
            raise AttributeError(f"{rule.name}: there is no {PACKAGE}{path}.")
        setattr(import_module(module), name, value)


def measure_without(rule: Rule, case: HouseRun | str) -> Measured | Watched:
    """Run one case with a rule switched off, in a process of its own."""
    switch_off(rule)
    return watch(case, rule.settings) if isinstance(case, str) else measure(case)


def row(rule: Rule, outcome: Outcome, weeks: int) -> str:
    """Return what is printed of a rule."""
    pairs = list(zip(outcome.house["faults"], outcome.house["twin"], strict=True))
    faulty, twin = ([false_alarms(pair[k], weeks) for pair in pairs] for k in (0, 1))
    health = [false_alarms(one, weeks, health=True) for pair in pairs for one in pair]
    told = [delay(fault, faults.incidents) is not None for faults, _ in pairs for fault in faults.faults]
    changed = [
        after_change(warmer, device, weeks)[0] - after_change(twin, device, weeks)[0]
        for warmer, (_, twin) in zip(outcome.house.get("warmer", ()), pairs, strict=False)
        for device in ("climate", "heating")
    ]
    is_open = mean([time_open(one, weeks) for _, one in pairs])
    cells = [
        f"{rule.name:46}{spread(faulty):>17}{spread(twin):>17}{mean(health):8.2f}",
        f"{sum(told):6} of {len(told):3}{sum(changed) if changed else '–':>10}{is_open:8.0%}",
    ]
    if outcome.servers:
        rates = [each.false / each.weeks for each in outcome.servers]
        cells.append(f"{spread(rates):>19}{sum(each.told for each in outcome.servers):6} of ")
        cells.append(f"{sum(each.anomalies for each in outcome.servers)}")
    return "".join(cells)


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN of nothing."""
    return sum(values) / len(values) if values else math.nan


def spread(values: Sequence[float]) -> str:
    """Return the mean with the lowest and the highest value.

    >>> spread([0.5, 1.0, 3.0])
    '1.50 (0.50–3.00)'
    """
    return f"{mean(values):.2f} ({min(values, default=math.nan):.2f}–{max(values, default=math.nan):.2f})"


def main() -> None:
    """Run every rule on every seed and machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=50)
    parser.add_argument("--weeks", type=int, default=12)
    parser.add_argument("--machines", nargs="*", default=MACHINES)
    parser.add_argument("--rules", nargs="+", default=[rule.name for rule in RULES], help="by words of their names")
    parser.add_argument("--jobs", type=int, default=1, help="agents at a time")
    parser.add_argument("--list", action="store_true", help="only say what switches each rule off")
    chosen = parser.parse_args()
    rules = [rule for rule in RULES if rule is RULES[0] or any(words in rule.name for words in chosen.rules)]
    if chosen.list:
        for rule in rules:
            off = [*(f"{name} = {value}" for name, value in rule.constants.items()), *rule.settings]
            print(f"{rule.name:50}{', '.join(off)}")
        return
    one_blas_thread()
    if chosen.machines:
        require_data()
    names = RUNS if chosen.weeks * WEEK > WARMER else RUNS[:2]
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    heading(f"Rules of the agent's alarms, each switched off: {chosen.weeks} weeks, seeds {list(seeds)}, budget 1/week")
    head = ("off", "false, faults", "false, twin", "health", "found", "set-point", "open", "servers: false", "told")
    print("{:46}{:>17}{:>17}{:>8}{:>13}{:>10}{:>8}{:>19}{:>13}".format(*head), flush=True)
    with processes(chosen.jobs) as pool:
        started = []
        for rule in rules:
            rest = chosen.weeks, rule.settings, math.inf, "without"
            runs = [HouseRun(run, seed, *rest) for run in names for seed in seeds]
            started.append([pool.submit(measure_without, rule, case) for case in (*runs, *chosen.machines)])
        for rule, results in zip(rules, started, strict=True):
            done = [result.result() for result in results]
            measured = iter([each for each in done if isinstance(each, Measured)])
            house = {run: [next(measured) for _ in seeds] for run in names}
            servers = [each for each in done if isinstance(each, Watched)]
            print(row(rule, Outcome(house, servers), chosen.weeks), flush=True)
    print(f"{len(rules) - 1} rules.", file=sys.stderr)


if __name__ == "__main__":
    main()
