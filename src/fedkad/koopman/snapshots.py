"""Sufficient statistics of snapshot pairs: all that training ever needs of the data.

With X the lifted states at t and Y those at t + 1, side by side over all pairs, the loss of a subspace P and an
operator Q is

    ‖Y − P Q Pᵀ X‖² = ‖Y‖² − 2 tr(Qᵀ Pᵀ YXᵀ P) + tr(QᵀQ Pᵀ XXᵀ P),    PᵀP = I,

so XXᵀ, YXᵀ and ‖Y‖² are gathered once and no round touches the data again. Statistics of two stretches add up,
which turns gaps, incremental learning and forgetting into one operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import incomplete
from fedkad.progress import Report, unheard

Array = NDArray[np.float64]

BLOCK = 256  # windows handled at once: large enough for BLAS, small enough that no (time, D) array ever exists


@dataclass(frozen=True)
class Statistics:
    """Second moments of the pairs (Φ(t), Φ(t+1)), and what the calibration of residuals needs as well."""

    xx: Array  # XXᵀ, (D, D)
    yx: Array  # YXᵀ, (D, D)
    yy: Array  # the diagonal of YYᵀ, (D,); its sum is ‖Y‖²
    x_sum: Array  # of the lifted states at t, (D,)
    y_sum: Array  # of the lifted states at t + 1, (D,)
    ahead: Array  # Σ x(t+h) Φ(t)ᵀ of the raw samples h = 1 … H steps ahead, (H, n, D)
    count: float  # number of pairs; not an integer after forgetting
    ahead_count: Array  # number of pairs (t, t + h), fewer the larger h is, (H,)

    @classmethod
    def empty(cls, lifting: Lifting, horizon: int = 1) -> Statistics:
        """Statistics of no data."""
        size, channels = lifting.dimension, lifting.channels
        return cls(
            xx=np.zeros((size, size)),
            yx=np.zeros((size, size)),
            yy=np.zeros(size),
            x_sum=np.zeros(size),
            y_sum=np.zeros(size),
            ahead=np.zeros((horizon, channels, size)),
            count=0.0,
            ahead_count=np.zeros(horizon),
        )

    @property
    def energy(self) -> float:
        """‖Y‖², the energy that a model has to explain."""
        return float(self.yy.sum())

    @cached_property
    def moving(self) -> NDArray[np.intp]:
        """The coordinates that were ever nonzero; a channel that is constant in training has none."""
        return np.flatnonzero((np.diagonal(self.xx) != 0.0) | (self.yy != 0.0))

    @property
    def core(self) -> Statistics:
        """The statistics of the moving coordinates alone: the others are zero, so nothing needs to multiply them."""
        return self if len(self.moving) in (0, len(self.yy)) else self._narrow

    @cached_property
    def _narrow(self) -> Statistics:
        kept = self.moving
        square = np.ix_(kept, kept)
        return Statistics(
            xx=self.xx[square],
            yx=self.yx[square],
            yy=self.yy[kept],
            x_sum=self.x_sum[kept],
            y_sum=self.y_sum[kept],
            ahead=self.ahead[:, :, kept],
            count=self.count,
            ahead_count=self.ahead_count,
        )

    def gram(self, subspace: Array) -> Array:
        """PᵀXXᵀP."""
        core = self.core
        seen = subspace if core is self else subspace[self.moving]
        gram: Array = seen.T @ (core.xx @ seen)
        return gram

    def as_arrays(self) -> dict[str, Array]:
        """The fields as arrays, by name."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: Statistics) -> Statistics:
        return Statistics(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    def scaled(self, factor: float) -> Statistics:
        """Statistics in which every pair is weighted by `factor`: forgetting."""
        return Statistics(**{f.name: factor * getattr(self, f.name) for f in fields(self)})


def stretches(series: Array, shortest: int = 1) -> Iterator[slice]:
    """Runs of at least `shortest` complete rows: a row with NaN is a gap that no window may bridge.

    >>> x = np.array([[1.0], [2.0], [np.nan], [4.0]])
    >>> list(stretches(x))
    [slice(0, 2, None), slice(3, 4, None)]
    """
    complete = ~incomplete(series)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], complete, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        if stop - start >= shortest:
            yield slice(start, stop)


@single_threaded()
def collect(scaled: Array, lifting: Lifting, horizon: int = 1, report: Report = unheard) -> Statistics:
    """Statistics of every snapshot pair of a scaled series `(time, channel)`; pairs never bridge a gap.

    `report` is told how many windows of how many are done.

    >>> lifting = Lifting(channels=1, window=2, observables=3, seed=0)
    >>> x = np.sin(np.arange(30.0))[:, None]
    >>> states = lifting.transform(x)
    >>> bool(np.allclose(collect(x, lifting).yx, states[1:].T @ states[:-1]))
    True
    """
    runs = list(stretches(scaled, shortest=lifting.window + 1))
    if not runs:
        return Statistics.empty(lifting, horizon)
    kept = np.flatnonzero((np.fmin.reduce(scaled, axis=0) < 0.0) | (np.fmax.reduce(scaled, axis=0) > 0.0))
    if 0 < len(kept) < lifting.channels:
        # Channels that are always zero, such as those constant in training, add nothing but zeros.
        narrow = _collect_runs(scaled[:, kept], runs, NarrowLifting.of(lifting, kept), horizon, report)
        return WideStatistics(narrow, lifting, kept)
    return _collect_runs(scaled, runs, lifting, horizon, report)


def _collect_runs(scaled: Array, runs: Sequence[slice], lifting: Lifting, horizon: int, report: Report) -> Statistics:
    def collected(run: slice) -> Statistics:
        def within(done: int, _: int) -> None:
            report(run.start + done, len(scaled))

        return _collect_stretch(np.ascontiguousarray(scaled[run]), lifting, horizon, within)

    statistics = reduce(add, map(collected, runs))
    report(len(scaled), len(scaled))
    return statistics


@dataclass(frozen=True)
class NarrowLifting(Lifting):
    """A lifting for series with channels that are always zero: the same observables, from the other channels alone."""

    source: Lifting
    kept: tuple[int, ...]

    @classmethod
    def of(cls, lifting: Lifting, kept: NDArray[np.intp]) -> NarrowLifting:
        """The lifting for the channels `kept`."""
        sizes = (len(kept), lifting.window, lifting.observables, lifting.seed)
        return cls(*sizes, source=lifting, kept=tuple(kept.tolist()))

    @cached_property
    def weights(self) -> Array:
        """The columns of the source's weights for the channels kept."""
        return np.ascontiguousarray(self.source.weights[:, _places(self.source, self.kept)[: self.state_size]])

    @property
    def bias(self) -> Array:
        """The source's."""
        return self.source.bias


def _places(lifting: Lifting, kept: Sequence[int] | NDArray[np.intp]) -> NDArray[np.intp]:
    """Positions of the channels `kept`, at every lag, and of the observables in a lifted state."""
    lags = np.arange(lifting.window)[:, None] * lifting.channels + np.asarray(kept)
    return np.concatenate([lags.ravel(), np.arange(lifting.state_size, lifting.dimension)])


class WideStatistics(Statistics):
    """Statistics of a series in which only the channels `kept` are ever nonzero.

    Holds the statistics of those channels alone and fills in the zeros of the others on demand: on a device with many
    channels of which few ever move, filling them in costs more than everything else.
    """

    narrow: Statistics
    lifting: Lifting
    kept: NDArray[np.intp]

    def __init__(self, narrow: Statistics, lifting: Lifting, kept: NDArray[np.intp]) -> None:
        vars(self).update(narrow=narrow, lifting=lifting, kept=kept)
        vars(self).update(count=narrow.count, ahead_count=narrow.ahead_count)

    @cached_property
    def moving(self) -> NDArray[np.intp]:
        """The coordinates of the channels kept, and the observables."""
        return _places(self.lifting, self.kept)

    @cached_property
    def _narrow(self) -> Statistics:
        return replace(self.narrow, ahead=self.ahead[:, :, self.moving])

    def __getattr__(self, name: str) -> Array:
        """A field that was not asked for before: that of the channels kept, among the zeros of the others."""
        if name not in ("xx", "yx", "yy", "x_sum", "y_sum", "ahead"):
            raise AttributeError(name)
        narrow: Array = getattr(self.narrow, name)
        places, sizes = [self.moving] * narrow.ndim, [self.lifting.dimension] * narrow.ndim
        if name == "ahead":
            places[:2], sizes[:2] = [np.arange(len(narrow)), self.kept], [len(narrow), self.lifting.channels]
        whole = vars(self)[name] = np.zeros(sizes)
        whole[np.ix_(*places)] = narrow
        return whole


def _collect_stretch(x: Array, lifting: Lifting, horizon: int, report: Report = unheard) -> Statistics:
    """Statistics of one stretch without a gap, from lagged products instead of snapshot matrices.

    Window j covers x[j … j+W−1], and windows 0 … M make M pairs (j, j + 1). Every entry of XXᵀ and YXᵀ is a sum
    over j of one of

        x[j+a] x[j+b]ᵀ      known from a = 0: one step down the diagonal is one outer product in and one out
        h_j x[j+k]ᵀ         with h_j the observables of window j, at the lags k = −1 … W
        h_j h_jᵀ and h_j h_{j−1}ᵀ

    so a single pass of [h_j | x[j]] against the lags −1 … W is enough: T·n²·W products for the windowed block
    instead of T·n²·W².
    """
    n, width, m = lifting.channels, lifting.window, lifting.observables
    pairs = len(x) - width
    sums = _sum_over_windows(x, lifting, horizon, report)
    first, last = (_state_at(_padded_windows(x, lifting, j, j + 1)[0], lifting) for j in (0, pairs))

    # The sums run over windows 0 … M. X ends at M − 1 and Y begins at 1: take the outermost window away again.
    until = sums.lagged - np.outer(last.leading, last.lags)
    since = sums.lagged - np.outer(first.leading, first.lags)

    def lags(begin: int, stop: int) -> slice:
        """Columns of the lags begin … stop − 1; the first columns are those of lag −1."""
        return slice((begin + 1) * n, (stop + 1) * n)

    windowed = _down_the_diagonal(until[m:, lags(0, width + 1)], x, pairs, width)
    # Filled in place: joining blocks would need the memory twice.
    size, split = lifting.dimension, n * width
    xx, yx = np.empty((size, size)), np.empty((size, size))
    xx[:split, :split], yx[:split, :split] = windowed[:split, :split], windowed[n:, :split]
    xx[split:, :split], yx[split:, :split] = until[:m, lags(0, width)], since[:m, lags(-1, width - 1)]
    xx[:split, split:], yx[:split, split:] = until[:m, lags(0, width)].T, until[:m, lags(1, width + 1)].T
    xx[split:, split:] = sums.observed - np.outer(last.observed, last.observed)
    yx[split:, split:] = sums.observed_next
    return Statistics(
        xx=xx,
        yx=yx,
        yy=np.diagonal(xx) + last.state**2 - first.state**2,
        x_sum=sums.states - last.state,
        y_sum=sums.states - first.state,
        ahead=np.concatenate([yx[None, lifting.newest], sums.ahead]),
        count=float(pairs),
        ahead_count=np.maximum(pairs + 1.0 - np.arange(1, horizon + 1), 0.0),
    )


class _WindowSums(NamedTuple):
    """Sums over all windows j = 0 … M of a stretch."""

    lagged: Array  # [h_j | x[j]] against x[j−1 … j+W]
    observed: Array  # h_j h_jᵀ
    observed_next: Array  # h_j h_{j−1}ᵀ
    states: Array  # Φ_j
    ahead: Array  # x[j+W−1+h] Φ_jᵀ for h = 2 … H


class _StateAt(NamedTuple):
    """What one window contributes to the sums."""

    leading: Array  # [h_j | x[j]]
    lags: Array  # x[j−1 … j+W], zero beyond the ends
    observed: Array
    state: Array


def _state_at(lags: Array, lifting: Lifting) -> _StateAt:
    window = lags[lifting.channels : -lifting.channels]
    observed = lifting.observe(window)
    leading = np.concatenate([observed, window[: lifting.channels]])
    return _StateAt(leading, lags, observed, np.concatenate([window, observed]))


def _padded_windows(x: Array, lifting: Lifting, start: int, stop: int) -> Array:
    """x[j−1 … j+W] for the windows j = start … stop − 1, with a row of zeros before and after the stretch."""
    padded = np.zeros((stop - start + lifting.window + 1, lifting.channels))
    first = max(1 - start, 0)
    inside = x[start - 1 + first : stop + lifting.window]
    padded[first : first + len(inside)] = inside
    return replace(lifting, window=lifting.window + 2).windows(padded)


def _sum_over_windows(x: Array, lifting: Lifting, horizon: int, report: Report) -> _WindowSums:
    n, width, m = lifting.channels, lifting.window, lifting.observables
    windows = len(x) - width + 1
    lagged = np.zeros((m + n, n * (width + 2)))
    observed_sum, next_sum, state_sum = np.zeros((m, m)), np.zeros((m, m)), np.zeros(m)
    ahead = np.zeros((horizon - 1, n, lifting.dimension))
    previous = np.zeros(m)
    # Fresh memory for every block would cost more time than filling it.
    lags_memory, leading_memory = np.empty((BLOCK, n * (width + 2))), np.empty((BLOCK, m + n))
    for start in range(0, windows, BLOCK):
        report(start, windows)
        block = _padded_windows(x, lifting, start, min(start + BLOCK, windows))
        lags, leading = lags_memory[: len(block)], leading_memory[: len(block)]
        lags[:], leading[:, m:] = block, block[:, n : 2 * n]
        observed = lifting.observe(lags[:, n:-n], out=leading[:, :m])
        lagged += leading.T @ lags
        observed_sum += observed.T @ observed
        next_sum += observed[1:].T @ observed[:-1]
        next_sum += np.outer(observed[0], previous)
        state_sum += observed.sum(axis=0)
        for h in range(2, horizon + 1):
            future = x[start + width - 1 + h : start + width - 1 + h + len(lags)]
            seen = slice(0, len(future))
            ahead[h - 2] += future.T @ np.concatenate([lags[seen, n:-n], observed[seen]], axis=1)
        previous = observed[-1].copy()
    states = np.concatenate([_window_sum(x, windows, width), state_sum])
    return _WindowSums(lagged, observed_sum, next_sum, states, ahead)


def _window_sum(x: Array, windows: int, width: int) -> Array:
    """Σ_j z_j: for every lag a the sum of x[a … a + windows − 1], i.e. of all rows but a first and W − 1 − a last."""
    none = np.zeros((1, x.shape[1]))
    first = np.concatenate([none, np.cumsum(x[: width - 1], axis=0)])
    last = np.concatenate([np.cumsum(x[windows:][::-1], axis=0)[::-1], none])
    sums: Array = x.sum(axis=0) - first - last
    return sums.ravel()


def _down_the_diagonal(first_row: Array, x: Array, pairs: int, width: int) -> Array:
    """All blocks S[a, b] = Σ_j x[j+a] x[j+b]ᵀ, a, b = 0 … W, from the first row of blocks.

    S[a, b] = S[a−1, b−1] − x[a−1] x[b−1]ᵀ + x[M+a−1] x[M+b−1]ᵀ, and S is symmetric.
    """
    n = x.shape[1]
    blocks = np.zeros((width + 1, n, (width + 1) * n))
    blocks[0] = first_row
    for a in range(1, width + 1):
        leaving = np.outer(x[a - 1], x[a - 1 : width])
        entering = np.outer(x[pairs + a - 1], x[pairs + a - 1 : pairs + width])
        blocks[a, :, a * n :] = blocks[a - 1, :, (a - 1) * n : width * n] - leaving + entering
    whole: Array = blocks.reshape((width + 1) * n, -1)
    for row in range(1, len(whole)):
        whole[row, :row] = whole[:row, row]
    return whole
