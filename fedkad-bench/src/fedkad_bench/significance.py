"""Whether a difference between methods is more than luck: over seeds as in the paper, and over clients.

A test that cannot say anything (one seed, no spread, no client) answers NaN, and its `reason` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Verdict = Literal["WIN", "tie", "loss"]

GATE = 0.5
"""The paper's margin of a verdict, in points of F1 (hundredths)."""

ROUNDING = 1e-12
"""Spreads below this part of the values are rounding."""

NAN = float("nan")


@dataclass(frozen=True)
class SeedComparison:
    """A paired t-test over seeds with the effect size and the verdict.

    `margin` is the mean difference, `p_value` two-sided, `effect_size` Cohen's d_z, `seeds` their number.
    """

    margin: float
    p_value: float
    effect_size: float
    verdict: Verdict
    seeds: int
    reason: str = ""


def _stats() -> Any:
    """The statistics of scipy, which take seconds to load: only when a test is asked for."""
    from scipy import stats

    return stats


def compare_seeds(ours: ArrayLike, theirs: ArrayLike, *, gate: float = GATE) -> SeedComparison:
    """Paired t-test of two methods over the same n seeds: d_z = mean(d) / std(d), t = d_z √n.

    The standard deviation of the differences d and the t-law have n − 1 degrees of freedom.

    The verdict looks at the margin alone, as in the paper, whose win on SMAP has p = 0.25: WIN above `gate`, loss
    below −`gate`, otherwise a tie.

    >>> compare_seeds([72.0, 73.0, 71.9], [64.0, 66.0, 63.0]).verdict
    'WIN'
    >>> compare_seeds([72.0, 72.0], [70.0, 70.0]).reason
    'the differences of all seeds are equal'
    """
    a, b = _paired(ours, theirs)
    if np.isnan(a - b).any() or not len(a):
        raise ValueError("Every seed needs a value of both methods.")
    differences = a - b
    margin = float(differences.mean())
    verdict: Verdict = "WIN" if margin > gate else "loss" if margin < -gate else "tie"
    if len(a) == 1:
        return SeedComparison(margin, NAN, NAN, verdict, 1, "a single seed has no spread")
    spread = float(differences.std(ddof=1))
    if spread <= ROUNDING * float(np.abs([a, b]).max()):
        return SeedComparison(margin, NAN, NAN, verdict, len(a), "the differences of all seeds are equal")
    effect = margin / spread
    p_value = 2.0 * float(_stats().t.sf(abs(effect) * np.sqrt(len(a)), len(a) - 1))
    return SeedComparison(margin, p_value, effect, verdict, len(a))


def compare_with_best(
    ours: ArrayLike, baselines: Mapping[str, Sequence[float]], *, gate: float = GATE
) -> tuple[str, SeedComparison]:
    """The baseline with the largest mean over seeds, and the comparison with it.

    >>> name, found = compare_with_best([53.0, 54.0], {"USAD": [50.0, 50.0], "LSTM-AE": [51.0, 52.5]})
    >>> name, found.margin
    ('LSTM-AE', 1.75)
    """
    best = max(baselines, key=lambda name: float(np.mean(baselines[name])))
    return best, compare_seeds(ours, baselines[best], gate=gate)


def _paired(ours: ArrayLike, theirs: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"Pairs need two rows of the same length; got shapes {a.shape} and {b.shape}.")
    return a, b


def _differences(ours: ArrayLike, theirs: ArrayLike) -> Array:
    """Differences of the clients that have a value of both."""
    a, b = _paired(ours, theirs)
    differences: Array = a - b
    kept: Array = differences[~np.isnan(differences)]
    return kept


@dataclass(frozen=True)
class Interval:
    """A mean difference over clients with its confidence interval."""

    mean: float
    low: float
    high: float
    clients: int
    reason: str = ""


def bootstrap_interval(
    ours: ArrayLike, theirs: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Percentile interval of the mean paired difference when clients are drawn anew, with replacement.

    Clients where either value is NaN are left out.

    >>> found = bootstrap_interval([0.5, 0.6, 0.7, 0.4], [0.4, 0.4, 0.6, 0.4])
    >>> found.clients, round(found.mean, 3), found.low < found.mean < found.high
    (4, 0.1, True)
    """
    differences = _differences(ours, theirs)
    count = len(differences)
    if not count:
        return Interval(NAN, NAN, NAN, 0, "no client has a value of both")
    mean = float(differences.mean())
    if count == 1:
        return Interval(mean, NAN, NAN, 1, "a single client cannot be resampled")
    drawn = np.random.default_rng(seed).integers(count, size=(resamples, count))
    low, high = np.quantile(differences[drawn].mean(axis=1), [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(mean, float(low), float(high), count)


@dataclass(frozen=True)
class SignedRanks:
    """Wilcoxon's signed-rank test over clients; `clients` counts those with a difference."""

    statistic: float
    p_value: float
    clients: int
    reason: str = ""


def signed_rank_test(ours: ArrayLike, theirs: ArrayLike) -> SignedRanks:
    """Two-sided Wilcoxon test of the paired differences; clients without a value or a difference are left out.

    >>> signed_rank_test([1.0, 2.0, 3.0, 4.0, 5.0], [0.5, 1.6, 2.7, 3.8, 4.9]).p_value
    0.0625
    """
    differences = _differences(ours, theirs)
    differences = differences[differences != 0.0]
    if not len(differences):
        return SignedRanks(NAN, NAN, 0, "no client has a difference")
    found = _stats().wilcoxon(differences)
    return SignedRanks(float(found.statistic), float(found.pvalue), len(differences))


@dataclass(frozen=True)
class RankComparison:
    """Mean ranks of methods over clients, for a critical-difference diagram.

    Attributes
    ----------
    methods : tuple of str
        The best first.
    mean_ranks : tuple of float
        In the same order; 1 is best.
    statistic, p_value : float
        Friedman's χ², corrected for ties, and its probability if all methods were alike.
    critical_difference : float
        Nemenyi: mean ranks that are closer do not differ.
    cliques : tuple of tuple of str
        The largest groups of methods, two at least, among which no two differ.
    clients : int
        Clients with a value of every method.
    reason : str
    """

    methods: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    statistic: float
    p_value: float
    critical_difference: float
    cliques: tuple[tuple[str, ...], ...]
    clients: int
    reason: str = ""


def compare_ranks(
    values: Mapping[str, Sequence[float]], *, alpha: float = 0.05, higher_is_better: bool = True
) -> RankComparison:
    """Friedman's test over clients with Nemenyi's critical difference (Demšar 2006).

    With ranks r of k methods on n clients, R_j their mean and ties sharing theirs,

        χ² = 12 n / (k (k + 1)) · Σ_j (R_j − (k + 1)/2)² / c,   c = 1 − Σ (t³ − t) / (n k (k² − 1)),

    t being the sizes of the ties, and CD = q_α √(k (k + 1) / (6 n)) with q_α of the studentised range over √2.
    Clients where any method has no value are left out.

    >>> found = compare_ranks({"a": [0.9, 0.8, 0.9, 0.7], "b": [0.8, 0.9, 0.8, 0.6], "c": [0.1, 0.2, 0.1, 0.1]})
    >>> found.methods, found.mean_ranks, found.cliques
    (('a', 'b', 'c'), (1.25, 1.75, 3.0), (('a', 'b'), ('b', 'c')))
    """
    names = tuple(values)
    table = np.array([np.asarray(values[name], dtype=float) for name in names]).T
    table = table[~np.isnan(table).any(axis=1)] if table.size else np.zeros((0, len(names)))
    clients = len(table)
    if len(names) < 2 or not clients:
        reason = "there are fewer than two methods" if len(names) < 2 else "no client has a value of every method"
        return RankComparison(names, (NAN,) * len(names), NAN, NAN, NAN, (), clients, reason)
    ranks = np.asarray(_stats().rankdata(-table if higher_is_better else table, axis=1))
    means = ranks.mean(axis=0)
    order = np.argsort(means, kind="stable")
    methods, sorted_means = tuple(names[j] for j in order), means[order]
    difference = critical_difference(len(names), clients, alpha)
    statistic, p_value = _friedman(ranks)
    reason = "all methods tie on every client" if np.isnan(statistic) else ""
    cliques = _cliques(methods, sorted_means, difference)
    return RankComparison(
        methods, tuple(map(float, sorted_means)), statistic, p_value, difference, cliques, clients, reason
    )


def critical_difference(methods: int, clients: int, alpha: float = 0.05) -> float:
    """Nemenyi's CD = q_α √(k (k + 1) / (6 n)).

    >>> round(critical_difference(5, 30), 3)  # q = 2.728
    1.114
    """
    quantile = float(_stats().studentized_range.ppf(1.0 - alpha, methods, np.inf)) / np.sqrt(2.0)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6.0 * clients)))


def _friedman(ranks: Array) -> tuple[float, float]:
    clients, methods = ranks.shape
    sizes = [np.unique(row, return_counts=True)[1] for row in ranks]
    tied = sum(int((size**3 - size).sum()) for size in sizes)
    correction = 1.0 - tied / (clients * methods * (methods**2 - 1))
    if correction <= ROUNDING:
        return NAN, NAN
    departures = ranks.mean(axis=0) - (methods + 1) / 2.0
    statistic = 12.0 * clients / (methods * (methods + 1)) * float(departures @ departures) / correction
    return statistic, float(_stats().chi2.sf(statistic, methods - 1))


def _cliques(methods: tuple[str, ...], means: Array, difference: float) -> tuple[tuple[str, ...], ...]:
    """Groups of neighbours in rank within the critical difference, without those that lie in a larger one."""
    stops = np.searchsorted(means, means + difference, side="left")
    found, reached = [], 0
    for start, stop in enumerate(stops.tolist()):
        if stop - start > 1 and stop > reached:
            found.append(methods[start:stop])
        reached = max(reached, stop)
    return tuple(found)
