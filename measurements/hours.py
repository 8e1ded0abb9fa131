"""Whether the hour helps: false alarms with two harmonics of the day, and of the week, as inputs of the detector.

    python -m measurements.hours [--seeds 3] [--machines 8]

A detector is fitted to the first weeks of each device of the simulated house, and to the first half of eight machines
of SMD, without the hour, with sin and cos of one and two turns a day as four more channels that are inputs (they help
to predict and are not judged by prediction), with those of the week as well, and, as controls, with those of 17 hours
and 5 days, which mean nothing. All judge the same rows after that.

- at its own threshold, `"1/week"`: false alarm events per device-week on rows without a fault, mean and
  median over devices, on how many there are fewer and more of them than without the hour, and the share found;
- at equal false alarms, the threshold of each that gives one event a week on those rows: the share found. This compares
  the scores alone; it looks at what nobody has in practice.

Result (`results/hours.txt`): the hour does not help. Most of what falls with more inputs falls with periods that mean
nothing, too, at equal false alarms no more is found, and on SMD nothing changes. With an agent (`measurements.house
--hour`, `results/house_hour.txt`) it lowers false alarms a little and loses faults.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.clusters import clusters_over
from fedkad_bench.data.datasets import data_folder
from fedkad_bench.metrics.segments import segments
from measurements.harmonics import HOURS, harmonics
from measurements.house import AFTERMATH, SLACK
from measurements.house_model import INPUTS, MINUTE, WEEK, simulate_house, with_faults
from measurements.measure import Array, heading, one_blas_thread
from measurements.servers import MACHINES, machine

WEEKS = (1, 4)
"""Weeks of the house that a detector is fitted to."""

WEEKS_IN_ALL = 12


class ScoredRows(NamedTuple):
    """Scores of rows without and with faults, where a false alarm counts, and where each fault is found."""

    quiet: Array
    faulty: Array
    threshold: float
    apart: int
    spans: dict[str, list[tuple[int, int]]]

    def false_alarms(self, threshold: float) -> float:
        """Events a week over a threshold in the quiet scores."""
        weeks = np.isfinite(self.quiet).sum() / WEEK
        return float(len(clusters_over(self.quiet, threshold, self.apart).peaks) / weeks)

    def found(self, threshold: float) -> dict[str, list[bool]]:
        """By kind, whether each fault is over the threshold while it lasts."""
        alarms = self.faulty > threshold
        return {kind: [bool(alarms[a:b].any()) for a, b in spans] for kind, spans in self.spans.items()}

    def threshold_for(self, per_week: float) -> float:
        """The lowest threshold with at most so many false alarms a week."""
        low, high = 0.0, float(np.nanmax(self.quiet))
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.false_alarms(middle) > per_week else (low, middle)
        return high


def with_hours(rows: Array, first: int, periods: Sequence[float]) -> Array:
    """The rows with sin and cos of each period, in rows, as more columns."""
    return np.hstack([rows, harmonics(np.arange(first, first + len(rows), dtype=np.float64), periods)])


def fitted(train: Array, periods: Sequence[float], inputs: Sequence[int] = ()) -> KoopmanDetector:
    """A detector with a budget of one a week; the columns of the hour are inputs as well."""
    hours = range(train.shape[1], train.shape[1] + 2 * len(periods))
    detector = KoopmanDetector(threshold="1/week", sample_period=MINUTE, inputs=[*map(str, inputs), *map(str, hours)])
    return detector.fit(with_hours(train, 0, periods))


def house(seed: int, weeks: int, periods: Sequence[float]) -> Iterator[tuple[str, ScoredRows]]:
    """The devices of one house, judged after their first weeks."""
    healthy = simulate_house(seed, 7 * WEEKS_IN_ALL)
    begin = weeks * WEEK
    faulty = with_faults(healthy, seed, begin, 3)
    for device in healthy.rows:
        quiet, ill = (np.column_stack(list(each.rows[device].values())) for each in (healthy, faulty))
        inputs = [list(healthy.rows[device]).index(name) for name in INPUTS.get(device, ())]
        detector = fitted(quiet[:begin], periods, inputs)
        well, sick = (detector.decision_function(with_hours(each[begin:], begin, periods)) for each in (quiet, ill))
        spans = defaultdict(list)
        for fault in faulty.faults:
            if fault.device == device and fault.kind != "silent":
                spans[fault.kind].append((fault.start - begin, fault.end - begin + SLACK.get(fault.kind, 0)))
        yield device, ScoredRows(well, sick, detector.threshold_, detector.window, dict(spans))


def server(name: str, periods: Sequence[float]) -> ScoredRows:
    """One machine of SMD, judged in its second half."""
    entity = machine(name)
    detector = fitted(entity.train, periods)
    scores = detector.decision_function(with_hours(entity.test, len(entity.train), periods))
    anomalies = segments(entity.labels.astype(bool))
    near: NDArray[np.bool_] = np.zeros(len(scores), dtype=np.bool_)
    spans = list(zip(anomalies.starts.tolist(), anomalies.stops.tolist(), strict=True))
    for start, stop in spans:
        near[start : stop + AFTERMATH] = True
    return ScoredRows(np.where(near, np.nan, scores), scores, detector.threshold_, detector.window, {"anomaly": spans})


def table(title: str, judged: dict[str, list[ScoredRows]]) -> None:
    """Print what each variant comes to."""
    kinds = list(dict.fromkeys(kind for each in judged["without"] for kind in each.spans))
    print(f"  {title}\n    {'':14}{'threshold':>10}{'false/week':>12}{'median':>8}{'fewer':>7}{'more':>6} ", end="")
    print("".join(f"{kind:>12}" for kind in kinds))
    usual = [each.false_alarms(each.threshold) for each in judged["without"]]
    for variant, every in judged.items():
        own = [each.threshold for each in every]
        false = [each.false_alarms(each.threshold) for each in every]
        equal = [each.threshold_for(1.0) for each in every]
        fewer, more = (sum(np.sign(np.subtract(false, usual)) == sign) for sign in (-1, 1))
        shown = f"    {variant:14}{np.median(own):10.2f}{np.mean(false):12.2f}{np.median(false):8.2f}{fewer:7}{more:6} "
        print(shown + _shares(every, own, kinds))
        print(f"    {'  at 1/week':14}{np.median(equal):10.2f}{'':34}" + _shares(every, equal, kinds), flush=True)


def _shares(every: Sequence[ScoredRows], thresholds: Sequence[float], kinds: Sequence[str]) -> str:
    found = [each.found(threshold) for each, threshold in zip(every, thresholds, strict=True)]
    hits = {kind: [hit for one in found for hit in one.get(kind, [])] for kind in kinds}
    return "".join(f"{sum(hits[kind]):7}/{len(hits[kind]):<4}" for kind in kinds)


def main() -> None:
    """Print the tables of the house and of SMD."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--machines", type=int, default=len(MACHINES))
    chosen = parser.parse_args()
    one_blas_thread()
    warnings.simplefilter("ignore")
    heading(f"The hour as an input: false alarms and faults found, {chosen.seeds} seed(s)")
    for weeks in WEEKS:
        judged = {
            name: [each for seed in range(chosen.seeds) for _, each in house(seed, weeks, periods)]
            for name, periods in HOURS.items()
        }
        table(f"house, fitted to {weeks} week(s)", judged)
    if data_folder() is None:
        print("  SMD is left out: name the folder of the datasets in FEDKAD_DATA.")
        return
    servers = MACHINES[: chosen.machines]
    table("SMD", {name: [server(each, periods) for each in servers] for name, periods in HOURS.items()})


if __name__ == "__main__":
    main()
