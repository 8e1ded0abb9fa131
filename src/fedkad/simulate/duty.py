"""The duty of a device: the levels it is set to, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedkad.simulate.recursion import FloatArray

# A step is at least this share of the mean dwell and at most its mirror image above it.
_SHORTEST_SHARE = 0.6


@dataclass(frozen=True)
class Duty:
    """A repeated sequence of levels.

    Parameters
    ----------
    levels : tuple of float
        The levels in order, as fractions of the rated value.
    dwell : float
        Mean time at one level, in seconds.
    """

    levels: tuple[float, ...]
    dwell: float


def follow_duty(duty: Duty, rows: int, period: float, generator: np.random.Generator) -> FloatArray:
    """Return the set level at every sample.

    The order of the levels is fixed and their lengths vary: each lasts ``dwell`` times a number uniform in
    [0.6, 1.4], and the series begins somewhere inside a first step.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> follow_duty(Duty(levels=(0.5, 1.0), dwell=180.0), 8, 60.0, generator)
    array([1. , 1. , 0.5, 0.5, 1. , 1. , 1. , 1. ])
    """
    duration = rows * period
    steps = math.ceil(duration / (_SHORTEST_SHARE * duty.dwell)) + 2
    first = int(generator.integers(len(duty.levels)))
    elapsed = generator.random() * _SHORTEST_SHARE * duty.dwell
    lengths = duty.dwell * generator.uniform(_SHORTEST_SHARE, 2.0 - _SHORTEST_SHARE, steps)
    ends = np.cumsum(lengths) - elapsed
    step = np.searchsorted(ends, np.arange(rows) * period, side="right")
    return np.array(duty.levels)[(first + step) % len(duty.levels)]
