"""The rows that a model is calibrated on: the last ones, held out of its statistics, or all of them if they are few."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.series import join_stretches
from fedkad.koopman.scaling import incomplete
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]

FEWEST_HELD_OUT = 100  # if the held-out part gives fewer scores, the rows are cross-fitted
MOST_HELD_OUT = 8192  # held-out rows that a device keeps, to reset its threshold whenever its model changes


@dataclass(frozen=True)
class HeldOut:
    """Scaled rows, not clipped, that a model is calibrated on.

    The statistics never saw them or, if there are `few` and for witnesses, hold them with these `weights`.
    """

    rows: Array
    few: bool
    weights: Array

    @classmethod
    def of(cls, rows: Array, *, few: bool) -> HeldOut:
        """Rows that the statistics hold in full, if they hold them at all."""
        return cls(rows, few, np.ones(len(rows)))

    def extended(self, rows: Array, lead: int, forgetting: float = 1.0) -> HeldOut:
        """These rows and newer ones after a gap; the oldest are dropped when there are too many."""
        joined = join_stretches([self.rows, rows]) if len(rows) else self.rows
        weights = np.concatenate([forgetting * self.weights, np.ones(len(joined) - len(self.rows))])
        return replace(self, rows=joined, weights=weights).scorable(lead)

    def scorable(self, lead: int) -> HeldOut:
        """The rows that can be scored and the context they need, at most as many as are kept."""
        pieces, room = list[slice](), MOST_HELD_OUT
        for run in reversed(list(stretches(self.rows, shortest=lead + 1))):
            if room >= 0:
                pieces.insert(0, slice(max(run.start, run.stop - room), run.stop))
                room -= run.stop - run.start + 1  # and the gap before it
        if not pieces:
            return replace(self, rows=self.rows[:0], weights=self.weights[:0])
        rows = join_stretches([self.rows[run] for run in pieces])
        weights = join_stretches([self.weights[run, None] for run in pieces])[:, 0]
        return replace(self, rows=rows[-MOST_HELD_OUT:], weights=weights[-MOST_HELD_OUT:])


def split(values: Array, validation: float, lead: int) -> tuple[Array, Array | None]:
    """The first 1 − `validation` of the complete rows, and the rest with the `lead` rows before it as context.

    The first part is for the statistics, the rest is held out; if it is too short to hold any out, it is None.
    """
    first = first_spared(values, validation)
    held_out = HeldOut.of(values[max(first - lead, 0) :], few=False).scorable(lead).rows
    scores = sum(run.stop - run.start - lead for run in stretches(held_out, shortest=lead + 1))
    if scores < FEWEST_HELD_OUT:
        return values, None
    return values[:first], held_out


def first_spared(values: Array, validation: float) -> int:
    """The first row of the last `validation` share of the complete rows; the end if that share is empty."""
    complete = np.flatnonzero(~incomplete(values))
    spared = int(validation * len(complete))
    return int(complete[-spared]) if spared else len(values)
