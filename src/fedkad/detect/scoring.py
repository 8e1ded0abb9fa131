"""From a model and a scaled series to scores and their causes; batch and stream call the same functions.

A prediction made at t − H says, for h = 1 … H, where the lifted state will be: Z Q^h c(t−H) with c = ZᵀΦ. The score of
entry t measures how far the samples up to t depart from it. The default way is in `witnesses`; the two here have one
part:

- *paper*: its squared norm over the whole lifted state. With orthonormal Z no D-vector is formed,

      ‖Φ − Z Q^h c‖² = (‖Φ‖² − ‖ZᵀΦ‖²) + ‖ZᵀΦ − Q^h c‖²,

  what lies off the subspace, and what moved wrongly on it.
- *motion* (`CalibratedScoring`): only the sample just predicted counts (the rest of the window was judged before), each
  channel in units of its own spread in training, and large departures linearly: g(e) = e² up to |e| = 3, 6|e| − 9
  beyond.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.detect.bridging import Rows, bridged, broken
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import CLIP
from fedkad.progress import Report, unheard

Array = NDArray[np.float64]

BLOCK = 512
"""Windows scored at once."""

PIECE = 16384
"""Entries smoothed at once."""

SPLIT = 4 * BLOCK
"""Entries whose scores are split over the channels at once."""

LINEAR_BEYOND = np.array(3.0)
"""Departures beyond this many standard deviations count linearly: one broken channel must not drown the rest.

(An array, because numpy takes longer to convert a Python number than to use it.)
"""
_MINUS_LINEAR = -LINEAR_BEYOND

SPREAD_FLOOR = 0.1
"""The smallest spread of a residual, in standard deviations of its channel: flat channels need a floor."""


ANCHOR = 0.01
"""λ, how much more a known cell counts than a prediction when missing ones are filled.

Healthy simulated pumps that lost one of their eight channels for 2,800 rows had 4 rows of alarm, all channels together;
with predictions alone 5,797 (`python -m measurements.gaps`).
"""


LINE = 64
"""Bytes of a cache line."""


class LiftedProduct:
    """Φ(z) M + a for windows z, without forming Φ: the tanh block needs only the rows of M that belong to it."""

    weights: Array  # products with a window, those of the observables first
    offset: Array  # added to them
    split: int  # how many observables there are
    right: Array  # product with the observables, added to the rest

    def __init__(self, lifting: Lifting, matrix: Array, offset: Array | None = None) -> None:
        self.split = lifting.observables
        # Both products with a window as one: [W_lift; M_windowᵀ], one row per output.
        self.weights = _aligned(np.concatenate([lifting.weights, matrix[: lifting.state_size].T]))
        self.right = np.ascontiguousarray(matrix[lifting.state_size :].T)
        self.offset = np.zeros(len(self.weights))
        self.offset[: self.split] = lifting.bias
        if offset is not None:
            self.offset[self.split :] = offset

    def __call__(self, windows: Array) -> tuple[Array, Array, Array]:
        """The product, the part of it without the observables, and these, of one window or of every row of windows."""
        # The rows of both matrices are contiguous in memory, which is faster for one window and for many.
        if windows.ndim == 1:
            products = self.weights.dot(windows)
            products += self.offset
            observed, linear = products[: self.split], products[self.split :]
            np.tanh(observed, observed)
            return linear + self.right.dot(observed), linear, observed
        products = windows.dot(self.weights.T)
        products += self.offset
        observed, linear = products[:, : self.split], products[:, self.split :]
        np.tanh(observed, out=observed)
        return linear + observed.dot(self.right.T), linear, observed

    @property
    def single(self) -> LiftedProduct:
        """The same product in single precision, of windows in single precision."""
        rounded = copy(self)
        for name in ("weights", "offset", "right"):
            setattr(rounded, name, getattr(self, name).astype(np.float32))
        return rounded


def _aligned(matrix: Array) -> Array:
    """A copy that begins at a cache line: a product with one window takes a fifth longer if it does not."""
    memory = np.empty(matrix.size + LINE // matrix.itemsize)
    first = -memory.ctypes.data % LINE // matrix.itemsize
    copy = memory[first : first + matrix.size].reshape(matrix.shape)
    copy[:] = matrix
    return copy


@dataclass(frozen=True)
class Dynamics:
    """A device's model: the lifting Φ, the subspace Z, the private operator Q and how far ahead it predicts."""

    lifting: Lifting
    subspace: Array
    operator: Array
    horizon: int

    @property
    def lead(self) -> int:
        """Entries before the first score, W + H − 1."""
        return self.lifting.window + self.horizon - 1

    @cached_property
    def coordinates(self) -> LiftedProduct:
        """C = ZᵀΦ of a window."""
        return LiftedProduct(self.lifting, self.subspace)

    def reconstruct(self, samples: Array, missing: NDArray[np.bool_]) -> Array:
        """The newest of W + 1 samples side by side, scaled, from what is not `missing` in the last W of them.

        The first W predict the coordinates a = Q c of the window that the last W are. What is known of that window
        corrects them: with z_k its known cells and Z_k their rows of Z,

            a ← a + (Z_kᵀZ_k + λ I)⁻¹ Z_kᵀ (z_k − Z_k a).

        A prediction that lives on itself would drift away; corrected, it stays where the other channels say.
        """
        channels, known = self.lifting.channels, ~missing
        operator, rows = self._contiguous
        predicted = operator.dot(self.coordinates(samples[:-channels])[0])
        corrected = predicted + self._gain(known).dot((samples[channels:] - rows.dot(predicted))[known])
        newest: Array = rows[-channels:].dot(corrected)
        return newest.clip(-CLIP, CLIP)

    @cached_property
    def _contiguous(self) -> tuple[Array, Array]:
        """Q, and the rows of Z that belong to a window, in one layout: it decides about the last bit."""
        return np.ascontiguousarray(self.operator), np.ascontiguousarray(self.subspace[: self.lifting.state_size])

    def _gain(self, known: NDArray[np.bool_]) -> Array:
        """(Z_kᵀZ_k + λ I)⁻¹ Z_kᵀ; a channel that is dead for long asks for the same one again and again."""
        key = known.tobytes()
        if key not in self._gains:
            rows = self._contiguous[1][known]
            self._gains.clear()
            gain = np.linalg.solve(rows.T @ rows + ANCHOR * np.eye(rows.shape[1]), rows.T)
            self._gains[key] = gain.astype(np.float64, copy=False)
        return self._gains[key]

    @cached_property
    def _gains(self) -> dict[bytes, Array]:
        """The last gain that was asked for."""
        return {}

    @cached_property
    def powers(self) -> list[Array]:
        """Q, Q², … Q^H."""
        powers = [self.operator]
        while len(powers) < self.horizon:
            powers.append(powers[-1] @ self.operator)
        return powers

    @cached_property
    def newest_decoders(self) -> list[Array]:
        """(Z_newest Q^h)ᵀ: from coordinates c = ZᵀΦ to the sample predicted h steps ahead."""
        rows = self.subspace[self.lifting.newest]
        return [(rows @ power).T for power in self.powers]


Seen = tuple[Array, ...]
"""What a scoring keeps of a window: arrays for one moment, or with time as their first axis."""


Parts = tuple[float, ...]
"""The parts of one score."""


Moment = tuple[Array, Array]
"""All that the score of one entry is about.

W + H samples side by side, scaled and clipped, with predictions where some are missing; and the newest sample, not
clipped, NaN where it is missing.
"""


class Scoring(Protocol):
    """How predictions are judged; see `CalibratedScoring`, `PaperScoring` and `WitnessScoring`.

    A scoring sees windows, to judge earlier predictions and as predictions to be judged later. What it finds has one
    part or several, which are smoothed one by one and then combined into the score. All of it works for one moment,
    where parts are plain numbers, and for many, with time as the first axis.
    """

    of_windows: ClassVar[tuple[bool, ...]]
    """Of each part: whether it tells of the whole window, not of its newest sample only."""

    bridges: ClassVar[bool]
    """Whether short holes are filled with predictions; otherwise every missing value breaks the window."""

    @property
    def dynamics(self) -> Dynamics:
        """The model that predicts."""

    @property
    def offline_reach(self) -> int:
        """Entries before and after each one that an offline score averages."""

    def see(self, windows: Array, values: Array) -> Seen:
        """What is kept of windows; `values` are their newest samples, scaled and not clipped."""

    def score(self, earlier: Seen, since: list[Seen]) -> tuple[Array, ...]:
        """The parts of the score of the prediction made at `earlier`, judged by what was seen at H moments since."""

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """The same parts split over the channels, `(…, part, channel)`."""

    def smoothed(self, parts: Collection[Parts]) -> tuple[float, float]:
        """The score from the parts of the last few moments, and how far outside of its places the device was."""

    def combine(self, parts: Sequence[Any]) -> Any:
        """The score from smoothed parts."""

    def split(self, parts: Array, shares: Array) -> Array:
        """The score split over the channels, from smoothed parts `(…, part)` and their smoothed shares."""

    def expected(self, earlier: Seen) -> Array:
        """The scaled sample that was predicted at `earlier` for H steps ahead."""

    def impossible(self, parts: Sequence[Any], values: Array) -> Any:
        """Whether a sample is an alarm by rule, whatever the threshold; `values` are scaled and not clipped."""


def look_at(scoring: Scoring, moment: Moment) -> tuple[Seen, list[Seen]]:
    """What is seen when a prediction is made, and at the H moments since."""
    lifting, (samples, values) = scoring.dynamics.lifting, moment
    ends = range(lifting.state_size, len(samples) + 1, lifting.channels)
    *before, newest = [samples[end - lifting.state_size : end] for end in ends]
    earlier, *since = [scoring.see(window, window[-lifting.channels :]) for window in before]
    return earlier, [*since, scoring.see(newest, values)]


class OnePart:
    """A score that is its only part."""

    of_windows: ClassVar[tuple[bool, ...]] = (False,)
    bridges: ClassVar[bool] = False
    dynamics: Dynamics

    @property
    def offline_reach(self) -> int:
        """A third of a window."""
        return self.dynamics.lifting.window // 3

    def smoothed(self, parts: Collection[Parts]) -> tuple[float, float]:
        """The mean of the part; there are no places."""
        return sum(part for (part,) in parts) / len(parts), 0.0

    def combine(self, parts: Sequence[Any]) -> Any:
        """The part itself."""
        return parts[0]

    def split(self, parts: Array, shares: Array) -> Array:
        """The shares of the part."""
        return shares[..., 0, :]

    def impossible(self, parts: Sequence[Any], values: Array) -> Any:
        """No sample is."""
        return False


@dataclass(frozen=True)
class CalibratedScoring(OnePart):
    """Residuals of the predicted sample in units of their training spread, averaged over channels and steps.

    Samples and forecasts are kept in those units, the H steps ahead side by side: x/σ_h and (x̂_h + centre_h)/σ_h.
    """

    dynamics: Dynamics
    centre: Array  # (H, n)
    spread: Array  # (H, n)

    @cached_property
    def forecast(self) -> LiftedProduct:
        """The predicted samples of all steps ahead, in units of the spread, from a window."""
        steps = zip(self.dynamics.newest_decoders, self.spread, strict=True)
        decoder = np.concatenate([decoder / spread for decoder, spread in steps], axis=1)
        matrix = self.dynamics.subspace @ decoder
        return LiftedProduct(self.dynamics.lifting, matrix, (self.centre / self.spread).ravel())

    @cached_property
    def _sharpness(self) -> Array:
        return 1.0 / self.spread.ravel()

    @cached_property
    def _share(self) -> float:
        return 1.0 / self.spread.size

    @cached_property
    def _newest(self) -> slice | list[int]:
        """Where the newest sample stands in a window, once for every step ahead."""
        horizon, channels = self.spread.shape
        columns = range(-channels, 0)
        return slice(-channels, None) if horizon == 1 else list(columns) * horizon

    def see(self, windows: Array, values: Array) -> Seen:
        """The newest sample and the forecast, both in units of the spread."""
        return windows[..., self._newest] * self._sharpness, self.forecast(windows)[0]

    def _departures(self, earlier: Seen, since: list[Seen]) -> Array:
        if len(since) == 1:
            return since[0][0] - earlier[1]
        channels = self.spread.shape[1]
        steps = [seen[0][..., h * channels : (h + 1) * channels] for h, seen in enumerate(since)]
        return np.concatenate(steps, axis=-1) - earlier[1]

    def score(self, earlier: Seen, since: list[Seen]) -> tuple[Array, ...]:
        """Mean of g(e) over channels and steps: about 1 on normal data."""
        departures = self._departures(earlier, since)
        clipped = clip_departures(departures)
        departures += departures
        departures -= clipped
        return (inner(clipped, departures) * self._share,)

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """g(e_c) / n for every channel c, averaged over the steps of the horizon."""
        departures = self._departures(earlier, since)
        clipped = clip_departures(departures)
        terms = clipped * (2.0 * departures - clipped)
        shares: Array = terms.reshape(*terms.shape[:-1], *self.spread.shape).sum(axis=-2) / self.spread.size
        return shares[..., None, :]

    def expected(self, earlier: Seen) -> Array:
        """The forecast of the last step, back from units of the spread."""
        spread = self.spread[-1]
        forecast: Array = earlier[1][..., -len(spread) :] * spread
        return forecast


def clip_departures(departures: Array) -> Array:
    """Departures e clipped to ±k, c; the saturated square g(e), e² up to |e| = k and 2k|e| − k² beyond, is c (2e − c).

    >>> e = np.array([-2.0, 3.0, 5.0])
    >>> clip_departures(e) * (2 * e - clip_departures(e))
    array([ 4.,  9., 21.])
    """
    clipped: Array = np.maximum(departures, _MINUS_LINEAR)
    np.minimum(clipped, LINEAR_BEYOND, out=clipped)
    return clipped


@dataclass(frozen=True)
class PaperScoring(OnePart):
    """The mean squared norm of the residual of the whole lifted state over the horizon."""

    dynamics: Dynamics

    def see(self, windows: Array, values: Array) -> Seen:
        """The window, its coordinates ZᵀΦ and its observables."""
        coordinates, _, observed = self.dynamics.coordinates(windows)
        return windows, coordinates, observed

    def score(self, earlier: Seen, since: list[Seen]) -> tuple[Array, ...]:
        """(1/H) Σ_h ‖Φ(t−H+h) − Z Q^h c(t−H)‖², by the split into two parts."""
        total = np.zeros(earlier[1].shape[:-1])
        for power, (windows, coordinates, observed) in zip(self.dynamics.powers, since, strict=True):
            off = _square(windows) + _square(observed) - _square(coordinates)
            # Rounding can make the part off the subspace slightly negative.
            total = total + np.maximum(off, 0.0) + _square(coordinates - earlier[1].dot(power.T))
        return (np.asarray(total / len(since)),)

    def shares(self, earlier: Seen, since: list[Seen]) -> Array:
        """Squared residuals of the windowed state go to their channel; those of the observables are apportioned.

        An observable is a function of many samples. Its squared residual is split over them in proportion to
        (w_k e_k)², weight times residual of the sample.
        """
        lifting = self.dynamics.lifting
        total = np.zeros((*earlier[1].shape[:-1], lifting.channels))
        for power, (windows, _, observed) in zip(self.dynamics.powers, since, strict=True):
            predicted = earlier[1] @ power.T @ self.dynamics.subspace.T
            windowed = (windows - predicted[..., : lifting.state_size]) ** 2
            total += self._apportion(windowed, (observed - predicted[..., lifting.state_size :]) ** 2)
        # `score` splits the norm and rounds differently; scale the shares so that they sum to it exactly.
        (score,), sums = self.score(earlier, since), total.sum(axis=-1)
        return np.asarray(total * (score / np.where(sums > 0.0, sums, 1.0))[..., None])[..., None, :]

    def expected(self, earlier: Seen) -> Array:
        """The newest sample in Z Q^H c."""
        forecast: Array = earlier[1].dot(self.dynamics.newest_decoders[-1])
        return forecast

    def _apportion(self, windowed: Array, observed: Array) -> Array:
        lifting = self.dynamics.lifting
        squared_weights = lifting.weights**2
        pull = windowed @ squared_weights.T
        aimed = pull > 0.0
        factor = np.where(aimed, observed, 0.0) / np.where(aimed, pull, 1.0)
        attributed = windowed * (1.0 + factor @ squared_weights)
        shares: Array = attributed.reshape(*attributed.shape[:-1], lifting.window, lifting.channels).sum(axis=-2)
        # If no sample has a residual, an observable points at no channel, so all get an equal part.
        shares += (np.where(aimed, 0.0, observed).sum(axis=-1) / lifting.channels)[..., None]
        return shares


def _square(values: Array) -> Array:
    """Squared norms of rows."""
    return inner(values, values)


def inner(left: Array, right: Array) -> Array:
    """Inner products of rows; `dot` is faster for two vectors."""
    products: Array = left.dot(right) if left.ndim == 1 else np.vecdot(left, right)
    return products


class SeriesScores(NamedTuple):
    """What a scoring finds in a series, NaN where it finds nothing."""

    scoring: Scoring
    parts: Array  # (time, part)
    runs: list[NDArray[np.intp]]  # entries that smoothing may join: the scored ones between two gaps
    rows: Rows  # that were scored

    def causal(self, width: int) -> Array:
        """Scores that look back only, `(time,)`."""
        scores = np.full(len(self.parts), np.nan)
        for around, new in pieces(self.runs, width - 1, PIECE):
            scores[around[new]] = self.scoring.combine(list(means_of_last(self.parts[around], width)[new].T))
        return scores

    def causal_shares(self, width: int, wanted: NDArray[np.intp] | None = None) -> Array:
        """The causal scores split over the channels, `(time, channel)`; of `wanted` entries only, if they are given.

        Piece by piece, because all parts of all channels together are many times the series. Pieces are whole blocks,
        so that every number is the same to the bit whatever is wanted.
        """
        wanted = np.arange(len(self.parts)) if wanted is None else wanted
        found = np.full((len(wanted), self.rows.values.shape[1]), np.nan)
        is_wanted = np.zeros(len(self.parts), dtype=np.bool_)
        is_wanted[wanted] = True
        context = -(-(width - 1) // BLOCK) * BLOCK  # blocks that hold the entries before a piece that smoothing needs
        for around, new in pieces(self.runs, context, SPLIT):
            asked = is_wanted[around[new]]
            if asked.any():
                raw = split_parts(self.scoring, self.rows, slice(around[0], around[-1] + 1))[around - around[0]]
                parts, shares = (means_of_last(each, width)[new] for each in (self.parts[around], raw))
                found[np.searchsorted(wanted, around[new][asked])] = self.scoring.split(parts, shares)[asked]
        return found

    def offline(self) -> Array:
        """Scores of recorded data: means over the entries around each, as far as the scoring reaches.

        A part that tells of a whole window belongs to its middle.
        """
        reach, half = self.scoring.offline_reach, self.scoring.dynamics.lifting.window // 2
        moved = [
            _moved_back(part, self.runs, half) if is_late else part
            for part, is_late in zip(self.parts.T, self.scoring.of_windows, strict=True)
        ]
        scores: Array = self.scoring.combine([smooth_centred(part, self.runs, reach) for part in moved])
        return scores


def _moved_back(part: Array, runs: Sequence[NDArray[np.intp]], by: int) -> Array:
    """Each entry takes the one `by` later in its run, or the last."""
    moved = part.copy()
    for run in runs:
        moved[run] = part[run[np.minimum(np.arange(len(run)) + by, len(run) - 1)]]
    return moved


@single_threaded()
def score_series(scoring: Scoring, scaled: Array, report: Report = unheard) -> SeriesScores:
    """The parts of the score of every entry that has a full prediction behind it, in one pass.

    The series is scaled and not clipped. `report` is told how many rows of how many are done.
    """
    rows = looked_at(scoring, scaled)
    parts = np.full((len(rows.values), len(scoring.of_windows)), np.nan)
    for entries, earlier, since in predictions(scoring, rows):
        parts[entries] = np.stack(scoring.score(earlier, since), axis=-1)
        report(entries.stop, len(parts))
    parts[rows.absent] = np.nan
    report(len(parts), len(parts))
    return SeriesScores(scoring, parts, rows.entries(scoring.dynamics.lead), rows)


@single_threaded()
def split_parts(scoring: Scoring, rows: Rows, entries: slice) -> Array:
    """The parts of some entries of one segment split over the channels, `(time, part, channel)`."""
    behind = slice(entries.start - scoring.dynamics.lead, entries.stop)
    piece = Rows(rows.values[behind], rows.filled[behind], [slice(0, entries.stop - behind.start)])
    return np.concatenate([scoring.shares(earlier, since) for _, earlier, since in predictions(scoring, piece)])


@single_threaded()
def forecast_series(scoring: Scoring, scaled: Array) -> Array:
    """The scaled sample that was expected at every entry that has a score, `(time, channel)`; NaN elsewhere."""
    expected, rows = np.full(scaled.shape, np.nan), looked_at(scoring, scaled)
    for entries, earlier, _ in predictions(scoring, rows):
        expected[entries] = scoring.expected(earlier)
    expected[rows.absent] = np.nan
    return expected


def looked_at(scoring: Scoring, scaled: Array) -> Rows:
    """The series as the scoring looks at it: with short holes filled, or broken at each of them."""
    dynamics = scoring.dynamics
    if scoring.bridges and np.isnan(scaled).any():
        return bridged(scaled, dynamics.lifting.window, dynamics.reconstruct)
    return broken(scaled, shortest=dynamics.lead + 1)


def predictions(scoring: Scoring, rows: Rows) -> Iterator[tuple[slice, Seen, list[Seen]]]:
    """Block by block: entries, what was seen when they were predicted, and what was seen since.

    Windows overlap, which BLAS does not take; they are copied into memory that is touched once and used again.
    """
    lifting, horizon, lead = scoring.dynamics.lifting, scoring.dynamics.horizon, scoring.dynamics.lead
    memory = np.empty((min(BLOCK, len(rows.filled)) + horizon, lifting.state_size))
    for segment in rows.segments:
        windows = lifting.windows(rows.filled[segment])
        newest = rows.values[segment][lifting.window - 1 :]
        for start in range(segment.start + lead, segment.stop, BLOCK):
            count, first = min(BLOCK, segment.stop - start), start - segment.start - lead
            block = memory[: count + horizon]
            block[:] = windows[first : first + count + horizon]
            seen = scoring.see(block, newest[first : first + count + horizon])
            earlier, *since = [tuple(array[h : h + count] for array in seen) for h in range(horizon + 1)]
            yield slice(start, start + count), earlier, since


def smooth_causally(raw: Array, runs: Sequence[NDArray[np.intp]], width: int) -> Array:
    """Mean of the last `width` raw scores, or of as many as there are since the last gap.

    >>> smooth_causally(np.array([np.nan, 3.0, 1.0, 5.0]), [np.arange(1, 4)], 2)
    array([nan,  3.,  2.,  3.])
    """
    smooth = np.full_like(raw, np.nan)
    for around, new in pieces(runs, width - 1, PIECE):
        smooth[around[new]] = means_of_last(raw[around], width)[new]
    return smooth


def pieces(runs: Sequence[NDArray[np.intp]], before: int, size: int) -> Iterator[tuple[NDArray[np.intp], slice]]:
    """The runs cut into pieces, each with at most so many entries before it, and which of its entries are new.

    >>> [(around.tolist(), around[new].tolist()) for around, new in pieces([np.arange(5)], before=1, size=3)]
    [([0, 1, 2], [0, 1, 2]), ([2, 3, 4], [3, 4])]
    """
    for run in runs:
        for start in range(0, len(run), size):
            known = min(start, before)
            yield run[start - known : start + size], slice(known, None)


def means_of_last(values: Array, width: int) -> Array:
    """Mean of the last `width` entries up to each, or of as many as there are."""
    length = len(values)
    # Summed oldest first, as the stream does; running totals would be spoilt by a spike.
    total = np.zeros_like(values)
    for lag in range(min(width, length) - 1, -1, -1):
        total[lag:] += values[: length - lag]
    total /= np.minimum(np.arange(1, length + 1), width).reshape(-1, *[1] * (values.ndim - 1))
    return total


def smooth_centred(raw: Array, runs: Sequence[NDArray[np.intp]], reach: int) -> Array:
    """Mean of the raw scores from `reach` entries before to `reach` after each entry, within its run.

    >>> smooth_centred(np.array([np.nan, 3.0, 1.0, 5.0]), [np.arange(1, 4)], 1)
    array([nan, 2., 3., 3.])
    """
    smooth = np.full_like(raw, np.nan)
    for run in runs:
        length = len(run)
        totals = np.concatenate([[0.0], np.cumsum(raw[run])])
        stop = np.minimum(np.arange(length) + reach + 1, length)
        start = np.maximum(np.arange(length) - reach, 0)
        smooth[run] = (totals[stop] - totals[start]) / (stop - start)
    return smooth
