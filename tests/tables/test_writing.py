"""Writing columns to CSV."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.tables import TableError, read_table, write_table
from fedkad.tables.writing import Column, write_blocks


def cells(folder: Path, values: Column) -> list[str]:
    path = folder / "out.csv"
    write_table(path, {"row": np.arange(len(values)), "x": values})
    return [line.split(",", 1)[1] for line in path.read_text().splitlines()[1:]]


def test_a_score_file_reads_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    times = np.datetime64("2024-01-01T00:00:00", "ns") + np.arange(50) * np.timedelta64(250, "ms")
    score = np.where(np.arange(50) < 5, np.nan, rng.gamma(2, 1e-3, 50))
    flags = score > 0.004
    path = tmp_path / "scores.csv"
    write_table(path, {"time": times, "score": score, "threshold": np.full(50, 0.004), "is_anomaly": flags})
    # As text first: pandas may be off by the last bit when it reads numbers itself.
    frame = pd.read_csv(path, dtype=str)
    assert list(frame.columns) == ["time", "score", "threshold", "is_anomaly"]
    np.testing.assert_array_equal(pd.to_datetime(frame.pop("time"), format="ISO8601"), times)
    numbers = np.column_stack([score, np.full(50, 0.004), flags])
    np.testing.assert_array_equal(frame.astype(float), numbers)
    table = read_table(path, max_fill=0)
    np.testing.assert_array_equal(table.times, times)
    np.testing.assert_array_equal(table.values, numbers)
    assert table.period == 0.25


@given(values=st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20))
def test_numbers_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("out") / "out.csv"
    write_table(path, {"row": np.arange(len(values)), "x": values})
    if all(np.isnan(values)):
        assert path.read_text().splitlines()[1:] == [f"{i}," for i in range(len(values))]
    else:
        np.testing.assert_array_equal(read_table(path, max_fill=0).values[:, 1], values)


def test_how_each_kind_of_value_is_written(tmp_path: Path) -> None:
    assert cells(tmp_path, [0.5, np.nan, 2.0]) == ["0.5", "", "2.0"]
    assert cells(tmp_path, [1_700_000_000_000.0, np.nan]) == ["1700000000000", ""]
    assert cells(tmp_path, [1e300, 1.0]) == ["1e+300", "1.0"]
    assert cells(tmp_path, [3, -4]) == ["3", "-4"]
    assert cells(tmp_path, [True, False]) == ["1", "0"]
    assert cells(tmp_path, ["pump, old", None]) == ['"pump, old"', ""]
    stamps = np.array(["2024-01-01", "NaT", "2024-01-02T03:04:05"], dtype="datetime64[ns]")
    assert cells(tmp_path, stamps) == ["2024-01-01T00:00:00", "", "2024-01-02T03:04:05"]
    assert cells(tmp_path, stamps + np.timedelta64(1, "ns"))[0] == "2024-01-01T00:00:00.000000001"


def test_the_file_is_replaced_whole_and_keeps_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    write_table(path, {"a": [1, 2, 3]})
    usual = tmp_path / "usual"
    usual.touch()
    write_table(path, {"b": [4]})
    assert path.read_text() == "b\n4\n"
    assert path.stat().st_mode == usual.stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["scores.csv", "usual"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.csv"
    write_table(path, {"a": [1]})

    def disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(TableError, match=r"scores\.csv: .*No space left"):
        write_table(path, {"a": [2]})
    assert path.read_text() == "a\n1\n"
    assert os.listdir(tmp_path) == ["scores.csv"]


def test_blocks_are_written_as_they_come(tmp_path: Path) -> None:
    path, size = tmp_path / "scores.csv", 4096
    numbers = np.random.default_rng(0).normal(size=size)
    tracemalloc.start()
    try:
        write_blocks(path, ({"row": range(k * size, (k + 1) * size), "x": numbers} for k in range(40)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 2
    table = read_table(path)
    assert table.channels == ("row", "x")
    np.testing.assert_array_equal(table.values, np.column_stack([np.arange(40 * size), np.tile(numbers, 40)]))


@pytest.mark.parametrize(
    ("name", "columns", "parts"),
    [
        ("out.parquet", {"a": [1]}, ["out.parquet", ".csv"]),
        ("out.csv", {}, ["out.csv", "no columns"]),
        ("out.csv", {"a": [1, 2], "b": [1]}, ["out.csv", "'b'", "1 rows", "first one 2"]),
        ("out.csv", {"a": [[1, 2], [3, 4]]}, ["out.csv", "'a'", "2 dimensions"]),
        ("absent/out.csv", {"a": [1]}, ["absent/out.csv", "cannot be written"]),
        ("file/out.csv", {"a": [1]}, ["file/out.csv", "cannot be written"]),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, name: str, columns: dict[str, Column], parts: list[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TableError) as caught:
        write_table(tmp_path / name, columns)
    for part in parts:
        assert part in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]
