"""The strict reader of plain CSV: what is accepted, against pandas, and what every refusal says."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkad.tables import SeriesTable, TableError, read_table
from fedkad.tables.csvfile import BLOCK


def write(folder: Path, text: str, name: str = "pump-1.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def refusal(path: Path, *parts: str, time: str | None = None) -> str:
    """Return the message of the refusal, which is one line, names the file and holds all parts."""
    with pytest.raises(TableError) as caught:
        read_table(path, time=time)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert message.endswith(".")
    assert "; " in message, "no remedy"
    for part in parts:
        assert part in message
    return message


def same(values: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(values), np.asarray(expected))


# What is accepted


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_reads_what_pandas_reads(tmp_path: Path, delimiter: str) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(200, 7)) * 10.0 ** rng.integers(-8, 9, 7), columns=list("abcdefg"))
    path = tmp_path / "pump-1.csv"
    frame.to_csv(path, index=False, sep=delimiter)
    table = read_table(path)
    assert table.name == "pump-1"
    assert table.channels == tuple("abcdefg")
    assert table.times is None
    assert table.period is None
    assert table.values.dtype == np.float64
    same(table.values, frame)
    same(table.values, pd.read_csv(path, sep=delimiter, dtype=str).astype(float))


def test_reads_holes_and_times_as_pandas_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(rng.normal(size=(60, 4)), columns=list("abcd")).mask(rng.random((60, 4)) < 0.2)
    frame.index = pd.date_range("2024-03-30 22:00", periods=60, freq="15min", tz="Europe/Berlin")
    path = tmp_path / "pump-1.csv"
    frame.to_csv(path)  # an index without a name: the header begins with an empty cell
    table = read_table(path, max_fill=0)
    oracle = pd.read_csv(path, index_col=0, dtype=str).astype(float)
    same(table.values, oracle)
    same(table.times, pd.to_datetime(oracle.index, utc=True).tz_convert(None).to_numpy("datetime64[ns]"))
    assert table.period == 900.0
    assert (table.time_column, table.utc) == ("", True)
    assert table.gap_rows == int(frame.isna().any(axis=1).sum())


def test_gzip_byte_order_mark_quotes_and_line_ends(tmp_path: Path) -> None:
    text = '\ufeff"flow; total" , "heat"\r\n"1.5", 2\r\n-3e2 ,"4"\r\n\r\n\r\n'.replace(' , "heat"', ',"heat"')
    path = tmp_path / "pump.1.CSV.gz"
    path.write_bytes(gzip.compress(text.encode()))
    table = read_table(path)
    assert table.name == "pump.1"
    assert table.channels == ("flow; total", "heat")
    same(table.values, [[1.5, 2.0], [-300.0, 4.0]])


@pytest.mark.parametrize("cell", ["", " ", "NA", " NA ", "NaN", "nan", "null", "None", "NULL"])
def test_missing_cells(tmp_path: Path, cell: str) -> None:
    table = read_table(write(tmp_path, f"a,b\n1,2\n{cell},3\n4,5\n"), max_fill=0)
    same(table.values, [[1, 2], [np.nan, 3], [4, 5]])
    assert (table.filled, table.gap_rows) == (0, 1)


def test_a_quoted_empty_cell_is_a_missing_value_of_a_single_channel(tmp_path: Path) -> None:
    same(read_table(write(tmp_path, 'a\n1\n""\n3\n')).values, [[1], [np.nan], [3]])


def test_channels_may_be_called_by_numbers_beside_a_time(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, "time,0,1\n5,2,3\n")).channels == ("0", "1")


# Times


@pytest.mark.parametrize("name", ["time", "Timestamp", "DATE", "datetime", "ts", "t"])
def test_a_first_column_called_time_is_the_time(tmp_path: Path, name: str) -> None:
    table = read_table(write(tmp_path, f"{name},a\n10,1\n12.5,2\n15,3\n"))
    assert table.channels == ("a",)
    assert table.times is not None
    assert table.times.dtype == np.float64
    same(table.times, [10, 12.5, 15])
    assert table.period == 2.5


def test_only_the_first_column_is_the_time_by_name(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a,time\n10,9\n12,8\n"))
    assert table.channels == ("a", "time")
    assert table.times is None


def test_the_time_column_can_be_chosen(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "time,when,a\n9,2024-01-01,1\n8,2024-01-02,2\n"), time="when")
    assert table.channels == ("time", "a")
    same(table.values, [[9, 1], [8, 2]])
    same(table.times, np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[ns]"))
    assert table.period == 86400.0


def test_iso_text_in_the_first_column_is_the_time_under_any_name(tmp_path: Path) -> None:
    text = "when,a\n2024-01-01T01:30:00+01:00,1\n2024-01-01T00:30:00.25Z,2\n2023-12-31 23:31:00-01:00,3\n"
    table = read_table(write(tmp_path, text))
    assert table.channels == ("a",)
    assert table.times is not None
    assert table.times.dtype == np.dtype("datetime64[ns]")
    expected = ["2024-01-01T00:30:00", "2024-01-01T00:30:00.25", "2024-01-01T00:31:00"]
    same(table.times, np.array(expected, dtype="datetime64[ns]"))


@pytest.mark.parametrize(
    ("first", "step", "period"),
    [
        ("0", 1, 1.0),
        ("1700000000", 60, 60.0),
        ("99999999990", 1, 1.0),
        ("99999999999990", 1, 0.001),
        ("99999999999990784", 1600, 0.0016),
        ("100000000000", 1, 0.001),
        ("100000000000000", 1, 0.000001),
        ("100000000000000000", 1600, 0.0000016),
        ("1700000000000", 250, 0.25),
        ("1700000000000000", 250, 0.00025),
        ("1700000000000000000", 10**9, 1.0),
    ],
)
def test_the_unit_of_an_epoch_is_guessed(tmp_path: Path, first: str, step: int, period: float) -> None:
    rows = "".join(f"{int(first) + i * step},{i}\n" for i in range(4))
    table = read_table(write(tmp_path, "time,a\n" + rows))
    assert table.period == pytest.approx(period, rel=1e-12)


def test_a_single_time_has_no_period(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, "time,a\n5,1\n")).period is None


@pytest.mark.parametrize("late", ["2024-01-01T00:01:00", "2024-01-01T00:00:30"])
def test_times_must_increase(tmp_path: Path, late: str) -> None:
    path = write(tmp_path, f"time,a\n2024-01-01T00:00:00,1\n2024-01-01T00:01:00,2\n{late},3\n")
    refusal(path, "line 4", "'time'", f"the time {late} ", "after 2024-01-01T00:01:00 ")


def test_a_channel_mistaken_for_the_time_is_explained(tmp_path: Path) -> None:
    refusal(write(tmp_path, "t,a\n20.5,1\n20.25,2\n"), "line 3", "'t'", "20.25", "20.5", "rename the column")


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        ("", ["the time is missing"]),
        ("NA", ["the time is missing"]),
        ("yesterday", ["'yesterday'", "ISO-8601"]),
        ("12", ["'12'", "ISO-8601"]),
        ("1066-10-14", ["'1066-10-14'", "1678"]),
        ("2024-01-02T00:00:00Z", ["'2024-01-02T00:00:00Z'", "zone"]),
    ],
)
def test_unusable_iso_times(tmp_path: Path, cell: str, parts: list[str]) -> None:
    refusal(write(tmp_path, f"when,a\n2024-01-01,1\n{cell},2\n2024-01-03,3\n"), "line 3", "'when'", *parts)


@pytest.mark.parametrize("cell", ["", "nan", "inf", "2024-01-01", "1_0"])
def test_unusable_numeric_times(tmp_path: Path, cell: str) -> None:
    refusal(write(tmp_path, f"time,a\n1,1\n{cell},2\n3,3\n"), "line 3", "'time'", "the time")


def test_unknown_time_column(tmp_path: Path) -> None:
    refusal(write(tmp_path, "a,b\n1,2\n"), "'when'", "a, b", time="when")


def test_time_alone(tmp_path: Path) -> None:
    refusal(write(tmp_path, "time\n1\n2\n"), "no channel")


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_file_of_many_blocks_is_read_as_pandas_reads_it_and_told_of_as_it_goes(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(3 * BLOCK, 3)), columns=list("abc")).mask(rng.random((3 * BLOCK, 3)) < 0.01)
    frame.index = pd.date_range("2024-03-30 22:00", periods=len(frame), freq="1min", tz="Europe/Berlin", name="time")
    path = tmp_path / f"pump-1.{ending}"
    frame.to_csv(path)
    told: list[tuple[int, int]] = []
    table = read_table(path, max_fill=0, report=lambda done, of: told.append((done, of)))
    same(table.values, frame)
    assert table.times is not None
    same(table.times, frame.index.tz_convert("UTC").tz_localize(None).to_numpy(dtype="datetime64[ns]"))
    same(table.offsets, [stamp.utcoffset().total_seconds() // 60 for stamp in frame.index])
    assert len(told) == 3
    assert told == sorted(told)
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


# Refusals


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("9999-99-99,1", ["time column 'time'", "9999-99-99"]),
        ("2024-01-09T00:00Z,1", ["time column 'time'", "with or without a zone"]),
        ("2024-01-09,1_0", ["channel 'a'", "'1_0'"]),
        ("2024-01-09,high", ["channel 'a'", "'high'"]),
        ("2024-01-09,1,2", ["has 3 cells", "names 2"]),
        ("\n2024-01-09,1", ["has 0 cells", "names 2"]),
        ('2024-01-09,"1', ["not CSV"]),
    ],
)
def test_what_is_wrong_far_down_is_told_with_its_line(tmp_path: Path, row: str, parts: list[str]) -> None:
    stamps = np.datetime64("2024-01-01") + np.arange(BLOCK + 7) * np.timedelta64(1, "m")
    lines = [f"{stamp},{k}" for k, stamp in enumerate(stamps)]
    path = write(tmp_path, "\n".join(["time,a", *lines, row]) + "\n")
    refusal(path, f"line {BLOCK + 9}", *parts)


def test_missing_file(tmp_path: Path) -> None:
    refusal(tmp_path / "absent.csv", "no such file")


def test_a_folder_is_not_a_table(tmp_path: Path) -> None:
    refusal(tmp_path, "folder")


@pytest.mark.parametrize("name", ["pump.tsv", "pump.gz", "pump", "pump.csv.zip", "pump.xlsx", "pump.parquet"])
def test_unsupported_ending(tmp_path: Path, name: str) -> None:
    refusal(write(tmp_path, "a\n1\n", name), "ending", ".csv or .csv.gz")


@pytest.mark.parametrize("text", ["", "\ufeff", "\n\n", "  "])
def test_empty_file(tmp_path: Path, text: str) -> None:
    refusal(write(tmp_path, text), "empty")


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "a,b\n\n\n"])
def test_header_only(tmp_path: Path, text: str) -> None:
    refusal(write(tmp_path, text), "no rows")


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "2024-01-01,2\n2024-01-02,4\n", "5\n"])
def test_no_header(tmp_path: Path, text: str) -> None:
    refusal(write(tmp_path, text), "line 1", "add a header line that names the channels")


def test_blank_first_line(tmp_path: Path) -> None:
    refusal(write(tmp_path, "\na,b\n1,2\n"), "line 1", "blank")


def test_duplicate_channel(tmp_path: Path) -> None:
    refusal(write(tmp_path, "a,b, a\n1,2,3\n"), "channel 'a'", "columns 1 and 3")


def test_channel_without_a_name(tmp_path: Path) -> None:
    refusal(write(tmp_path, "time,a,\n1,2,3\n"), "column 3 has no name")
    refusal(write(tmp_path, ",a,b\n0,2,3\n"), "column 1 has no name")


@pytest.mark.parametrize(("row", "cells"), [("1", 1), ("1,2,3", 3), ("", 0)])
def test_wrong_number_of_cells(tmp_path: Path, row: str, cells: int) -> None:
    refusal(write(tmp_path, f"a,b\n1,2\n{row}\n3,4\n"), "line 3", f"has {cells} cells", "names 2")


@pytest.mark.parametrize("cell", ["high", "1.2.3", "1_000", "0x1F", '"1,5"', "n/a", "True"])
def test_text_where_a_number_belongs(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path, f"a,b_c\n1,2\n3,4\n,6\n7,{cell}\n")
    shown = cell.strip('"')
    refusal(path, "line 5", "channel 'b_c'", repr(shown), "write a number")


def test_the_line_counts_line_ends_inside_quotes(tmp_path: Path) -> None:
    refusal(write(tmp_path, '"a\nb",c\n1,2\n"\n3",4\n5,x\n'), "line 6", "channel 'c'", "'x'")


def test_a_long_cell_is_cut_short(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, f"a,b\n1,2\n3,{'x' * 5000}\n"), "line 3", "channel 'b'")
    assert len(message) < len(str(tmp_path)) + 300


def test_text_column(tmp_path: Path) -> None:
    refusal(write(tmp_path, "a,state\n1,\n2,on\n3,off\n"), "line 3", "channel 'state'", "found 'on'")


def test_times_in_another_column(tmp_path: Path) -> None:
    refusal(write(tmp_path, "a,when\n1,2024-01-01\n"), "line 2", "channel 'when'", "name 'when' as the time column")


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e999"])
def test_infinite_value(tmp_path: Path, cell: str) -> None:
    refusal(write(tmp_path, f"a,b\n1,2\n3,{cell}\n"), "line 3", "channel 'b'", "infinite")


def test_channel_without_values(tmp_path: Path) -> None:
    refusal(write(tmp_path, "a,b\n1,\n2,NA\n"), "channel 'b'", "every value is missing")


def test_a_silent_channel_is_read_where_that_is_allowed(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a,b\n1,\n2,NA\n"), allow_silent=True)
    assert table.silent == ("b",)
    assert table.gap_rows == 0
    with pytest.raises(TableError, match="infinite"):
        read_table(write(tmp_path, "a,b\n1,\ninf,NA\n"), allow_silent=True)


@pytest.mark.parametrize(
    ("text", "column", "utc"),
    [
        ("t,a\n1,2\n3,4\n", "t", False),
        ("when,a\n2024-01-01T00:00,2\n", "when", False),
        ("when,a\n2024-01-01T00:00+02:00,2\n", "when", True),
        ("a\n1\n", None, False),
    ],
)
def test_what_was_taken_as_the_time(tmp_path: Path, text: str, column: str | None, utc: bool) -> None:
    table = read_table(write(tmp_path, text))
    assert (table.time_column, table.utc) == (column, utc)


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    rng = np.random.default_rng(0)
    data = bytearray(gzip.compress(("a\n" + "\n".join(map(str, rng.normal(size=500)))).encode()))
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(b"a,b\n1,2\n")
    path = tmp_path / "pump-1.csv.gz"
    path.write_bytes(data)
    refusal(path, "gzip")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "pump-1.csv"
    path.write_bytes("a,b\n1,2\n3,4°\n".encode("latin-1"))
    refusal(path, "line 3", "0xb0", "UTF-8")


@pytest.mark.parametrize("row", ['"1,2', '"1"x,2'])
def test_broken_quotes(tmp_path: Path, row: str) -> None:
    refusal(write(tmp_path, f"a,b\n1,2\n{row}\n"), "line 3", "not CSV")


def test_max_fill_must_not_be_negative(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_fill is -1"):
        read_table(write(tmp_path, "a\n1\n"), max_fill=-1)


def test_table_is_frozen() -> None:
    table = SeriesTable("pump-1", ("a",), np.zeros((1, 1)))
    with pytest.raises(AttributeError):
        table.name = "pump-2"  # type: ignore[misc]


@pytest.mark.parametrize("rows", [4095, 4096, 4097])
def test_blank_lines_end_a_file_wherever_a_block_ends(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "pump-1.csv"
    text = "flow,heat\n" + rows * "1,2\n" + 9000 * "\n"
    path.write_text(text)
    assert len(read_table(path).values) == rows
    path.write_text(text + "3,4\n")
    with pytest.raises(TableError, match=f"line {rows + 2}: the row has 0 cells where the header names 2"):
        read_table(path)
