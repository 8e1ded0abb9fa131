"""The estimator: fit on normal data, score, predict, explain, stream, learn on, save."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.calibration import HeldOut, calibrate, split
from fedkad.detect.modelfile import load_detector, save_detector
from fedkad.detect.parameters import Parameters
from fedkad.detect.scoring import (
    Dynamics,
    Scoring,
    SeriesScores,
    score_series,
    smooth_causally,
    smooth_centred,
)
from fedkad.detect.series import as_series, check_channels, join_stretches, refuse_empty_channels
from fedkad.detect.stream import Stream
from fedkad.detect.threshold import FixedThreshold, Judge, check_threshold, make_judge
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced, cap_spectrum, fit_operator, relative_ridge
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.koopman.snapshots import Statistics, collect, stretches
from fedkad.koopman.subspace import own_subspace

Array = NDArray[np.float64]

FEWEST_PAIRS = 20
"""Snapshot pairs below which nothing can be learnt."""


class FewRowsWarning(UserWarning):
    """The training data was too short for a held-out part: the threshold is a cross-fitted quantile."""


class KoopmanDetector(Parameters):
    """Detect departures of a multivariate time series from its normal dynamics.

    Sliding windows are lifted by fixed random tanh observables, projected on a low-rank subspace, and predicted one
    step ahead by a small linear operator. What a new sample says against its prediction, in units of what is usual
    for each channel, is its score.

    Use it for several coupled channels sampled at a steady rate, with training data that is mostly normal. Do not
    use it for a handful of samples, for events without a rate, or to find anomalies in the training data itself.

    Parameters
    ----------
    window : int
        Samples in a window, W.
    rank : int
        Directions of the subspace, r.
    observables : int
        Number of random tanh observables, d_lift.
    horizon : int
        Steps predicted ahead, H.
    ridge : float
        Regularisation λ of the operator, as a share of the mean eigenvalue of its Gram matrix; with `scoring="paper"`
        only where that matrix is ill-conditioned.
    spectral_cap : float
        Largest spectral radius of the operator in detection.
    smoothing : int
        Scores averaged into one, looking back.
    scoring : {"calibrated", "paper"}
        Residuals of the newest sample in units of their spread, or the squared residual of the whole lifted window.
    threshold : {"pot", "spot", "dspot", "quantile"}, a budget such as "1/week", or a number
        How the threshold is set without labels: an extreme-value fit, the same adapting as the stream goes on,
        following a drift, a plain quantile, a number of false alarms allowed (needs `sample_period`), or by hand.
    validation : float
        Last share of the training data, kept from the model to set the threshold.
    risk : float
        Probability that a normal sample is flagged.
    sample_period : float, optional
        Seconds between samples.
    seed : int
        Seed of the observables.

    Attributes
    ----------
    subspace_ : (D, r), operator_ : (r, r), threshold_ : float, n_features_in_ : int
    scaling_, lifting_
        `transform` of each takes a series to scaled values and to lifted states.
    statistics_
        What is kept of the training data; `learn` adds to it.

    Examples
    --------
    >>> t = np.arange(3000)[:, None]
    >>> x = np.sin(t / [[7.0, 11.0]]) + 0.05 * np.random.default_rng(0).normal(size=(3000, 2))
    >>> detector = KoopmanDetector(rank=8).fit(x[:2000])
    >>> x[2500:2520, 1] = 0.0  # a sensor gets stuck
    >>> alarms = np.flatnonzero(detector.predict(x[2000:]))
    >>> int(alarms[0]) in range(500, 520)
    True
    """

    subspace_: Array
    operator_: Array
    threshold_: float
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    scaling_: Scaling
    lifting_: Lifting
    statistics_: Statistics | None
    held_out_: HeldOut | None
    dynamics_: Dynamics
    scoring_: Scoring
    normal_scores_: Array
    few_rows_: bool

    def __init__(
        self,
        window: int = 20,
        rank: int = 24,
        observables: int = 128,
        horizon: int = 1,
        ridge: float = 1e-2,
        spectral_cap: float = 0.995,
        smoothing: int = 5,
        scoring: Literal["calibrated", "paper"] = "calibrated",
        threshold: str | float = "pot",
        validation: float = 0.15,
        risk: float = 1e-4,
        sample_period: float | None = None,
        seed: int = 0,
    ) -> None:
        self.window = window
        self.rank = rank
        self.observables = observables
        self.horizon = horizon
        self.ridge = ridge
        self.spectral_cap = spectral_cap
        self.smoothing = smoothing
        self.scoring = scoring
        self.threshold = threshold
        self.validation = validation
        self.risk = risk
        self.sample_period = sample_period
        self.seed = seed

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """A detector with the paper's score; all its other settings are the defaults."""
        return cls(**{"scoring": "paper", **changes})

    # -- training ---------------------------------------------------------------------------------------------

    def fit(self, train: Any, y: object = None) -> Self:
        """Fit on normal data: `(time, channel)` array or DataFrame, or a list of separate stretches."""
        self.prepare(train)
        return self.adopt(own_subspace(self.kept()[0], self.rank))

    def prepare(self, train: Any, scaling: Scaling | None = None) -> Self:
        """All of the training that needs the data: scaling, statistics, held-out rows. `adopt` does the rest."""
        self.check_parameters()
        series = as_series(train)
        refuse_empty_channels(series)
        values = series.values
        self.n_features_in_ = values.shape[1]
        vars(self).pop("feature_names_in_", None)
        if series.names is not None:
            self.feature_names_in_ = np.array(series.names, dtype=object)
        self.lifting_ = Lifting(self.n_features_in_, self.window, self.observables, self.seed)
        if self.rank > self.lifting_.dimension:
            raise ValueError(
                f"rank={self.rank} is larger than the lifted dimension {self.lifting_.dimension} "
                f"({self.n_features_in_} channels x window {self.window} + {self.observables} observables); lower it."
            )
        self.scaling_ = scaling or Scaling.from_moments(self.training_moments(values))
        self.statistics_, self.held_out_ = self._gather(self.scaling_.transform(values))
        return self

    def training_moments(self, train: Any) -> ChannelMoments:
        """Moments of the part of the data that scaling is learnt from; a fleet with one scaling merges them."""
        values = as_series(train).values
        training = values[split(values, self.validation, self._lead).training]
        self._require_pairs(sum(run.stop - run.start - self.window for run in stretches(training, self.window + 1)))
        return ChannelMoments.of(training)

    def adopt(self, subspace: Array) -> Self:
        """Take over a subspace, e.g. the fleet's: fit the private operator, calibrate, set the threshold."""
        self._take(subspace, *self.kept())
        if self.few_rows_:
            warnings.warn(
                f"Only {len(self.kept()[1].rows)} rows: the threshold is a quantile of {len(self.normal_scores_)} "
                "cross-fitted scores instead of a fitted tail, and false alarms are more likely.",
                FewRowsWarning,
                stacklevel=3,
            )
        return self

    def learn(self, series: Any, forgetting: float = 1.0) -> Self:
        """Add new normal data to the statistics and refit the private operator, without a round.

        Scaling and subspace stay. As in `fit`, the last `validation` share of the series judges instead of training.
        With `forgetting` below one, what was known before weighs that much less; a detector fitted on few rows
        still has them all, forgets none, and takes the new ones as if it had been fitted on all of them.
        """
        if not 0.0 < forgetting <= 1.0:
            raise ValueError(f"forgetting={forgetting} must lie in (0, 1]; 1 forgets nothing.")
        statistics, held_out = self.kept()
        fresh = self.scaling_.transform(self._read(series))
        if held_out.crossed:
            statistics, held_out = self._gather(join_stretches([held_out.rows, fresh]))
        else:
            cut = len(fresh) - int(self.validation * len(fresh))
            statistics = statistics.scaled(forgetting) + collect(fresh[:cut], self.lifting_, self.horizon)
            held_out = held_out.extended(fresh[max(cut - self._lead, 0) :], self._lead)
        self._take(self.subspace_, statistics, held_out)
        return self

    def _take(self, subspace: Array, statistics: Statistics, held_out: HeldOut) -> None:
        """Fit and calibrate first, and change the detector only once all of it has worked."""

        def fit_dynamics(known: Statistics) -> Dynamics:
            return Dynamics(self.lifting_, subspace, self._operator(known, subspace), self.horizon)

        dynamics = fit_dynamics(statistics)
        calibration = calibrate(
            dynamics,
            statistics,
            held_out,
            fit_dynamics,
            paper=self.scoring == "paper",
            smoothing=self.smoothing,
        )
        judge = self._make_judge(calibration.normal_scores, few=held_out.crossed)
        self.statistics_, self.held_out_, self.few_rows_ = statistics, held_out, held_out.crossed
        self.dynamics_, self.subspace_, self.operator_ = dynamics, subspace, dynamics.operator
        self.scoring_, self.normal_scores_ = calibration
        self.threshold_ = judge.value

    def _gather(self, scaled: Array) -> tuple[Statistics, HeldOut]:
        parts = split(scaled, self.validation, self._lead)
        statistics = collect(scaled[parts.training], self.lifting_, self.horizon)
        self._require_pairs(statistics.count)
        few = parts.held_out is None
        return statistics, HeldOut(scaled if parts.held_out is None else parts.held_out, crossed=few)

    def _require_pairs(self, count: float) -> None:
        if count < FEWEST_PAIRS:
            raise ValueError(
                f"Too few rows: only {int(count)} windows of {self.window} consecutive complete samples have a "
                f"successor, and at least {FEWEST_PAIRS} are needed; pass more rows or a shorter window."
            )

    def _operator(self, statistics: Statistics, subspace: Array) -> Array:
        reduced = Reduced.at(statistics, subspace)
        ridge = relative_ridge(reduced, self.ridge)
        return cap_spectrum(fit_operator(reduced, ridge, always=self.scoring != "paper"), self.spectral_cap)

    def kept(self) -> tuple[Statistics, HeldOut]:
        """What is kept of the training data: the statistics, and the rows that set the threshold."""
        self._check_fitted("lifting_")
        if self.statistics_ is None or self.held_out_ is None:
            raise ValueError("This detector was saved without its statistics and can only detect; fit it again.")
        return self.statistics_, self.held_out_

    # -- detection --------------------------------------------------------------------------------------------

    def decision_function(self, series: Any) -> Array:
        """Scores `(time,)`, higher is more abnormal; entry t depends on samples up to t only.

        NaN until a window is full and a prediction old enough to be judged, at the start and after every gap.
        """
        return smooth_causally(self._raw_scores(series), self.smoothing)

    def score_series(self, series: Any) -> Array:
        """Scores `(time,)` of recorded data: averaged over a window centred on each entry, so looking ahead."""
        return smooth_centred(self._raw_scores(series), self.window // 3)

    def predict(self, series: Any) -> NDArray[np.int64]:
        """1 where the causal score is above the threshold, 0 elsewhere and where there is no score."""
        scores = self.decision_function(series)
        judge = self.judge()
        flags = np.zeros(len(scores), dtype=np.int64)
        valid = np.flatnonzero(~np.isnan(scores))
        flags[valid] = [judge.judge(score) for score in scores[valid].tolist()]
        return flags

    def explain(self, series: Any) -> Array:
        """Causes `(time, channel)`: the score of `decision_function` split over the channels, summing to it."""
        return smooth_causally(self._raw_scores(series, shares=True), self.smoothing)

    def stream(self) -> Stream:
        """A stream: `.update(sample)` gives a reading with score, threshold, is_anomaly, channels and state."""
        self._check_fitted("threshold_")
        return Stream(self)

    def judge(self) -> Judge:
        """The rule that turns scores into alarms, at its state after training."""
        self._check_fitted("threshold_")
        judge = self._make_judge(self.normal_scores_, few=self.few_rows_)
        by_hand = judge.value != self.threshold_
        return FixedThreshold(self.threshold_) if by_hand else judge

    @property
    def channel_names_(self) -> tuple[str, ...]:
        """The channels' names, or their numbers where the training data had none."""
        names = getattr(self, "feature_names_in_", None)
        return tuple(map(str, range(self.n_features_in_) if names is None else names))

    def _make_judge(self, normal_scores: Array, *, few: bool) -> Judge:
        return make_judge(self.threshold, normal_scores, risk=self.risk, sample_period=self.sample_period, few=few)

    def _raw_scores(self, series: Any, *, shares: bool = False) -> SeriesScores:
        self._check_fitted("threshold_")
        return score_series(self.scoring_, self.dynamics_, self.scaling_.transform(self._read(series)), shares=shares)

    def _read(self, series: Any) -> Array:
        read = as_series(series)
        names = getattr(self, "feature_names_in_", None)
        check_channels(read.values.shape[1], read.names, self.n_features_in_, names)
        return read.values

    # -- files ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, statistics: bool = True) -> None:
        """Write the detector to a file, atomically.

        Without `statistics` the file is small and holds no training data, and the loaded detector can detect but
        neither learn nor adopt a new subspace.
        """
        self._check_fitted("threshold_")
        save_detector(self, path, statistics=statistics)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a detector from a file; a damaged or foreign file is refused with a `ModelFileError`."""
        return load_detector(cls, path)

    # -- checks -----------------------------------------------------------------------------------------------

    @property
    def _lead(self) -> int:
        """Entries before the first score."""
        return self.window + self.horizon - 1

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise ValueError("This KoopmanDetector is not fitted yet; call fit(train) first.")

    def check_parameters(self) -> None:
        """Refuse parameters that make no sense, each by name; `fit` does this first."""
        for name in ("window", "rank", "horizon", "smoothing"):
            _require(self, name, lambda v: operator.index(v) >= 1, "a whole number above 0")
        for name in ("observables", "seed"):
            _require(self, name, lambda v: operator.index(v) >= 0, "a whole number, 0 or above")
        _require(self, "ridge", lambda v: 0.0 <= v < np.inf, "0 or above, and finite")
        _require(self, "spectral_cap", lambda v: 0.0 < v < np.inf, "above 0, and finite")
        _require(self, "validation", lambda v: 0.0 < v < 1.0, "between 0 and 1")
        _require(self, "risk", lambda v: 0.0 < v < 1.0, "between 0 and 1")
        _require(self, "scoring", lambda v: v in ("calibrated", "paper"), "'calibrated' or 'paper'")
        _require(self, "sample_period", lambda v: v is None or v > 0.0, "a number of seconds above 0, or None")
        check_threshold(self.threshold, self.sample_period)


def _require(detector: KoopmanDetector, name: str, holds: Callable[[Any], bool], allowed: str) -> None:
    value = getattr(detector, name)
    try:
        fine = holds(value)
    except TypeError:
        fine = False
    if not fine:
        raise ValueError(f"{name}={value!r} must be {allowed}.")
