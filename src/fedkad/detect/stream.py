"""One sample in, one reading out: the same scores as in batch, a step at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.model import Model
from fedkad.detect.scoring import Scoring, Seen
from fedkad.detect.series import check_sample
from fedkad.koopman.scaling import CLIP, Scaling

Array = NDArray[np.float64]
State = Literal["warming", "ok", "gap"]

_LOW, _HIGH, _LARGE = np.array(-CLIP), np.array(CLIP), CLIP**2


@dataclass(slots=True)
class Reading:
    """What a detector says about one sample."""

    score: float  # smoothed; NaN unless the state is "ok"
    threshold: float  # that the score was compared with
    is_anomaly: bool
    state: State  # the window is filling up, is full, or was just broken by a missing value
    missing: int  # samples still needed before the next score
    seen: Array = field(repr=False, compare=False)  # the sample itself
    _scaling: Scaling = field(repr=False, compare=False)
    _scoring: Scoring = field(repr=False, compare=False)
    _judged: tuple[tuple[Seen, list[Seen]], ...] = field(repr=False, compare=False)
    _names: tuple[str, ...] = field(repr=False, compare=False)

    @property
    def shares(self) -> Array:
        """The score split over the channels, summing to it; NaN without a score. Computed when asked for."""
        if not self._judged:
            return np.full(len(self._names), np.nan)
        total = sum(self._scoring.shares(earlier, since) for earlier, since in self._judged)
        return np.asarray(total / len(self._judged))

    @property
    def expected(self) -> Array:
        """The sample that was predicted for this moment, in the units of the sample; NaN without a score."""
        if not self._judged:
            return np.full(len(self._names), np.nan)
        return self._scaling.restore(self._scoring.expected(self._judged[-1][0]))

    @property
    def channels(self) -> list[tuple[str, float]]:
        """Channels and their shares of the score, the largest first; empty without a score."""
        if not self._judged:
            return []
        shares = self.shares
        return [(self._names[k], float(shares[k])) for k in np.argsort(-shares, kind="stable")]


class Stream:
    """The state of a detector that watches one live series.

    Attributes
    ----------
    length : int
        Samples needed for the first score.
    judge : Judge
        As the scores so far have left it; an adapting one is saved and restored by its `state`.

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

    def __init__(self, model: Model) -> None:
        self._use(model)
        self._start()

    def _use(self, model: Model) -> None:
        setup = model.setup
        self._scaling, self._lifting, self._horizon = setup.scaling, setup.lifting, setup.settings.horizon
        self._scoring, self._smoothing, self.judge = model.scoring, setup.settings.smoothing, model.judge()
        self._names, self._named = setup.channel_names, setup.names is not None
        self._mean, self._scale = setup.scaling.mean, setup.scaling.scale

    def _start(self) -> None:
        # Every sample is written twice, one ring length apart, so that the last W + H samples are always contiguous.
        self.length = self._lifting.window + self._horizon
        self._channels, self._size = self._lifting.channels, self._lifting.state_size
        self._ring = np.empty(2 * self.length * self._channels)
        self._break()

    def _break(self) -> None:
        """Forget the window: the next sample does not follow on from it."""
        self._at, self._missing = -1, self.length
        self._forget_scores()

    def _forget_scores(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=self._horizon + 1)
        self._raw: deque[float] = deque(maxlen=self._smoothing)
        self._judged: deque[tuple[Seen, list[Seen]]] = deque(maxlen=self._smoothing)

    def _window_ending(self, row: int) -> Array:
        """The window whose newest sample stands in that row of the ring, as a view."""
        stop = (row + 1) * self._channels
        return self._ring[stop - self._size : stop]

    def adopt(self, model: Model) -> None:
        """Continue with another model, e.g. after a round of the fleet, without losing the window.

        A model with another scaling, lifting or horizon cannot use the window and starts warming up. An adapting
        threshold starts again at that of the new model.
        """
        kept = (self._scaling, self._lifting, self._horizon)
        self._use(model)
        if kept != (self._scaling, self._lifting, self._horizon):
            self._start()
            return
        self._forget_scores()
        full = max(self.length - self._missing - self._lifting.window + 1, 0)
        newest = self.length + self._at
        self._seen.extend(self._scoring.see(self._window_ending(newest - age)) for age in reversed(range(full)))

    @property
    def memory(self) -> int:
        """Samples that bring a new stream to the state of this one."""
        return self.length + self._smoothing - 1

    def update(self, sample: Any, *, adapt: bool = True) -> Reading:
        """Take one sample, one value per channel; a NaN in it is a gap that breaks the window.

        An adapting threshold learns from the sample only if `adapt` is true.
        """
        values = check_sample(sample, self._names, named=self._named)
        scaled = values - self._mean
        scaled /= self._scale
        np.minimum(scaled, _HIGH, out=scaled)
        np.maximum(scaled, _LOW, out=scaled)
        # Usually one product shows that every value is a number and none was clipped; otherwise look closer.
        if not scaled.dot(scaled) < _LARGE and self._is_gap(values):
            self._break()
            return self._reading(values, "gap")
        self._at = self._at + 1 if self._at + 1 < self.length else 0
        for row in (self._at, self._at + self.length):
            self._ring[row * self._channels : (row + 1) * self._channels] = scaled
        if self._missing:
            self._missing -= 1
        if self._missing > self._horizon:
            return self._reading(values, "warming")
        self._seen.append(self._scoring.see(self._window_ending(self.length + self._at)))
        if self._missing:
            return self._reading(values, "warming")
        earlier, *since = self._seen
        raw, judged, judge = self._raw, self._judged, self.judge
        raw.append(float(self._scoring.score(earlier, since)))
        judged.append((earlier, since))
        score, threshold = sum(raw) / len(raw), judge.value
        abnormal = judge.judge(score) if adapt else score > threshold
        given = (self._scaling, self._scoring, tuple(judged), self._names)
        return Reading(score, threshold, abnormal, "ok", 0, values, *given)

    def _is_gap(self, values: Array) -> bool:
        for name, value in zip(self._names, values, strict=True):
            if np.isinf(value):
                raise ValueError(f"Channel {name!r} of the sample is infinite; pass NaN for a missing value.")
        return bool(np.isnan(values).any())

    def _reading(self, values: Array, state: State) -> Reading:
        """A reading without a score."""
        given = (self._scaling, self._scoring, (), self._names)
        return Reading(np.nan, self.judge.value, False, state, self._missing, values, *given)
