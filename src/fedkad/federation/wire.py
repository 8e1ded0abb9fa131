"""What goes over the wire: a matrix as bytes of a stated encoding.

The consensus Z goes down in `downward(encoding)`. A reply goes up in `encoding` itself: as it is in floating point, and
in 8 bits as its difference from the Z that it answers, which both sides hold and which shrinks as the fleet agrees.
What 8 bits leave out of a reply is added to the next one.
"""

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.settings import Encoding

Array = NDArray[np.float64]

DTYPES: dict[Encoding, np.dtype[np.floating]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
}
LEVELS = 127
"""Steps of an 8-bit number on either side of zero."""


def encode(matrix: Array, encoding: Encoding) -> bytes:
    """Write a matrix row by row, little-endian; in 8 bits after the largest magnitude of every column, in float32.

    >>> len(encode(np.ones((628, 24)), "float32"))  # one subspace of a device with 25 channels
    60288
    >>> len(encode(np.ones((628, 24)), "int8"))
    15168
    """
    if encoding == "int8":
        largest = np.abs(matrix).max(axis=0).astype("<f4")
        step = np.where(largest > 0.0, largest, 1.0) / LEVELS
        rounded = np.clip(np.rint(matrix / step), -LEVELS, LEVELS)
        return b"".join((largest.tobytes(), rounded.astype(np.int8).tobytes()))
    return matrix.astype(DTYPES[encoding]).tobytes()


def encode_with_feedback(message: Array, unsent: Array | float) -> tuple[bytes, Array]:
    """Encode a message in 8 bits; return also what the receiver does not get: e ← m + e − decode(encode(m + e))."""
    whole = message + unsent
    payload = encode(whole, "int8")
    return payload, whole - decode(payload, (whole.shape[0], whole.shape[1]), "int8")


def decode(payload: bytes, shape: tuple[int, int], encoding: Encoding) -> Array:
    """Read the matrix that `encode` wrote, up to the rounding of the encoding."""
    if len(payload) != size(shape, encoding):
        raise ValueError(
            f"{len(payload)} bytes are not a matrix of {shape[0]} x {shape[1]} numbers in {encoding}, "
            f"which takes {size(shape, encoding)}."
        )
    if encoding == "int8":
        largest = np.frombuffer(payload, dtype="<f4", count=shape[1])
        rounded = np.frombuffer(payload, dtype=np.int8, offset=largest.nbytes).reshape(shape)
        return rounded * (largest.astype(np.float64) / LEVELS)
    return np.frombuffer(payload, dtype=DTYPES[encoding]).reshape(shape).astype(np.float64)


def size(shape: tuple[int, int], encoding: Encoding) -> int:
    """Return the bytes of an encoded matrix."""
    if encoding == "int8":
        return 4 * shape[1] + shape[0] * shape[1]
    return DTYPES[encoding].itemsize * shape[0] * shape[1]


def downward(encoding: Encoding) -> Encoding:
    """Return the encoding of Z: 8 bits are enough for a difference, and too few for Z, which each round starts from."""
    return "float16" if encoding == "int8" else encoding


def reference(shared: Array, encoding: Encoding) -> Array | float:
    """Return what a reply is the difference from: in 8 bits the Z that it answers, in floating point nothing."""
    return shared if encoding == "int8" else 0.0
