"""Datasets in binary form under the user's cache folder, so that text is read once.

An entity is kept as three plain ``.npy`` files and a manifest with their checksums, in a folder whose name carries a
fingerprint of the source files (name, size and time of change): a changed source is another folder. The numbers are
those of the source bit for bit. Whatever is wrong with the cache costs time only: what is damaged is read again, with
a :class:`CacheWarning`, and where nothing can be written nothing is.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import warnings
import zlib
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad_bench.data.entity import Entity
from fedkad_bench.data.layouts import Recording

FORMAT = 1
"""Raised whenever reading a source gives other numbers than before."""

MANIFEST = "manifest.json"
ARRAYS = ("train", "test", "labels")


class CacheWarning(UserWarning):
    """A cached copy was not used; the numbers come from the source instead."""


def cache_folder() -> Path:
    """Where copies are kept: `FEDKAD_CACHE`, else ``fedkad`` in `XDG_CACHE_HOME` or in ``~/.cache``."""
    named = os.environ.get("FEDKAD_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedkad"


def read_cached(recording: Recording, dataset: str, folder: Path) -> Entity:
    """An entity of a dataset in a folder: from its copy, or from the source, which is copied on the way.

    Nothing is ever written into the folder of the data: where the cache lies in there, it is not used.
    """
    cache = cache_folder()
    if folder.resolve() in (cache.resolve(), *cache.resolve().parents):
        told = f"{cache}: the cache lies in the data folder {folder} and is not used; name another in FEDKAD_CACHE."
        warnings.warn(told, CacheWarning, stacklevel=2)
        return recording.read()
    whose = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    place = cache / f"datasets-{FORMAT}" / f"{dataset}-{whose}" / f"{recording.name}-{fingerprint(recording.files)}"
    kept = _copy_in(place, recording.name)
    if kept is not None:
        return kept
    entity = recording.read()
    _keep(entity, place)
    return entity


def fingerprint(files: tuple[Path, ...]) -> str:
    """Sixteen digits that change with the name, the size and the time of change of any of the files."""
    stats = [(file.name, file.stat()) for file in files]
    described = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _copy_in(place: Path, name: str) -> Entity | None:
    """The kept entity; None where there is none, or none that can be trusted."""
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
        arrays = [_load(place / f"{part}.npy", manifest[part]) for part in ARRAYS]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        told = f"{place}: the cached copy is damaged ({error}); the source is read again."
        warnings.warn(told, CacheWarning, stacklevel=3)
        return None
    return Entity(name, *arrays)


def _load(path: Path, expected: dict[str, Any]) -> NDArray[Any]:
    # Mapped copy-on-write: no memory is filled, and who changes an array changes neither the file nor anybody else's.
    array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    if _description(array) != expected:
        raise ValueError(f"{path.name} is not what was written")
    return array


def _description(array: NDArray[Any]) -> dict[str, Any]:
    return {
        "type": array.dtype.str,
        "shape": list(array.shape),
        "crc32": zlib.crc32(np.ascontiguousarray(array).data),
    }


def _keep(entity: Entity, place: Path) -> None:
    """Write the copy, its manifest last, and drop those of earlier versions of the source."""
    arrays = {"train": entity.train, "test": entity.test, "labels": entity.labels}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for part, array in arrays.items():
            written = io.BytesIO()
            np.save(written, array, allow_pickle=False)
            write_atomically(place / f"{part}.npy", written.getvalue())
        described = {part: _description(array) for part, array in arrays.items()}
        write_atomically(place / MANIFEST, json.dumps(described).encode())
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        return
    for earlier in place.parent.glob(f"{escape(entity.name)}-{'[0-9a-f]' * 16}"):
        if earlier != place:
            shutil.rmtree(earlier, ignore_errors=True)
