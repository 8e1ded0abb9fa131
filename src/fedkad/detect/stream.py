"""One sample in, one reading out: the same scores as in batch, a step at a time."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import longest_hole
from fedkad.detect.model import Model, Setup
from fedkad.detect.scoring import Explanation, ScoredWindow, Scoring, Terms, features_of
from fedkad.detect.series import check_sample
from fedkad.detect.tracking import AlarmTracker
from fedkad.koopman.scaling import CLIP

Array = NDArray[np.float64]
State = Literal["warming", "ok", "bridged", "gap"]

PAGE = 8  # samples of so many windows stand one after the other before they are moved to a new page


@dataclass(slots=True, eq=False)
class Reading:
    """What a detector says about one sample. Two readings are equal if all numbers are, NaN counting as equal."""

    score: float  # smoothed; NaN unless the state is "ok"
    threshold: float  # that the score was compared with
    is_anomaly: bool
    state: State  # the window is filling up, is full, was bridged over a missing sample, or was broken by a hole
    missing: int  # samples still needed before the next score
    seen: Array = field(repr=False, compare=False)  # the sample itself
    _setup: Setup = field(repr=False, compare=False)
    _scoring: Scoring = field(repr=False, compare=False)
    _windows: tuple[ScoredWindow, ...] = field(repr=False, compare=False)
    outside: float = 0.0  # how far the device is from where it has been, in units of place; 0 without a score

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reading):
            return NotImplemented
        ours, theirs = ([each.score, each.threshold, each.missing, each.outside] for each in (self, other))
        is_same_kind = (self.state, self.is_anomaly) == (other.state, other.is_anomaly)
        return is_same_kind and np.array_equal(ours, theirs, equal_nan=True)

    @property
    def shares(self) -> Array:
        """The score split over the channels, summing to it; NaN without a score. Computed when asked for."""
        if not self._windows:
            return np.full(len(self.seen), np.nan)
        scoring, count = self._scoring, len(self._windows)
        moments = [features_of(scoring, window) for window in self._windows]
        terms = np.array([scoring.score(*moment) for moment in moments]).sum(axis=0) / count
        return scoring.split(terms, np.asarray(sum(scoring.shares(*moment) for moment in moments) / count))

    @property
    def outside_by_channel(self) -> Array:
        """How far outside it is, split over the channels. Computed when asked for."""
        if not self._windows:
            return np.zeros(len(self.seen))
        moments = [features_of(self._scoring, window) for window in self._windows]
        return self._scoring.outside(np.mean([self._scoring.shares(*moment) for moment in moments], axis=0))

    @property
    def expected(self) -> Array:
        """The sample that was predicted for this moment, in the units of the sample; NaN without a score."""
        if not self._windows:
            return np.full(len(self.seen), np.nan)
        return self._setup.scaling.restore(self._scoring.expected(features_of(self._scoring, self._windows[-1])[0]))

    @property
    def channels(self) -> list[tuple[str, float]]:
        """Channels and their shares of the score, the largest first; empty without a score."""
        if not self._windows:
            return []
        shares, names = self.shares, self._setup.channel_names
        return [(names[k], float(shares[k])) for k in np.argsort(-shares, kind="stable")]

    @property
    def explanation(self) -> Explanation | None:
        """The witness that leads, its channel and a sentence for people; None without a score."""
        if not self._windows:
            return None
        return self._setup.settings.scoring.explain(self._setup, self._scoring, self._windows, self.seen)

    @property
    def kind(self) -> str:
        """The witness that leads: motion, fit or place; empty without a score."""
        explanation = self.explanation
        return explanation.kind if explanation else ""

    @property
    def sentence(self) -> str:
        """The explanation for people; empty without a score."""
        explanation = self.explanation
        return explanation.sentence if explanation else ""

    @property
    def commands(self) -> list[str]:
        """Channels that are inputs: what people or a controller set."""
        return [self._setup.channel_names[k] for k in np.flatnonzero(self._setup.inputs)]

    @property
    def absent(self) -> list[str]:
        """Channels that are missing in the sample; a score is about the others."""
        return [self._setup.channel_names[k] for k in np.flatnonzero(np.isnan(self.seen))]


class Stream:
    """The state of a detector that watches one live series.

    Attributes
    ----------
    length : int
        Samples needed for the first score.
    tracker : AlarmTracker, optional
        What moves the threshold by the alarms of the stream, if it is to `follow` them.

    Examples
    --------
    >>> from fedkad import KoopmanDetector
    >>> x = np.sin(np.arange(900.0)[:, None] / [[7.0, 11.0]])
    >>> detector = KoopmanDetector(rank=6).fit(x)
    >>> stream = detector.stream()
    >>> readings = [stream.update(sample) for sample in x[:40]]
    >>> readings[0].state, readings[0].missing, readings[-1].state
    ('warming', 20, 'ok')
    >>> bool(np.isclose(readings[-1].score, detector.decision_function(x[:40])[-1]))
    True
    """

    def __init__(self, model: Model, *, follow: bool = False) -> None:
        self.tracker: AlarmTracker | None = None
        self._follows = follow
        self._use(model)
        self._start()

    def _use(self, model: Model) -> None:
        self._setup = setup = model.setup
        self._scaling, self._lifting, self._horizon = setup.scaling, setup.lifting, setup.settings.horizon
        self._scoring, self._smoothing, self._threshold = model.scoring, setup.settings.smoothing, model.threshold
        if self._follows:
            self.tracker = AlarmTracker.of(model)
        self._names, self._named = setup.channel_names, setup.names is not None
        self._mean, self._scale = setup.scaling.mean, setup.scaling.scale

    def _start(self) -> None:
        self.length = self._lifting.window + self._horizon
        self._channels, self._window = self._lifting.channels, self._lifting.window
        self._state_size, self._scored_size = self._lifting.state_size, self.length * self._channels
        # What stands in a page is never written over, because readings look at its samples. A full one is followed by
        # another that begins with the last W + H samples, so that these are always contiguous.
        size = PAGE * self.length * self._channels
        self._page, self._holes = np.empty(size), np.zeros(size, dtype=np.bool_)
        self._end = 0  # of what is written
        self._size = np.empty(self._channels)  # that every step writes over
        self._break()

    def _turn_page(self) -> None:
        kept = self.length * self._channels
        fresh, unmarked = np.empty_like(self._page), np.zeros_like(self._holes)
        fresh[:kept], unmarked[:kept] = self._page[-kept:], self._holes[-kept:]
        self._page, self._holes, self._end = fresh, unmarked, kept

    def _break(self) -> None:
        """Forget the window: the next sample does not follow on from it."""
        self._missing, self._hole = self.length, 0
        self._whole = self.length  # rows since the last one that misses a channel, as far as it matters
        self._forget_scores()

    def _forget_scores(self) -> None:
        self._steps = self._setup.settings.scoring.steps(self._scoring)
        self._terms: deque[Terms] = deque(maxlen=self._smoothing)
        self._scored: deque[ScoredWindow] = deque(maxlen=self._smoothing)

    def _window_before(self, end: int) -> Array:
        """The window that ends there in the page, as a view."""
        return self._page[end - self._state_size : end]

    def adopt(self, model: Model) -> None:
        """Continue with another model, e.g. after a round of the fleet, without losing the window.

        A model with another scaling, lifting or horizon cannot use the window and starts warming up. A threshold that
        follows alarms starts again at that of the new model.
        """
        kept = (self._scaling, self._lifting, self._horizon)
        self._use(model)
        if kept != (self._scaling, self._lifting, self._horizon):
            self._start()
            return
        self._forget_scores()
        full = max(self._rows - self._window + 1, 0)
        for age in reversed(range(full)):
            window = self._window_before(self._end - age * self._channels)
            self._steps.skip(window, window[-self._channels :])

    @property
    def memory(self) -> int:
        """Samples that bring a new stream to the state of this one."""
        return self.length + self._smoothing - 1

    def update(
        self, sample: Any, *, threshold: float | None = None, adapt: bool = True, bridge: bool = True
    ) -> Reading:
        """Take one sample, one value per channel, NaN where it is missing: in their order, or by name in a mapping.

        The score is compared with the `threshold` of the stream, unless another one is passed; one that follows alarms
        takes this sample into account only if `adapt` is true. Without `bridge` a sample that misses all channels
        stands for a gap of unknown length and breaks the window.
        """
        values = check_sample(sample, self._names, named=self._named)
        threshold = self.threshold if threshold is None else threshold
        free = values - self._mean
        free /= self._scale
        scaled, is_absent = free, False
        # Usually every value is a number and none is to be clipped; NaN counts as the largest.
        size = np.abs(free, self._size)
        if not size.item(size.argmax()) <= CLIP:
            scaled, is_absent = np.clip(free, -CLIP, CLIP), bool(np.isnan(values).all())
            if self._is_gap(values):
                self._hole = self._hole + 1 if is_absent else 0
                if not self._can_bridge(is_absent) or (is_absent and not bridge):
                    self._break()
                    return self._reading(values, threshold, "gap")
                scaled = self._filled(scaled, np.isnan(scaled))
        if not is_absent:
            self._hole = 0
        window = self._write(scaled, values)
        if self._missing:
            self._missing -= 1
            if self._missing:
                if self._missing <= self._horizon:
                    self._steps.skip(window, free)
                return self._reading(values, threshold, "warming")
        if is_absent:
            self._steps.skip(window, free)
            return self._reading(values, threshold, "bridged")
        terms = self._steps.score(window, free, is_plain=scaled is free)
        self._terms.append(terms)
        self._scored.append(ScoredWindow(self._page[self._end - self._scored_size : self._end], free))
        score, outside = self._scoring.smoothed(self._terms)
        abnormal = score > threshold or bool(self._scoring.impossible(terms, free))
        if self.tracker is not None and adapt:
            self.tracker.note(score, is_anomaly=abnormal)
        windows = tuple(self._scored)
        return Reading(score, threshold, abnormal, "ok", 0, values, self._setup, self._scoring, windows, outside)

    def _write(self, scaled: Array, values: Array) -> Array:
        """Write a sample to the page; returns the window that ends with it, as a view."""
        if self._end == len(self._page):
            self._turn_page()
        self._end += self._channels
        self._page[self._end - self._channels : self._end] = scaled
        if self._whole < self.length:
            self._note_holes(values)
        return self._window_before(self._end)

    @property
    def threshold(self) -> float:
        """The threshold that the next score is compared with."""
        return self._threshold if self.tracker is None else self.tracker.threshold

    @property
    def _rows(self) -> int:
        """Rows that follow on from each other, up to those needed for a score."""
        return self.length - self._missing

    def _can_bridge(self, is_absent: bool) -> bool:
        """Whether the model can stand in for what is missing; see `bridging`."""
        is_short = self._rows >= self._window and self._hole <= longest_hole(self._window)
        return self._scoring.bridges and (not is_absent or is_short)

    def _note_holes(self, values: Array) -> None:
        """Remember which cells of a row were missing, until it leaves the window."""
        holes = np.isnan(values)
        self._whole = 0 if holes.any() else self._whole + 1
        self._holes[self._end - self._channels : self._end] = holes

    def _filled(self, scaled: Array, missing: NDArray[np.bool_]) -> Array:
        self._whole = 0
        if self._rows >= self._window:
            samples = np.concatenate([self._window_before(self._end), scaled])
            holes = np.concatenate([self._holes[self._end - self._state_size + self._channels : self._end], missing])
            instead = self._scoring.dynamics.reconstruct(samples, holes)
        else:
            instead = self._page[self._end - self._channels : self._end] if self._rows else np.zeros_like(scaled)
        return np.where(missing, instead, scaled)

    def _is_gap(self, values: Array) -> bool:
        for name, value in zip(self._names, values, strict=True):
            if np.isinf(value):
                raise ValueError(f"Channel {name!r} of the sample is infinite; pass NaN for a missing value.")
        return bool(np.isnan(values).any())

    def _reading(self, values: Array, threshold: float, state: State) -> Reading:
        """A reading without a score."""
        return Reading(np.nan, threshold, False, state, self._missing, values, self._setup, self._scoring, ())
