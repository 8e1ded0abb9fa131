"""The estimator: fit on normal data, score, predict, explain, stream, keep learning, save.

It is the scikit-learn face of two values, a `Model` and a `Memory`; the work is done by `learning`, `scoring`,
`threshold` and `modelfile`.
"""

import inspect
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedkad.detect import learning
from fedkad.detect.events import Gathering, examine, judge_series, rows_lasting, rows_within
from fedkad.detect.frames import event_table, framed
from fedkad.detect.methods import ScoringName, method_of, parameter_of
from fedkad.detect.model import DetectorSettings, Memory, Model, ScoringMethod, Setup
from fedkad.detect.modelfile import StoredMemory, load_model, save_model
from fedkad.detect.scoring import SeriesScores, forecast_series, score_series, smooth_causally
from fedkad.detect.series import Recording, as_series, sampling_period
from fedkad.detect.stream import Stream
from fedkad.detect.threshold import USUAL_SHAPE, check_threshold
from fedkad.detect.witnesses import WITNESSES
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.progress import Report, unheard
from fedkad.settingerror import SettingError
from fedkad.settingkinds import parse_duration
from fedkad.timesteps import is_other_rate

Array = NDArray[np.float64]


class FewRowsWarning(UserWarning):
    """The training data was too short to set a threshold that deserves trust, or had too many holes to learn from."""


class NotFittedError(ValueError, AttributeError):
    """The detector has no model yet; an `AttributeError` too, so that `hasattr` says False for what is fitted."""

    def __init__(self) -> None:
        super().__init__("This KoopmanDetector is not fitted yet; call fit(train) first.")


def _not_fitted() -> NotFittedError:
    """The error, which is scikit-learn's of that name too where that is loaded."""
    exceptions = sys.modules.get("sklearn.exceptions")
    if exceptions is None:
        return NotFittedError()
    both: type[NotFittedError] = type("NotFittedError", (NotFittedError, exceptions.NotFittedError), {})
    return both()


class KoopmanDetector:
    """Detect departures of a multivariate time series from its normal dynamics.

    Sliding windows are lifted by fixed random tanh observables, projected on a low-rank subspace, and predicted one
    step ahead by a small linear operator. Three witnesses judge a sample: whether it moved as predicted, whether the
    whole window fits its prediction, and whether the device has been there before. Their sum is the score.

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
    scoring : {"witnesses", "paper"} or ScoringMethod
        Three witnesses; the squared residual of the whole lifted window; or another kind of score.
    threshold : {"pot", "quantile"}, a budget such as "1/week", or a number
        How the threshold is set without labels: by an extreme-value fit to the peaks of normal data, no higher than the
        peaks themselves, by a budget of false alarms (needs `sample_period`), or a fixed value. All are about events:
        alarms at most a window apart are one.
    validation : float
        Share of the training data that is left out at a time to get scores of data that was not learned from. Without
        witnesses: the last share, which sets the threshold and is never learned from.
    risk : float
        False alarm events per row.
    private : int
        Directions of the device's own, beside the `rank` that a fleet shares; they never leave the device. Only
        witnesses use them.
    inputs : sequence of str
        Channels that are commands or set-points, by name ("0", "1", … where they have none): they help to predict the
        others, and are not judged by prediction.
    sample_period : float, optional
        Seconds between samples; a frame's DatetimeIndex gives it if it is not set.
    seed : int
        Seed of the observables.

    Attributes
    ----------
    subspace_ : (D, r + private), operator_ : square, threshold_ : float, n_features_in_ : int
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

    # A new parameter goes here, into `DetectorSettings`, and with its help into DETECTOR_OPTIONS of the command line.
    def __init__(
        self,
        window: int = 20,
        rank: int = 24,
        observables: int = 128,
        horizon: int = 1,
        ridge: float = 1e-2,
        spectral_cap: float = 0.995,
        smoothing: int = 5,
        scoring: ScoringName | ScoringMethod = "witnesses",
        threshold: str | float = "pot",
        validation: float = 0.15,
        risk: float = 1e-4,
        private: int = 8,
        inputs: Sequence[str | int] = (),
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
        self.private = private
        self.inputs = inputs
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
        allowed = self.get_params()
        for name, value in parameters.items():
            if name not in allowed:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(allowed)}.")
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
        parameters = self.get_params()
        inputs = parameters["inputs"]
        if isinstance(inputs, Iterable) and not isinstance(inputs, str):
            parameters["inputs"] = tuple(int(name) if isinstance(name, np.integer) else name for name in inputs)
        parameters["scoring"] = method_of(parameters["scoring"])
        return DetectorSettings(**parameters)

    def _settings_for(self, train: Any) -> DetectorSettings:
        """The settings, with the sampling period of a frame that has times unless it is set."""
        settings = self.settings
        period = sampling_period(train) if settings.sample_period is None else None
        return settings if period is None else replace(settings, sample_period=period)

    def fit(self, train: Any, y: object = None, *, progress: Report = unheard) -> Self:
        """Fit on normal data: `(time, channel)` array or DataFrame, or a list of separate stretches.

        `progress` is called with how many rows of how many are done.
        """
        series = as_series(train)
        model, memory = learning.fit(self._settings_for(train), series, progress)
        if sentence := learning.training_loss_note(series, memory.statistics.count):
            warnings.warn(sentence, FewRowsWarning, stacklevel=2)
        return self._take(model, memory)

    def prepare(self, train: Any, scaling: Scaling | None = None) -> Self:
        """Do everything in training that needs the data; `adopt` does the rest.

        The parameters are read here; changing them later has no effect until the next `prepare` or `fit`.
        """
        memory = learning.prepare(self._settings_for(train), as_series(train), scaling)
        vars(self).pop("model_", None)  # nothing of an earlier fit may be mixed with a later one
        self._memory = memory
        return self

    def adopt(self, subspace: Array, least_threshold: float = 0.0, usual_shape: float = USUAL_SHAPE) -> Self:
        """Take over a subspace, e.g. the fleet's: fit the private operator, calibrate, set the threshold.

        A threshold set by hand stays. As long as the threshold rests on fewer than a thousand scores, it is at least
        `least_threshold`, and the tail of the scores is expected to have the `usual_shape`: calibrated scores are alike
        on all devices, and a fleet has seen more.
        """
        model = vars(self).get("model_")
        advice = {"least_threshold": least_threshold, "usual_shape": usual_shape}
        adopted = learning.adopt(self.memory_, subspace, **advice, previous=model)
        return self._take(adopted, self.memory_)

    def _take(self, model: Model, memory: Memory) -> Self:
        self.model_, self._memory = model, memory
        if model.few_rows:
            rows = int((~np.isnan(memory.held_out.rows).any(axis=1)).sum())
            warnings.warn(
                f"Only {rows} rows: the threshold rests on {np.count_nonzero(~np.isnan(model.normal_scores))} "
                "cross-fitted scores, and false alarms are more likely.",
                FewRowsWarning,
                stacklevel=3,
            )
        return self

    def learn(
        self,
        series: Any,
        forgetting: float | str = 1.0,
        known: str | Path | None = None,
        *,
        confirmed: bool = False,
    ) -> Self:
        """Add new normal data to the statistics and refit the private operator, without a round.

        Scaling, subspace and a threshold set by hand stay. With `forgetting`, what was known before weighs less: by a
        share in (0, 1], or by a half-life such as "5000 rows" or "30 days"; statistics and places forget alike. A
        detector fitted on few rows still has all of them, forgets none, and takes the new ones as if it had been fitted
        on all of them. Windows do not reach from one call into the next, so pass long pieces.

        A stretch that an operator `confirmed` to be normal is not judged: it sets no threshold, the places widen to it,
        and scoring it again raises no alarm. Everything between those places and the known ones counts as seen.

        To save memory, load a detector without its statistics and pass the file that has them as `known`: they are
        added array by array to those of the new data.
        """
        model = self._fitted()
        memory = self.memory_ if known is None else StoredMemory(known)
        scaled = model.setup.scale(series)
        self.model_, self._memory = learning.learn(model, memory, scaled, forgetting, confirmed=confirmed)
        return self

    # -- what was fitted ----------------------------------------------------------------------------------------

    @classmethod
    def of(cls, model: Model, memory: Memory | None = None) -> Self:
        """A detector with this model, and with this memory if it is to go on learning."""
        detector = cls(**{**vars(model.settings), "scoring": parameter_of(model.settings.scoring)})
        detector.model_, detector._memory = model, memory
        return detector

    def _fitted(self) -> Model:
        if "model_" not in vars(self):
            raise _not_fitted()
        return self.model_

    @property
    def memory_(self) -> Memory:
        """What is kept of the training data: statistics and rows, as `Memory` lists them."""
        if "_memory" not in vars(self):
            raise _not_fitted()
        if self._memory is None:
            raise ValueError("This detector was saved without its statistics and can only detect; fit it again.")
        return self._memory

    @property
    def subspace_(self) -> Array:
        """The subspace Z, `(D, r + private)`, orthonormal: the shared directions, then the device's own."""
        return self._fitted().dynamics.subspace

    @property
    def operator_(self) -> Array:
        """The private operator Q, square, its spectrum capped."""
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
        self.model_ = model.with_rule(model.settings.rule(threshold, sample_period))
        return self

    # -- detection --------------------------------------------------------------------------------------------

    def decision_function(self, series: Any) -> Array:
        """Scores `(time,)`, higher is more abnormal; entry t depends on samples up to t only.

        NaN until a window is full and a prediction old enough to be judged, at the start and after every gap. The times
        of a frame show gaps as well; the scores are those of its rows.
        """
        recording, raw = self._scored(series)
        return recording.of_rows(raw.causal(self._fitted().settings.smoothing))

    def score_samples(self, series: Any) -> Array:
        """The scores of `decision_function` with the other sign: lower is more abnormal, as in scikit-learn."""
        recording, raw = self._scored(series)
        return -recording.of_rows(raw.causal(self._fitted().settings.smoothing))

    def score_series(self, series: Any) -> Array:
        """Scores `(time,)` of recorded data, which look ahead: means over the entries around each.

        They reach half a window to either side, and a third of one with the score of the paper.
        """
        recording, raw = self._scored(series)
        return recording.of_rows(raw.offline())

    def predict(self, series: Any, unscored: int = 0) -> NDArray[np.int64]:
        """1 where the causal score is above the threshold, 0 elsewhere, `unscored` where there is no score.

        An entry without a score is not a healthy one: pass `unscored=-1` to tell them apart.
        """
        if not isinstance(unscored, int | np.integer):
            raise SettingError("unscored", unscored, "an integer, such as -1")
        recording, raw = self._scored(series)
        *_, alarms = judge_series(self._fitted(), raw)
        return recording.of_rows(np.where(np.isnan(raw.terms[:, 0]), unscored, alarms).astype(np.int64))

    def fit_predict(self, series: Any, y: object = None) -> NDArray[np.int64]:
        """Fit, and predict the same data: what is left after it was learned from, which is less than new data shows."""
        return self.fit(series).predict(series)

    def events(self, series: Any, *, merge: int | str = 0, min_duration: int | str = 1) -> Any:
        """The alarms gathered into events.

        Parameters
        ----------
        series
            A frame gives a frame with one row per event: `start`, `end` and `peak` as its index has them, `kind`, the
            witness that leads, `channels`, those to look at, and a `sentence`. Anything else gives a tuple of
            `Event`s, whose start, end and peak are entries, with the share of every channel.
        merge : int or str
            Alarms at most this far apart are one event: rows, or a time such as "10m" if the sampling period is known.
            Those at most a window apart are one in any case.
        min_duration : int or str
            Events that are shorter are left out.
        """
        gathering = Gathering(self._rows_in("merge", merge), self._rows_in("min_duration", min_duration))
        findings = examine(self._fitted(), series, gathering)
        self._warn_of_other_rate(series, stacklevel=3)
        return event_table(findings.events, series)

    def _rows_in(self, name: str, duration: int | str) -> int:
        """A number of rows, or a time in sampling periods."""
        if isinstance(duration, int | np.integer) and duration >= 0:
            return int(duration)
        seconds, period = parse_duration(duration) if isinstance(duration, str) else None, self._fitted().sample_period
        if seconds is None or period is None:
            allowed = "a number of rows, or a time such as '10m' if the sampling period is known"
            raise SettingError(name, duration, allowed)
        return rows_within(seconds, period) if name == "merge" else rows_lasting(seconds, period)

    def forecast(self, series: Any) -> Any:
        """The samples that were expected, `(time, channel)`, in the units of the series; NaN where there is no score.

        Entry t was predicted from the samples up to t − H. A frame gives a frame.
        """
        model = self._fitted()
        recording = model.setup.record(series)
        self._warn_of_other_rate(series, stacklevel=3)
        expected = model.setup.scaling.restore(forecast_series(model.scoring, recording.series.values))
        return framed(recording.of_rows(expected), series, model.setup.channel_names)

    def witnesses(self, series: Any) -> Any:
        """What each of `fedkad.WITNESSES` adds to the score of `decision_function`, `(time, 3)`: motion, fit, place.

        A frame gives a frame.
        """
        model = self._fitted()
        if model.scoring.bounds is None:
            raise ValueError(f"scoring={model.settings.scoring.name!r} has no witnesses; fit with scoring='witnesses'.")
        recording, raw = self._scored(series)
        terms = smooth_causally(raw.terms, raw.runs, model.settings.smoothing)
        contributions = np.stack(model.scoring.contributions(list(terms.T)), axis=1)
        return framed(recording.of_rows(contributions), series, WITNESSES)

    def explain(self, series: Any) -> Any:
        """Causes `(time, channel)`: the score of `decision_function` split over the channels, summing to it.

        A frame gives a frame.
        """
        recording, raw = self._scored(series)
        shares = raw.causal_shares(self._fitted().settings.smoothing)
        return framed(recording.of_rows(shares), series, self._setup.channel_names)

    def stream(self, *, follow: bool = False) -> Stream:
        """A stream: `.update(sample)` gives a `Reading`.

        It has score, threshold, is_anomaly, state, channels, a sentence and the `kind`: the witness that leads.

        With `follow` a threshold that was set by a budget moves with the alarms of the stream, so that the budget is
        kept whatever the first one was worth.
        """
        return Stream(self._fitted(), follow=follow)

    def _scored(self, series: Any) -> tuple[Recording, SeriesScores]:
        """The series as it was read, and its scores; called by public methods only, whose caller a warning is for."""
        model = self._fitted()
        recording = model.setup.record(series)
        self._warn_of_other_rate(series, stacklevel=4)
        return recording, score_series(model.scoring, recording.series.values)

    def _warn_of_other_rate(self, series: Any, stacklevel: int) -> None:
        """Warn if the times of a frame say that it has another sampling rate than the training data."""
        period, fitted = sampling_period(series), self._fitted().settings.sample_period
        if is_other_rate(period, fitted):
            warnings.warn(
                f"There is a row every {period:g} s, but the detector was fitted to one every {fitted:g} s; resample "
                "the data, or fit a detector to data of this rate.",
                UserWarning,
                stacklevel=stacklevel,
            )

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
