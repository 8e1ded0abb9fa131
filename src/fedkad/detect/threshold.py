"""Thresholds without labels: peaks over threshold, its streaming forms, a quantile, a budget of false alarms.

The excesses of a score over a high level follow a generalised Pareto law (Pickands, Balkema, de Haan). Fitted to
them, it extrapolates beyond the largest score seen: with n scores, of which k exceed the level u, the score that a
normal sample exceeds with probability q is

    z_q = u + σ/ξ ((q n / k)^(−ξ) − 1),        ξ → 0:  z_q = u − σ log(q n / k).

See Siffer et al., "Anomaly Detection in Streams with Extreme Value Theory" (KDD 2017), for SPOT and DSPOT.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.settingerror import SettingError

Array = NDArray[np.float64]

LEVEL = 0.98
"""The quantile above which a score is a peak."""

FEWEST_PEAKS = 10
"""A tail is fitted to at least this many peaks; the level is lowered to have them."""

REMEMBERED_PEAKS = 2000
"""Recent peaks that a streaming tail keeps, so that months of samples cost no more memory than a day."""

SMALLEST = 1e-6
"""Smaller scores count as this: far below any departure, far above rounding."""

ADAPTING = ("spot", "dspot")
METHODS = ("pot", *ADAPTING, "quantile")

SECONDS = {
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
    "month": 2629800.0,
    "year": 31557600.0,
}


class Tail(NamedTuple):
    """A generalised Pareto law of excesses: P(Y > y) = (1 + ξ y/σ)^(−1/ξ)."""

    shape: float  # ξ
    scale: float  # σ

    def log_likelihood(self, excesses: Array) -> float:
        """Σ log density of the excesses."""
        if abs(self.shape) < 1e-12:
            return float(-len(excesses) * math.log(self.scale) - excesses.sum() / self.scale)
        inner = 1.0 + self.shape * excesses / self.scale
        if inner.min() <= 0.0:
            return -math.inf
        return float(-len(excesses) * math.log(self.scale) - (1.0 / self.shape + 1.0) * np.log(inner).sum())

    def exceeded_with(self, probability: float) -> float:
        """The excess y with P(Y > y) = `probability`."""
        if abs(self.shape) < 1e-12:
            return -self.scale * math.log(probability)
        return self.scale / self.shape * math.expm1(-self.shape * math.log(probability))


def fit_tail(excesses: Array) -> Tail:
    """Maximum likelihood of a generalised Pareto law, by Grimshaw's reduction to one unknown.

    With θ = ξ/σ the likelihood is largest at ξ(θ) = mean log(1 + θ y), which leaves a function of θ alone,

        ℓ(θ) = −n (log(ξ(θ)/θ) + ξ(θ) + 1),

    searched on a grid over its domain θ > −1/max(y) and refined around the best. Shapes below −½ are left out,
    because there the maximum of the likelihood is not an estimate.

    >>> tail = fit_tail(np.random.default_rng(0).exponential(2.0, 5000))
    >>> abs(tail.shape) < 0.05 and abs(tail.scale - 2.0) < 0.1
    True
    """
    largest, mean = float(excesses.max()), float(excesses.mean())
    if largest <= 0.0:
        return Tail(0.0, np.finfo(float).tiny)
    steps = np.geomspace(1e-6, 1.0, 60)
    grid = np.concatenate([-(1.0 - 1e-9) / largest * steps[::-1], 50.0 / mean * steps])
    best = Tail(0.0, mean)
    for _ in range(4):
        shapes = np.log1p(grid[:, None] * excesses).mean(axis=1)
        likelihood = -(np.log(shapes / grid) + shapes + 1.0)
        likelihood[shapes < -0.5] = -np.inf
        k = int(np.argmax(likelihood))
        found = Tail(float(shapes[k]), float(shapes[k] / grid[k]))
        best = max(best, found, key=lambda tail: tail.log_likelihood(excesses))
        grid = np.linspace(grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)], 60)
        grid = grid[grid != 0.0]
    return best


def pot_threshold(scores: Array, risk: float) -> float:
    """The score that a normal sample exceeds with probability `risk`, by peaks over threshold.

    >>> scores = np.random.default_rng(0).exponential(size=20_000)
    >>> bool(abs(pot_threshold(scores, 1e-5) - np.log(1e5)) < 1.0)
    True
    """
    return Peaks.over(scores, risk).threshold(risk)


def quantile_threshold(scores: Array, risk: float) -> float:
    """The 1 − `risk` quantile of the scores themselves; with few scores, their maximum."""
    return float(np.quantile(scores, 1.0 - risk))


@dataclass
class Peaks:
    """The upper tail of a set of scores: a level, the excesses over it, and how many scores there were."""

    level: float
    excesses: deque[float]
    count: float
    tail: Tail = field(init=False)

    _unfitted: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.refit()

    @classmethod
    def over(cls, scores: Array, risk: float) -> Peaks:
        """Peaks of the scores over their 98 % quantile, or over a lower one if it takes that to have ten of them.

        A level can only serve thresholds above it, so there are at least twice as many peaks as the risk allows.
        """
        share = min(max(1.0 - LEVEL, FEWEST_PEAKS / len(scores), 2.0 * risk), 1.0)
        level = float(np.quantile(scores, 1.0 - share))
        peaks = scores[scores > level] - level
        kept = deque(peaks.tolist() or [0.0], maxlen=max(REMEMBERED_PEAKS, len(peaks)))
        return cls(level, kept, float(len(scores)))

    def state(self) -> dict[str, Any]:
        """The state as plain numbers."""
        return {
            "level": self.level,
            "excesses": list(self.excesses),
            "most": self.excesses.maxlen,
            "count": self.count,
            "tail": list(self.tail),
            "unfitted": self._unfitted,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Peaks:
        """The peaks with that state."""
        peaks = cls(state["level"], deque(state["excesses"], maxlen=state["most"]), state["count"])
        peaks.tail, peaks._unfitted = Tail(*state["tail"]), state["unfitted"]
        return peaks

    def refit(self) -> None:
        """Fit the tail to the excesses at hand."""
        self.tail, self._unfitted = fit_tail(np.fromiter(self.excesses, dtype=float)), 0

    def threshold(self, risk: float) -> float:
        """z_q for q = `risk`, never below the level."""
        rate = len(self.excesses) / self.count
        return self.level + max(self.tail.exceeded_with(min(risk / rate, 1.0)), 0.0)

    def add(self, score: float) -> bool:
        """Take a normal score into account; True when the tail changed.

        One more peak changes little among many: the tail is refitted whenever they have grown by a hundredth.
        """
        self.count += 1.0
        if score <= self.level:
            return False
        if len(self.excesses) == self.excesses.maxlen:
            # The oldest peak leaves together with its share of the count, so that the rate of peaks stays the same.
            self.count *= 1.0 - 1.0 / len(self.excesses)
        self.excesses.append(score - self.level)
        self._unfitted += 1
        if 100 * self._unfitted < len(self.excesses):
            return False
        self.refit()
        return True


class FixedThreshold:
    """One value that does not change."""

    def __init__(self, value: float) -> None:
        self.value = value

    def judge(self, score: float) -> bool:
        """Whether the score is an anomaly."""
        return score > self.value

    def state(self) -> dict[str, Any]:
        """What the scores so far have changed, which is nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from that state."""


class StreamingPot:
    """SPOT: a threshold that every normal score refines and that anomalies leave alone.

    It does not learn from what it flags, normal or not. This trims its own tail, so that it flags up to about three
    times the risk on data that is normal throughout.

    With `depth` it is DSPOT: scores are taken relative to the mean of the last `depth` normal ones, so that the
    threshold follows a slow drift of the score.
    """

    def __init__(self, scores: Array, risk: float, depth: int = 0) -> None:
        self.risk, self.depth = risk, depth
        if depth:
            depth = self.depth = min(depth, len(scores) // 2)
            base = np.convolve(scores, np.full(depth, 1.0 / depth), mode="valid")[:-1]
            self.recent: deque[float] = deque(scores[-depth:].tolist(), maxlen=depth)
            scores = scores[depth:] - base
        self.peaks = Peaks.over(scores, risk)
        self.height = self.peaks.threshold(risk)

    @property
    def base(self) -> float:
        """The local mean that is subtracted from scores; zero without drift tracking."""
        return math.fsum(self.recent) / self.depth if self.depth else 0.0

    @property
    def value(self) -> float:
        """The threshold now."""
        return self.base + self.height

    def judge(self, score: float) -> bool:
        """Whether the score is an anomaly; if not, learn from it."""
        base = self.base
        if score - base > self.height:
            return True
        if self.peaks.add(score - base):
            self.height = self.peaks.threshold(self.risk)
        if self.depth:
            self.recent.append(score)
        return False

    def state(self) -> dict[str, Any]:
        """What the scores so far have changed, as plain numbers that fit into JSON."""
        recent = list(self.recent) if self.depth else []
        return {"height": self.height, "recent": recent, "peaks": self.peaks.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a judge with the same settings, exactly."""
        self.peaks, self.height = Peaks.restored(state["peaks"]), state["height"]
        if self.depth:
            self.recent = deque(state["recent"], maxlen=self.depth)


DRIFT_DEPTH = 450
"""Number of normal scores in the local mean of DSPOT."""

Judge = FixedThreshold | StreamingPot


def parse_budget(text: str) -> float | None:
    """False alarms per second in a string such as "1/week", "2 per day" or "0.5/hour"; None for other strings.

    >>> parse_budget("1/week") == 1 / 604800
    True
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:/|per)\s*(\w+?)s?\s*", text)
    if not found or found[2] not in SECONDS or float(found[1]) <= 0.0:
        return None
    return float(found[1]) / SECONDS[found[2]]


def check_threshold(threshold: str | float, sample_period: float | None) -> None:
    """Refuse a threshold that is neither a number, a known method nor a budget with a sampling period."""
    if threshold in METHODS or (isinstance(threshold, Real) and not math.isnan(threshold)):
        return
    if not isinstance(threshold, str) or parse_budget(threshold) is None:
        units = ", ".join(SECONDS)
        allowed = f"a number, one of {', '.join(METHODS)}, or a budget such as 1/week (a number per {units})"
        raise SettingError("threshold", threshold, allowed)
    if sample_period is None:
        raise SettingError("threshold", threshold, "given together with sample_period, the seconds between two samples")


class ThresholdRule(NamedTuple):
    """How a threshold is set: by a method, a budget of false alarms, or a number.

    A budget of alarms is met by flagging a normal sample with probability budget x period: every alarm has at least
    one flagged sample.
    """

    threshold: str | float
    risk: float
    sample_period: float | None

    @property
    def adapts(self) -> bool:
        """Whether the threshold moves as scores come in."""
        return self.threshold in ADAPTING

    def judge(self, scores: Array, *, few: bool) -> Judge:
        """The judge that follows from the scores of normal data; with too `few` for a tail, a plain quantile."""
        if not isinstance(self.threshold, str):
            return FixedThreshold(float(self.threshold))
        # A device that stood still scores nothing but rounding; no threshold is that low.
        scores, risk, budget = np.maximum(scores, SMALLEST), self.risk, parse_budget(self.threshold)
        if budget is not None and self.sample_period is not None:
            risk = min(budget * self.sample_period, 1.0)
        if self.threshold == "quantile" or few:
            return FixedThreshold(quantile_threshold(scores, risk))
        if self.adapts:
            return StreamingPot(scores, risk, depth=DRIFT_DEPTH if self.threshold == "dspot" else 0)
        return FixedThreshold(pot_threshold(scores, risk))


def judge_all(judge: Judge, scores: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The threshold at every entry, and whether its score is an alarm.

    An adapting threshold moves from score to score; an entry without a score leaves it alone and is not flagged.
    """
    thresholds, alarms = np.empty(len(scores)), np.zeros(len(scores), dtype=np.bool_)
    for t, score in enumerate(scores.tolist()):
        thresholds[t] = judge.value
        alarms[t] = score == score and judge.judge(score)
    return thresholds, alarms
