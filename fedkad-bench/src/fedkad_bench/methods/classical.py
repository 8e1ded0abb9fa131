"""Naive and classical detectors, one for each client: what a federation has to be better than.

Each client has its own detector, made of its z-scored rows as `preparation.prepare` cuts them. None of them exchanges
anything, so all of them cost nothing to federate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.lifting import Lifting
from fedkad.koopman.snapshots import Statistics, collect, stretches
from fedkad_bench.methods.interface import WINDOW, Cost, Covers, Scale
from fedkad_bench.methods.preparation import Prepared, prepare

Array = NDArray[np.float64]

BLOCK = 2048
"""Windows scored at once."""

EXPLAINED = 0.9
"""Share of the variance that the components of `pca` explain."""

CENTRES = 20
MOST_WINDOWS = 4000
"""Windows that `kmeansad` learns from: of more, every second, third, … is taken."""


class Scorer(Protocol):
    """Scores of scaled rows, one each, NaN where there is none."""

    def __call__(self, rows: Array) -> Array:
        """Entry t looks at rows up to t only."""


class Train(Protocol):
    """Make a scorer of the rows to learn from."""

    def __call__(self, learning: Array, generator: np.random.Generator) -> Scorer:
        """Everything random comes from the generator, which is the client's own."""


@dataclass(frozen=True)
class Kind:
    """A classical detector: its title, what a score judges, how it is trained, and its constants."""

    title: str
    covers: Covers
    train: Train
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class ClassicalMethod:
    """One detector for each client.

    Examples
    --------
    >>> fleet = {"pump": np.random.default_rng(0).normal(size=(400, 2))}
    >>> fitted = ClassicalMethod("pca").fit(fleet, seed=0)
    >>> len(fitted.validation("pump")), int(np.isnan(fitted.score("pump", fleet["pump"])).sum())
    (60, 19)
    """

    name: str

    @property
    def kind(self) -> Kind:
        """What this method does."""
        return KINDS[self.name]

    @property
    def title(self) -> str:
        """Names the method in tables."""
        return self.kind.title

    @property
    def covers(self) -> Covers:
        """What one of its scores judges."""
        return self.kind.covers

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides a training besides data and seed."""
        return dict(self.kind.settings)

    def fit(self, fleet: Mapping[str, Array], *, seed: int, scaling: Scale = "device") -> FittedClassical:
        """Train every client alone."""
        clients = prepare(fleet, scaling)
        scorers = {
            name: self.kind.train(client.learning, np.random.default_rng([seed, crc32(name.encode())]))
            for name, client in clients.items()
        }
        return FittedClassical(clients, scorers)


@dataclass(frozen=True)
class FittedClassical:
    """How every client scales its data, and its detector."""

    clients: Mapping[str, Prepared]
    scorers: Mapping[str, Scorer]
    cost: Cost = field(default_factory=Cost)

    def validation(self, client: str) -> Array:
        """Scores of the held-out rows; those before are context."""
        prepared = self.clients[client]
        scores = self.scorers[client](prepared.held_out)[prepared.context :]
        known: Array = scores[~np.isnan(scores)]
        return known

    def score(self, client: str, series: Array) -> Array:
        """Scores of a series."""
        return self.scorers[client](self.clients[client].transform(series))


# -- of samples -----------------------------------------------------------------------------------------------


def _random(learning: Array, generator: np.random.Generator) -> Scorer:
    """Uniform numbers. The same rows get the same ones, whenever they are asked for."""
    key = int(generator.integers(2**32))

    def draw(rows: Array) -> Array:
        uniform = np.random.default_rng([key, crc32(np.ascontiguousarray(rows).tobytes())]).random(len(rows))
        return np.where(np.isnan(rows).any(axis=1), np.nan, uniform)

    return draw


def _norm(learning: Array, generator: np.random.Generator) -> Scorer:
    """Mean over the channels of the squared z-score: no training but that of the scale."""
    return lambda rows: (rows**2).mean(axis=1)


def _persistence(learning: Array, generator: np.random.Generator) -> Scorer:
    """Mean over the channels of the squared step since the last sample."""

    def step(rows: Array) -> Array:
        scores = np.full(len(rows), np.nan)
        scores[1:] = (np.diff(rows, axis=0) ** 2).mean(axis=1)
        return scores

    return step


def _range(learning: Array, generator: np.random.Generator) -> Scorer:
    """Mean over the channels of the squared distance from what training has seen, in units of its range.

    It tells what min-max scaling alone is worth, which some networks get and others do not.
    """
    low, high = np.nanmin(learning, axis=0), np.nanmax(learning, axis=0)
    span = np.where(high > low, high - low, 1.0)

    def outside(rows: Array) -> Array:
        excess = np.maximum(np.maximum(low - rows, rows - high), 0.0) / span
        scores: Array = (excess**2).mean(axis=1)
        return scores

    return outside


# -- of windows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windowed:
    """Score every full window with a function of many, block by block; a window with a gap in it has no score."""

    score: Callable[[Array], Array]

    def __call__(self, rows: Array) -> Array:
        """One score for each row with a full window behind it."""
        scores = np.full(len(rows), np.nan)
        lifting = _windowing(rows)
        for run in stretches(rows, shortest=WINDOW):
            windows, out = lifting.windows(rows[run]), scores[run.start + WINDOW - 1 : run.stop]
            for first in range(0, len(windows), BLOCK):
                out[first : first + BLOCK] = self.score(windows[first : first + BLOCK])
        return scores


def _pca(learning: Array, generator: np.random.Generator) -> Scorer:
    """Squared error, mean over the window, of its reconstruction from the leading principal components.

    Windows are flattened, as for the networks, so that components are patterns in time and across channels. Their
    covariance comes from lagged products (`koopman.snapshots`) and not from the windows themselves.
    """
    statistics = _window_statistics(learning)
    mean = statistics.x_sum / statistics.count
    values, vectors = np.linalg.eigh(statistics.xx / statistics.count - np.outer(mean, mean))
    explained = np.cumsum(np.maximum(values[::-1], 0.0))
    kept = int(np.searchsorted(explained, EXPLAINED * explained[-1])) + 1 if explained[-1] > 0.0 else 0
    components = np.ascontiguousarray(vectors[:, ::-1][:, :kept])

    def error(windows: Array) -> Array:
        centred = windows - mean
        inside = centred @ components
        rest: Array = np.vecdot(centred, centred) - np.vecdot(inside, inside)
        return np.maximum(rest, 0.0) / len(mean)

    return Windowed(error)


def _kmeans(learning: Array, generator: np.random.Generator) -> Scorer:
    """Distance of the flattened window to the nearest of 20 centres, by Lloyd's algorithm from one k-means++ start."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    windows = _spread_windows(learning)
    model = KMeans(min(CENTRES, len(windows)), n_init=1, random_state=int(generator.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of windows that repeat, some centres are the same
        found = model.fit(windows)
    centres: Array = np.asarray(found.cluster_centers_, dtype=np.float64)
    squares = np.vecdot(centres, centres)

    def distance(windows: Array) -> Array:
        apart = np.vecdot(windows, windows)[:, None] - 2.0 * (windows @ centres.T) + squares
        nearest: Array = np.sqrt(np.maximum(apart.min(axis=1), 0.0))
        return nearest

    return Windowed(distance)


def _windowing(rows: Array) -> Lifting:
    """A lifting without observables: windows, flattened, oldest sample first."""
    return Lifting(rows.shape[1], WINDOW, 0, 0)


def _window_statistics(learning: Array) -> Statistics:
    statistics = collect(learning, _windowing(learning))
    if not statistics.count:
        raise ValueError(f"no {WINDOW + 1} consecutive training rows are complete; pass more rows.")
    return statistics


def _spread_windows(learning: Array) -> Array:
    """At most `MOST_WINDOWS` complete windows, evenly spread."""
    lifting = _windowing(learning)
    runs = [lifting.windows(learning[run]) for run in stretches(learning, shortest=WINDOW)]
    if not runs:
        raise ValueError(f"no {WINDOW} consecutive training rows are complete; pass more rows.")
    stride = -(-sum(map(len, runs)) // MOST_WINDOWS)
    return np.concatenate([windows[::stride] for windows in runs])


KINDS: dict[str, Kind] = {
    "pca": Kind("PCA of windows", "window", _pca, {"window": WINDOW, "explained": EXPLAINED}),
    "kmeansad": Kind(
        "k-means of windows",
        "window",
        _kmeans,
        {"window": WINDOW, "centres": CENTRES, "most_windows": MOST_WINDOWS},
    ),
    "norm": Kind("Norm of the sample", "sample", _norm, {}),
    "range": Kind("Outside the training range", "sample", _range, {}),
    "persistence": Kind("Step since the last sample", "sample", _persistence, {}),
    "random": Kind("Random scores", "sample", _random, {}),
}
