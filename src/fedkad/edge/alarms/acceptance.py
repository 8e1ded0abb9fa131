"""When a change that stays becomes the new normal.

A new set-point is an incident first. If it goes on steadily for `settle`, the device takes it for normal, unless that
could hide a fault:

- it must still be there: what is quiet may be over, and a fault that is over is no level;
- the score must not grow: a drift is not a level;
- every channel must be near to where it has been before, at most one range of its training beyond its bounds, unless
  it is an input: that is where somebody has put it;
- no channel that moves by nature may have stopped moving, no value may be impossible, and no tie may stay broken: a
  sensor that is off by as much all day is what ties are for;
- it must not be critical, and nobody may have acknowledged it as a fault: only a person can call that normal.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.features import TIE, VALUE, window_means
from fedkad.detect.model import Model
from fedkad.detect.ranges import Bounds, beyond
from fedkad.detect.ties import FARTHEST
from fedkad.edge.alert import IncidentAlert, Severity

Array = NDArray[np.float64]

PARTS = 8  # of `settle`, in which scores are averaged; what is not steady yet is looked at again after one of them
GROWTH = 1.25  # how much higher the highest part of the second half may be than that of the first
NEAR = 1.0  # ranges of training that a channel may be outside of its bounds
OUTLIERS = 0.01  # share of the rows at either end that does not count for where a channel is
FAR = 0.1  # ranges of training that a value may be from nearly all rows of an incident to be a part of its level


@dataclass
class Settling:
    """How the scores of one incident went so far; the state is a small JSON object.

    >>> settling = Settling()
    >>> for minute in range(16):
    ...     settling.note("pump-1-7", 60.0 * minute, 5.0, settle=960.0)
    >>> settling.is_due(900.0, settle=960.0), settling.is_due(960.0, settle=960.0), settling.is_steady
    (False, True, True)
    """

    incident: str = ""
    since: float = 0.0
    totals: list[float] = field(default_factory=lambda: [0.0] * PARTS)
    counts: list[int] = field(default_factory=lambda: [0] * PARTS)

    @classmethod
    def restored(cls, state: Mapping[str, Any] | None) -> Settling:
        """The inverse of `state`."""
        return cls(**state) if state else cls()

    def state(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self).copy()  # it is put into text at once

    def note(self, incident: str, time: float, score: float, settle: float) -> None:
        """Take the score of a row in an open incident; with the clock set back, it is looked at from now on."""
        if incident != self.incident or time < self.since:
            self.incident, self.since, self.totals, self.counts = incident, time, [0.0] * PARTS, [0] * PARTS
        part = min(max(int((time - self.since) / settle * PARTS), 0), PARTS - 1)
        self.totals[part] += min(score, 1e6)
        self.counts[part] += 1

    def is_due(self, time: float, settle: float) -> bool:
        """Whether the incident has gone on for long enough."""
        return bool(self.incident) and time - self.since >= settle

    @property
    def is_steady(self) -> bool:
        """Whether there are scores in every part, and they do not grow.

        The highest parts of the halves are compared: day and night differ, and both halves have some of the day.
        """
        if not all(self.counts):
            return False
        means = [total / count for total, count in zip(self.totals, self.counts, strict=True)]
        half = PARTS // 2
        return max(means[half:]) <= GROWTH * max(means[:half])

    def look_later(self, settle: float) -> None:
        """Forget the first part, so that the next look comes after one part more."""
        self.since += settle / PARTS
        self.totals, self.counts = [*self.totals[1:], 0.0], [*self.counts[1:], 0]


def why_not_yet(
    incident: IncidentAlert,
    settling: Settling,
    model: Model | None,
    rows: Array,
    *,
    is_quiet: bool,
    resting: Sequence[int],
) -> str:
    """Say why what an open incident shows must not become normal yet, as the end of a sentence; empty if it may.

    `rows` are those of the last `settle`, and `resting` the channels that rest by nature, as a battery does.
    """
    if model is None or model.scoring.bounds is None:
        return "its model has no witnesses"
    if is_quiet:
        return "it is quiet now, and may be over"
    if not settling.is_steady:
        return "its scores still grow"
    if not len(rows):
        return "no row is kept"
    setup, window = model.setup, model.settings.window
    return why_not(incident, setup.scale(rows), model.scoring.bounds, window, resting=resting, inputs=setup.inputs)


def level_of(model: Model, rows: Array) -> Array:
    """Return the rows of an incident without what is no part of its level."""
    assert model.scoring.bounds is not None
    return model.setup.scaling.restore(without_outliers(model.setup.scale(rows), model.scoring.bounds))


def why_not(
    incident: IncidentAlert,
    rows: Array,
    bounds: Bounds,
    window: int,
    *,
    resting: Sequence[int] = (),
    inputs: NDArray[np.bool_] | bool = False,
) -> str:
    """Say why the level that scaled `rows` of an incident show must not become normal; empty if it may.

    `inputs` says which channels are commands.

    >>> from types import SimpleNamespace
    >>> bounds = Bounds(*np.zeros((2, 4, 1)), np.ones(1), np.zeros(1, bool), *np.zeros((8, 1)))
    >>> steady = 0.5 + 0.1 * np.sin(np.arange(100.0))[:, None]
    >>> incident = SimpleNamespace(severity=Severity.WARNING, acknowledged=None)
    >>> why_not(incident, steady, bounds, 20), why_not(incident, 3.0 * steady, bounds, 20)
    ('', 'it is too far from what is known')
    """
    if incident.acknowledged:
        return f"{incident.acknowledged} has acknowledged it as a fault"
    if incident.severity == Severity.CRITICAL:
        return "it is critical"
    low, high, unit = bounds.low[VALUE], bounds.high[VALUE], bounds.unit
    if bounds.absurd(rows).any():
        return "some of its values are impossible"
    moves = ~bounds.switch & (high > low)
    moves[list(resting)] = False
    spans = np.fmax.reduce(rows) - np.fmin.reduce(rows)  # NaN for a channel that is silent, without a warning
    if (moves & (spans == 0.0)).any():
        return "a channel has stopped moving"
    least, most = _levels(rows)
    is_far = (least < low - NEAR * unit) | (most > high + NEAR * unit)
    if (is_far & ~np.asarray(inputs)).any():
        return "it is too far from what is known"
    if _breaks_a_tie(rows, bounds, window):
        return "a channel does not match the others any more"
    return ""


def without_outliers(rows: Array, bounds: Bounds) -> Array:
    """Replace the outliers of the scaled rows of an incident by gaps.

    >>> bounds = Bounds(*np.zeros((2, 4, 1)), np.ones(1), np.zeros(1, bool), *np.zeros((8, 1)))
    >>> int(np.isnan(without_outliers(np.append(np.linspace(3.0, 4.0, 300), 9.0)[:, None], bounds)).sum())
    1
    """
    least, most = _levels(rows)
    with np.errstate(invalid="ignore"):
        is_far = (rows < least - FAR * bounds.unit) | (rows > most + FAR * bounds.unit)
    return np.where(is_far, np.nan, rows)


def _levels(rows: Array) -> Array:
    """Return between which values nearly all rows are, by channel; NaN for one that is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of a channel that is silent
        levels: Array = np.nanquantile(rows, [OUTLIERS, 1.0 - OUTLIERS], axis=0)
    return levels


def _breaks_a_tie(rows: Array, bounds: Bounds, window: int) -> bool:
    """Whether a channel is mostly more than a range outside of what the others suggest."""
    complete = rows[~np.isnan(rows).any(axis=1)]
    if len(complete) < window or not bounds.ties.any():
        return False
    departures = window_means(complete, window) @ bounds.ties.T - bounds.offset
    far = np.median(beyond(departures, bounds.low[TIE], bounds.high[TIE]), axis=0)
    return bool((far > FARTHEST * bounds.tightness).any())
