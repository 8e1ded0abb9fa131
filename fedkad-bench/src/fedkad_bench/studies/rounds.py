"""Rounds of a federation on statistics that are computed once, for studies that compare many ways to exchange them.

The steps are those of `federate`, called one at a time: what a study sees between two rounds is what `federate` would
have recorded there.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.learning import training_moments
from fedkad.detect.series import as_series
from fedkad.federation.client import Client
from fedkad.federation.local import LocalTraining
from fedkad.federation.server import Sampler
from fedkad.federation.settings import PRESETS, Start
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.koopman.snapshots import Statistics
from fedkad.koopman.stiefel import Array
from fedkad.koopman.subspace import descend
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.methods.koopman import solve_centrally
from fedkad_bench.methods.motion import MOTION

GRADIENT_NORM = 1e-5
MOST_STEPS = 600
"""Where the search for the centralised optimum ends."""

Detectors = Mapping[str, KoopmanDetector]


@dataclass(frozen=True)
class Way:
    """How a fleet comes to its subspace; None is the choice of the preset, as in `federate`."""

    preset: Literal["default", "paper"] = "default"
    rounds: int | None = None
    participation: float = 0.25
    penalty: float = 1.0
    start: Start | None = None
    seed: int = 0


def prepare_fleet(dataset: Dataset, **parameters: Any) -> dict[str, KoopmanDetector]:
    """Detectors with everything but a subspace, of the score that the committed studies are about."""
    fleet, pooled = dataset.training(), None
    parameters = {"scoring": MOTION, **parameters}
    if dataset.scaling == "global":
        settings = KoopmanDetector(**parameters).settings
        moments = [training_moments(settings, as_series(series)) for series in fleet.values()]
        pooled = Scaling.from_moments(reduce(ChannelMoments.merge, moments))
    return {name: KoopmanDetector(**parameters).prepare(series, pooled) for name, series in fleet.items()}


def statistics_of(detectors: Detectors) -> list[Statistics]:
    """What every device keeps of its training data."""
    return [detector.memory_.statistics for detector in detectors.values()]


def optimal_loss(detectors: Detectors) -> float:
    """The mean relative loss of the best subspace for all statistics in one place.

    Goes on from where the centralised method of the benchmark ends, for a ratio near one shows the fourth digit.
    """
    devices = statistics_of(detectors)
    begin = solve_centrally(devices, next(iter(detectors.values())).rank).subspace
    return descend(devices, begin, most=MOST_STEPS, tolerance=GRADIENT_NORM).loss


def open_exchange(detectors: Detectors, way: Way) -> LocalTraining:
    """A fleet before its first round; a round has at least one device."""
    preset, names = PRESETS[way.preset], list(detectors)
    model = next(iter(detectors.values()))
    consensus = replace(
        preset.consensus,
        rank=model.rank,
        penalty=way.penalty,
        start=way.start or preset.consensus.start,
        seed=way.seed,
    )
    clients = {name: Client(name, detector.memory_.statistics, consensus) for name, detector in detectors.items()}
    sampler = Sampler(names, max(way.participation, 1.0 / len(names)), preset.sampling, way.seed)
    plan = [sampler.next() for _ in range(way.rounds or preset.rounds)]
    return LocalTraining(clients, "float32", plan)


def find_together(detectors: Detectors, way: Way) -> tuple[Array, int]:
    """The subspace as every device receives it after all rounds, and the payload of all that, both ways."""
    exchange = open_exchange(detectors, way)
    records = list(exchange.rounds())
    subspace, delivered = exchange.subspace, exchange.delivery_bytes
    return subspace, delivered + sum(record.bytes_up + record.bytes_down for record in records)


def adopt(detectors: Detectors, subspace: Array) -> None:
    """Give every detector the subspace; warnings about short series are dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        for detector in detectors.values():
            detector.adopt(subspace)
