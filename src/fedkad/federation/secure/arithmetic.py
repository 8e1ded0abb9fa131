"""The arithmetic of secure aggregation: matrices as integers modulo 2³², and secrets split into shares."""

from collections.abc import Mapping
from functools import lru_cache
from secrets import randbelow
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.uint32]

MODULUS = 2**32
SECRET = 32
"""Bytes of a secret: a seed or a key."""

PRIME = 2**256 + 297
"""The first prime beyond all secrets, so that each secret is one number of the field."""

SHARE = 33
"""Bytes of a number below the prime."""


class Quantised(NamedTuple):
    """A matrix on a grid, modulo 2³², and how many of its entries were beyond the bound."""

    integers: Integers
    clipped: int


def quantise(matrix: Array, bound: float, levels: int) -> Quantised:
    """Round finite entries to x = rint(levels · clip(matrix, ±bound) / bound), a negative x as 2³² + x.

    With `levels` steps from 0 to `bound` on either side, an entry is off by bound / (2 · levels) at most, and so is the
    mean over n devices. But n · levels must stay below 2³¹, so that more devices leave room for fewer levels.

    Rounding is to the nearest integer, not stochastic: half a step is then the worst case and not a whole one, the
    same matrix gives the same integers, and with the many levels that fit, the bias that stochastic rounding avoids
    is far below what the consensus resolves.

    >>> quantise(np.array([[0.26, -0.5, 7.0]]), bound=1.0, levels=4)
    Quantised(integers=array([[         1, 4294967294,          4]], dtype=uint32), clipped=1)
    """
    scaled = np.rint(np.clip(matrix, -bound, bound) * (levels / bound))
    return Quantised(scaled.astype(np.int64).astype(np.uint32), int(np.count_nonzero(np.abs(matrix) > bound)))


def restore(integers: Integers, bound: float, levels: int) -> Array:
    """Return the sum of matrices behind a sum of their integers: (bound / levels) · X, X taken in [−2³¹, 2³¹).

    >>> restore(np.array([[1, 4294967294]], dtype=np.uint32), bound=1.0, levels=4)
    array([[ 0.25, -0.5 ]])
    """
    return integers.view(np.int32).astype(np.float64) * (bound / levels)


def split_secret(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """Make Shamir's shares of a secret: any `threshold` of them restore it, and fewer say nothing about it.

    They are the values at 1 to n of a random polynomial of degree threshold − 1 that is the secret at 0.
    """
    coefficients = [int.from_bytes(secret), *(randbelow(PRIME) for _ in range(threshold - 1))]
    values = []
    for position in range(1, n + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * position + coefficient) % PRIME
        values.append(value.to_bytes(SHARE))
    return values


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """Restore the secret behind `threshold` shares, given by their positions; fewer shares give another one.

    >>> shares = split_secret(b"0123456789abcdef" * 2, threshold=2, n=3)
    >>> join_shares({1: shares[0], 3: shares[2]})
    b'0123456789abcdef0123456789abcdef'
    """
    weights = _weights_at_zero(tuple(shares))
    value = sum(weight * int.from_bytes(share) for weight, share in zip(weights, shares.values(), strict=True)) % PRIME
    secret: int = value % 2 ** (8 * SECRET)
    return secret.to_bytes(SECRET)


@lru_cache(maxsize=8)
def _weights_at_zero(positions: tuple[int, ...]) -> tuple[int, ...]:
    """Compute Lagrange's weights Π_{j≠i} x_j / (x_j − x_i): the same for the secrets of all devices."""
    weights = []
    for here in positions:
        above = below = 1
        for other in positions:
            if other != here:
                above, below = above * other % PRIME, below * (other - here) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
