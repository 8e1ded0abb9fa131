"""What to expect of a threshold: how many false alarms, and how sure one can be after so much normal data.

The scores of normal data are cut into blocks and the blocks drawn again and again, as if other weeks had been recorded.
Each time the clusters are counted and their tail is fitted again, which gives a rate of events over the threshold; what
happens in a given time at that rate is left to Poisson's law.
"""

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.clusters import Clusters, clusters_over, declustered
from fedkad.detect.tail import fit_scales, profile_likelihood, ratio_grid, shrunk_shape
from fedkad.detect.threshold import FEWEST_PEAKS, SECONDS, USUAL_SHAPE, choose_level

Array = NDArray[np.float64]

BLOCKS = 40  # blocks that the scores are cut into: long enough to keep what comes together, and enough to draw from
DRAWS = 200  # recordings that are drawn from the blocks
COUNTS = 20  # counts that are drawn for the rate of each
SEED = 0  # of the draws: the same scores always give the same numbers
ROWS = 10_000  # rows that a number of events refers to if the sample period is not known


def expected_events(
    scores: Array, threshold: float, rows: float, apart: int, *, shape: float = USUAL_SHAPE
) -> tuple[int, int]:
    """The number of events over the threshold in so many rows of normal data, from 5 % to 95 %.

    Parameters
    ----------
    scores : (time,)
        Of normal data that the model did not learn from, in order of time; NaN where there is none.
    threshold : float
        However it was set.
    rows : float
        That have a score.
    apart, shape
        As in `event_threshold`.

    Examples
    --------
    >>> scores = np.random.default_rng(0).exponential(size=8000)
    >>> low, high = expected_events(scores, np.log(1e4), rows=10_000, apart=20)  # one event is expected
    >>> low <= 1 <= high
    True
    """
    generator = np.random.default_rng(SEED)
    level, peaks = choose_level(scores, apart)
    if len(peaks) >= FEWEST_PEAKS:
        rates = _rates(scores, threshold, min(level, threshold), apart, shape, generator)
    else:
        # Nothing can be extrapolated. That m events were seen leaves Jeffreys' law of the rate, even if m is zero.
        seen = len(declustered(scores, threshold, apart))
        rates = generator.gamma(seen + 0.5, size=DRAWS) / np.count_nonzero(~np.isnan(scores))
    counts = generator.poisson(rates * rows, size=(COUNTS, len(rates)))
    low, high = np.quantile(counts, [0.05, 0.95], method="inverted_cdf")
    return int(low), int(high)


def _rates(
    scores: Array, threshold: float, level: float, apart: int, prior: float, generator: np.random.Generator
) -> Array:
    """Events per row over the threshold in every drawn recording: k/n P(Y > threshold − level)."""
    clusters = clusters_over(scores, level, apart)
    weights = _drawn(clusters, len(scores), generator)
    rates: Array = weights.sum(axis=1) / np.count_nonzero(~np.isnan(scores))
    if threshold > level:
        some = rates > 0.0
        rates[some] *= _exceeding(clusters.peaks - level, weights[some], prior, threshold - level)
    return rates


def lowest_threshold(scores: Array, risk: float, apart: int, *, shape: float = USUAL_SHAPE) -> float:
    """The lower end, 5 %, of the thresholds for `risk` events per row that the scores leave open; NaN if they are few.

    >>> scores = np.random.default_rng(0).exponential(size=8000)
    >>> 7.0 < lowest_threshold(scores, 1e-4, apart=20) < 9.2  # which it is nearly, the logarithm of 10,000
    True
    """
    level, peaks = choose_level(scores, apart)
    if len(peaks) < FEWEST_PEAKS:
        return float("nan")
    clusters, count = clusters_over(scores, level, apart), np.count_nonzero(~np.isnan(scores))
    weights = _drawn(clusters, len(scores), np.random.default_rng(SEED))
    weights = weights[weights.any(axis=1)]
    shapes, scales = _tails(clusters.peaks - level, weights, shape)
    share = np.minimum(risk * count / weights.sum(axis=1), 1.0)
    return float(np.quantile(level + scales / shapes * np.expm1(-shapes * np.log(share)), 0.05))


def _drawn(clusters: Clusters, rows: int, generator: np.random.Generator) -> Array:
    """How often each cluster comes in every drawn recording, `(draw, cluster)`."""
    drawn = generator.multinomial(BLOCKS, np.full(BLOCKS, 1.0 / BLOCKS), size=DRAWS).astype(float)
    weights: Array = drawn[:, clusters.starts * BLOCKS // rows]
    return weights


def _exceeding(excesses: Array, weights: Array, prior: float, excess: float) -> Array:
    """P(Y > excess) by the law fitted to the excesses with each row of weights, as `shrunk` does."""
    shapes, scales = _tails(excesses, weights, prior)
    return np.asarray(np.maximum(1.0 + shapes * excess / scales, 0.0) ** (-1.0 / shapes))


def _tails(excesses: Array, weights: Array, prior: float) -> tuple[Array, Array]:
    """Shapes and scales of the laws fitted to the excesses with each row of weights.

    The shape is the best on the grid, which is fine enough here; so all rows are fitted by one matrix product.
    """
    ratios = ratio_grid(float(excesses.max()), float(excesses.mean()))
    peaks = weights.sum(axis=1)
    shapes = weights @ np.log1p(ratios[:, None] * excesses).T / peaks[:, None]
    best = np.argmax(profile_likelihood(ratios, shapes), axis=1)
    shrunk = np.asarray(shrunk_shape(shapes[np.arange(len(best)), best], peaks, prior))
    shrunk = np.where(np.abs(shrunk) < 1e-9, 1e-9, shrunk)  # so near to an exponential law that it makes no difference
    return shrunk, fit_scales(excesses, shrunk, weights)


def expectation_sentence(
    scores: Array, threshold: float, apart: int, sample_period: float | None = None, shape: float = USUAL_SHAPE
) -> str:
    """What to expect in words: false alarms a week if the seconds between samples are known, else in 10,000 rows.

    Where there is none in a week, it is of a month or a year.

    >>> scores = np.random.default_rng(0).exponential(size=600)
    >>> expectation_sentence(scores, 12.0, apart=20, sample_period=60.0)
    "0 to 5 a week; 10 h of held-out data, less than a day's cycle"
    >>> expectation_sentence(scores, 12.0, apart=20)
    '0 to 5 in 10,000 rows; 600 rows of held-out data'
    >>> hours = np.random.default_rng(0).exponential(size=6000)
    >>> expectation_sentence(hours, 9.0, apart=20, sample_period=3600.0)
    '0 to 1 a month; 250 days of held-out data'
    """
    count = int(np.count_nonzero(~np.isnan(scores)))
    if sample_period is None:
        number = _number(*expected_events(scores, threshold, ROWS, apart, shape=shape))
        return f"{number} in {ROWS:,} rows; {count:,} rows of held-out data"
    for unit in ("week", "month", "year"):
        low, high = expected_events(scores, threshold, SECONDS[unit] / sample_period, apart, shape=shape)
        if high:
            break
    seconds = count * sample_period
    short = ", less than a day's cycle" if seconds < SECONDS["day"] else ""
    return f"{_number(low, high)} a {unit}; {_span(seconds)} of held-out data{short}"


def _number(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _span(seconds: float) -> str:
    """A length of time in the largest unit that fits twice.

    >>> _span(90.0), _span(36_000.0), _span(864_000.0), _span(1e9)
    ('90 s', '10 h', '10 days', '32 years')
    """
    for unit, name in (("year", "years"), ("day", "days"), ("hour", "h"), ("minute", "min")):
        if seconds >= 2.0 * SECONDS[unit]:
            return f"{seconds / SECONDS[unit]:.0f} {name}"
    return f"{seconds:.0f} s"
