"""What a device knows, as frozen values: a `Model` to detect with, and a `Memory` to go on learning from.

    DetectorSettings   the constructor's parameters, fixed when training begins
    ScoringMethod      which kind of score, before it knows a device
    Setup              settings, channel names and scaling: shared by all that is made of one training
    Memory             the setup, the statistics of the training data and the held-out rows
    Model              the setup, how to score, and the threshold

`learning` makes these values of data and of each other, `modelfile` stores them, and `scoring`, `stream` and `events`
apply a model. Nobody changes one: `dataclasses.replace` makes another.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import longest_hole
from fedkad.detect.dynamics import Dynamics
from fedkad.detect.expectation import expectation_sentence, lowest_threshold
from fedkad.detect.heldout import HeldOut
from fedkad.detect.ranges import KnownRanges
from fedkad.detect.scoring import Explanation, ScoredWindow, Scoring, Steps
from fedkad.detect.series import Recording, Series, as_recording, check_channels
from fedkad.detect.threshold import (
    USUAL_SHAPE,
    EventThreshold,
    ThresholdRule,
    check_threshold,
)
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import Statistics
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]
Fit = Callable[[Reduced], Dynamics]
"""Fits the dynamics of statistics that are reduced to a subspace."""

SETTLED = 1000  # with this many scores of normal data a device needs no advice about its threshold

INPUTS = "a list of channels: their names, or their numbers where they have none"


def _is_channel(name: object) -> bool:
    return isinstance(name, str | Integral) and not isinstance(name, bool)


class ScoringMethod(Protocol):
    """A kind of score: what it learns from, how it is calibrated, and what a file keeps of it.

    `methods` has those that are chosen by name. A detector takes any other object with these members as its `scoring`,
    as the benchmark's ablations do.
    """

    name: ClassVar[str]  # in files and messages
    least_threshold: ClassVar[float]  # the lowest that a rule may set: below it nothing is a departure
    holds_out: ClassVar[bool]  # the last share of the rows sets the threshold and is not learned from
    bridges: ClassVar[bool]  # short holes are filled with predictions
    has_private: ClassVar[bool]  # it uses directions of the device's own beside those that a fleet shares
    is_comparable: ClassVar[bool]  # scores mean the same on all devices, so that a fleet may advise thresholds
    always_regularised: ClassVar[bool]  # the ridge is added to every operator, not only to ill-conditioned ones

    def cleaned(self, values: Array) -> Array:
        """The training values, without those that must not be learned from."""

    def ranges(self, setup: Setup, scaled: Array) -> KnownRanges | None:
        """Where the device has been, by scaled training rows; None if the score does not judge that."""

    def calibrate(self, memory: Memory, subspace: Array, fit: Fit) -> tuple[Scoring, Array]:
        """The scoring, and the smoothed scores of rows that it was not fitted on; NaN at gaps."""

    def steps(self, scoring: Any) -> Steps:
        """The scoring one sample at a time."""

    def explain(self, setup: Setup, scoring: Any, windows: Sequence[ScoredWindow], sample: Array) -> Explanation:
        """Explain the score of the last of these windows, all of which are smoothed into it.

        `sample` is the newest one, in its own units.
        """

    def to_arrays(self, scoring: Any) -> dict[str, NDArray[Any]]:
        """What a file keeps of the scoring beside its dynamics."""

    def from_arrays(self, dynamics: Dynamics, arrays: Mapping[str, NDArray[Any]]) -> Scoring:
        """The scoring that a file has kept."""


@dataclass(frozen=True)
class DetectorSettings:
    """The parameters of a `KoopmanDetector`, which documents them."""

    window: int
    rank: int
    observables: int
    horizon: int
    ridge: float
    spectral_cap: float
    smoothing: int
    scoring: ScoringMethod
    threshold: str | float
    validation: float
    risk: float
    sample_period: float | None
    seed: int
    private: int = 0  # for the first model files, which have none
    inputs: tuple[str | int, ...] = ()

    @property
    def lead(self) -> int:
        """Entries before the first score, W + H − 1."""
        return self.window + self.horizon - 1

    @property
    def parameters(self) -> dict[str, Any]:
        """The settings for JSON, with the name of the scoring."""
        return {**vars(self), "scoring": self.scoring.name}

    @property
    def threshold_rule(self) -> ThresholdRule:
        """How these settings set the threshold."""
        return self.rule(self.threshold, self.sample_period)

    def rule(self, threshold: str | float, sample_period: float | None) -> ThresholdRule:
        """Another rule for the scores of these settings."""
        return ThresholdRule(threshold, self.risk, sample_period, self.window, least=self.scoring.least_threshold)

    def check(self) -> None:
        """Raise a `SettingError` for the first parameter that makes no sense."""
        for name in ("window", "rank", "horizon", "smoothing"):
            self._require(name, lambda v: operator.index(v) >= 1, "a positive integer")
        for name in ("observables", "seed", "private"):
            self._require(name, lambda v: operator.index(v) >= 0, "a non-negative integer")
        self._require("ridge", lambda v: 0.0 <= v < np.inf, "non-negative and finite")
        self._require("spectral_cap", lambda v: 0.0 < v < np.inf, "positive and finite")
        self._require("validation", lambda v: 0.0 < v < 1.0, "between 0 and 1, both excluded")
        self._require("risk", lambda v: 0.0 < v < 1.0, "between 0 and 1, both excluded")
        self._require("inputs", lambda v: not isinstance(v, str) and all(_is_channel(name) for name in v), INPUTS)
        self._require("sample_period", lambda v: v is None or v > 0.0, "a positive number of seconds, or None")
        check_threshold(self.threshold, self.sample_period)

    def _require(self, name: str, holds: Callable[[Any], bool], allowed: str) -> None:
        value = getattr(self, name)
        try:
            fine = holds(value)
        except TypeError:
            fine = False
        if not fine:
            raise SettingError(name, value, allowed)


@dataclass(frozen=True, eq=False)
class Setup:
    """What one training fixes before anything is learned: settings, channel names if the data has them, scaling."""

    settings: DetectorSettings
    names: tuple[str, ...] | None
    scaling: Scaling

    @property
    def channels(self) -> int:
        """Number of channels, n."""
        return len(self.scaling.mean)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The channels' names, or their numbers if the training data had no names."""
        return tuple(map(str, range(self.channels))) if self.names is None else self.names

    @cached_property
    def lifting(self) -> Lifting:
        """The lifting Φ."""
        return Lifting(self.channels, self.settings.window, self.settings.observables, self.settings.seed)

    @cached_property
    def inputs(self) -> NDArray[np.bool_]:
        """Which channels are inputs, `(n,)`."""
        marked = np.zeros(self.channels, dtype=np.bool_)
        for name in self.settings.inputs:
            marked[self._number(name)] = True
        return marked

    def _number(self, channel: str | int) -> int:
        if str(channel) in self.channel_names:  # the names of channels that have none are their numbers
            return self.channel_names.index(str(channel))
        raise SettingError("inputs", channel, f"channels of the data, which are {', '.join(self.channel_names)}")

    @property
    def private(self) -> int:
        """Directions of the device's own: as many as are asked for and fit beside the shared ones."""
        room = self.lifting.dimension - self.settings.rank
        return min(self.settings.private, room) if self.settings.scoring.has_private else 0

    def scale(self, data: Any) -> Array:
        """The values of `record`, `(time, channel)`."""
        return self.record(data).series.values

    def record(self, data: Any) -> Recording:
        """A series as users pass it, checked to have these channels, scaled and not clipped."""
        # Between separate stretches the hole must be too long to be bridged.
        gap = longest_hole(self.settings.window) + 1 if self.settings.scoring.bridges else 1
        recording = as_recording(data, gap)
        values, names, _, overwrite_ok = recording.series
        check_channels(values.shape[1], names, self.channels, self.names)
        scaled = self.scaling.standardise(values, out=values if overwrite_ok else None)
        return recording._replace(series=Series(scaled, names))


@dataclass(frozen=True, eq=False)
class Memory:
    """What a device keeps of its training data. It never leaves the device."""

    setup: Setup
    statistics: Statistics
    held_out: HeldOut
    ranges: KnownRanges | None = None  # where the device has been; None if its scoring does not judge that

    def joined(self, added: Statistics, forgetting: float) -> tuple[Statistics, HeldOut]:
        """The statistics times `forgetting` plus those `added`, and the held-out rows."""
        return self.statistics.scaled(forgetting) + added, self.held_out


@dataclass(frozen=True, eq=False)
class Model:
    """Everything that detection needs.

    `learnt_through` says where in its feed the last `learn` ended, in the words of the program that feeds it. It is
    stored with the model so that nothing is learned twice after a kill, and so is `confirmation`: the mark, given by
    that program, of the confirmed rows that were learned since.
    """

    setup: Setup
    scoring: Scoring  # the dynamics (subspace, operator) and how a residual becomes a score
    normal_scores: Array  # of normal data that was not learned from, NaN at gaps; thresholds are set from them
    few_rows: bool  # whether there were too few rows to hold some out
    threshold: float
    rule: ThresholdRule | None  # how the threshold was set; None if a person set it
    least_threshold: float = 0.0  # what the fleet advised: the threshold is not lower while it rests on few scores
    usual_shape: float = USUAL_SHAPE  # of the tails of the fleet's scores, expected of this one while its own are few
    learnt_through: str = ""
    confirmation: str = ""

    @property
    def settings(self) -> DetectorSettings:
        """The settings it was trained with."""
        return self.setup.settings

    @property
    def dynamics(self) -> Dynamics:
        """The lifting, the subspace and the operator."""
        return self.scoring.dynamics

    @property
    def by_hand(self) -> bool:
        """Whether a person set the threshold."""
        return self.rule is None

    @property
    def needs_advice(self) -> bool:
        """Whether the fleet's advice counts: its threshold is set by a rule, from few scores."""
        is_rule = self.rule is not None and isinstance(self.rule.threshold, str)
        return is_rule and int(np.count_nonzero(~np.isnan(self.normal_scores))) < SETTLED

    def with_rule(self, rule: ThresholdRule) -> Model:
        """The model with its threshold set by this rule, and no lower than advised while the scores are few."""
        model = replace(self, rule=rule)
        rule = replace(rule, shape=model.expected_shape)
        value = rule.found(self.normal_scores).value
        return replace(model, rule=rule, threshold=max(value, self.least_threshold) if model.needs_advice else value)

    @property
    def expected_shape(self) -> float:
        """That the tail of the scores is expected to have."""
        return self.usual_shape if self.needs_advice else USUAL_SHAPE

    @property
    def found(self) -> EventThreshold | None:
        """The threshold as its rule found it, with what it rests on; None if a person set it."""
        return None if self.by_hand or self.rule is None else self.rule.found(self.normal_scores)

    @cached_property
    def lowest_threshold(self) -> float:
        """The lower end of what the rule leaves open; the threshold itself if that is unknown."""
        if self.rule is None:
            return self.threshold
        rule = self.rule
        lowest = lowest_threshold(self.normal_scores, rule.rate, rule.apart, shape=rule.shape)
        return self.threshold if np.isnan(lowest) else min(max(lowest, rule.least), self.threshold)

    @property
    def expectation(self) -> str:
        """What false alarms to expect and how much data says so, in words."""
        settings = self.settings
        scores, shape = self.normal_scores, self.expected_shape
        return expectation_sentence(scores, self.threshold, settings.window, self.sample_period, shape)

    @property
    def sample_period(self) -> float | None:
        """Seconds between samples, if they are known."""
        return self.settings.sample_period or (self.rule.sample_period if self.rule else None)

    def with_threshold(self, value: float) -> Model:
        """The model with a threshold that a person chose; learning leaves it alone."""
        check_threshold(value, None)
        return replace(self, threshold=float(value), rule=None)
