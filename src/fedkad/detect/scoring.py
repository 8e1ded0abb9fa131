"""From a model and a scaled series to scores and their causes; batch and stream call the same functions.

The score of entry t measures how far the samples up to t depart from the prediction made at t − H. How it does so is
said by a `Scoring`: `witnesses` is the default one, `paper` that of the paper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.detect.bridging import Rows, bridged, broken
from fedkad.detect.dynamics import Dynamics
from fedkad.detect.ranges import Bounds
from fedkad.progress import Report, unheard

Array = NDArray[np.float64]

BLOCK = 512  # windows scored at once
PIECE = 16384  # entries smoothed at once
SPLIT = 4 * BLOCK  # entries whose scores are split over the channels at once

SPREAD_FLOOR = 0.1
"""The smallest spread of a residual, in standard deviations of its channel: flat channels need a floor."""

WindowFeatures = Any
"""What a scoring keeps of a window: a `NamedTuple` of arrays, of one moment or with time as their first axis."""

Terms = tuple[float, ...]
"""The terms of one score."""


class ScoredWindow(NamedTuple):
    """All that the score of one entry is about."""

    samples: Array  # W + H of them side by side, scaled and clipped, with predictions where some are missing
    newest: Array  # the last of them, not clipped, NaN where it is missing


class Explanation(NamedTuple):
    """What a score is about: the witness that leads, its channel, and a sentence for people."""

    kind: str  # the witness: motion, fit or place
    channel: str
    sentence: str


class Steps(Protocol):
    """A scoring one sample at a time: what is kept from one step of a stream to the next."""

    def skip(self, window: Array, newest: Array) -> None:
        """Take a window that is not scored; `newest` is its newest sample, scaled and not clipped."""

    def score(self, window: Array, newest: Array, *, is_plain: bool) -> Terms:
        """Take the next window, and return the terms of its score.

        A sample `is_plain` if no value of it is missing, or so large that the window has it clipped. Windows are views
        that never change.
        """


class Scoring(Protocol):
    """How predictions are judged; see `WitnessScoring` and `PaperScoring`.

    A scoring reduces windows to features, which serve twice: predictions are made from them, and judged by them. A
    score has one term or several, which are smoothed one by one and then combined. All of it works for one moment,
    where terms are plain numbers, and for many, with time as the first axis.
    """

    of_windows: ClassVar[tuple[bool, ...]]
    """Of each term: whether it tells of the whole window, not of its newest sample only."""

    bridges: ClassVar[bool]
    """Whether short holes are filled with predictions; otherwise every missing value breaks the window."""

    @property
    def dynamics(self) -> Dynamics:
        """The model that predicts."""

    @property
    def bounds(self) -> Bounds | None:
        """Where the device has been; None if the scoring does not judge that."""

    @property
    def predicted(self) -> Array:
        """The share of the variance of each channel that is predicted one step ahead, `(n,)`; NaN if unknown."""

    @property
    def possible(self) -> tuple[Array, Array]:
        """The least and the greatest scaled value of each channel that is not impossible; infinite if unknown."""

    @property
    def offline_reach(self) -> int:
        """Entries before and after each one that an offline score averages."""

    def features(self, windows: Array, newest: Array) -> WindowFeatures:
        """Reduce windows to what the score needs of them; `newest` are their newest samples, scaled and not clipped."""

    def score(self, earlier: WindowFeatures, since: list[WindowFeatures]) -> tuple[Array, ...]:
        """The terms of the score of the prediction made at `earlier`, judged by the H moments `since`."""

    def shares(self, earlier: WindowFeatures, since: list[WindowFeatures]) -> Array:
        """The same terms split over the channels, `(…, term, channel)`."""

    def smoothed(self, terms: Collection[Terms]) -> tuple[float, float]:
        """The score from the terms of the last few moments, and how far outside of its ranges the device was."""

    def contributions(self, terms: Sequence[Any]) -> tuple[Any, ...]:
        """What each witness adds to the score, from smoothed terms."""

    def combine(self, terms: Sequence[Any]) -> Any:
        """The score from smoothed terms."""

    def split(self, terms: Array, shares: Array) -> Array:
        """The score split over the channels, from smoothed terms `(…, term)` and their smoothed shares."""

    def outside(self, shares: Array) -> Array:
        """How far outside of its ranges each channel is, `(n,)`, from mean shares `(term, n)`."""

    def expected(self, earlier: WindowFeatures) -> Array:
        """The scaled sample that was predicted at `earlier` for H steps ahead."""

    def impossible(self, terms: Sequence[Any], newest: Array) -> Any:
        """Whether a sample is an alarm by rule, whatever the threshold; `newest` is scaled and not clipped."""

    def with_tolerance(self, tolerance: Array) -> Scoring:
        """The scoring by which departures of a channel up to its tolerance count for nothing, `(n,)`, scaled."""

    def with_discounts(self, discounts: Array) -> Scoring:
        """The scoring that multiplies its terms by these factors in the stretches that a person called normal."""


def features_of(scoring: Scoring, window: ScoredWindow) -> tuple[WindowFeatures, list[WindowFeatures]]:
    """The features of the moment at which a prediction was made, and of the H moments since."""
    lifting, samples = scoring.dynamics.lifting, window.samples
    ends = range(lifting.state_size, len(samples) + 1, lifting.channels)
    *before, last = [samples[end - lifting.state_size : end] for end in ends]
    earlier, *since = [scoring.features(each, each[-lifting.channels :]) for each in before]
    return earlier, [*since, scoring.features(last, window.newest)]


class SingleTerm:
    """What scorings have in common whose score is their only term, and that know no ranges."""

    of_windows: ClassVar[tuple[bool, ...]] = (False,)
    bridges: ClassVar[bool] = False
    bounds: ClassVar[Bounds | None] = None
    dynamics: Dynamics

    @property
    def predicted(self) -> Array:
        """It is not known."""
        return np.full(self.dynamics.lifting.channels, np.nan)

    @property
    def possible(self) -> tuple[Array, Array]:
        """Every value is."""
        unbounded = np.full(self.dynamics.lifting.channels, np.inf)
        return -unbounded, unbounded

    @property
    def offline_reach(self) -> int:
        """A third of a window."""
        return self.dynamics.lifting.window // 3

    def smoothed(self, terms: Collection[Terms]) -> tuple[float, float]:
        """The mean of the term; nothing is outside."""
        return sum(term for (term,) in terms) / len(terms), 0.0

    def contributions(self, terms: Sequence[Any]) -> tuple[Any, ...]:
        """The term itself."""
        return (terms[0],)

    def combine(self, terms: Sequence[Any]) -> Any:
        """The term itself."""
        return terms[0]

    def split(self, terms: Array, shares: Array) -> Array:
        """The shares of the term."""
        return shares[..., 0, :]

    def outside(self, shares: Array) -> Array:
        """No channel is."""
        return np.zeros(shares.shape[-1])

    def impossible(self, terms: Sequence[Any], newest: Array) -> Any:
        """No sample is."""
        return False

    def with_tolerance(self, tolerance: Array) -> Any:
        """The scoring itself, which knows no tolerance."""
        return self

    def with_discounts(self, discounts: Array) -> Any:
        """The scoring itself, which learns of no stretch that it is normal."""
        return self


def inner(left: Array, right: Array) -> Array:
    """Inner products of rows; `dot` is faster for two vectors."""
    products: Array = left.dot(right) if left.ndim == 1 else np.vecdot(left, right)
    return products


class SeriesScores(NamedTuple):
    """The terms of all scores of a series, NaN where there is no score."""

    scoring: Scoring
    terms: Array  # (time, term)
    runs: list[NDArray[np.intp]]  # entries that smoothing may join: the scored ones between two gaps
    rows: Rows  # that were scored

    def causal(self, width: int) -> Array:
        """Scores that look back only, `(time,)`."""
        scores = np.full(len(self.terms), np.nan)
        for around, new in pieces(self.runs, width - 1, PIECE):
            scores[around[new]] = self.scoring.combine(list(means_of_last(self.terms[around], width)[new].T))
        return scores

    def causal_shares(self, width: int, wanted: NDArray[np.intp] | None = None) -> Array:
        """The causal scores split over the channels, `(time, channel)`; of `wanted` entries only, if they are given.

        Piece by piece, because all terms of all channels together are many times the series. Pieces are whole blocks,
        so that every number is the same to the bit whatever is wanted.
        """
        wanted = np.arange(len(self.terms)) if wanted is None else wanted
        split = np.full((len(wanted), self.rows.values.shape[1]), np.nan)
        is_wanted = np.zeros(len(self.terms), dtype=np.bool_)
        is_wanted[wanted] = True
        context = -(-(width - 1) // BLOCK) * BLOCK  # blocks that hold the entries before a piece that smoothing needs
        for around, new in pieces(self.runs, context, SPLIT):
            asked = is_wanted[around[new]]
            if asked.any():
                raw = split_terms(self.scoring, self.rows, slice(around[0], around[-1] + 1))[around - around[0]]
                terms, shares = (means_of_last(each, width)[new] for each in (self.terms[around], raw))
                split[np.searchsorted(wanted, around[new][asked])] = self.scoring.split(terms, shares)[asked]
        return split

    def offline(self) -> Array:
        """Scores of recorded data: means over the entries around each, as far as the scoring reaches.

        A term that tells of a whole window belongs to its middle.
        """
        reach, half = self.scoring.offline_reach, self.scoring.dynamics.lifting.window // 2
        moved = [
            _moved_back(term, self.runs, half) if is_late else term
            for term, is_late in zip(self.terms.T, self.scoring.of_windows, strict=True)
        ]
        scores: Array = self.scoring.combine([smooth_centred(term, self.runs, reach) for term in moved])
        return scores


def _moved_back(term: Array, runs: Sequence[NDArray[np.intp]], by: int) -> Array:
    """Each entry takes the one `by` later in its run, or the last."""
    moved = term.copy()
    for run in runs:
        moved[run] = term[run[np.minimum(np.arange(len(run)) + by, len(run) - 1)]]
    return moved


@single_threaded()
def score_series(scoring: Scoring, scaled: Array, report: Report = unheard) -> SeriesScores:
    """Score every entry that has a full prediction behind it, in one pass.

    The series is scaled and not clipped. `report` is told how many rows of how many are done.
    """
    rows = scorable_rows(scoring, scaled)
    terms = np.full((len(rows.values), len(scoring.of_windows)), np.nan)
    for entries, earlier, since in predictions(scoring, rows):
        terms[entries] = np.stack(scoring.score(earlier, since), axis=-1)
        report(entries.stop, len(terms))
    terms[rows.absent] = np.nan
    report(len(terms), len(terms))
    return SeriesScores(scoring, terms, rows.entries(scoring.dynamics.lead), rows)


@single_threaded()
def split_terms(scoring: Scoring, rows: Rows, entries: slice) -> Array:
    """Split the terms of some entries of one segment over the channels, `(time, term, channel)`."""
    behind = slice(entries.start - scoring.dynamics.lead, entries.stop)
    piece = Rows(rows.values[behind], rows.filled[behind], [slice(0, entries.stop - behind.start)])
    return np.concatenate([scoring.shares(earlier, since) for _, earlier, since in predictions(scoring, piece)])


@single_threaded()
def forecast_series(scoring: Scoring, scaled: Array) -> Array:
    """The scaled sample that was expected at every entry that has a score, `(time, channel)`; NaN elsewhere."""
    expected, rows = np.full(scaled.shape, np.nan), scorable_rows(scoring, scaled)
    for entries, earlier, _ in predictions(scoring, rows):
        expected[entries] = scoring.expected(earlier)
    expected[rows.absent] = np.nan
    return expected


def scorable_rows(scoring: Scoring, scaled: Array) -> Rows:
    """The series as the scoring takes it: with short holes filled, or broken at each of them."""
    dynamics = scoring.dynamics
    if scoring.bridges and np.isnan(scaled).any():
        return bridged(scaled, dynamics.lifting.window, dynamics.reconstruct)
    return broken(scaled, shortest=dynamics.lead + 1)


def predictions(scoring: Scoring, rows: Rows) -> Iterator[tuple[slice, WindowFeatures, list[WindowFeatures]]]:
    """Block by block: entries, the features of the moments at which they were predicted, and those since.

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
            features = scoring.features(block, newest[first : first + count + horizon])
            earlier, *since = [features._make(array[h : h + count] for array in features) for h in range(horizon + 1)]
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
            earlier = min(start, before)
            yield run[start - earlier : start + size], slice(earlier, None)


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
