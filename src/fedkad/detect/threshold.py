"""Thresholds without labels: peaks over threshold, a quantile, a budget of false alarms.

A threshold is about *events*: alarms at most a window apart are one event, as a person would count them. Of n scores
of normal data, k clusters rise over a high level u, and their peaks' excesses over u follow a generalised Pareto law
(`tail`). Extrapolated, it gives the score that clusters exceed at a rate of q events per row,

    z_q = u + σ/ξ ((q n / k)^(−ξ) − 1),        ξ → 0:  z_q = u − σ log(q n / k).

See Coles, "An Introduction to Statistical Modeling of Extreme Values" (2001), for peaks of clusters. They find the
first threshold; `tracking` has how it moves from there.
"""

import math
import re
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.clusters import declustered
from fedkad.detect.tail import Tail, fit_tail, shrunk
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]

SHARES = (0.01, 0.02, 0.03, 0.05)
"""Shares of the scores over the level: the first with enough clusters is taken, and otherwise the last."""

ENOUGH_PEAKS = 50  # with this many clusters the level is not lowered any more: what matters is beyond it
LOWER_SHARES = (0.1, 0.2, 0.5)  # shares that are only tried where the others have too few clusters to fit a tail to
FEWEST_PEAKS = 10  # a tail is fitted to the peaks of at least this many clusters
FEWEST_ROWS = 100  # and to at least this many scores
FEW_SHARE = 0.2  # with less than that, the highest fifth of the scores stands for the tail

USUAL_SHAPE = -0.04
"""The shape that a tail is drawn towards if nothing is known: peaks of simulated pumps have shorter tails than an
exponential law, those of autoregressive data about the same (`python -m measurements.budget`)."""

SMALLEST = 1e-6  # smaller scores count as this: far below any departure, far above rounding

METHODS = ("pot", "quantile")
FORMER = ("spot", "dspot")  # that adapted to the stream, in earlier versions

SECONDS = {
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
    "month": 2629800.0,
    "year": 31557600.0,
}


@dataclass(frozen=True)
class EventThreshold:
    """A threshold, what it rests on, and what is wrong with it."""

    value: float
    tail: Tail | None  # of the excesses over the level; None where nothing was extrapolated
    level: float
    peaks: int  # clusters over the level
    rows: int  # scores
    bounded: bool = False  # whether the tail asked for a higher value than the scores can answer for
    note: str = ""  # a sentence for people if it deserves less trust than usual
    own_shape: float | None = None  # of the tail by these peaks alone, from which a fleet learns what to expect

    @property
    def few(self) -> bool:
        """Whether there were too few scores, or clusters of them, to fit a tail to."""
        return self.rows < FEWEST_ROWS or self.peaks < FEWEST_PEAKS


def event_threshold(scores: Array, risk: float, apart: int, shape: float = USUAL_SHAPE) -> EventThreshold:
    """The score that normal data exceeds in `risk` events per row, by the peaks of clusters.

    Parameters
    ----------
    scores : (time,)
        Of normal data that the model did not learn from, in order of time; NaN where there is none.
    risk : float
        Events per row.
    apart : int
        Scores over a level and at most this many rows apart belong to one cluster.
    shape : float, optional
        That the tail is expected to have, e.g. the fleet's; nearly 0, the exponential law, if nothing is known.

    Notes
    -----
    z_q is meant to be exceeded q times per row *on average over what k peaks leave open*. If the scale of an
    exponential law is known from k excesses only, the next excess follows a generalised Pareto law with shape 1/k; so
    1/k is added to the shape when extrapolating.

    Examples
    --------
    >>> scores = np.random.default_rng(0).exponential(size=20_000)
    >>> found = event_threshold(scores, 1e-5, apart=20)
    >>> bool(abs(found.value - np.log(1e5)) < 1.0), found.note
    (True, '')
    """
    present = scores[~np.isnan(scores)]
    level, peaks = choose_level(scores, apart, least=2.0 * risk * len(present))
    found = EventThreshold(level, None, level, len(peaks), len(present))
    if found.few:
        return _threshold_of_few(present, risk, found)
    own = fit_tail(peaks - level)
    tail = shrunk(own, peaks - level, shape)
    value = level + _extrapolated(tail, len(peaks), risk * len(present) / len(peaks))
    note = ""
    if risk * len(present) > len(peaks):
        note = (
            f"Normal data shows at most {len(peaks) / len(present):.2g} events per row, fewer than {risk:.2g} allowed."
        )
    threshold = EventThreshold(value, tail, level, len(peaks), len(present), note=note, own_shape=own.shape)
    return _bounded(present, threshold)


def choose_level(scores: Array, apart: int, least: float = 0.0) -> tuple[float, Array]:
    """The highest level with enough clusters to fit a tail to, and their peaks.

    A level can only serve rates below that of its own clusters, so it has `least` of them where possible. Too low a
    level joins everything into one cluster: if no level will do, the one with the most clusters is taken.
    """
    present, most = scores[~np.isnan(scores)], (math.nan, np.empty(0))
    if not len(present):
        raise ValueError("a threshold needs at least one score of normal data")
    for share in (*SHARES, *LOWER_SHARES):
        level = float(np.quantile(present, 1.0 - share))
        peaks = declustered(scores, level, apart)
        if len(peaks) >= max(ENOUGH_PEAKS if share < SHARES[-1] else FEWEST_PEAKS, least):
            return level, peaks
        if math.isnan(most[0]) or len(peaks) > len(most[1]):
            most = level, peaks
    return most


def _extrapolated(tail: Tail, peaks: int, probability: float) -> float:
    """The excess that the next peak exceeds with this probability, given that the tail was fitted to so many."""
    return max(Tail(tail.shape + 1.0 / peaks, tail.scale).exceeded_with(min(probability, 1.0)), 0.0)


def _threshold_of_few(present: Array, risk: float, empirical: EventThreshold) -> EventThreshold:
    """An exponential law through the highest fifth of the scores themselves, since clusters are too few."""
    level = float(np.quantile(present, 1.0 - FEW_SHARE))
    excesses = present[present > level] - level
    if not len(excesses):
        excesses = np.zeros(1)
    tail = Tail(0.0, max(float(excesses.mean()), np.finfo(float).tiny))
    value = level + _extrapolated(tail, len(excesses), risk / FEW_SHARE)
    peaks = "1 separate peak" if empirical.peaks == 1 else f"{empirical.peaks} separate peaks"
    note = (
        f"Only {empirical.rows} scores of normal data with {peaks}: the threshold is a rough extrapolation, and false "
        "alarms are more likely."
    )
    return _bounded(present, EventThreshold(value, tail, level, empirical.peaks, empirical.rows, note=note))


def furthest(median: float, largest: float) -> float:
    """The highest threshold that scores can answer for: twice as far from their median as the largest of them.

    Of 2,000 simulated scores with a light or exponential tail it cuts less than one threshold in ten, even for one
    event in half a million rows. Of 500 it cuts most of those, which were a third too high.
    """
    return largest + (largest - median)


def _bounded(present: Array, threshold: EventThreshold) -> EventThreshold:
    most = furthest(float(np.median(present)), float(present.max()))
    if threshold.value <= most:
        return threshold
    note = threshold.note or (
        f"The tail asked for a threshold of {threshold.value:.3g}, far above the highest score of normal data, "
        f"{present.max():.3g}; it was set to {most:.3g}."
    )
    return replace(threshold, value=most, bounded=True, note=note)


def quantile_threshold(scores: Array, risk: float, apart: int) -> EventThreshold:
    """The score that clusters have exceeded in at most `risk` events per row; the largest if that is less than one.

    >>> scores = np.array([0.0, 5.0, 4.0, 0.0, 0.0, 3.0, 0.0, 0.0, 7.0, 0.0])
    >>> quantile_threshold(scores, 0.2, apart=1).value, quantile_threshold(scores, 0.01, apart=1).value
    (3.0, 7.0)
    """
    rows = int(np.count_nonzero(~np.isnan(scores)))
    allowed = int(risk * rows)
    level, peaks = choose_level(scores, apart, least=allowed + 1.0)
    # What is one cluster over the level may be two over a higher value.
    values = [level, *np.sort(peaks).tolist()][-allowed - 1 :]
    value = next(value for value in values if len(declustered(scores, value, apart)) <= allowed)
    note = "" if rows >= FEWEST_ROWS else f"Only {rows} scores of normal data: false alarms are more likely."
    return EventThreshold(value, None, level, len(peaks), rows, note=note)


def pot_threshold(scores: Array, risk: float) -> float:
    """The score that a normal *sample* exceeds with probability `risk`: Siffer's formula, as benchmarks use it.

    Neighbours count on their own, so this is not a rate of events.

    >>> scores = np.random.default_rng(0).exponential(size=20_000)
    >>> bool(abs(pot_threshold(scores, 1e-5) - np.log(1e5)) < 1.0)
    True
    """
    share = min(max(0.02, FEWEST_PEAKS / len(scores), 2.0 * risk), 1.0)
    level = float(np.quantile(scores, 1.0 - share))
    excesses = scores[scores > level] - level
    if not len(excesses):
        return level
    rate = len(excesses) / len(scores)
    return level + max(fit_tail(excesses).exceeded_with(min(risk / rate, 1.0)), 0.0)


def parse_budget(text: str) -> float | None:
    """False alarms per second in a string such as "1/week", "2 per day" or "0.5/hour"; None for other strings.

    >>> parse_budget("1/week") == 1 / 604800
    True
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:/|per)\s*(\w+?)s?\s*", text)
    if not match or match[2] not in SECONDS or float(match[1]) <= 0.0:
        return None
    return float(match[1]) / SECONDS[match[2]]


def check_threshold(threshold: str | float, sample_period: float | None) -> None:
    """Refuse a threshold that is neither a number of at least 0, a known method nor a budget with a sampling period."""
    if threshold in METHODS or (isinstance(threshold, Real) and threshold >= 0.0):
        return
    if not isinstance(threshold, str) or parse_budget(threshold) is None:
        units = ", ".join(SECONDS)
        budgets = f"a budget such as 1/week (a number per {units})"
        allowed = f"a number that is not negative, one of {', '.join(METHODS)}, or {budgets}"
        if threshold in FORMER:
            allowed = (
                f"'pot', or {budgets}, which moves with the alarms of a stream; {threshold!r} is no longer offered"
            )
        raise SettingError("threshold", threshold, allowed)
    if sample_period is None:
        raise SettingError("threshold", threshold, "given together with sample_period, the seconds between two samples")


@dataclass(frozen=True)
class ThresholdRule:
    """How a threshold is set: by a method, a budget of false alarms, or a number."""

    threshold: str | float
    risk: float  # events per row, for the methods
    sample_period: float | None  # seconds between rows, for a budget
    apart: int  # rows at most that far apart belong to one event: the detector's window
    shape: float = USUAL_SHAPE  # that the tail is expected to have, e.g. the fleet's
    least: float = SMALLEST  # no threshold is lower: below it nothing is a departure

    @property
    def rate(self) -> float:
        """Events per row: the risk, or the budget times the sample period.

        >>> ThresholdRule("1/day", 1e-4, 864.0, apart=20).rate
        0.01
        """
        budget = parse_budget(self.threshold) if isinstance(self.threshold, str) else None
        if budget is None or self.sample_period is None:
            return self.risk
        return min(budget * self.sample_period, 1.0)

    def found(self, scores: Array) -> EventThreshold:
        """The threshold that follows from the scores of normal data."""
        if not isinstance(self.threshold, str):
            value = float(self.threshold)
            return EventThreshold(value, None, value, 0, int(np.count_nonzero(~np.isnan(scores))))
        if self.threshold == "quantile":
            found = quantile_threshold(_raised(scores), self.rate, self.apart)
        else:
            found = event_threshold(_raised(scores), self.rate, self.apart, self.shape)
        return replace(found, value=float(max(found.value, self.least)))


def _raised(scores: Array) -> Array:
    """The scores, none of them below the smallest: a device that stood still scores nothing but rounding."""
    return np.maximum(scores, SMALLEST)
