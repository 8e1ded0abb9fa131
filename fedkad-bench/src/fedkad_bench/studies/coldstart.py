"""A device with few samples: alone, as one of the fleet from the start, or admitted to a fleet that never saw it.

On SMD the fleet are the other machines of the newcomer's group, and two machines of every group are newcomers in turn;
on simulated pumps all others. The newcomer's few rows begin at two fixed places of its training series. A device that
cannot be fitted is a row that says "refused".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.federation.inprocess import Federation, federate
from fedkad.simulate import simulate_fleet
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.data.entity import Entity
from fedkad_bench.data.sources import spread
from fedkad_bench.metrics.operation import events_detected
from fedkad_bench.metrics.ranking import average_precision
from fedkad_bench.metrics.segments import segments
from fedkad_bench.metrics.vus import vus_pr
from fedkad_bench.studies.study import Row, Study, StudyRequest, describe

Array = NDArray[np.float64]
Way = Callable[[Array], KoopmanDetector]

SAMPLES = (50, 100, 200, 500, 1000, 2000)
QUICK_SAMPLES = (30, 200)
BEGINS = (0.2, 0.5)
"""Where the few rows begin, as shares of the training series."""

IN_TURN = 2
"""Newcomers of every group."""

PUMPS, PUMPS_IN_TURN = 12, 3
QUICK_PUMPS = 3

COLUMNS = {
    "dataset": "dataset with what is missing of it",
    "device": "the newcomer",
    "chosen_on": "1 if defaults were chosen on this device, 0 if not",
    "fleet": "devices of the fleet without the newcomer",
    "samples": "training rows of the newcomer",
    "all_rows": "1 if these are all of its training rows, 0 if few",
    "begin": "the first of them",
    "way": "alone, federated (one of the fleet from the start) or admitted (to a fleet trained without it)",
    "status": "fitted, or refused",
    "reason": "why it was refused",
    "vus_pr": "VUS-PR of the causal score",
    "auc_pr": "AUC-PR of the causal score",
    "normal_flagged": "share of normal test rows flagged at its own threshold",
    "events_found": "share of labelled events with at least one alarm",
    "events": "labelled events",
    "few_rows": "1 if the threshold is a cross-fitted quantile, 0 if a fitted tail",
    "threshold": "its threshold",
}


def run(request: StudyRequest) -> list[Row]:
    """All newcomers of all fleets."""
    rows: list[Row] = []
    samples = QUICK_SAMPLES if request.quick else SAMPLES
    for dataset in (*(request.load(name) for name in request.datasets), pumps(quick=request.quick)):
        devices = newcomers(dataset)[: 1 if request.quick else None]
        for done, device in enumerate(devices):
            request.report(f"{dataset.name}, newcomers", done, len(devices))
            make = partial(measure, dataset, device, samples, seed=request.seeds[0])
            settings = {"data": describe(dataset), "samples": samples, "begins": BEGINS, "seed": request.seeds[0]}
            rows += request.part(f"{dataset.name}-{device.name}", settings, make)
        request.report(f"{dataset.name}, newcomers", len(devices), len(devices))
    return rows


def pumps(*, quick: bool = False) -> Dataset:
    """Simulated pumps as a dataset."""
    number = QUICK_PUMPS if quick else PUMPS
    fleet = simulate_fleet(number, train_rows=1500) if quick else simulate_fleet(number)
    entities = tuple(Entity(name, fleet.train[name], fleet.test[name], fleet.labels_of(name)) for name in fleet.train)
    return Dataset("pumps", entities, f"simulated pumps ({number})", fleet.period, chosen_on=tuple(fleet.train))


def group_of(name: str) -> str:
    """The name without its last part.

    >>> group_of("machine-1-7"), group_of("pump-02")
    ('machine-1', 'pump')
    """
    return name.rpartition("-")[0]


def newcomers(dataset: Dataset) -> list[Entity]:
    """Devices with labelled events, spread over every group."""
    groups: dict[str, list[Entity]] = {}
    for entity in dataset.entities:
        if entity.labels.any():
            groups.setdefault(group_of(entity.name), []).append(entity)
    count = IN_TURN if len(groups) > 1 else PUMPS_IN_TURN
    names = {name for group in groups.values() for name in spread([entity.name for entity in group], count)}
    return [entity for entity in dataset.entities if entity.name in names]


def others(dataset: Dataset, device: str) -> dict[str, Array]:
    """The training series of the other devices of its group, or of all others where the group has fewer than two."""
    rest = {name: series for name, series in dataset.training().items() if name != device}
    near = {name: series for name, series in rest.items() if group_of(name) == group_of(device)}
    return near if len(near) > 1 else rest


def measure(dataset: Dataset, device: Entity, samples: Sequence[int], *, seed: int) -> list[Row]:
    """One newcomer with several lengths of training data, each from two beginnings, and with all of its data."""
    fleet, whole = others(dataset, device.name), len(device.train)
    ways = ways_in(fleet, device.name, seed)
    cuts = [(int(share * whole), rows) for rows in samples for share in BEGINS]
    cuts = [(begin, rows) for begin, rows in cuts if begin + rows <= whole]
    about: Row = {
        "dataset": dataset.label,
        "device": device.name,
        "chosen_on": int(device.name in dataset.chosen_on),
        "fleet": len(fleet),
    }
    found: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)  # a column says it
        for begin, rows in (*cuts, (0, whole)):
            few = device.train[begin : begin + rows]
            here: Row = {**about, "samples": rows, "all_rows": int(rows == whole), "begin": begin}
            found += [{**here, "way": name, **judged(way, few, device)} for name, way in ways.items()]
    return found


def ways_in(fleet: Mapping[str, Array], name: str, seed: int) -> dict[str, Way]:
    """The three ways to a detector; the fleet that admits is trained once, when it is first needed."""

    @cache
    def settled() -> Federation:
        return federate(fleet, seed=seed)

    def admitted(few: Array) -> KoopmanDetector:
        federation = settled()
        detector = federation.admit(name, few)
        del federation.detectors[name]  # the next piece of the same device comes to the same fleet
        return detector

    return {
        "alone": lambda few: KoopmanDetector(seed=seed).fit(few),
        "federated": lambda few: federate({**fleet, name: few}, seed=seed).detectors[name],
        "admitted": admitted,
    }


def judged(way: Way, few: Array, device: Entity) -> Row:
    """How good the detector is, or why there is none."""
    try:
        detector = way(few)
    except ValueError as error:
        return {"status": "refused", "reason": str(error)}
    scores = detector.decision_function(device.test)
    alarms = detector.predict(device.test).astype(bool)
    return {
        "status": "fitted",
        "vus_pr": vus_pr(device.labels, scores),
        "auc_pr": average_precision(device.labels, scores),
        "normal_flagged": float(alarms[~device.labels].mean()),
        "events_found": events_detected(device.labels, alarms),
        "events": len(segments(device.labels).lengths),
        "few_rows": int(detector.model_.few_rows),
        "threshold": detector.threshold_,
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """What was chosen on, and what was refused."""
    chosen = sorted({str(row["device"]) for row in rows if row["chosen_on"]})
    refused = [row for row in rows if row["status"] == "refused"]
    notes = [
        f"Defaults were chosen on {', '.join(chosen) or 'none of the devices'}, and the rule for a newcomer's "
        "threshold on machine-1-7 and machine-1-8: numbers there are optimistic. Simulated pumps prove nothing.",
        "The fleet of an SMD newcomer are the other machines of its group; all machine-1-* were looked at.",
        "An admitted newcomer with fewer than a thousand scores takes at least the median threshold of the fleet; one "
        "that is federated from the start has its own threshold only.",
    ]
    lengths = sorted({int(row["samples"] or 0) for row in refused})
    told = f", with {', '.join(map(str, lengths))} samples" if refused else ""
    notes.append(f"{len(refused)} of {len(rows)} were refused{told}.")
    return notes


STUDY = Study("coldstart", "A new device with few samples", COLUMNS, run, remarks, datasets=("SMD",))
