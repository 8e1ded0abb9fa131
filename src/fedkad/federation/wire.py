"""What goes over the wire: a matrix as bytes of a stated encoding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.settings import Encoding

Array = NDArray[np.float64]

DTYPES: dict[Encoding, np.dtype[np.floating]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
}


def encode(matrix: Array, encoding: Encoding) -> bytes:
    """The matrix row by row, little-endian.

    >>> len(encode(np.ones((628, 24)), "float32"))  # one subspace of a device with 25 channels
    60288
    """
    return matrix.astype(DTYPES[encoding]).tobytes()


def decode(payload: bytes, shape: tuple[int, int], encoding: Encoding) -> Array:
    """The matrix that `encode` made of `payload`, up to the rounding of the encoding."""
    return np.frombuffer(payload, dtype=DTYPES[encoding]).reshape(shape).astype(np.float64)
