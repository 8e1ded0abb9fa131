"""Matrices as integers modulo 2³², on a grid with `levels` steps from 0 to `bound` on either side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.secure.messages import MaskingError

Array = NDArray[np.float64]
Integers = NDArray[np.uint32]

MODULUS = 2**32


class Quantised(NamedTuple):
    """A matrix on the grid, modulo 2³², and how many of its entries were beyond the bound."""

    integers: Integers
    clipped: int


def quantise(matrix: Array, bound: float, levels: int) -> Quantised:
    """Round to x = rint(levels · clip(matrix, ±bound) / bound), a negative x as 2³² + x.

    Rounding is to the nearest integer, not stochastic: half a step is then the worst case and not a whole one, the
    same matrix gives the same integers, and with the many levels that fit, the bias that stochastic rounding avoids
    is far below what the consensus resolves.

    >>> quantise(np.array([[0.26, -0.5, 7.0]]), bound=1.0, levels=4)
    Quantised(integers=array([[         1, 4294967294,          4]], dtype=uint32), clipped=1)
    """
    if not np.isfinite(matrix).all():
        raise MaskingError("The matrix to mask has entries that are not finite; leave this device out.")
    scaled = np.rint(np.clip(matrix, -bound, bound) * (levels / bound))
    return Quantised(scaled.astype(np.int64).astype(np.uint32), int(np.count_nonzero(np.abs(matrix) > bound)))


def restore(integers: Integers, bound: float, levels: int) -> Array:
    """The sum of matrices that a sum of their integers stands for: (bound / levels) · X, X taken in [−2³¹, 2³¹).

    >>> restore(np.array([[1, 4294967294]], dtype=np.uint32), bound=1.0, levels=4)
    array([[ 0.25, -0.5 ]])
    """
    return integers.view(np.int32).astype(np.float64) * (bound / levels)


def quantisation_error(n: int, bound: float, levels: int) -> float:
    """The largest error of an entry of the mean over n devices, when no entry was clipped: bound / (2 · levels).

    Each device rounds by at most half a step, |e_i| ≤ bound / (2 · levels), so |(1/n) Σ e_i| is no more than that
    either, whatever n; the sum is off by up to n times as much. But n · levels must stay below 2³¹, so that more
    devices leave room for fewer levels.

    >>> quantisation_error(100, bound=1.0, levels=2**20) < 5e-7
    True
    """
    check_range(n, levels)
    return bound / (2 * levels)


def check_range(n: int, levels: int) -> None:
    """Refuse a grid on which the sum of n devices, from −n · levels to n · levels, would wrap around 2³²."""
    if 2 * n * levels >= MODULUS:
        raise MaskingError(
            f"The sum of {n} devices with levels={levels} does not fit into 32 bits; "
            f"use at most {(MODULUS - 1) // (2 * n)} levels."
        )
