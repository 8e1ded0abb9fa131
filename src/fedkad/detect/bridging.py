"""Missing samples: short holes are filled with the model's own predictions, so that one lost row does not blind twenty.

A row that misses all channels is never scored. If a full window stands before it, it is filled, for at most a quarter
of a window; then the series breaks, and a new window must fill up.

A row that misses some channels is scored on the others, and its missing cells are filled as long as it takes, with what
the model predicts and the other channels say (`Dynamics.reconstruct`). Before a window is full they keep the last value
of their channel, or take its mean.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.scaling import CLIP, clipped
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]
Reconstruct = Callable[[Array, NDArray[np.bool_]], Array]
"""Gives the newest of W + 1 samples side by side; of the last W it is told which cells are missing."""


class Rows(NamedTuple):
    """A scaled series as a model looks at it."""

    values: Array  # (time, channel), not clipped; NaN where they are missing
    filled: Array  # clipped, and without a hole inside the segments
    segments: list[slice]  # rows that follow on from each other

    def entries(self, lead: int) -> list[NDArray[np.intp]]:
        """For each segment the entries that are scored: those after `lead` rows that miss not all channels."""
        there = ~self.absent
        scored = [np.arange(segment.start + lead, segment.stop) for segment in self.segments]
        return [entries[there[entries]] for entries in scored if len(entries)]

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Rows that miss all channels."""
        return np.asarray(np.isnan(self.values).all(axis=1))


def longest_hole(window: int) -> int:
    """Rows that are bridged in a row."""
    return window // 4


def broken(scaled: Array, shortest: int) -> Rows:
    """The series with a break at every row that misses a value."""
    return Rows(scaled, clipped(scaled), list(stretches(scaled, shortest)))


def bridged(scaled: Array, window: int, reconstruct: Reconstruct) -> Rows:
    """The series with its short holes filled."""
    filled, segments = np.clip(scaled, -CLIP, CLIP), []
    missing = np.isnan(scaled)
    start = hole = 0
    for t in np.flatnonzero(missing.any(axis=1)).tolist():
        is_full = t - start >= window
        if missing[t].all():
            hole = hole + 1 if t and missing[t - 1].all() else 1
            if not is_full or hole > longest_hole(window):
                segments.append(slice(start, t - hole + 1 if is_full else t))
                start = t + 1
                continue
        if is_full:
            instead = reconstruct(filled[t - window : t + 1].ravel(), missing[t - window + 1 : t + 1].ravel())
        else:
            instead = filled[t - 1] if t > start else np.zeros(scaled.shape[1])
        filled[t] = np.where(missing[t], instead, filled[t])
    segments.append(slice(start, len(scaled)))
    return Rows(scaled, filled, [segment for segment in segments if segment.stop > segment.start])
