"""From a model and a scaled series to scores and their causes; batch and stream call the same functions.

A prediction made at t − H says, for h = 1 … H, where the lifted state will be: Z Q^h c(t−H) with c = ZᵀΦ. What the
samples up to t say otherwise is the score of entry t. Two readings of the residual:

- *paper*: its squared norm over the whole lifted state. With orthonormal Z no D-vector is formed,

      ‖Φ − Z Q^h c‖² = (‖Φ‖² − ‖ZᵀΦ‖²) + ‖ZᵀΦ − Q^h c‖²,

  what lies off the subspace, and what moved wrongly on it.
- *calibrated*: only the sample just predicted counts (the rest of the window was judged before), every channel in
  units of its own spread in training, and far departures linearly: g(e) = e² up to |e| = 3, 6|e| − 9 beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.lifting import Lifting
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]

BLOCK = 512
"""Windows scored at once."""

LINEAR_BEYOND = 3.0
"""Departures beyond this many standard deviations count linearly: one broken channel must not drown the rest."""

SPREAD_FLOOR = 0.2
"""The smallest spread of a residual, in standard deviations of its channel: flat channels need a floor."""


@dataclass(frozen=True)
class Dynamics:
    """A device's model: the lifting Φ, the subspace Z, the private operator Q and how far ahead it predicts."""

    lifting: Lifting
    subspace: Array
    operator: Array
    horizon: int

    @cached_property
    def _encoder(self) -> Array:
        """[W_liftᵀ | Z_window]: both products with a window as one."""
        return np.concatenate([self.lifting.weights.T, self.subspace[: self.lifting.state_size]], axis=1)

    @cached_property
    def _observed_rows(self) -> Array:
        return np.ascontiguousarray(self.subspace[self.lifting.state_size :])

    @cached_property
    def powers(self) -> list[Array]:
        """Q, Q², … Q^H."""
        powers = [self.operator]
        while len(powers) < self.horizon:
            powers.append(powers[-1] @ self.operator)
        return powers

    @cached_property
    def newest_decoders(self) -> list[Array]:
        """(Z_newest Q^h)ᵀ: from coordinates to the predicted sample h steps ahead."""
        rows = self.subspace[self.lifting.newest]
        return [np.ascontiguousarray((rows @ power).T) for power in self.powers]

    def encode(self, windows: Array) -> tuple[Array, Array]:
        """Coordinates c = ZᵀΦ and observables tanh(W z + b) of a window, or of every row of windows."""
        products = windows @ self._encoder
        split = self.lifting.observables
        observed = np.tanh(products[..., :split] + self.lifting.bias)
        return products[..., split:] + observed @ self._observed_rows, observed


class Seen(NamedTuple):
    """What is kept of a window once it has been lifted; arrays with time first, or of one moment without."""

    windows: Array
    coordinates: Array
    observed: Array

    def at(self, first: int, last: int) -> Seen:
        """The windows first … last − 1."""
        return Seen(*(array[first:last] for array in self))


class Scoring(Protocol):
    """A reading of the residual. Both methods take windows and the windows H earlier, aligned."""

    def score(self, earlier: Seen, since: list[Seen]) -> Array:
        """The score of the prediction made from `earlier` about the H windows `since`."""

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """The same score split over the channels, `(…, channel)`: non-negative, summing to it."""


@dataclass(frozen=True)
class CalibratedScoring:
    """Residuals of the predicted sample in units of their training spread, averaged over channels and steps."""

    dynamics: Dynamics
    centre: Array  # (H, n)
    spread: Array  # (H, n)

    def departures(self, earlier: Seen, since: list[Seen], h: int) -> Array:
        """The residual h steps ahead, centred and divided by its spread."""
        n = self.dynamics.lifting.channels
        residual = since[h].windows[..., -n:] - earlier.coordinates @ self.dynamics.newest_decoders[h]
        residual -= self.centre[h]
        residual /= self.spread[h]
        return residual

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """g(e_c) / n for every channel c, averaged over the steps of the horizon."""
        total = saturate(self.departures(earlier, since, 0))
        for h in range(1, len(since)):
            total += saturate(self.departures(earlier, since, h))
        total /= len(since) * total.shape[-1]
        return total

    def score(self, earlier: Seen, since: list[Seen]) -> Array:
        """Mean of g(e) over channels and steps: about 1 on normal data."""
        return np.asarray(np.add.reduce(self.shares(earlier, since), axis=-1))


def saturate(departures: Array) -> Array:
    """g(e) = e² up to |e| = k and 2k|e| − k² beyond, i.e. m (2|e| − m) with m = min(|e|, k).

    >>> saturate(np.array([-2.0, 3.0, 5.0]))
    array([ 4.,  9., 21.])
    """
    size = np.abs(departures)
    capped = np.minimum(size, LINEAR_BEYOND)
    size += size
    size -= capped
    size *= capped
    return size


@dataclass(frozen=True)
class PaperScoring:
    """The mean squared norm of the residual of the whole lifted state over the horizon."""

    dynamics: Dynamics

    def score(self, earlier: Seen, since: list[Seen]) -> Array:
        """(1/H) Σ_h ‖Φ(t−H+h) − Z Q^h c(t−H)‖², by the split into two parts."""
        total = np.zeros(earlier.coordinates.shape[:-1])
        for power, seen in zip(self.dynamics.powers, since, strict=True):
            energy = _squares(seen.windows) + _squares(seen.observed)
            off = energy - _squares(seen.coordinates)
            # Rounding may leave a little less than nothing off the subspace.
            total = total + np.maximum(off, 0.0) + _squares(seen.coordinates - earlier.coordinates @ power.T)
        return np.asarray(total / len(since))

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """Squared residuals of the windowed state go to their channel; those of the observables are apportioned.

        An observable is a function of many samples. Its squared residual is split over them in proportion to
        (w_k e_k)², weight times residual of the sample.
        """
        lifting, subspace = self.dynamics.lifting, self.dynamics.subspace
        squared_weights = lifting.weights**2
        split = lifting.state_size
        total = np.zeros((*earlier.coordinates.shape[:-1], lifting.channels))
        for power, seen in zip(self.dynamics.powers, since, strict=True):
            predicted = earlier.coordinates @ power.T @ subspace.T
            windowed = (seen.windows - predicted[..., :split]) ** 2
            observed = (seen.observed - predicted[..., split:]) ** 2
            pull = windowed @ squared_weights.T
            # Without any residual in the window an observable points at nobody: at all alike, then.
            aimed = pull > 0.0
            factor = np.where(aimed, observed, 0.0) / np.where(aimed, pull, 1.0)
            attributed = windowed * (1.0 + factor @ squared_weights)
            total += attributed.reshape(*attributed.shape[:-1], lifting.window, lifting.channels).sum(axis=-2)
            total += (np.where(aimed, 0.0, observed).sum(axis=-1) / lifting.channels)[..., None]
        total /= len(since)
        score, sums = self.score(earlier, since), total.sum(axis=-1)
        return np.asarray(total * (score / np.where(sums > 0.0, sums, 1.0))[..., None])


def _squares(values: Array) -> Array:
    return np.asarray(np.einsum("...i,...i->...", values, values))


@dataclass(frozen=True)
class SeriesScores:
    """Raw scores of a series, NaN where there is none, with the runs of entries that smoothing may join."""

    values: Array
    runs: list[slice] = field(default_factory=list)


def score_series(scoring: Scoring, dynamics: Dynamics, scaled: Array, *, shares: bool = False) -> SeriesScores:
    """Raw scores `(time,)`, or shares `(time, channel)`, of every entry that has a full prediction behind it."""
    lead = dynamics.lifting.window + dynamics.horizon - 1
    shape = (len(scaled), dynamics.lifting.channels) if shares else (len(scaled),)
    values, runs = np.full(shape, np.nan), []
    judge = scoring.shares if shares else scoring.score
    for piece in stretches(scaled, shortest=lead + 1):
        run = slice(piece.start + lead, piece.stop)
        windows = dynamics.lifting.windows(scaled[piece])
        out = values[run]
        for start in range(0, len(out), BLOCK):
            stop = min(start + BLOCK, len(out))
            block = np.ascontiguousarray(windows[start : stop + dynamics.horizon])
            coordinates, observed = dynamics.encode(block)
            seen = Seen(block, coordinates, observed)
            steps = range(1, dynamics.horizon + 1)
            out[start:stop] = judge(seen.at(0, stop - start), [seen.at(h, h + stop - start) for h in steps])
        runs.append(run)
    return SeriesScores(values, runs)


def smooth_causally(raw: SeriesScores, width: int) -> Array:
    """Mean of the last `width` raw scores, of those there are since the last gap.

    >>> smooth_causally(SeriesScores(np.array([np.nan, 3.0, 1.0, 5.0]), [slice(1, 4)]), 2)
    array([nan,  3.,  2.,  3.])
    """
    smooth = np.full_like(raw.values, np.nan)
    for run in raw.runs:
        values, length = raw.values[run], run.stop - run.start
        # Summed oldest first, as the stream does, rather than from running totals that a spike would spoil.
        total = np.zeros_like(values)
        for lag in range(min(width, length) - 1, -1, -1):
            total[lag:] += values[: length - lag]
        available = np.minimum(np.arange(1, length + 1), width).reshape(-1, *[1] * (values.ndim - 1))
        smooth[run] = total / available
    return smooth


def smooth_centred(raw: SeriesScores, reach: int) -> Array:
    """Mean of the raw scores from `reach` before to `reach` after each entry, within its run.

    >>> smooth_centred(SeriesScores(np.array([np.nan, 3.0, 1.0, 5.0]), [slice(1, 4)]), 1)
    array([nan, 2., 3., 3.])
    """
    smooth = np.full_like(raw.values, np.nan)
    for run in raw.runs:
        length = run.stop - run.start
        totals = np.concatenate([[0.0], np.cumsum(raw.values[run])])
        stop = np.minimum(np.arange(length) + reach + 1, length)
        start = np.maximum(np.arange(length) - reach, 0)
        smooth[run] = (totals[stop] - totals[start]) / (stop - start)
    return smooth
