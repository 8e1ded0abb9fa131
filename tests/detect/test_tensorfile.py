"""Our reader and writer of the safetensors format against the library's, and against what is not of the format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from fedkad.detect.tensorfile import TYPES, TensorFile, write_tensors
from tests.fixtures.draws import draws

Arrays = dict[str, NDArray[Any]]
names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=8).filter(lambda n: n != "__metadata__")
some = st.dictionaries(
    names,
    st.sampled_from(sorted(TYPES)).flatmap(lambda kind: arrays_of.arrays(kind, arrays_of.array_shapes(max_side=4))),
    min_size=1,
    max_size=4,
)
texts = st.dictionaries(st.sampled_from(["a", "fedkad"]), st.text(max_size=9))


def read(path: Path) -> tuple[Arrays, dict[str, str]]:
    with TensorFile(path) as file:
        return dict(file.arrays()), file.metadata


def equal(ours: Arrays, theirs: Arrays) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype
        and ours[name].shape == theirs[name].shape
        and ours[name].tobytes() == theirs[name].tobytes()
        for name in ours
    )


@draws(60, derandomize=True)
@given(some, texts)
def test_the_library_reads_what_we_write_and_we_what_it_writes(
    tmp_path_factory: pytest.TempPathFactory, arrays: Arrays, metadata: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    write_tensors(path, arrays, metadata)
    assert equal(load_file(path), arrays)
    with safe_open(path, framework="numpy") as file:
        assert (file.metadata() or {}) == metadata
    assert read(path)[1] == metadata
    assert equal(read(path)[0], arrays)
    save_file({name: array.copy() for name, array in arrays.items()}, path, metadata or None)
    assert equal(read(path)[0], arrays)


@draws(150, derandomize=True)
@given(st.data())
def test_damage_is_refused_or_read_within_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    write_tensors(path, {"a": np.arange(6.0), "b": np.arange(4, dtype="<i4").reshape(2, 2)}, {"fedkad": "x"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content) - 1, 190)))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        found, _ = read(path)
    except ValueError:
        return
    assert sum(array.nbytes for array in found.values()) <= 2 * len(content)


HOSTILE = {
    "no header": b"",
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "no table": (2).to_bytes(8, "little") + b"[]",
    "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "not in the file": b'{"a":{"dtype":"F64","shape":[1000000],"data_offsets":[0,8000000]}}',
    "negative": b'{"a":{"dtype":"F64","shape":[-1,-1],"data_offsets":[0,8]}}',
    "of another type": b'{"a":{"dtype":"O","shape":[1],"data_offsets":[0,8]}}',
    "an endless side": b'{"a":{"dtype":"F64","shape":[Infinity],"data_offsets":[0,8]}}',
    "a side of no number": b'{"a":{"dtype":"F64","shape":[NaN],"data_offsets":[0,8]}}',
    "a long side of nothing": b'{"a":{"dtype":"F64","shape":[0,1' + b"0" * 30 + b'],"data_offsets":[8,8]}}',
    "a broken place": b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0.0,8.0]}}',
    "an endless place": b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[-Infinity,8]}}',
    "texts for places": b'{"a":{"dtype":"F64","shape":["x"],"data_offsets":["0",8]}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name: str, tmp_path: Path) -> None:
    content, path = HOSTILE[name], tmp_path / "file"
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(8) if content[:1] == b"{" else content)
    with pytest.raises(ValueError, match=r"."):
        read(path)
    with pytest.raises((SafetensorError, Exception)):
        load_file(path)
