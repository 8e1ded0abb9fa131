"""What goes wrong with a sensor or a device, each kind a pure function of one channel.

Every function has the form ``fault(truth, start, end, generator, severity)`` and returns what is read instead of the
truth in the rows ``start <= t < end``. The severity is in the unit of the channel; callers scale it by the channel's
own spread.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from fedkad.simulate.recursion import FloatArray, first_order_lag

InjectFault = Callable[[FloatArray, int, int, Generator, float], FloatArray]

_LAG_ROWS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_DONORS = 64
_LONGEST_BURST = 2
_ROWS_PER_BURST = 10


@dataclass(frozen=True)
class Fault:
    """One fault of one device, of a kind in :data:`FAULTS`, in the rows ``start <= t < end`` of its test series."""

    device: str
    kind: str
    channels: tuple[str, ...]
    start: int
    end: int


def add_drift(truth: FloatArray, start: int, end: int, generator: Generator, severity: float) -> FloatArray:
    """Let a sensor move away from the truth at a constant rate, to ``severity`` at the last row.

    It moves up or down at random, but never below a reading of zero.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> add_drift(np.zeros(6), 1, 5, generator, severity=2.0)
    array([0.5, 1. , 1.5, 2. ])
    """
    ramp = np.arange(1, end - start + 1) / (end - start)
    drifted: FloatArray = truth[start:end] + _direction(truth[start:end], severity, generator) * severity * ramp
    return drifted


def add_lag(truth: FloatArray, start: int, end: int, generator: Generator, severity: float) -> FloatArray:
    """Let a channel respond late: it follows its true value as a first-order lag does.

    The time constant is the shortest of 2, 4, 8, ... 64 rows for which the reading departs from the truth by
    ``severity`` (root mean square over the fault), so that slow and quick channels are disturbed alike.
    Nothing is drawn from the generator.

    >>> step = np.array([0.0, 0.0, 1.0, 1.0, 1.0])
    >>> add_lag(step, 1, 5, np.random.Generator(np.random.PCG64(0)), severity=0.2).round(2)
    array([0.  , 0.39, 0.63, 0.78])
    """
    late = prompt = truth[start:end]
    for time_constant in _LAG_ROWS:
        late = first_order_lag(prompt, time_constant, period=1.0, start=float(prompt[0]))
        if np.sqrt(np.mean((late - prompt) ** 2)) >= severity:
            break
    return late


def decouple(truth: FloatArray, start: int, end: int, generator: Generator, severity: float) -> FloatArray:
    """Let a channel lose touch with the others: it repeats another stretch of itself.

    Its values, noise and speed of change stay those of the channel; only the agreement with the other channels
    is lost. Of some stretches drawn at random, take the one that correlates least with the truth and is most like
    it in mean and spread: it minimises ``|correlation| + |difference of means| / σ +
    |difference of spreads| / σ``, with σ the spread of the truth. A channel is either decoupled or not: the
    severity is not used.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> wave = np.sin(np.arange(100.0))
    >>> apart = decouple(wave, 20, 40, generator, severity=1.0)
    >>> bool(abs(np.corrcoef(apart, wave[20:40])[0, 1]) < 0.3)
    True
    """
    rows = end - start
    if 2 * rows > len(truth):
        raise ValueError(f"decoupling {rows} rows needs a series of at least {2 * rows} rows, got {len(truth)}")
    firsts = generator.integers(0, len(truth) - rows + 1, _DONORS)
    donors = np.stack([truth[first : first + rows] for first in firsts])
    best: FloatArray = donors[np.argmin(_unlikeness(donors, truth[start:end]))]
    return best


def _unlikeness(donors: FloatArray, truth: FloatArray) -> FloatArray:
    """Score each candidate stretch for :func:`decouple`; lower is better."""
    sigma = max(float(truth.std()), float(np.finfo(np.float64).tiny))
    means, spreads = donors.mean(axis=1), donors.std(axis=1)
    covariance = ((donors - means[:, None]) * (truth - truth.mean())).mean(axis=1)
    correlation = covariance / (sigma * np.maximum(spreads, 1e-9 * sigma))
    departure = np.abs(means - truth.mean()) + np.abs(spreads - truth.std())
    score: FloatArray = np.abs(correlation) + departure / sigma
    return score


def add_spikes(truth: FloatArray, start: int, end: int, generator: Generator, severity: float) -> FloatArray:
    """Add a few short bursts of one or two rows, each ``severity`` times a number in [0.7, 1.3] high.

    About one burst in ten rows; the first begins with the fault and the last ends with it, so that its rows
    say when the bursts happen. They all point up or all down, but never below a reading of zero.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> np.flatnonzero(add_spikes(np.zeros(50), 10, 40, generator, severity=2.0)).tolist()
    [0, 1, 15, 16, 28, 29]
    """
    rows = end - start
    bursts = max(rows // _ROWS_PER_BURST, 1)
    widths = generator.integers(1, _LONGEST_BURST + 1, bursts)
    heights = severity * generator.uniform(0.7, 1.3, bursts)
    offsets = _burst_offsets(rows, widths, generator)
    sign = _direction(truth[start:end], 1.3 * severity, generator)
    values = truth[start:end].copy()
    for offset, width, height in zip(offsets, widths, heights, strict=True):
        values[offset : offset + width] += sign * height
    return values


def _burst_offsets(rows: int, widths: npt.NDArray[np.int64], generator: Generator) -> list[int]:
    """Place one burst in each equal part of the fault, the outer two at its ends."""
    part = rows // len(widths)
    room = part - _LONGEST_BURST  # so that a burst does not touch the next part
    offsets = [k * part + int(generator.integers(0, max(room, 1))) for k in range(len(widths))]
    offsets[-1] = rows - int(widths[-1])
    offsets[0] = 0
    return offsets


def freeze(truth: FloatArray, start: int, end: int, generator: Generator, severity: float) -> FloatArray:
    """Let a sensor repeat the value of the first row: stuck.

    A sensor is either stuck or not: generator and severity are not used.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> freeze(np.arange(5.0), 1, 4, generator, severity=1.0)
    array([1., 1., 1.])
    """
    return np.full(end - start, truth[start])


FAULTS: dict[str, InjectFault] = {
    "drift": add_drift,
    "lag": add_lag,
    "decoupling": decouple,
    "spikes": add_spikes,
    "stuck": freeze,
}
"""The kinds of fault: name and function."""


def _direction(values: FloatArray, size: float, generator: Generator) -> float:
    """Choose up or down at random; up where a reading would fall below zero."""
    down = generator.random() < 0.5
    return -1.0 if down and values.min() >= size else 1.0
