"""What each witness is worth: alone, in pairs and together, with and without private directions.

    python -m measurements.witnesses [--fleets SMD SMAP MSL pumps] [--seeds 3]

VUS-PR by steps and average precision, causal / offline, are means over the devices with anomalies. At the detector's
own threshold: the share of anomalies found, the rows until then, and false alarm events per 10,000 normal rows.

Exposure: the weights and bounds were chosen on SMD machine-1-* and simulated pumps. They come from a study that had the
labels of SMD, SMAP and MSL in sight, although nothing was fitted to one: only data that nobody has looked at is clean.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from fedkad import KoopmanDetector, federate
from fedkad.detect.clusters import clusters_over
from fedkad.detect.scoring import SeriesScores, score_series
from fedkad.detect.witnesses import WEIGHTS, WitnessScoring
from fedkad.simulate import simulate_fleet
from fedkad_bench.data.datasets import Entity
from fedkad_bench.evaluation import smoothed
from fedkad_bench.methods.classical import ClassicalMethod
from fedkad_bench.methods.motion import MOTION
from fedkad_bench.metrics.missing import ranked
from fedkad_bench.metrics.ranking import average_precision
from fedkad_bench.metrics.segments import Flags, flagged_within, segments
from fedkad_bench.metrics.vus import vus_pr_steps
from measurements.measure import Array, heading, load, one_blas_thread

COMBINATIONS: Mapping[str, tuple[float, float, float]] = {
    "motion": (1, 0, 0),
    "fit": (0, 1, 0),
    "place": (0, 0, 1),
    "motion + fit": (1, 1, 0),
    "motion + place": (1, 0, 0.5),
    "fit + place": (0, 1, 0.5),
    "all, equal weights": (1, 1, 1),
    "all": WEIGHTS,
}
PRIVATE = 8
PEERS = ("pca", "kmeansad", "range")
ALONE = "scoring='motion'"


class Fault(NamedTuple):
    """An anomaly of a simulated device, by its kind."""

    kind: str
    device: str
    rows: slice


def entities(fleet: str, seed: int) -> tuple[list[Entity], list[Fault]]:
    """The devices of a fleet and, if it is simulated, its faults; a simulated fleet has a seed of its own."""
    if fleet != "pumps":
        return load(fleet), []
    pumps = simulate_fleet(24, seed=seed)
    made = [Entity(name, pumps.train[name], pumps.test[name], pumps.labels_of(name)) for name in pumps.train]
    return made, [Fault(fault.kind, fault.device, slice(fault.start, fault.end)) for fault in pumps.faults]


def groups_of(fleet: str, device: str) -> str:
    """Where a device counts: the machines that defaults were chosen on stand apart."""
    if fleet != "SMD":
        return fleet
    return "SMD machine-1-*" if device.startswith("machine-1-") else "SMD other"


def variants(detector: KoopmanDetector, series: Array) -> Iterator[tuple[str, Array, Array]]:
    """Name, causal and offline scores of every combination of witnesses."""
    model = detector.model_
    raw = score_series(model.scoring, model.setup.scale(series))
    width = model.settings.smoothing
    if not isinstance(model.scoring, WitnessScoring):
        yield ALONE, raw.causal(width), raw.offline()
        return
    for name, weights in COMBINATIONS.items():
        own = {field.name: getattr(model.scoring, field.name) for field in fields(WitnessScoring)}
        weighted = SeriesScores(_Weighted(**own, weights=weights), *raw[1:])
        yield name, weighted.causal(width), weighted.offline()


@dataclass(frozen=True)
class _Weighted(WitnessScoring):
    """A scoring of witnesses with other weights."""

    weights: tuple[float, float, float] = WEIGHTS

    def contributions(self, terms: Sequence[Any], *root: Any) -> tuple[Any, Any, Any]:
        """The weighted roots."""
        motion, fit, place = (
            weight / usual * contribution
            for contribution, weight, usual in zip(
                super().contributions(terms, *root), self.weights, WEIGHTS, strict=True
            )
        )
        return motion, fit, place


def peers(made: Sequence[Entity], seed: int) -> Iterator[tuple[str, Entity, Array, Array]]:
    """Title, device, causal and offline scores of simple methods, smoothed as ours: half a window to either side."""
    for name in PEERS:
        method = ClassicalMethod(name)
        fitted = method.fit({entity.name: entity.train for entity in made}, seed=seed)
        for entity in made:
            raw = fitted.score(entity.name, entity.test)
            # `smoothed` reaches a third of the window it is given, and moves a score of a window back by half of it.
            wide = raw if method.covers == "sample" else np.append(raw[10:], np.full(10, raw[-1]))
            yield method.title, entity, smoothed(raw, "causal"), smoothed(wide, "offline", "sample", 30)


def operation(labels: Flags, scores: Array, threshold: float, apart: int) -> tuple[float, float, float]:
    """Share of anomalies found, mean rows until they are, and false alarm events per 10,000 normal rows."""
    alarms = scores > threshold
    found = segments(labels)
    hit = flagged_within(found, alarms) > 0
    delays = [
        int(np.argmax(alarms[start:stop])) for start, stop in zip(found.starts[hit], found.stops[hit], strict=True)
    ]
    # A window after an anomaly still holds some of it.
    near = np.convolve(labels, np.ones(2 * apart + 1), mode="same") > 0
    normal = np.where(near, np.nan, scores)
    false = len(clusters_over(normal, threshold, apart).peaks)
    return float(hit.mean()), float(np.mean(delays)) if delays else np.nan, 1e4 * false / max((~near).sum(), 1)


def main() -> None:
    """Print a table for every group of devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", nargs="+", default=["SMD", "SMAP", "MSL", "pumps"])
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    one_blas_thread()
    warnings.simplefilter("ignore")
    heading("Witnesses: VUS-PR by steps x 100 and average precision x 100, causal / offline")
    for fleet in chosen.fleets:
        rows: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        kinds: dict[str, list[float]] = defaultdict(list)
        for seed in range(chosen.seeds):
            _measure(fleet, seed, rows, kinds)
        _print(rows, chosen.seeds)
        for kind, hits in sorted(kinds.items()):
            print(f"    recall of {kind:14} {100 * np.mean(hits):5.1f} % of {len(hits)}")


def _measure(
    fleet: str, seed: int, rows: dict[tuple[str, str], list[list[float]]], kinds: dict[str, list[float]]
) -> None:
    made, faults = entities(fleet, seed)
    settings: list[dict[str, Any]] = [{"scoring": MOTION}, {"private": 0}, {"private": PRIVATE}]
    for parameters in settings:
        federation = federate({entity.name: entity.train for entity in made}, seed=seed, **parameters)
        suffix = f", {PRIVATE} private" if parameters.get("private") else ""
        for entity in made:
            if not entity.labels.any():
                continue
            detector = federation.detectors[entity.name]
            labels, group = entity.labels.astype(bool), groups_of(fleet, entity.name)
            for name, causal, offline in variants(detector, entity.test):
                measured = [m(labels, ranked(s)) for m in (vus_pr_steps, average_precision) for s in (causal, offline)]
                is_default = name in (ALONE, "all")
                acting = operation(labels, causal, detector.threshold_, 20) if is_default else (np.nan,) * 3
                rows[group, name + suffix].append([*measured, *acting])
        if parameters.get("private"):
            continue
        if "private" not in parameters:
            for title, entity, causal, offline in peers(made, seed):
                if entity.labels.any():
                    labels = entity.labels.astype(bool)
                    measured = [
                        m(labels, ranked(s)) for m in (vus_pr_steps, average_precision) for s in (causal, offline)
                    ]
                    rows[groups_of(fleet, entity.name), title].append([*measured, *(np.nan,) * 3])
        else:
            for kind, device, where in faults:
                kinds[kind].append(float(federation.detectors[device].predict(_of(made, device))[where].any()))


def _of(made: Sequence[Entity], device: str) -> Array:
    return next(entity.test for entity in made if entity.name == device)


def _print(rows: Mapping[tuple[str, str], list[list[float]]], seeds: int) -> None:
    for group in dict.fromkeys(group for group, _ in rows):
        count = max(len(found) for (where, _), found in rows.items() if where == group) // seeds
        print(f"  {group}: {count} devices, {seeds} seed(s)")
        print(f"    {'':32}{'VUS-PR':>14}{'AP':>14}{'found':>8}{'delay':>7}{'false':>7}")
        for (where, name), found in rows.items():
            if where != group:
                continue
            vus_c, vus_o, ap_c, ap_o, hit, delay, false = np.nanmean(np.array(found), axis=0)
            acted = "" if np.isnan(hit) else f"{100 * hit:7.0f}%{delay:7.0f}{false:7.1f}"
            vus, ap = f"{100 * vus_c:.1f} / {100 * vus_o:.1f}", f"{100 * ap_c:.1f} / {100 * ap_o:.1f}"
            print(f"    {name:32}{vus:>14}{ap:>14}{acted}", flush=True)


if __name__ == "__main__":
    main()
