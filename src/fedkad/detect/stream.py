"""One sample in, one reading out: the same scores as in batch, a step at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.scoring import Scoring, Seen
from fedkad.detect.series import check_sample
from fedkad.koopman.scaling import CLIP

if TYPE_CHECKING:
    from fedkad.detect.detector import KoopmanDetector

Array = NDArray[np.float64]
State = Literal["warming", "ok", "gap"]


@dataclass(frozen=True)
class Reading:
    """What a detector says about one sample.

    Attributes
    ----------
    score, threshold : float
        The smoothed score, NaN unless the state is "ok", and the threshold that it was held against.
    is_anomaly : bool
    state : {"warming", "ok", "gap"}
        Whether the window is filling up, full, or was just broken by a missing value.
    missing : int
        Samples still needed before the next score.
    """

    score: float
    threshold: float
    is_anomaly: bool
    state: State
    missing: int
    _scoring: Scoring = field(repr=False, compare=False)
    _judged: tuple[tuple[Seen, list[Seen]], ...] = field(repr=False, compare=False)
    _names: tuple[str, ...] = field(repr=False, compare=False)

    @cached_property
    def shares(self) -> Array:
        """The score split over the channels, summing to it; NaN without a score. Computed when asked for."""
        if not self._judged:
            return np.full(len(self._names), np.nan)
        total = sum(self._scoring.shares(earlier, since) for earlier, since in self._judged)
        return np.asarray(total / len(self._judged))

    @cached_property
    def channels(self) -> list[tuple[str, float]]:
        """Channels and their shares of the score, the largest first; empty without a score."""
        if not self._judged:
            return []
        order = np.argsort(-self.shares, kind="stable")
        return [(self._names[k], float(self.shares[k])) for k in order]


class Stream:
    """The state of a detector that watches one live series.

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

    def __init__(self, detector: KoopmanDetector) -> None:
        lifting = detector.lifting_
        self._width, self._channels = lifting.window, lifting.channels
        # Every sample is written twice, a window apart, so that the last W samples always lie side by side.
        self._ring = np.empty((2 * self._width, self._channels))
        flat = self._ring.reshape(-1)
        n, size = self._channels, lifting.state_size
        self._windows = [flat[(k + 1) * n : (k + 1) * n + size] for k in range(self._width)]
        self._take_over(detector)
        self._break()

    def _take_over(self, detector: KoopmanDetector) -> None:
        self._scaling, self._dynamics = detector.scaling_, detector.dynamics_
        self._scoring, self._smoothing = detector.scoring_, detector.smoothing
        self._judge = detector.judge()
        self._names = detector.channel_names_

    def _break(self) -> None:
        """Forget the window: what follows is not connected to what was."""
        self._at, self._filled = -1, 0
        self._seen: deque[Seen] = deque(maxlen=self._dynamics.horizon + 1)
        self._raw: deque[float] = deque(maxlen=self._smoothing)
        self._judged: deque[tuple[Seen, list[Seen]]] = deque(maxlen=self._smoothing)

    @property
    def _missing(self) -> int:
        return self._width + self._dynamics.horizon - self._filled

    def adopt(self, detector: KoopmanDetector) -> None:
        """Go on with another model, e.g. after a round of the fleet, without losing the window.

        A model with another scaling or another lifting has no use for the window and starts warming up.
        """
        same = detector.lifting_ == self._dynamics.lifting and _same_scaling(detector, self._scaling)
        if not same:
            self.__init__(detector)  # type: ignore[misc]
            return
        self._take_over(detector)
        kept = [Seen(seen.windows, *self._dynamics.encode(seen.windows)) for seen in self._seen]
        self._seen = deque(kept, maxlen=self._dynamics.horizon + 1)
        self._judged.clear()
        self._raw.clear()

    def update(self, sample: Any) -> Reading:
        """Take one sample, one value a channel; a NaN in it is a gap that breaks the window."""
        values = check_sample(sample, self._channels)
        total = float(np.add.reduce(values))
        if total - total != 0.0 and self._is_gap(values):
            self._break()
            return self._reading(np.nan, False, "gap")
        self._push(values)
        if self._filled >= self._width:
            window = self._windows[self._at].copy()
            self._seen.append(Seen(window, *self._dynamics.encode(window)))
        if self._missing > 0:
            return self._reading(np.nan, False, "warming")
        earlier, *since = self._seen
        self._raw.append(float(self._scoring.score(earlier, since)))
        self._judged.append((earlier, since))
        score = sum(self._raw) / len(self._raw)
        threshold = self._judge.value
        return self._reading(score, self._judge.judge(score), "ok", threshold)

    def _push(self, values: Array) -> None:
        scaled = (values - self._scaling.mean) / self._scaling.scale
        np.minimum(scaled, CLIP, out=scaled)
        np.maximum(scaled, -CLIP, out=scaled)
        self._at = self._at + 1 if self._at + 1 < self._width else 0
        self._ring[self._at] = scaled
        self._ring[self._at + self._width] = scaled
        if self._filled < self._width + self._dynamics.horizon:
            self._filled += 1

    def _is_gap(self, values: Array) -> bool:
        for name, value in zip(self._names, values, strict=True):
            if np.isinf(value):
                raise ValueError(f"Channel {name!r} of the sample is infinite; pass NaN for a missing value.")
        return bool(np.isnan(values).any())

    def _reading(self, score: float, anomaly: bool, state: State, threshold: float | None = None) -> Reading:
        held = self._judge.value if threshold is None else threshold
        return Reading(score, held, anomaly, state, self._missing, self._scoring, tuple(self._judged), self._names)


def _same_scaling(detector: KoopmanDetector, scaling: Any) -> bool:
    other = detector.scaling_
    return bool(np.array_equal(other.mean, scaling.mean) and np.array_equal(other.scale, scaling.scale))
