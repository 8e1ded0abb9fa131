"""First-order recursions over time, computed without a loop over samples.

Everything with a memory in the simulated plant is the same recursion ``y[t] = a y[t-1] + u[t]``: shafts that
speed up, metal that warms, noise that lingers. It is evaluated here by doubling, from additions and
multiplications only, so that the result does not depend on a linear algebra library.
"""

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# Older inputs than this contribute less than the rounding error of a double.
_NEGLIGIBLE = 1e-18


def accumulate(drive: FloatArray, decay: float | FloatArray) -> FloatArray:
    """Solve ``y[t] = decay * y[t-1] + drive[t]`` with ``y[-1] = 0`` and ``0 <= decay < 1``, for every column alone.

    After k doublings the partial result is the sum of the newest ``2**k`` terms of ``y[t] = sum_j decay**j
    drive[t-j]``, because the sum of ``2 n`` terms is a sum of n terms plus ``decay**n`` times the one that
    ended n samples earlier.

    >>> accumulate(np.array([1.0, 0.0, 0.0, 1.0]), 0.5)
    array([1.   , 0.5  , 0.25 , 1.125])
    """
    result = np.array(drive, dtype=np.float64)
    power = np.asarray(decay, dtype=np.float64)
    reach = 1
    while reach < len(result) and power.max() > _NEGLIGIBLE:
        result[reach:] += power * result[:-reach]
        power = power * power
        reach *= 2
    return result


def first_order_lag(target: FloatArray, time_constant: float, period: float, start: float) -> FloatArray:
    """Follow a target as ``τ dy/dt = target - y`` does, with the target held over each sample.

    The exact solution over one sample is ``y[t] = a y[t-1] + (1 - a) target[t]`` with ``a = exp(-period / τ)``;
    `start` is the value one sample before the first. One time constant after a step, 63 % of the way is done:

    >>> step = first_order_lag(np.ones(10), time_constant=600.0, period=60.0, start=0.0)
    >>> round(float(step[9]), 3)
    0.632
    """
    decay = math.exp(-period / time_constant)
    drive = (1.0 - decay) * target
    drive[0] += decay * start
    return accumulate(drive, decay)


def wandering_noise(
    rows: int, time_constants: tuple[float, ...], period: float, generator: np.random.Generator
) -> FloatArray:
    """Draw independent stationary AR(1) columns of mean 0 and variance 1, one for each time constant.

    ``e[t] = a e[t-1] + sqrt(1 - a²) ε[t]`` with ``a = exp(-period / τ)`` for the τ of the column; the first
    entry is drawn from the stationary law, so that there is nothing to burn in.

    >>> generator = np.random.Generator(np.random.PCG64(0))
    >>> wandering_noise(5, (60.0, 600.0), 60.0, generator).shape
    (5, 2)
    """
    decay = np.array([math.exp(-period / tau) for tau in time_constants])
    drive = generator.standard_normal((rows, len(time_constants)))
    drive[1:] *= np.sqrt(1.0 - decay * decay)
    return accumulate(drive, decay)
