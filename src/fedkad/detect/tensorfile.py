"""Files in the safetensors format, array by array, so that a small device never holds one twice in memory.

    8 bytes        length of the header, little-endian
    header         JSON: type, shape and offsets of every array; strings under ``__metadata__``
    data           the arrays, one after the other

The safetensors library reads and writes the same files, but maps or copies them whole, and has no wheels for the
smallest boards. Nothing in a file is executed, and offsets are checked before anything is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically

TYPES = {"<f8": "F64", "<f4": "F32", "<i8": "I64", "<i4": "I32", "|u1": "U8", "|b1": "BOOL"}
"""The names of the supported types in numpy and in safetensors."""

NUMPY_TYPES = {theirs: ours for ours, theirs in TYPES.items()}


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write contiguous arrays in the given order, atomically."""
    layout: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in arrays.items():
        place = [at, at := at + array.nbytes]
        layout[name] = {"dtype": TYPES[array.dtype.str], "shape": array.shape, "data_offsets": place}
    text = json.dumps(layout, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    write_atomically(path, len(text).to_bytes(8, "little") + text, *(as_bytes(array) for array in arrays.values()))


def as_bytes(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


class TensorFile:
    """A file open for reading; raises `ValueError` or `OSError` if it is not in this format."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        try:
            self._length = os.fstat(self._file.fileno()).st_size
            self._layout = self._read_layout()
        except BaseException:
            self._file.close()
            raise
        self.metadata: dict[str, str] = self._layout.pop("__metadata__", {})

    def _read_layout(self) -> dict[str, Any]:
        size = int.from_bytes(self._file.read(8), "little")
        if not 0 < size <= self._length - 8:
            raise ValueError("it does not begin like a safetensors file")
        try:
            layout = json.loads(self._file.read(size))
        except RecursionError:
            raise ValueError("its header is nested too deeply") from None
        if not isinstance(layout, dict) or not isinstance(layout.get("__metadata__", {}), dict):
            raise ValueError("its header is not a table of arrays")
        self._start = 8 + size
        try:
            end = max((entry["data_offsets"][1] for name, entry in layout.items() if name != "__metadata__"), default=0)
        except (KeyError, TypeError, IndexError):
            raise ValueError("the description of an array is wrong") from None
        if end != self._length - self._start:
            raise ValueError("it is shorter or longer than it says")
        return layout

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The arrays one after the other, sorted by name."""
        for name in sorted(self._layout):
            yield name, self._read(self._layout[name])

    def _read(self, entry: Any) -> NDArray[Any]:
        try:
            (first, stop), shape = entry["data_offsets"], list(entry["shape"])
            dtype = np.dtype(NUMPY_TYPES[entry["dtype"]])
        except (KeyError, TypeError, ValueError):
            raise ValueError("the description of an array is wrong") from None
        if not all(type(number) is int for number in (first, stop, *shape)):
            raise ValueError("the description of an array has numbers that are not integers")
        within = 0 <= first <= stop <= self._length - self._start
        if not within or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != stop - first:
            raise ValueError("an array extends beyond the file")
        self._file.seek(self._start + first)
        values = np.fromfile(self._file, dtype, math.prod(shape))
        try:
            return values.reshape(shape)
        except OverflowError:  # an empty array may have dimensions of any size
            raise ValueError("an array has a dimension that is too large") from None

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
