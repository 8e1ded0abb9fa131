"""Shamir's secret sharing: any `threshold` shares restore a secret, and fewer say nothing about it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from secrets import randbelow

SECRET = 32
"""Bytes of a secret: a seed or a key."""

PRIME = 2**256 + 297
"""The first prime beyond all secrets, so that each secret is one number of the field."""

SHARE = 33
"""Bytes of a number below the prime."""


def split_secret(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """The values at 1 to n of a random polynomial of degree threshold − 1 that is the secret at 0."""
    coefficients = [int.from_bytes(secret), *(randbelow(PRIME) for _ in range(threshold - 1))]
    values = []
    for position in range(1, n + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * position + coefficient) % PRIME
        values.append(value.to_bytes(SHARE))
    return values


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind `threshold` shares, given by their positions; fewer shares give another one.

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
    """Lagrange's weights Π_{j≠i} x_j / (x_j − x_i): the same for the secrets of all devices."""
    weights = []
    for here in positions:
        above = below = 1
        for other in positions:
            if other != here:
                above, below = above * other % PRIME, below * (other - here) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
