"""The estimator: fit on normal data, score, predict, explain, stream, keep learning, save.

It is the scikit-learn face of two values, a `Model` and a `Memory`; the work is done by `learning`, `scoring`,
`threshold` and `modelfile`.
"""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkad.detect import learning
from fedkad.detect.model import DetectorSettings, Memory, Model, Setup
from fedkad.detect.modelfile import StoredMemory, load_model, save_model
from fedkad.detect.scoring import SeriesScores, forecast_series, score_series, smooth_causally, smooth_centred
from fedkad.detect.series import as_series
from fedkad.detect.stream import Stream
from fedkad.detect.threshold import ThresholdRule, check_threshold, judge_all
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]


class FewRowsWarning(UserWarning):
    """The training data was too short to hold rows out, so the threshold is a cross-fitted quantile."""


class NotFittedError(ValueError, AttributeError):
    """The detector has no model yet; an `AttributeError` too, so that `hasattr` says False for what is fitted."""

    def __init__(self) -> None:
        super().__init__("This KoopmanDetector is not fitted yet; call fit(train) first.")


class KoopmanDetector:
    """Detect departures of a multivariate time series from its normal dynamics.

    Sliding windows are lifted by fixed random tanh observables, projected on a low-rank subspace, and predicted one
    step ahead by a small linear operator. The score of a sample is its departure from the prediction, in units of what
    is usual for each channel.

    Use it for several coupled channels sampled at a steady rate, with training data that is mostly normal. Do not
    use it for a handful of samples, for events without a sampling rate, or to find anomalies in the training data.

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
        How the threshold is set without labels: an extreme-value fit, the same fit adapting as the stream goes on, the
        same following a drift, a plain quantile, a budget of false alarms (needs `sample_period`), or a fixed value.
    validation : float
        Last share of the training data, which sets the threshold and is not learned from.
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
    model_ : Model
        Everything that detection needs, as a frozen value.
    memory_ : Memory
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

    model_: Model
    _memory: Memory | None

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

    # -- parameters, as scikit-learn expects them --------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name; `deep` is there for scikit-learn and changes nothing."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Change some of the constructor's arguments; they take effect at the next fit."""
        known = self.get_params()
        for name, value in parameters.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        shown = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name].default]
        return f"{type(self).__name__}({', '.join(shown)})"

    # -- training ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> DetectorSettings:
        """The parameters as a value, as they are now."""
        return DetectorSettings(**self.get_params())

    def fit(self, train: Any, y: object = None) -> Self:
        """Fit on normal data: `(time, channel)` array or DataFrame, or a list of separate stretches."""
        return self._take(*learning.fit(self.settings, as_series(train)))

    def prepare(self, train: Any, scaling: Scaling | None = None) -> Self:
        """Do everything in training that needs the data; `adopt` does the rest.

        The parameters are read here; changing them later has no effect until the next `prepare` or `fit`.
        """
        memory = learning.prepare(self.settings, as_series(train), scaling)
        vars(self).pop("model_", None)  # nothing of an earlier fit may be mixed with a later one
        self._memory = memory
        return self

    def adopt(self, subspace: Array, least_threshold: float = 0.0) -> Self:
        """Take over a subspace, e.g. the fleet's: fit the private operator, calibrate, set the threshold.

        A threshold set by hand stays. As long as the threshold rests on fewer than a thousand scores, it is at least
        `least_threshold`: calibrated scores are alike on all devices, and a fleet has seen more.
        """
        model = vars(self).get("model_")
        adopted = learning.adopt(self.memory_, subspace, least_threshold=least_threshold, previous=model)
        return self._take(adopted, self.memory_)

    def _take(self, model: Model, memory: Memory) -> Self:
        self.model_, self._memory = model, memory
        if model.few_rows:
            rows = int((~np.isnan(memory.held_out.rows).any(axis=1)).sum())
            warnings.warn(
                f"Only {rows} rows: the threshold is a quantile of {len(model.normal_scores)} "
                "cross-fitted scores instead of a fitted tail, and false alarms are more likely.",
                FewRowsWarning,
                stacklevel=3,
            )
        return self

    def learn(self, series: Any, forgetting: float = 1.0, known: str | Path | None = None) -> Self:
        """Add new normal data to the statistics and refit the private operator, without a round.

        Scaling, subspace and a threshold set by hand stay. As in `fit`, the last `validation` share of the rows sets
        the threshold instead of training. With `forgetting` below one, what was known before weighs that much less; a
        detector fitted on few rows still has all of them, forgets none, and takes the new ones as if it had been fitted
        on all of them. Windows do not reach from one call into the next, so pass long pieces.

        To save memory, load a detector without its statistics and pass the file that has them as `known`: they are
        added array by array to those of the new data.
        """
        model = self._fitted()
        memory = self.memory_ if known is None else StoredMemory(known)
        self.model_, self._memory = learning.learn(model, memory, model.setup.scale(series), forgetting)
        return self

    # -- what was fitted ----------------------------------------------------------------------------------------

    @classmethod
    def of(cls, model: Model, memory: Memory | None = None) -> Self:
        """A detector with this model, and with this memory if it is to go on learning."""
        detector = cls(**vars(model.settings))
        detector.model_, detector._memory = model, memory
        return detector

    def _fitted(self) -> Model:
        if "model_" not in vars(self):
            raise NotFittedError
        return self.model_

    @property
    def memory_(self) -> Memory:
        """The statistics and the held-out rows."""
        if "_memory" not in vars(self):
            raise NotFittedError
        if self._memory is None:
            raise ValueError("This detector was saved without its statistics and can only detect; fit it again.")
        return self._memory

    @property
    def subspace_(self) -> Array:
        """The subspace Z, `(D, r)`, orthonormal."""
        return self._fitted().dynamics.subspace

    @property
    def operator_(self) -> Array:
        """The private operator Q, `(r, r)`, its spectrum capped."""
        return self._fitted().dynamics.operator

    @property
    def scaling_(self) -> Scaling:
        """z-scores of the channels."""
        return self._setup.scaling

    @property
    def lifting_(self) -> Lifting:
        """The lifting Φ."""
        return self._setup.lifting

    @property
    def n_features_in_(self) -> int:
        """Number of channels."""
        return self._setup.channels

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the channels; missing, as in scikit-learn, if the training data had none."""
        names = self._setup.names
        if names is None:
            raise AttributeError("The training data had no channel names.")
        return np.array(names, dtype=object)

    @property
    def _setup(self) -> Setup:
        """Of the model or, before a subspace was adopted, of the memory alone."""
        return self.model_.setup if "model_" in vars(self) else self.memory_.setup

    @property
    def threshold_(self) -> float:
        """Scores above it are anomalies; it can be set by hand."""
        return self._fitted().threshold

    @threshold_.setter
    def threshold_(self, value: float) -> None:
        self.model_ = self._fitted().with_threshold(value)

    def rejudge(self, threshold: str | float, sample_period: float | None = None) -> Self:
        """Set the threshold by another rule, from the scores of normal data that the detector has kept."""
        check_threshold(threshold, sample_period)
        model = self._fitted()
        self.model_ = model.judged_by(ThresholdRule(threshold, model.settings.risk, sample_period))
        return self

    # -- detection --------------------------------------------------------------------------------------------

    def decision_function(self, series: Any) -> Array:
        """Scores `(time,)`, higher is more abnormal; entry t depends on samples up to t only.

        NaN until a window is full and a prediction old enough to be judged, at the start and after every gap.
        """
        raw = self._raw_scores(series)
        return smooth_causally(raw.values, raw.runs, self.model_.settings.smoothing)

    def score_series(self, series: Any) -> Array:
        """Scores `(time,)` of recorded data: the mean from a third of a window before to a third after each entry."""
        raw = self._raw_scores(series)
        return smooth_centred(raw.values, raw.runs, self.model_.settings.offline_reach)

    def predict(self, series: Any, unscored: int = 0) -> NDArray[np.int64]:
        """1 where the causal score is above the threshold, 0 elsewhere, `unscored` where there is no score.

        An entry without a score is not a healthy one: pass `unscored=-1` to tell them apart.
        """
        if not isinstance(unscored, int | np.integer):
            raise SettingError("unscored", unscored, "an integer, such as -1")
        scores = self.decision_function(series)
        _, alarms = judge_all(self._fitted().judge(), scores)
        return np.where(np.isnan(scores), unscored, alarms).astype(np.int64)

    def forecast(self, series: Any) -> Array:
        """The samples that were expected, `(time, channel)`, in the units of the series; NaN where there is no score.

        Entry t was predicted from the samples up to t − H.
        """
        model = self._fitted()
        return model.setup.scaling.restore(forecast_series(model.scoring, model.setup.scale(series)))

    def explain(self, series: Any) -> Array:
        """Causes `(time, channel)`: the score of `decision_function` split over the channels, summing to it."""
        raw = self._raw_scores(series, shares=True)
        return smooth_causally(raw.shares, raw.runs, self.model_.settings.smoothing)

    def stream(self) -> Stream:
        """A stream: `.update(sample)` gives a reading with score, threshold, is_anomaly, channels and state."""
        return Stream(self._fitted())

    def _raw_scores(self, series: Any, *, shares: bool = False) -> SeriesScores:
        model = self._fitted()
        return score_series(model.scoring, model.setup.scale(series), shares=shares)

    # -- files ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, statistics: bool = True) -> None:
        """Write the detector to a file, atomically.

        Without `statistics` the file is small and holds no training data; the loaded detector can detect, but neither
        learn nor adopt a new subspace.
        """
        save_model(path, self._fitted(), self._memory if statistics else None)

    @classmethod
    def load(cls, path: str | Path, *, statistics: bool = True) -> Self:
        """Read a detector from a file; a damaged or foreign file is refused with a `ModelFileError`.

        Without `statistics` it takes a tenth of the memory and can only detect.
        """
        return cls.of(*load_model(path, memory=statistics))

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn's pipelines; scikit-learn is imported only when they ask."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type="outlier_detector",
            target_tags=TargetTags(required=False),
            input_tags=InputTags(allow_nan=True),
        )
