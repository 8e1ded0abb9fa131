"""The estimator: fit on normal data, score, predict, explain, stream, learn on, save."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.calibration import MOST_HELD_OUT, HeldOut, calibrate, first_spared, split
from fedkad.detect.modelfile import join_statistics, load_detector, save_detector
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
from fedkad.detect.threshold import FixedThreshold, Judge, check_threshold, judge_all, make_judge
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced, cap_spectrum, fit_operator, relative_ridge
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.koopman.snapshots import Statistics, collect, stretches
from fedkad.koopman.subspace import own_subspace
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]

FEWEST_PAIRS = 20
"""Snapshot pairs below which nothing can be learnt."""


SETTLED = 1000
"""Scores of normal data from which on a device needs no advice about its threshold."""


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
    learnt_through_ : str
        Where in its feed the last `learn` ended, in the words of whoever feeds it; kept in the model file, so that
        nothing is learnt twice when a feeder is killed after the model was saved.

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

    parameters_: KoopmanDetector
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    lifting_: Lifting
    scaling_: Scaling
    statistics_: Statistics | None
    held_out_: HeldOut | None
    dynamics_: Dynamics
    scoring_: Scoring
    normal_scores_: Array
    few_rows_: bool
    judge_: Judge
    by_hand_: bool
    least_threshold_: float
    learnt_through_: str = ""

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
        """All of the training that needs the data: scaling, statistics, held-out rows. `adopt` does the rest.

        The parameters are read here; a change of them waits for the next `prepare` or `fit`.
        """
        self.check_parameters()
        parameters = type(self)(**self.get_params())
        series = as_series(train)
        refuse_empty_channels(series)
        lifting = Lifting(series.values.shape[1], self.window, self.observables, self.seed)
        if self.rank > lifting.dimension:
            raise ValueError(
                f"rank={self.rank} is larger than the lifted dimension {lifting.dimension} "
                f"({lifting.channels} channels x window {self.window} + {self.observables} observables); lower it."
            )
        if scaling is None:
            scaling = Scaling.fit(parameters._training_rows(series.values))
        statistics, held_out = _gather(scaling.transform(series.values), lifting, parameters)
        self._forget()
        self.parameters_, self.n_features_in_ = parameters, lifting.channels
        if series.names is not None:
            self.feature_names_in_ = np.array(series.names, dtype=object)
        self.lifting_, self.scaling_, self.statistics_, self.held_out_ = lifting, scaling, statistics, held_out
        return self

    def training_moments(self, train: Any) -> ChannelMoments:
        """Moments of the part of the data that scaling is learnt from; a fleet with one scaling merges them."""
        return ChannelMoments.of(self._training_rows(as_series(train).values))

    def _training_rows(self, values: Array) -> Array:
        rows = values[split(values, self.validation, self._lead).training]
        _require_pairs(sum(run.stop - run.start - self.window for run in stretches(rows, self.window + 1)), self.window)
        return rows

    def _forget(self) -> None:
        """Drop everything fitted: nothing of an earlier fit may be mixed with a later one."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def adopt(self, subspace: Array, least_threshold: float = 0.0) -> Self:
        """Take over a subspace, e.g. the fleet's: fit the private operator, calibrate, set the threshold.

        A threshold that was set by hand stays. As long as it rests on fewer than a thousand scores, the threshold is at
        least `least_threshold`: calibrated scores are alike on all devices, and a fleet has seen more.
        """
        statistics, held_out = self.kept()
        self._check_subspace(subspace)
        self.least_threshold_ = least_threshold
        self._take(subspace, statistics, held_out)
        if self.few_rows_:
            rows = int((~np.isnan(held_out.rows).any(axis=1)).sum())
            warnings.warn(
                f"Only {rows} rows: the threshold is a quantile of {len(self.normal_scores_)} "
                "cross-fitted scores instead of a fitted tail, and false alarms are more likely.",
                FewRowsWarning,
                stacklevel=3,
            )
        return self

    def learn(self, series: Any, forgetting: float = 1.0, known: str | Path | None = None) -> Self:
        """Add new normal data to the statistics and refit the private operator, without a round.

        Scaling, subspace and a threshold set by hand stay. As in `fit`, the last `validation` share of the rows judges
        instead of training. With `forgetting` below one, what was known before weighs that much less; a detector
        fitted on few rows still has them all, forgets none, and takes the new ones as if it had been fitted on all of
        them. Windows do not reach from one call into the next: pass long pieces.

        Where memory is scarce, a detector loaded without its statistics may learn: `known` is the file that has them,
        and they are added from there, array by array, to those of the new data.
        """
        if not 0.0 < forgetting <= 1.0:
            raise ValueError(f"forgetting={forgetting} must lie in (0, 1]; 1 forgets nothing.")
        if known is None:
            self.kept()
        parameters = self.parameters_
        fresh = self.scaling_.transform(self._read(series))
        if not any(stretches(fresh, shortest=parameters.window + 1)):
            raise ValueError(
                f"Nothing to learn from: no {parameters.window + 1} consecutive rows are complete; pass a longer piece."
            )
        if self.few_rows_:
            earlier = self if known is None else type(self).load(known)
            rows = join_stretches([earlier.kept()[1].rows, fresh])
            statistics, held_out = _gather(rows, self.lifting_, parameters)
        else:
            first = first_spared(fresh, parameters.validation)
            added = collect(fresh[:first], self.lifting_, parameters.horizon)
            statistics, held_out = self._joined(added, forgetting, known)
            held_out = held_out.extended(fresh[max(first - parameters._lead, 0) :], parameters._lead)
        self._take(self.subspace_, statistics, held_out)
        return self

    def _joined(self, added: Statistics, factor: float, known: str | Path | None) -> tuple[Statistics, HeldOut]:
        """What was known, so many times, and what is added to it."""
        if known is not None:
            return join_statistics(known, added, factor)
        statistics, held_out = self.kept()
        return statistics.scaled(factor) + added, held_out

    def _take(self, subspace: Array, statistics: Statistics, held_out: HeldOut) -> None:
        """Fit and calibrate first, and change the detector only once all of it has worked."""
        parameters = self.parameters_

        def fit_dynamics(known: Statistics) -> Dynamics:
            return Dynamics(self.lifting_, subspace, parameters._operator(known, subspace), parameters.horizon)

        dynamics = fit_dynamics(statistics)
        scoring, normal_scores = calibrate(
            dynamics,
            statistics,
            held_out,
            fit_dynamics,
            paper=parameters.scoring == "paper",
            smoothing=parameters.smoothing,
        )
        judge = self._advised(parameters, normal_scores, few=held_out.crossed)
        self.statistics_, self.held_out_, self.few_rows_ = statistics, held_out, held_out.crossed
        self.dynamics_, self.scoring_, self.normal_scores_ = dynamics, scoring, normal_scores
        if not getattr(self, "by_hand_", False):
            self.judge_, self.by_hand_ = judge, False

    def _advised(self, rule: KoopmanDetector, normal_scores: Array, *, few: bool) -> Judge:
        """The judge by a rule; as long as it rests on few scores, at least the threshold that the fleet advised."""
        judge = rule.make_judge(normal_scores, few=few)
        unsettled = len(normal_scores) < SETTLED and isinstance(rule.threshold, str)
        return FixedThreshold(self.least_threshold_) if unsettled and judge.value < self.least_threshold_ else judge

    def _operator(self, statistics: Statistics, subspace: Array) -> Array:
        reduced = Reduced.at(statistics, subspace)
        ridge = relative_ridge(reduced, self.ridge)
        return cap_spectrum(fit_operator(reduced, ridge, always=self.scoring != "paper"), self.spectral_cap)

    def make_judge(self, normal_scores: Array, *, few: bool) -> Judge:
        """The rule that these parameters make of the scores of normal data."""
        return make_judge(self.threshold, normal_scores, risk=self.risk, sample_period=self.sample_period, few=few)

    def kept(self) -> tuple[Statistics, HeldOut]:
        """What is kept of the training data: the statistics, and the rows that set the threshold."""
        self._check_fitted("lifting_")
        if self.statistics_ is None or self.held_out_ is None:
            raise ValueError("This detector was saved without its statistics and can only detect; fit it again.")
        return self.statistics_, self.held_out_

    # -- what was fitted ----------------------------------------------------------------------------------------

    @property
    def subspace_(self) -> Array:
        """The subspace Z, `(D, r)`, orthonormal."""
        return self.dynamics_.subspace

    @property
    def operator_(self) -> Array:
        """The private operator Q, `(r, r)`, its spectrum capped."""
        return self.dynamics_.operator

    @property
    def threshold_(self) -> float:
        """Scores above it are anomalies; it can be set by hand."""
        return self.judge_.value

    @threshold_.setter
    def threshold_(self, value: float) -> None:
        check_threshold(value, None)
        self.judge_, self.by_hand_ = FixedThreshold(float(value)), True

    def rejudge(self, threshold: str | float, sample_period: float | None = None) -> Self:
        """Set the threshold by another rule, from the scores of normal data that the detector has kept."""
        check_threshold(threshold, sample_period)
        rule = type(self)(**{**self.parameters_.get_params(), "threshold": threshold, "sample_period": sample_period})
        self.judge_, self.by_hand_ = self._advised(rule, self.normal_scores_, few=self.few_rows_), False
        return self

    @property
    def channel_names_(self) -> tuple[str, ...]:
        """The channels' names, or their numbers where the training data had none."""
        names = getattr(self, "feature_names_in_", None)
        return tuple(map(str, range(self.n_features_in_) if names is None else names))

    # -- detection --------------------------------------------------------------------------------------------

    def decision_function(self, series: Any) -> Array:
        """Scores `(time,)`, higher is more abnormal; entry t depends on samples up to t only.

        NaN until a window is full and a prediction old enough to be judged, at the start and after every gap.
        """
        return smooth_causally(self._raw_scores(series), self.parameters_.smoothing)

    def score_series(self, series: Any) -> Array:
        """Scores `(time,)` of recorded data: the mean from a third of a window before to a third after each entry."""
        return smooth_centred(self._raw_scores(series), self.parameters_.window // 3)

    def predict(self, series: Any) -> NDArray[np.int64]:
        """1 where the causal score is above the threshold, 0 elsewhere and where there is no score."""
        _, alarms = judge_all(self.judge(), self.decision_function(series))
        return alarms.astype(np.int64)

    def explain(self, series: Any) -> Array:
        """Causes `(time, channel)`: the score of `decision_function` split over the channels, summing to it."""
        return smooth_causally(self._raw_scores(series, shares=True), self.parameters_.smoothing)

    def stream(self) -> Stream:
        """A stream: `.update(sample)` gives a reading with score, threshold, is_anomaly, channels and state."""
        self._check_fitted("dynamics_")
        return Stream(self)

    def judge(self) -> Judge:
        """The rule that turns scores into alarms, at its state after training; it may adapt as it is used."""
        self._check_fitted("dynamics_")
        return copy.deepcopy(self.judge_)

    def _raw_scores(self, series: Any, *, shares: bool = False) -> SeriesScores:
        self._check_fitted("dynamics_")
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
        self._check_fitted("dynamics_")
        save_detector(self, path, statistics=statistics)

    @classmethod
    def load(cls, path: str | Path, *, statistics: bool = True) -> Self:
        """Read a detector from a file; a damaged or foreign file is refused with a `ModelFileError`.

        Without `statistics` it takes a tenth of the memory and can only detect.
        """
        return load_detector(cls, path, statistics=statistics)

    # -- checks -----------------------------------------------------------------------------------------------

    @property
    def _lead(self) -> int:
        """Entries before the first score."""
        return self.window + self.horizon - 1

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise ValueError("This KoopmanDetector is not fitted yet; call fit(train) first.")

    def _check_subspace(self, subspace: Array) -> None:
        expected = (self.lifting_.dimension, self.parameters_.rank)
        if subspace.shape != expected:
            raise ValueError(f"The subspace has shape {subspace.shape} instead of {expected}; was it of other devices?")
        if not np.allclose(subspace.T @ subspace, np.eye(expected[1]), atol=1e-6):
            raise ValueError("The columns of the subspace are not orthonormal; pass its polar factor.")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's pipelines ask for; it is imported only when they do."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type="outlier_detector",
            target_tags=TargetTags(required=False),
            input_tags=InputTags(allow_nan=True),
        )

    def check_parameters(self) -> None:
        """Refuse parameters that make no sense, each by name; `fit` does this first."""
        for name in ("window", "rank", "horizon", "smoothing"):
            _require(self, name, lambda v: operator.index(v) >= 1, "a whole number above 0")
        for name in ("observables", "seed"):
            _require(self, name, lambda v: operator.index(v) >= 0, "a whole number, 0 or above")
        _require(self, "ridge", lambda v: 0.0 <= v < np.inf, "0 or above, and finite")
        _require(self, "spectral_cap", lambda v: 0.0 < v < np.inf, "above 0, and finite")
        _require(self, "validation", lambda v: 0.0 < v < 1.0, "between 0 and 1, both excluded")
        _require(self, "risk", lambda v: 0.0 < v < 1.0, "between 0 and 1, both excluded")
        _require(self, "scoring", lambda v: v in ("calibrated", "paper"), "'calibrated' or 'paper'")
        _require(self, "sample_period", lambda v: v is None or v > 0.0, "a number of seconds above 0, or None")
        check_threshold(self.threshold, self.sample_period)


def _gather(scaled: Array, lifting: Lifting, parameters: KoopmanDetector) -> tuple[Statistics, HeldOut]:
    """Statistics of the training rows, and the rows that judge."""
    parts = split(scaled, parameters.validation, parameters._lead)
    statistics = collect(scaled[parts.training], lifting, parameters.horizon)
    _require_pairs(statistics.count, parameters.window)
    if parts.held_out is not None:
        return statistics, HeldOut(parts.held_out, crossed=False)
    if statistics.count > MOST_HELD_OUT:
        raise ValueError(
            f"validation={parameters.validation} of {len(scaled)} rows is too little to set a threshold; raise it."
        )
    return statistics, HeldOut(scaled, crossed=True)


def _require_pairs(count: float, window: int) -> None:
    if count < FEWEST_PAIRS:
        raise ValueError(
            f"Too few rows: only {int(count)} windows of {window} consecutive complete samples have a "
            f"successor, and at least {FEWEST_PAIRS} are needed; pass more rows or a shorter window."
        )


def _require(detector: KoopmanDetector, name: str, holds: Callable[[Any], bool], allowed: str) -> None:
    value = getattr(detector, name)
    try:
        fine = holds(value)
    except TypeError:
        fine = False
    if not fine:
        raise SettingError(name, value, allowed)
