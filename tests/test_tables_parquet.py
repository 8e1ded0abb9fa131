"""Reading Parquet files, against pandas, and what every refusal says."""

import builtins
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedkad.tables import TableError, read_table


def store(folder: Path, columns: dict[str, Any] | Any) -> Path:
    path = folder / "pump-1.parquet"
    pq.write_table(pa.table(columns) if isinstance(columns, dict) else columns, path)
    return path


def refusal(path: Path, *parts: str, time: str | None = None) -> None:
    with pytest.raises(TableError) as caught:
        read_table(path, time=time)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert message.endswith(".")
    for part in parts:
        assert part in message


def test_reads_what_pandas_reads(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(80, 3)), columns=list("abc")).mask(rng.random((80, 3)) < 0.2)
    frame["n"] = np.arange(80, dtype=np.int16)
    frame["h"] = rng.normal(size=80).astype(np.float32)
    frame["k"] = pd.array([None, *range(79)], dtype="Int64")
    frame.index = pd.date_range("2024-03-30 22:00", periods=80, freq="15min", tz="Europe/Berlin")
    path = tmp_path / "pump-1.parquet"
    frame.to_parquet(path)  # pandas stores the index as the last column
    table = read_table(path, max_fill=0)
    oracle = pd.read_parquet(path)
    assert table.name == "pump-1"
    assert table.channels == ("a", "b", "c", "n", "h", "k")
    assert table.values.dtype == np.float64
    np.testing.assert_array_equal(table.values, oracle.to_numpy(np.float64, na_value=np.nan))
    assert table.times is not None
    assert table.times.dtype == np.dtype("datetime64[ns]")
    np.testing.assert_array_equal(table.times, oracle.index.tz_convert(None).to_numpy("datetime64[ns]"))
    assert table.period == 900.0
    assert table.utc
    frame.tz_localize(None).to_parquet(path)
    assert not read_table(path).utc


def test_holes_are_filled_as_in_csv(tmp_path: Path) -> None:
    table = read_table(store(tmp_path, {"a": [1.0, None, 3.0], "b": [4, 5, None]}))
    np.testing.assert_array_equal(table.values, [[1, 4], [1, 5], [3, 5]])
    assert (table.filled, table.gap_rows) == (2, 0)


def test_large_integers_are_rounded(tmp_path: Path) -> None:
    table = read_table(store(tmp_path, {"a": [2**53 + 1, 5]}))
    np.testing.assert_array_equal(table.values, [[2.0**53], [5.0]])


@pytest.mark.parametrize(
    ("times", "period"),
    [
        ([1.0, 2.0, 3.5], 1.25),
        (["2024-01-01T00:00:00Z", "2024-01-01T00:00:10Z", "2024-01-01T00:00:20Z"], 10.0),
        ([datetime.date(2024, 1, day) for day in (1, 2, 3)], 86400.0),
    ],
)
def test_times_by_name(tmp_path: Path, times: list[Any], period: float) -> None:
    table = read_table(store(tmp_path, {"time": times, "a": [1, 2, 3]}))
    assert table.channels == ("a",)
    assert table.period == period


def test_iso_text_in_the_first_column_is_the_time(tmp_path: Path) -> None:
    table = read_table(store(tmp_path, {"when": ["2024-01-01", "2024-01-02"], "a": [1, 2]}))
    assert table.channels == ("a",)


def test_the_time_column_can_be_chosen(tmp_path: Path) -> None:
    path = store(tmp_path, {"a": [1, 2], "clock": [10, 14]})
    assert read_table(path).channels == ("a", "clock")
    table = read_table(path, time="clock")
    assert (table.channels, table.period) == (("a",), 4.0)


def test_folders_do_not_become_channels(tmp_path: Path) -> None:
    folder = tmp_path / "site=4"
    folder.mkdir()
    assert read_table(store(folder, {"a": [1, 2]})).channels == ("a",)


def test_two_columns_of_times(tmp_path: Path) -> None:
    stamps = pa.array([1, 2], pa.timestamp("s"))
    refusal(store(tmp_path, {"sent": stamps, "received": stamps, "a": [1, 2]}), "sent, received")


def test_backward_and_missing_times(tmp_path: Path) -> None:
    stamps = pa.array([5, 9, 7], pa.timestamp("s"))
    path = store(tmp_path, {"time": stamps, "a": [1, 2, 3]})
    refusal(path, "row 3", "'time'", "1970-01-01T00:00:07 ", "1970-01-01T00:00:09 ")
    stamps = pa.array([5, None, 7], pa.timestamp("s"))
    refusal(store(tmp_path, {"time": stamps, "a": [1, 2, 3]}), "row 2", "'time'", "missing")
    refusal(store(tmp_path, {"time": [1, None, 3], "a": [1, 2, 3]}), "row 2", "'time'", "missing")
    refusal(store(tmp_path, {"time": ["2024-01-01", None], "a": [1, 2]}), "row 2", "'time'", "missing")


def test_times_beyond_nanoseconds(tmp_path: Path) -> None:
    stamps = pa.array([0, 10**12], pa.timestamp("s"))
    refusal(store(tmp_path, {"time": stamps, "a": [1, 2]}), "'time'", "nanoseconds")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["on", "off"], "string"),
        ([[1], [2]], "list"),
        ([{"x": 1}, {"x": 2}], "struct"),
        ([True, False], "bool"),
    ],
)
def test_columns_that_are_not_numbers(tmp_path: Path, cells: list[Any], kind: str) -> None:
    refusal(store(tmp_path, {"a": [1, 2], "state": cells}), "channel 'state'", kind)


def test_a_time_column_that_holds_no_times(tmp_path: Path) -> None:
    refusal(store(tmp_path, {"time": [[1], [2]], "a": [1, 2]}), "'time'", "list")


def test_infinite_value(tmp_path: Path) -> None:
    refusal(store(tmp_path, {"a": [1.0, 2.0], "b": [1.0, np.inf]}), "row 2", "channel 'b'", "infinite")


def test_channel_without_values(tmp_path: Path) -> None:
    column = pa.array([None, None], pa.float64())
    refusal(store(tmp_path, {"a": [1.0, 2.0], "b": column}), "channel 'b'", "every value is missing")


def test_names(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    refusal(store(tmp_path, twice), "channel 'a'", "columns 1 and 2")
    refusal(store(tmp_path, {"a": [1], "": [2]}), "column 2 has no name")
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=[4, 9])
    frame.to_parquet(tmp_path / "pump-1.parquet")
    refusal(tmp_path / "pump-1.parquet", "'__index_level_0__'", "index=False")


def test_no_rows_and_no_columns(tmp_path: Path) -> None:
    refusal(store(tmp_path, {"a": pa.array([], pa.float64())}), "no rows")
    refusal(store(tmp_path, {}), "no columns")


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "page"])
def test_damaged_file(tmp_path: Path, damage: str) -> None:
    path = store(tmp_path, {"a": np.random.default_rng(0).normal(size=2000)})
    data = bytearray(path.read_bytes())
    if damage == "page":
        data[4:200] = bytes(196)
    broken = {"empty": b"", "text": b"a,b\n1,2\n", "cut": bytes(data[:-30]), "page": bytes(data)}[damage]
    path.write_bytes(broken)
    refusal(path, "cannot be read as Parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path, {"a": [1, 2]})
    real = builtins.__import__

    def without_pyarrow(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    refusal(path, "pip install 'fedkad[parquet]'")
