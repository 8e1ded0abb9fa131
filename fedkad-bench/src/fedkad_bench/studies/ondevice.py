"""On the device: one client of the size of SMAP's, one core, a limit on memory.

A *round* is what one client computes between receiving and sending. For a network that is five epochs over its windows:
one optimiser step is timed a hundred times and multiplied by the steps of a round. FedKAD has two kinds: in its first
round a device gathers its statistics and finds its own directions; after that a round is five gradient steps on the
statistics, whatever the length of the series. A *step* is one new sample scored, many at once as in the paper, or one
at a time as a sensor delivers them, from the sample to the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.detector import KoopmanDetector
from fedkad.federation.client import Client
from fedkad.federation.settings import PRESETS
from fedkad.koopman.stiefel import retract_polar
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.methods.interface import WINDOW
from fedkad_bench.methods.motion import MOTION
from fedkad_bench.methods.preparation import prepare
from fedkad_bench.methods.registry import METHODS
from fedkad_bench.studies.measuring import (
    apart,
    confine,
    median_length,
    median_seconds,
    one_torch_thread,
    peak_megabytes,
)
from fedkad_bench.studies.study import Row, Study, StudyRequest

Array = NDArray[np.float64]

REPEATS = 100
BATCHED = 1024
LIMIT = 1024
"""Megabytes that a method may allocate."""

NETWORKS = ("deepsvdd", "lstm-ae", "usad", "tranad")
PAPER = {
    "fedkad-paper": (0.23, 0.79, 59.0),
    "deepsvdd": (0.32, 2.03, None),
    "lstm-ae": (0.87, None, 227.0),
    "usad": (None, None, 1900.0),
    "tranad": (5.66, 24.5, None),
}
"""Seconds a round, microseconds a step and KB up that the paper reports of a Raspberry Pi 4."""

COLUMNS = {
    "dataset": "the dataset that the client is of",
    "method": "the method by its short name",
    "title": "the method by its title",
    "rows": "training rows of the client",
    "seconds_per_round": "processor seconds of one client in one round, median",
    "seconds_first_round": "the same in its first round, where that is another",
    "microseconds_per_step": f"processor time to score one sample, {BATCHED} at once, median",
    "microseconds_per_streamed_step": "processor time from one new sample to its score, median",
    "kilobytes_up": "payload of one client in one round, in units of 1024 bytes",
    "peak_megabytes": "most memory held by the process, Python and libraries included",
    "limit_megabytes": "what the process was allowed to allocate",
    "repeats": "repeats of every measurement",
    "paper_seconds_per_round": "as the paper reports it, Raspberry Pi 4",
    "paper_microseconds_per_step": "as the paper reports it",
    "paper_kilobytes_up": "as the paper reports it",
}


class DeviceTask(NamedTuple):
    """One method and the training rows of one client."""

    method: str
    train: Array
    repeats: int


class DeviceCost(NamedTuple):
    """Seconds, kilobytes and megabytes of one method."""

    a_round: float
    first_round: float | None
    batched: float
    streamed: float
    kilobytes: float
    peak: float


def run(request: StudyRequest) -> list[Row]:
    """All methods, one after the other."""
    rows: list[Row] = []
    for name in request.datasets:
        dataset = request.load(name)
        train = typical_client(dataset)
        methods = ("fedkad", "fedkad-paper", *NETWORKS)
        for done, method in enumerate(methods):
            request.report(METHODS[method].title, done, len(methods))
            repeats = 3 if request.quick else REPEATS
            rows.append(_row(dataset, method, train, repeats, apart(measure, DeviceTask(method, train, repeats))))
    return rows


def typical_client(dataset: Dataset) -> Array:
    """The training series of a client of median length."""
    lengths = {entity.name: len(entity.train) for entity in dataset.entities}
    wanted = median_length(list(lengths.values()))
    return next(entity.train for entity in dataset.entities if lengths[entity.name] == wanted)


def measure(task: DeviceTask) -> DeviceCost:
    """One task, in a process of its own."""
    confine(LIMIT)
    if METHODS[task.method].needs == "torch":
        one_torch_thread()
        return _measure_network(task)
    return _measure_koopman(task)


def _measure_koopman(task: DeviceTask) -> DeviceCost:
    paper = task.method == "fedkad-paper"
    consensus = PRESETS["paper" if paper else "default"].consensus
    detector = KoopmanDetector(scoring="paper" if paper else MOTION, smoothing=1).fit(task.train)
    statistics, shared = detector.memory_.statistics, detector.subspace_
    client = Client("device", statistics, consensus)
    state = client.begin(shared)

    def a_round() -> None:
        nonlocal state
        state = client.commit(client.local_round(state, shared), retract_polar(shared))

    def first_round() -> None:
        fresh = KoopmanDetector(scoring="paper" if paper else MOTION).prepare(task.train)
        newcomer = Client("device", fresh.memory_.statistics, consensus)
        if paper:
            newcomer.local_round(newcomer.begin(shared), shared)
        else:
            newcomer.warm_message()

    seconds, first = median_seconds(a_round, task.repeats), median_seconds(first_round, task.repeats)
    series = np.resize(task.train, (BATCHED + WINDOW, task.train.shape[1]))
    batched = median_seconds(lambda: detector.decision_function(series), task.repeats) / BATCHED
    stream, samples = detector.stream(), iter(np.resize(task.train, (200 * task.repeats + 200, task.train.shape[1])))
    streamed = median_seconds(lambda: [stream.update(next(samples)) for _ in range(100)], task.repeats) / 100
    return DeviceCost(seconds, first, batched, streamed, 4 * shared.size / 1024.0, peak_megabytes())


def _measure_network(task: DeviceTask) -> DeviceCost:
    import torch

    from fedkad_bench.methods.neural.local import BATCH, EPOCHS, cut
    from fedkad_bench.methods.neural.method import NETWORKS as BASELINES
    from fedkad_bench.methods.neural.plain import PLAIN, train_epoch

    channels = task.train.shape[1]
    stacked = BASELINES[task.method].network(WINDOW, channels)
    network = PLAIN[task.method](WINDOW, channels)
    optimisers = network.optimisers()
    rows = torch.from_numpy(prepare({"device": task.train}, units=stacked.units)["device"].learning).float()
    generator = np.random.default_rng(0)

    def windows(count: int) -> torch.Tensor:
        return cut(rows, torch.from_numpy(generator.integers(0, len(rows) - WINDOW + 1, size=count))[None], WINDOW)[0]

    step = median_seconds(lambda: train_epoch(network, optimisers, windows(BATCH), 2), task.repeats)
    network.eval()
    many, one = windows(BATCHED), windows(1)

    def scoring(batch: torch.Tensor) -> Callable[[], object]:
        def score() -> object:
            with torch.no_grad():
                return network.scores(batch)

        return score

    batched = median_seconds(scoring(many), task.repeats) / BATCHED
    streamed = median_seconds(scoring(one), task.repeats)
    steps = EPOCHS * -(-(len(rows) - WINDOW + 1) // BATCH)
    return DeviceCost(step * steps, None, batched, streamed, 4 * stacked.layout.numbers / 1024.0, peak_megabytes())


def _row(dataset: Dataset, method: str, train: Array, repeats: int, found: DeviceCost) -> Row:
    paper = PAPER.get(method, (None, None, None))
    return {
        "dataset": dataset.label,
        "method": method,
        "title": METHODS[method].title,
        "rows": len(train),
        "seconds_per_round": found.a_round,
        "seconds_first_round": found.first_round,
        "microseconds_per_step": 1e6 * found.batched,
        "microseconds_per_streamed_step": 1e6 * found.streamed,
        "kilobytes_up": found.kilobytes,
        "peak_megabytes": found.peak,
        "limit_megabytes": LIMIT,
        "repeats": repeats,
        "paper_seconds_per_round": paper[0],
        "paper_microseconds_per_step": paper[1],
        "paper_kilobytes_up": paper[2],
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """What the words mean, and where it was measured."""
    return [
        "A round: what one client computes between receiving and sending. Networks: five epochs, one optimiser step "
        "timed and multiplied. FedKAD: five gradient steps on its statistics; its first round gathers them as well.",
        "A step: one new sample scored, many at once or one at a time; for one at a time from the sample to the score, "
        "for networks from the finished window.",
        "Not a Raspberry Pi: one core of the machine named above, so only ratios compare with the paper's.",
    ]


STUDY = Study("ondevice", "On the device", COLUMNS, run, remarks, datasets=("SMAP",), needs=("torch",))
