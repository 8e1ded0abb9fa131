"""FedKAD as methods of the benchmark: as it is, as the paper has it, and with one thing taken away at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.learning import training_moments
from fedkad.detect.series import as_series
from fedkad.federation.inprocess import federate
from fedkad.federation.settings import PRESETS
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.koopman.snapshots import Statistics
from fedkad.koopman.stiefel import random_point
from fedkad.koopman.subspace import Descent, descend, leading_directions, own_subspace
from fedkad_bench.methods.interface import VALIDATION, WINDOW, Cost, Covers, Scale
from fedkad_bench.methods.motion import MOTION, MotionMethod

Array = NDArray[np.float64]
Fleet = Mapping[str, Array]

NUMBER = 4
"""Bytes of a number on the wire."""

GRADIENT_NORM = 1e-4
MOST_STEPS = 300
"""Where the centralised descent ends: the loss no longer changes in its fourth digit."""

PAPER_SETTINGS: dict[str, dict[str, Any]] = {"PSM": {"rank": 32}}
"""Where the paper departs from its own defaults, by dataset."""


ScoreName = Literal["calibrated", "paper"]
"""The scores of the tables, by the names under which their cells are stored."""


def scoring_of(name: ScoreName) -> MotionMethod | Literal["paper"]:
    """The `scoring` of a detector: the paper's, or motion alone, which the tables call calibrated."""
    return "paper" if name == "paper" else MOTION


class Trained(NamedTuple):
    """Detectors by client, what training them exchanged, and what else is worth a line in the record."""

    detectors: Mapping[str, KoopmanDetector]
    cost: Cost
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """One row of the table: its title, its score, and how the fleet comes by its subspaces."""

    title: str
    scoring: ScoreName
    train: Callable[[KoopmanMethod, Fleet, int, Scale], Trained]
    exchanges: Literal["default", "paper"] | None = None


@dataclass(frozen=True)
class KoopmanMethod:
    """A variant of FedKAD.

    Scores are not smoothed here because the benchmark smooths all methods alike. The seed is that of the observables,
    of the order in which devices are asked, and of random subspaces.

    Parameters
    ----------
    name
        One of `VARIANTS`.
    rank, observables
        Of the detector.
    rounds
        Exchanges with the server, by default those of the variant; ignored by variants without any.

    Examples
    --------
    >>> t = np.arange(1500.0)[:, None]
    >>> fleet = {f"pump-{k}": np.sin(t / [[7 + k, 11.0]]) for k in range(4)}
    >>> fitted = KoopmanMethod("fedkad", rank=6).fit(fleet, seed=0)
    >>> fitted.score("pump-1", fleet["pump-1"]).shape, len(fitted.validation("pump-1")), fitted.cost.rounds
    ((1500,), 225, 8)
    """

    name: str
    rank: int = 24
    observables: int = 128
    rounds: int | None = None

    @property
    def variant(self) -> Variant:
        """What this method does."""
        return VARIANTS[self.name]

    @property
    def title(self) -> str:
        """Names the method in tables."""
        return self.variant.title

    @property
    def covers(self) -> Covers:
        """The paper's score is about the whole lifted window, ours about the newest sample."""
        return "window" if self.variant.scoring == "paper" else "sample"

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides a training apart from data and seed."""
        settings: dict[str, Any] = {"window": WINDOW, "rank": self.rank, "observables": self.observables}
        if self.variant.exchanges is not None:
            settings["rounds"] = self.rounds or PRESETS[self.variant.exchanges].rounds
        return settings

    def parameters(self, seed: int) -> dict[str, Any]:
        """Of every detector."""
        return {
            "window": WINDOW,
            "rank": self.rank,
            "observables": self.observables,
            "validation": VALIDATION,
            "scoring": scoring_of(self.variant.scoring),
            "smoothing": 1,
            "seed": seed,
        }

    def fit(self, fleet: Fleet, *, seed: int, scaling: Scale = "device") -> FittedKoopman:
        """Train detectors for all clients; short series are counted in the record instead of a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRowsWarning)
            return FittedKoopman(self.variant.train(self, fleet, seed, scaling))


class FittedKoopman:
    """A detector for every client."""

    def __init__(self, trained: Trained) -> None:
        self.detectors, self.cost = trained.detectors, trained.cost
        few = sum(detector.model_.few_rows for detector in self.detectors.values())
        self.facts: dict[str, Any] = {**trained.facts, "clients_with_few_rows": few}

    def validation(self, client: str) -> Array:
        """Scores of the held-out rows; of all rows, cross-fitted, where there are few."""
        scores: Array = self.detectors[client].model_.normal_scores
        return np.asarray(scores[~np.isnan(scores)])

    def score(self, client: str, series: Array) -> Array:
        """Scores of a series."""
        return self.detectors[client].decision_function(series)


def _federated(method: KoopmanMethod, fleet: Fleet, seed: int, scaling: Scale) -> Trained:
    preset: Literal["paper"] | None = "paper" if method.variant.exchanges == "paper" else None
    federation = federate(fleet, rounds=method.rounds, scaling=scaling, preset=preset, **method.parameters(seed))
    up = sum(record.bytes_up for record in federation.history)
    down = sum(record.bytes_down for record in federation.history)
    cost = Cost(federation.subspace.size, len(federation.history), up, down, federation.delivery_bytes)
    return Trained(federation.detectors, cost, {})


def _untrained(method: KoopmanMethod, fleet: Fleet, seed: int, scaling: Scale) -> Trained:
    """One random subspace for all: its seed is all that travels."""
    detectors = _prepared(method, fleet, seed, scaling)
    dimension = next(iter(detectors.values())).lifting_.dimension
    subspace = random_point(dimension, method.rank, np.random.default_rng([seed, dimension]))
    return Trained(_adopted(detectors, subspace), Cost(), {})


def _local(method: KoopmanMethod, fleet: Fleet, seed: int, scaling: Scale) -> Trained:
    """Every device alone, as `KoopmanDetector.fit` does it."""
    detectors = _prepared(method, fleet, seed, scaling)
    for detector in detectors.values():
        detector.adopt(own_subspace(detector.memory_.statistics, method.rank))
    return Trained(detectors, Cost(), {})


def _centralised(method: KoopmanMethod, fleet: Fleet, seed: int, scaling: Scale) -> Trained:
    """All data in one place: the raw samples go up, the subspace comes down."""
    detectors = _prepared(method, fleet, seed, scaling)
    end = solve_centrally([detector.memory_.statistics for detector in detectors.values()], method.rank)
    up = NUMBER * sum(series.size for series in fleet.values())
    cost = Cost(end.subspace.size, 0, up, NUMBER * end.subspace.size * len(fleet))
    facts = {"steps": end.steps, "loss": round(end.loss, 6), "gradient_norm": float(f"{end.gradient_norm:.1e}")}
    return Trained(_adopted(detectors, end.subspace), cost, facts)


def solve_centrally(devices: list[Statistics], rank: int) -> Descent:
    """The best subspace for statistics in one place, from the leading directions of the mean of XXᵀ/‖Y‖²."""
    mean = np.zeros_like(devices[0].xx)
    for statistics in devices:
        mean += statistics.xx / (len(devices) * (statistics.energy or 1.0))
    start = leading_directions(mean, rank).vectors
    return descend(devices, start, most=MOST_STEPS, tolerance=GRADIENT_NORM)


def _prepared(method: KoopmanMethod, fleet: Fleet, seed: int, scaling: Scale) -> dict[str, KoopmanDetector]:
    """Detectors with everything but a subspace."""
    detectors = {name: KoopmanDetector(**method.parameters(seed)) for name in fleet}
    pooled = None
    if scaling == "global":
        moments = [training_moments(detectors[name].settings, as_series(series)) for name, series in fleet.items()]
        pooled = Scaling.from_moments(reduce(ChannelMoments.merge, moments))
    return {name: detectors[name].prepare(series, pooled) for name, series in fleet.items()}


def _adopted(detectors: dict[str, KoopmanDetector], subspace: Array) -> dict[str, KoopmanDetector]:
    for detector in detectors.values():
        detector.adopt(subspace)
    return detectors


VARIANTS: dict[str, Variant] = {
    "fedkad": Variant("FedKAD", "calibrated", _federated, "default"),
    "fedkad-paper": Variant("FedKAD as in the paper", "paper", _federated, "paper"),
    "fedkad-local": Variant("FedKAD, every device alone", "calibrated", _local),
    "fedkad-centralised": Variant("FedKAD, centralised", "calibrated", _centralised),
    "fedkad-untrained": Variant("FedKAD, untrained subspace", "calibrated", _untrained),
    "fedkad-paper-untrained": Variant("Paper's score, untrained subspace", "paper", _untrained),
}
