"""Datasets in one small file, to carry to a machine that has none: training and test series, no labels.

    python -m fedkad_bench.data.packing SMD SMAP MSL --data DIR --out data.pack

Values with six decimals, as in SMD, are kept as integers. Bytes of equal weight lie together, channel by channel,
which lzma compresses to about half of gzipped text. Nothing is lost: what would not come back bit for bit is kept as
it is.
"""

from __future__ import annotations

import argparse
import lzma
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad_bench.data.datasets import KNOWN, load

Array = NDArray[np.float64]

DECIMALS = 1e6


class Series(NamedTuple):
    """What a training machine needs of an entity."""

    train: Array
    test: Array


def pack_series(values: Array) -> bytes:
    """One series `(time, channel)` as compressed byte planes.

    >>> x = np.array([[0.25, -1e-300], [0.5, np.nan]])
    >>> np.array_equal(unpack_series(pack_series(x)), x, equal_nan=True)
    True
    """
    with np.errstate(invalid="ignore", over="ignore"):
        whole = np.rint(values * DECIMALS)
        exact = bool((np.abs(whole) < 2**31).all()) and np.array_equal(whole / DECIMALS, values)
    kept = whole.astype("<i4") if exact else values.astype("<f8")
    planes = np.ascontiguousarray(kept.T).view(np.uint8).reshape(kept.shape[1], len(kept), kept.itemsize)
    header = np.array([exact, *kept.shape], dtype="<i8").tobytes()
    return header + lzma.compress(planes.transpose(0, 2, 1).tobytes(), preset=6)


def unpack_series(content: bytes) -> Array:
    """The inverse of `pack_series`."""
    exact, rows, channels = np.frombuffer(content[:24], dtype="<i8")
    kind = np.dtype("<i4" if exact else "<f8")
    planes = np.frombuffer(lzma.decompress(content[24:]), dtype=np.uint8).reshape(channels, kind.itemsize, rows)
    kept = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(kind)[..., 0].T
    values: Array = np.ascontiguousarray(kept / DECIMALS if exact else kept)
    return values


def write_pack(path: Path, datasets: Mapping[str, Mapping[str, Series]]) -> None:
    """Write entities by dataset and name."""
    members = {
        f"{dataset}/{entity}/{part}": getattr(series, part)
        for dataset, entities in datasets.items()
        for entity, series in entities.items()
        for part in Series._fields
    }
    with ProcessPoolExecutor() as pool, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, content in zip(members, pool.map(pack_series, members.values()), strict=True):
            file.writestr(name, content)


def read_pack(path: Path, dataset: str) -> dict[str, Series]:
    """The entities of one dataset, in the order they were written."""
    return {name: Series(*parts) for name, parts in _read_parts(path, dataset)}


def _read_parts(path: Path, dataset: str) -> Iterator[tuple[str, tuple[Array, Array]]]:
    with zipfile.ZipFile(path) as file:
        entities = dict.fromkeys(name.split("/")[1] for name in file.namelist() if name.startswith(f"{dataset}/"))
        if not entities:
            raise ValueError(
                f"{path}: there is no {dataset} in it; pack it with `python -m fedkad_bench.data.packing`."
            )
        for entity in entities:
            train, test = (unpack_series(file.read(f"{dataset}/{entity}/{part}")) for part in Series._fields)
            yield entity, (train, test)


def main() -> None:
    """Pack the datasets named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=list(KNOWN))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    loaded = {name: load(name, given.data) for name in given.datasets}
    write_pack(
        given.out,
        {name: {e.name: Series(e.train, e.test) for e in dataset.entities} for name, dataset in loaded.items()},
    )


if __name__ == "__main__":
    main()
