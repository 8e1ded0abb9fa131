"""Efficiency: processor seconds of training, bytes, microseconds a sample and memory, on one core of one machine.

FedKAD and the classical methods train as a whole. Networks would take hours, so their optimiser step is timed on real
windows and multiplied by the number of steps that 30 rounds take with the same participants; averaging and evaluation
are left out, in their favour, as are scaling and cutting windows where they score, while FedKAD's seconds include the
diagnostics of every round. Their layers are PyTorch's own (`neural.plain`), which one core runs fastest.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.server import Sampler
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.methods.interface import VALIDATION, WINDOW, Fitted
from fedkad_bench.methods.preparation import prepare
from fedkad_bench.methods.registry import METHODS, make
from fedkad_bench.studies.measuring import (
    apart,
    confine,
    median_seconds,
    once,
    one_torch_thread,
    peak_megabytes,
)
from fedkad_bench.studies.study import Row, Study, StudyRequest

Array = NDArray[np.float64]

WHOLE = ("fedkad", "fedkad-paper", "pca", "kmeansad")
NETWORKS = ("deepsvdd", "lstm-ae", "usad", "tranad")
STEPS = {"deepsvdd": 300, "lstm-ae": 40, "usad": 30, "tranad": 12}
"""Optimiser steps that are timed: some seconds of each network."""

SCORED = 4096
"""Samples that are scored at once."""

REPEATS = 5

COLUMNS = {
    "dataset": "the dataset with what is missing of it",
    "label": "its name",
    "method": "the method by its short name",
    "title": "the method by its title",
    "clients": "clients in the federation",
    "rounds": "exchanges with the server",
    "seconds_training": "processor seconds of the whole training of all clients, one thread",
    "measured": "how that was measured",
    "seconds_per_round": "seconds_training over the rounds",
    "bytes_per_round": "payload both ways, all participants, in the mean of the rounds",
    "bytes_total": "payload both ways over the whole training",
    "microseconds_per_step": f"processor time to score one sample, {SCORED} at once",
    "peak_megabytes": "most memory of a process that trains one client, that of the longest series, libraries included",
    "training_ratio": "seconds_training over that of FedKAD",
    "bytes_ratio": "bytes_total over those of FedKAD",
    "step_ratio": "microseconds_per_step over those of FedKAD",
}


class EfficiencyTask(NamedTuple):
    """One method on one dataset."""

    method: str
    dataset: Dataset
    quick: bool

    @property
    def repeats(self) -> int:
        """How often scoring is timed."""
        return 1 if self.quick else REPEATS


class TrainingCost(NamedTuple):
    """What a process found out about its task."""

    seconds: float
    how: str
    rounds: int
    bytes_total: int
    step: float
    memory: float = 0.0


def run(request: StudyRequest) -> list[Row]:
    """All methods on all datasets, one after the other; a dataset's rows end with the ratios to FedKAD."""
    rows: list[Row] = []
    for name in request.datasets[:1] if request.quick else request.datasets:
        dataset = request.load(name)
        found: dict[str, TrainingCost] = {}
        for done, method in enumerate((*WHOLE, *NETWORKS)):
            request.report(f"{name} {METHODS[method].title}", done, len(WHOLE) + len(NETWORKS))
            measured = apart(measure, EfficiencyTask(method, dataset, request.quick))
            found[method] = measured._replace(
                memory=apart(peak, EfficiencyTask(method, _longest(dataset), request.quick))
            )
        rows += [_row(dataset, method, found) for method in found]
    return rows


def _longest(dataset: Dataset) -> Dataset:
    """The one client with the most training rows, and no more of its test series than is scored at once."""
    entity = max(dataset.entities, key=lambda entity: len(entity.train))
    return replace(dataset, entities=(entity._replace(test=entity.test[:SCORED], labels=entity.labels[:SCORED]),))


def peak(task: EfficiencyTask) -> float:
    """The most memory that a process holds to which one client is all there is."""
    measure(task)
    return peak_megabytes()


def measure(task: EfficiencyTask) -> TrainingCost:
    """One task, in a process of its own."""
    confine()
    if METHODS[task.method].needs == "torch":
        one_torch_thread()
        return _measure_network(task)
    return _measure_whole(task)


def _measure_whole(task: EfficiencyTask) -> TrainingCost:
    fleet, method = task.dataset.training(), make(task.method, dataset=task.dataset.name)
    first = next(iter(fleet))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method.fit({first: fleet[first][: 40 * WINDOW]}, seed=0)  # whatever is loaded on first use
        fitted, seconds = once(lambda: method.fit(fleet, seed=0, scaling=task.dataset.scaling))
    cost = fitted.cost
    step = _scoring(fitted, task)
    return TrainingCost(seconds, "whole training", cost.rounds, cost.bytes_up + cost.bytes_down, step)


def _scoring(fitted: Fitted, task: EfficiencyTask) -> float:
    """Processor seconds to score one sample of many."""
    entity = max(task.dataset.entities, key=lambda entity: len(entity.test))
    series = np.resize(entity.test, (SCORED + WINDOW, entity.test.shape[1]))
    return median_seconds(lambda: fitted.score(entity.name, series), task.repeats) / SCORED


def _measure_network(task: EfficiencyTask) -> TrainingCost:
    import torch

    from fedkad_bench.methods.neural.fedavg import Envelope
    from fedkad_bench.methods.neural.local import BATCH, cut
    from fedkad_bench.methods.neural.method import NETWORKS as BASELINES
    from fedkad_bench.methods.neural.method import exchanged
    from fedkad_bench.methods.neural.plain import PLAIN, train_epoch

    fleet, count = task.dataset.training(), 3 if task.quick else STEPS[task.method]
    network = PLAIN[task.method](WINDOW, task.dataset.channels)
    units = BASELINES[task.method].network(WINDOW, task.dataset.channels).units
    longest = max(fleet, key=lambda name: len(fleet[name]))
    learning = prepare({longest: fleet[longest]}, units=units)[longest].learning
    rows = torch.from_numpy(np.nan_to_num(learning)).float()
    order = np.random.default_rng(0).integers(0, len(rows) - WINDOW + 1, size=count * BATCH)
    optimisers = network.optimisers()

    def steps(number: int) -> None:
        # Windows are cut batch by batch: all of them at once would not fit a small device.
        for k in range(number):
            batch = torch.from_numpy(order[k * BATCH : (k + 1) * BATCH])[None]
            train_epoch(network, optimisers, cut(rows, batch, WINDOW)[0], 2)

    steps(2)
    seconds = median_seconds(lambda: steps(count), 3, warm=0) / count
    network.eval()
    windows = cut(rows, torch.from_numpy(np.arange(SCORED) % (len(rows) - WINDOW + 1))[None], WINDOW)[0]
    with torch.no_grad():
        step = median_seconds(lambda: network.scores(windows), task.repeats) / SCORED
    envelope, total = Envelope(), optimiser_steps({name: len(series) for name, series in fleet.items()})
    numbers = BASELINES[task.method].network(WINDOW, task.dataset.channels).layout.numbers
    cost = exchanged(numbers, list(fleet), envelope)
    how = f"{count} optimiser steps of {1e3 * seconds:.2f} ms, times {total:,}"
    return TrainingCost(seconds * total, how, envelope.rounds, cost.bytes_up + cost.bytes_down, step)


def optimiser_steps(rows: dict[str, int], rounds: int = 30, epochs: int = 5, batch: int = 128) -> int:
    """Steps of FedAvg over all rounds and participants, those of seed 0, from the clients' training rows.

    >>> optimiser_steps({"a": 1000}, rounds=2, epochs=5)  # 850 rows to learn from, 831 windows, 7 batches
    70
    """
    sampler = Sampler(list(rows), max(0.25, 1.0 / len(rows)), "uniform", 0)
    taken = [name for _ in range(rounds) for name in sampler.next()]
    windows = {name: count - int(VALIDATION * count) - WINDOW + 1 for name, count in rows.items()}
    return sum(epochs * -(-windows[name] // batch) for name in taken)


def _row(dataset: Dataset, method: str, found: dict[str, TrainingCost]) -> Row:
    own, ours = found[method], found["fedkad"]
    return {
        "dataset": dataset.label,
        "label": dataset.name,
        "method": method,
        "title": METHODS[method].title,
        "clients": len(dataset.entities),
        "rounds": own.rounds,
        "seconds_training": own.seconds,
        "measured": own.how,
        "seconds_per_round": own.seconds / own.rounds if own.rounds else None,
        "bytes_per_round": own.bytes_total / own.rounds if own.rounds else None,
        "bytes_total": own.bytes_total,
        "microseconds_per_step": 1e6 * own.step,
        "peak_megabytes": own.memory,
        "training_ratio": own.seconds / ours.seconds,
        "bytes_ratio": own.bytes_total / ours.bytes_total,
        "step_ratio": own.step / ours.step,
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """How far ahead FedKAD is of the fastest network and of TranAD, where it is, and what the paper claims."""
    notes = ["Processor time of one thread on one core, each method in a process of its own, one after the other."]
    for dataset in dict.fromkeys(str(row["dataset"]) for row in rows):
        ratios = {
            str(row["title"]): float(row["training_ratio"] or 0.0)
            for row in rows
            if row["dataset"] == dataset and row["method"] in NETWORKS
        }
        fastest = min(ratios, key=lambda title: ratios[title])
        notes.append(
            f"{dataset}: FedKAD trains {ratios[fastest]:.1f}x faster than the fastest network, {fastest}, "
            f"and {ratios[METHODS['tranad'].title]:.0f}x faster than TranAD (asked for: 10x and 100x)."
        )
    notes.append("The paper claims 2,100x (abstract) or 200x to 2,000x (text), on graphics processors.")
    return notes


STUDY = Study("efficiency", "Efficiency on one core", COLUMNS, run, remarks, needs=("torch", "sklearn"))
