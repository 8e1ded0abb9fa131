"""Recordings as plants, historians and spreadsheets export them: read right, or one sentence that names the switch."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import lzma
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.intake import Switches, device_names, opening, read_devices, read_recording
from fedkad.intake import engine as intake_engine
from fedkad.intake.lineends import line_ends
from fedkad.tables import SeriesTable, TableError, read_table, write_table
from tests.fixtures.draws import draws

openpyxl = pytest.importorskip("openpyxl")
pytest.importorskip("duckdb")

NAN = float("nan")


def write(folder: Path, text: str | bytes, name: str = "boiler.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path, *parts: str, **switches: Any) -> None:
    with pytest.raises(TableError) as caught:
        read_recording(path, Switches(**switches))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert message.endswith(".")
    assert "; " in message, "no remedy"
    for part in parts:
        assert part in message, message


def moments(table: SeriesTable) -> list[str]:
    assert table.times is not None
    return [str(time.astype("datetime64[ms]")) for time in table.times]


SCADA = (
    "Boiler house 3, trend export\r\n"
    "Exported;05.03.2024 10:12;user: Müller\r\n"
    "\r\n"
    "Zeit;Vorlauf [Temperatur];Druck;Pumpe;Bemerkung;\r\n"
    ";°C;bar;%;;\r\n"
    "01.03.2024 23:59;71,5;2,1;100;;\r\n"
    "02.03.2024;71,25;Bad Input;100;Schichtwechsel;\r\n"
    "02.03.2024 00:01;1.071,5;N/A;---;;\r\n"
    "02.03.2024 00:02;-0,5;2,3;100;;\r\n"
)


@pytest.mark.parametrize(
    ("text", "channels", "first"),
    [
        ("Zeit;Temperatur\n01.03.2024 00:00;71,5\n01.03.2024 00:01;71,6\n", ("Temperatur",), [71.5]),
        ("Zeit;a;b\n01.03.2024 00:00;0,0063;-0,0066\n01.03.2024 00:01;0,9267;0,5\n", ("a", "b"), [0.0063, -0.0066]),
        ("Zeit;a;b\n2024-03-01 00:00:00,000;71,5;2,1\n2024-03-01 00:00:01,000;71,6;2,2\n", ("a", "b"), [71.5, 2.1]),
        ('time,flow,p\n0,"0,125",7\n1,"0,250",8\n', ("flow", "p"), [0.125, 7.0]),
    ],
)
def test_a_decimal_comma_in_every_channel(
    tmp_path: Path, text: str, channels: tuple[str, ...], first: list[float]
) -> None:
    table = read_recording(write(tmp_path, text))
    assert table.channels == channels
    assert len(table.values) == 2
    assert table.values[0].tolist() == first
    assert table.times is not None


def german(rows: int, channels: int = 4, faults: dict[int, str] | None = None) -> str:
    """A table whose rows all have as many commas; a fault is the line and what comes after the second value there."""
    lines = ["Zeit;" + ";".join(f"Kanal {k}" for k in range(channels))]
    start = datetime.datetime(2024, 3, 1)
    for row in range(rows):
        cells = [f"{50 + row % 7},{10 + (row * k) % 90}" for k in range(channels)]
        cells[1] += (faults or {}).get(row + 2, "")
        lines.append(";".join([f"{start + datetime.timedelta(minutes=row):%d.%m.%Y %H:%M}", *cells]))
    return "\r\n".join(lines) + "\r\n"


@pytest.mark.parametrize("line", [2, 3, 200, 301])
def test_a_surplus_cell_does_not_make_the_decimal_comma_the_separator(tmp_path: Path, line: int) -> None:
    """The commas split all rows alike, and then the first row of values would pass for the header."""
    whole = read_recording(write(tmp_path, german(300)))
    assert (whole.channels[0], whole.values.shape) == ("Kanal 0", (300, 4))
    text = german(300, faults={line: ";"})
    refused(write(tmp_path, text), f"line {line}:", "the row has 6 cells where the header names 5")
    # A row may begin with a number and hold words, so that it could be names.
    machine = re.sub(r"(?m)^[\d.]+ ([\d:]+)", r"1;hand", text).replace("Zeit", "Nr;Betrieb")
    refused(write(tmp_path, machine), f"line {line}:", "the row has 7 cells where the header names 6")


def test_all_surplus_cells_are_counted(tmp_path: Path) -> None:
    """Also below the part that the layout is found from, and of the first of two such rows."""
    text = german(13_000, faults={12_000: ";1;2;3", 12_900: ";"})
    refused(write(tmp_path, text), "line 12000: the row has 8 cells where the header names 5")


def test_a_surplus_cell_is_told_with_its_line_where_lines_end_in_a_separator(tmp_path: Path) -> None:
    text = german(300, faults={200: ";"}).replace("\r\n", ";\r\n")
    refused(write(tmp_path, text), "line 200: the row has a value in column 6, which has no name")


def test_a_header_that_does_not_fit_the_rows_is_not_replaced_by_a_row(tmp_path: Path) -> None:
    refused(write(tmp_path, german(30).replace("Kanal 3", "Kanal 3;x;y")), "line 1:", "the rows do not have the cells")


def test_columns_that_are_not_read_say_nothing_about_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, 'time,p,note\n0,1.013,"0,5"\n1,1.014,\n2,1.015,\n')
    for switches, wanted in (
        (Switches(ignore=("note",)), None),
        (Switches(), ["p"]),
        (Switches(channels=("p", "p")), None),
    ):
        assert read_recording(path, switches, wanted=wanted).values[:, 0].tolist() == [1.013, 1.014, 1.015]
    refused(write(tmp_path, 'time,p,q\n0,1.013,"1,500"\n1,1.014,"1,250"\n'), "may be 1.500 or 1500", "--decimal")


def test_a_name_with_brackets_is_one_file(tmp_path: Path) -> None:
    write(tmp_path, "time,flow\n0,100\n1,200\n", "pump1.csv")
    assert read_recording(write(tmp_path, "time,flow\n0,1\n1,2\n", "pump[1].csv")).values[0, 0] == 1.0
    for name, value in (("pq1.parquet", 100.0), ("pq[1].parquet", 1.0)):
        pd.DataFrame({"time": [0.0, 1.0], "flow": [value, value]}).to_parquet(tmp_path / name)
    assert read_recording(tmp_path / "pq[1].parquet").values[0, 0] == 1.0


def test_numbers_that_are_no_seconds_are_refused_as_times(tmp_path: Path) -> None:
    compact = write(tmp_path, "timestamp,flow\n20240301005800,1\n20240301005900,2\n20240301010000,3\n")
    refused(compact, '--time-format "%Y%m%d%H%M%S"')
    refused(compact, "--time-format is not understood", time_format="%Q")
    table = read_recording(compact, Switches(time_format="%Y%m%d%H%M%S"))
    assert table.period == 60.0
    days = write(tmp_path, "date,flow\n20240301,1\n20240302,2\n20240303,3\n")
    refused(days, "the time 20240301 is not a number of seconds", '--time-format "%Y%m%d"')
    assert read_recording(days, Switches(time_format="%Y%m%d")).period == 86_400.0
    refused(write(tmp_path, "date,flow\n45352.0,1\n45352.041667,2\n"), "as Excel counts them")
    assert read_recording(write(tmp_path, "time,flow\n45352.0,1\n45352.5,2\n")).period == 0.5


@pytest.mark.parametrize("cell", ["March 1, 2024 13:05", "Mar 1 2024 13:05", "1 March 2024 13:05", "01.03.2024 13:05"])
def test_dates_in_words_and_numbers(tmp_path: Path, cell: str) -> None:
    table = read_recording(write(tmp_path, f'time,flow\n"{cell}",1\n"{cell[:-1]}6",2\n'))
    assert moments(table) == ["2024-03-01T13:05:00.000", "2024-03-01T13:06:00.000"]


@pytest.mark.parametrize("first", ["13/03/2024 13:05", "03/13/2024 13:05"])
def test_the_larger_numbers_of_slashed_dates_are_the_days(tmp_path: Path, first: str) -> None:
    path = write(tmp_path, f"time,flow\n{first},1\n{first.replace('13/', '14/')},2\n")
    assert moments(read_recording(path))[0] == "2024-03-13T13:05:00.000"
    refused(write(tmp_path, "time,flow\n13/03/2024,1\n03/14/2024,2\n"), "as up to 13/14 occur")
    refused(write(tmp_path, "time,flow\n12/03/2024,1\n12/04/2024,2\n"), "the day or the month may come first")


@pytest.mark.parametrize("text", ["time,flow,\n0,1\n1,2\n", "time,flow\n0,1,\n1,2,\n", "time,flow,\n0,1,\n1,2,\n"])
def test_a_separator_at_the_end_names_no_column(tmp_path: Path, text: str) -> None:
    table = read_recording(write(tmp_path, text))
    assert (table.channels, table.values.tolist()) == (("flow",), [[1.0], [2.0]])


def test_a_time_column_without_a_time_is_named(tmp_path: Path) -> None:
    refused(write(tmp_path, "time,flow\n,1\n,2\n"), "column 'time'", "no cell holds a time")


def test_a_time_column_can_be_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "time,flow\n5,1\n1,2\n2,3\n")
    refused(path, "--sort")
    table = read_recording(path, Switches(ignore=("time",)))
    assert table.times is None
    assert table.values[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_errors_in_copies_name_their_place(tmp_path: Path) -> None:
    packed = tmp_path / "inf.csv.gz"
    packed.write_bytes(gzip.compress(b"time,flow\n0,1\n1,inf\n2,3\n"))
    refused(packed, "line 3")
    refused(write(tmp_path, 'time,flow\n0,1\n1,"2\n' + "2,2\n" * 40_000), "boiler.csv, row 2: ", "quote")


def test_parquet_with_columns_that_are_no_channels(tmp_path: Path) -> None:
    path, times = tmp_path / "p.parquet", pd.date_range("2024-03-01", periods=3, freq="min")
    pd.DataFrame({"time": times, "d": [1.0, 2.0, 3.0], "seen": times, "parts": [[1], [2], [3]]}).to_parquet(path)
    table = read_recording(path, Switches(time="time"))
    assert table.channels == ("d",)
    assert sum("left out" in said for said in table.notes) == 2


def test_a_date_and_a_time_in_a_workbook(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["Date", "Time", "flow"])
    for minute in range(3):
        book.active.append([datetime.datetime(2024, 3, 1), datetime.time(0, minute), 1.5 + minute])
    book.save(tmp_path / "dt.xlsx")
    table = read_recording(tmp_path / "dt.xlsx")
    assert (table.channels, table.period) == (("flow",), 60.0)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("first", ["", "sep=;\r\n"])
def test_a_german_plant_export(tmp_path: Path, encoding: str, first: str) -> None:
    """Decimal comma, dots in dates, midnight as a date, lines above the header, units, words, a trailing separator."""
    table = read_recording(write(tmp_path, (first + SCADA).encode(encoding)), Switches(max_fill=0))
    assert table.channels == ("Vorlauf [Temperatur]", "Druck", "Pumpe")
    np.testing.assert_array_equal(
        table.values, [[71.5, 2.1, 100], [71.25, NAN, 100], [1071.5, NAN, NAN], [-0.5, 2.3, 100]]
    )
    assert moments(table) == [f"2024-03-0{day}.000" for day in ("1T23:59:00", "2T00:00:00", "2T00:01:00", "2T00:02:00")]
    assert (table.time_column, table.utc, table.period) == ("Zeit", False, 60.0)
    line = len(first.splitlines()) + 1
    for note in (
        f"lines {line} to {line + 1} above the header skipped",
        f"line {line + 4} taken as units",
        "numbers have a decimal comma",
        "channel 'Druck': 2 cells taken as missing ('Bad Input' ×1, 'N/A' ×1)",
        "channel 'Pumpe': 1 cell taken as missing ('---' ×1)",
        "column 'Bemerkung' left out: text ('Schichtwechsel')",
    ):
        assert note in table.notes
    known = {"cp1252": "Latin-1", "utf-16": "UTF-16", "utf-16-le": "UTF-16"}
    assert [note for note in table.notes if note.startswith("read as")] == [
        note for note in table.notes if known.get(encoding, "no note") in note
    ]


@pytest.mark.parametrize(
    ("cells", "expected", "utc"),
    [
        (["2024-03-01T00:00:00Z", "2024-03-01T02:00:01+02:00"], ["2024-03-01T00:00:00", "2024-03-01T00:00:01"], True),
        (["2024-03-01 00:00", "2024-03-01 00:01:30.5"], ["2024-03-01T00:00:00", "2024-03-01T00:01:30.5"], False),
        (["2024/03/01 00:00:00", "2024/03/01 00:00:01"], ["2024-03-01T00:00:00", "2024-03-01T00:00:01"], False),
        (["2/28/2024 11:59:00 PM", "2/29/2024 12:00:00 AM"], ["2024-02-28T23:59:00", "2024-02-29T00:00:00"], False),
        (["28/02/2024 23:59", "29/02/2024 00:00"], ["2024-02-28T23:59:00", "2024-02-29T00:00:00"], False),
        (["13-01-2024 00:00", "13-01-2024 00:01"], ["2024-01-13T00:00:00", "2024-01-13T00:01:00"], False),
        (["01-Mar-2024 00:00:00", "01-Mar-2024 00:00:01"], ["2024-03-01T00:00:00", "2024-03-01T00:00:01"], False),
        (["02/28/2024 23:00", "02/28/2024 24:00"], ["2024-02-28T23:00:00", "2024-02-29T00:00:00"], False),
        (["2024-12-31T23:00Z", "2024-12-31T24:00:00Z"], ["2024-12-31T23:00:00", "2025-01-01T00:00:00"], True),
        (["2024-03-01 10:24:00", "2024-03-01 24:00:00"], ["2024-03-01T10:24:00", "2024-03-02T00:00:00"], False),
        (["01.03.24 07:30", "01.03.24 07:31"], ["2024-03-01T07:30:00", "2024-03-01T07:31:00"], False),
        (["01.03.2024 00:00:00,250", "01.03.2024 00:00:01"], ["2024-03-01T00:00:00.25", "2024-03-01T00:00:01"], False),
        (["Apr 1 2000", "May 1 2000"], ["2000-04-01T00:00:00", "2000-05-01T00:00:00"], False),
        (["May 1, 2024 11:59 PM", "May 2, 2024 12:00 AM"], ["2024-05-01T23:59:00", "2024-05-02T00:00:00"], False),
        (["1 March 2024", "2 March 2024"], ["2024-03-01T00:00:00", "2024-03-02T00:00:00"], False),
        (["May 31, 2024", "June 1, 2024"], ["2024-05-31T00:00:00", "2024-06-01T00:00:00"], False),
        (["01.03.2024 00:00 +0100", "01.03.2024 00:00 +0000"], ["2024-02-29T23:00:00", "2024-03-01T00:00:00"], True),
    ],
)
def test_dates(tmp_path: Path, cells: list[str], expected: list[str], utc: bool) -> None:
    table = read_recording(write(tmp_path, "stamp;a\n" + "".join(f"{cell};{k}\n" for k, cell in enumerate(cells))))
    np.testing.assert_array_equal(table.times, np.array(expected, dtype="datetime64[ns]"))
    assert (table.channels, table.utc) == (("a",), utc)
    assert (table.offsets is not None) == utc


def test_the_zone_of_the_file_is_kept(tmp_path: Path) -> None:
    """Where summer time ends, where rows are sorted, and where they are resampled."""
    stamps = [
        "2024-10-27 02:59:30+02:00",
        "2024-10-27 02:00:00+01:00",
        "2024-10-27 02:00:30+01:00",
        "2024-10-27 02:01Z",
    ]
    text = "time,a\n" + "".join(f"{stamps[k]},{k}\n" for k in (1, 0, 2, 3))
    table = read_recording(write(tmp_path, text), Switches(sort=True))
    assert table.offsets is not None
    assert (table.values.ravel().tolist(), table.offsets.tolist()) == ([0, 1, 2, 3], [120, 60, 60, 0])
    assert table.time_texts(slice(1, 2)) == ["2024-10-27T02:00:00+01:00"]
    minutes = read_recording(write(tmp_path, text), Switches(sort=True, resample=60.0))
    assert minutes.offsets is not None
    assert (minutes.values.ravel().tolist(), minutes.offsets.tolist()) == ([0, 1.5, 3], [120, 60, 0])


def test_ambiguous_dates_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "Date,a\n03/01/2024 1:00 PM,1\n03/01/2024 2:00 PM,2\n")
    refused(path, "'Date'", '--time-format "%d/%m/%Y %I:%M %p"', '"%m/%d/%Y %I:%M %p"')
    table = read_recording(path, Switches(time_format="%d/%m/%Y %I:%M %p"))
    assert moments(table)[0] == "2024-01-03T13:00:00.000"
    # Further down one decides, wherever it is.
    rows = "".join(f"0{1 + k // 1440 % 9}/01/2024 {k // 60 % 24:02d}:{k % 60:02d},{k}\n" for k in range(3000))
    late = write(tmp_path, f"Date,a\n{rows}13/01/2024 00:00,5\n", "late.csv")
    assert moments(read_recording(late))[1440] == "2024-01-02T00:00:00.000"
    refused(write(tmp_path, "Date,a\n13/01/2024,1\n01/14/2024,2\n"), "--time-format")


def test_the_format_that_is_asked_for_has_the_year_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "t,a\n1/2/24 1:00,1\n1/3/24 1:00,2\n")
    with pytest.raises(TableError, match="%d/%m/%y %H:%M"):
        read_recording(path)
    assert read_recording(path, Switches(time_format="%d/%m/%y %H:%M")).times is not None


def test_a_format_that_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, "when,a\n20240301 000000,1\n20240301 000010,2\n")
    refused(path, "'20240301 000000'", "--time-format", time="when")
    assert moments(read_recording(path, Switches(time="when", time_format="%Y%m%d %H%M%S")))[1].endswith("00:00:10.000")


def test_date_and_time_in_two_columns(tmp_path: Path) -> None:
    text = "No,Date,Time,a\n1,2/28/2024,11:59:00 PM,1\n2,2/29/2024,12:00:00 AM,2\n"
    table = read_recording(write(tmp_path, text))
    assert (moments(table)[1], table.time_column, table.channels) == (
        "2024-02-29T00:00:00.000",
        "Date and Time",
        ("No", "a"),
    )
    told = read_recording(
        write(tmp_path, text.replace("Date,Time", "d,clock")), Switches(time="d,clock", ignore=("No",))
    )
    assert (moments(told), told.channels) == (moments(table), ("a",))


@pytest.mark.parametrize("header", ["date,ts,a", "ts,date,a", "a,date,ts"])
@pytest.mark.parametrize("epoch", [False, True])
def test_a_column_of_days_is_not_the_time_if_a_finer_one_goes_on(tmp_path: Path, header: str, epoch: bool) -> None:
    start = np.datetime64("2024-03-01T12:00")
    times = [start + np.timedelta64(hour, "h") for hour in range(40)]
    rows = [
        {"date": str(time)[:10], "ts": str(time.astype("datetime64[s]").astype(int) if epoch else time), "a": k % 3}
        for k, time in enumerate(times)
    ]
    lines = [",".join(str(row[name]) for name in header.split(",")) for row in rows]
    table = read_recording(write(tmp_path, "\n".join([header, *lines]) + "\n"))
    assert (table.time_column, table.channels, table.period) == ("ts", ("a",), 3600.0)
    # A channel that is called t and does not increase is none.
    temperatures = [",".join(str(row[name]) for name in ("date", "a", "a")) for row in rows]
    refused(write(tmp_path, "\n".join(["date,t,a", *temperatures]) + "\n"), "time column 'date'", "--time")


def test_a_day_that_ends_at_24_hours(tmp_path: Path) -> None:
    """As weather services write it."""
    path = write(tmp_path, "Date,Time,a\n01/31/1988,23:00,1\n01/31/1988,24:00,2\n02/01/1988,01:00,3\n")
    expected = np.array(["1988-01-31T23", "1988-02-01T00", "1988-02-01T01"], dtype="datetime64[ns]")
    for switches in (Switches(), Switches(time_format="%m/%d/%Y %H:%M", time="Date,Time")):
        np.testing.assert_array_equal(read_recording(path, switches).times, expected)
    refused(write(tmp_path, "time,a\n2024-03-01 23:00,1\n2024-03-01 24:30,2\n"), "'2024-03-01 24:30'")


def test_comments_and_blank_lines_are_counted(tmp_path: Path) -> None:
    text = "# station 7\n# °C and bar\ntime,a\n1,1\n# calibrated\n\n2,x\n3,3\n\n\n"
    table = read_recording(write(tmp_path, text))
    assert table.values.ravel().tolist()[::2] == [1, 3]
    assert {"3 lines of comment skipped", "1 blank line skipped"} <= set(table.notes)
    refused(write(tmp_path, text.replace("x", "7 V")), "line 7", "'a'", "'7 V'", "--ignore")


@pytest.mark.parametrize(("usual", "other"), [("\r\n", "\n"), ("\n", "\r\n"), ("\n", "\r")])
@pytest.mark.parametrize("at", [1, 40, 199])
def test_mixed_line_ends(tmp_path: Path, usual: str, other: str, at: int) -> None:
    lines = german(200).splitlines()
    ends = [other if k == at else usual for k in range(len(lines))]
    text = "".join(line + end for line, end in zip(lines, ends, strict=True))
    whole, table = read_recording(write(tmp_path, german(200))), read_recording(write(tmp_path, text))
    np.testing.assert_array_equal(table.values, whole.values)
    assert table.notes == ("lines end in different ways (LF, CRLF or CR)", *whole.notes)
    refused(write(tmp_path, text.replace(lines[150], lines[150] + ";9")), "line 151:", "the row has 6 cells")


def test_empty_rows_at_the_end_are_skipped(tmp_path: Path) -> None:
    """As Excel writes them where cells below the table were once filled."""
    whole = read_recording(write(tmp_path, german(50)))
    for below, note in (
        (";;;;\r\n", "1 empty row at the end skipped"),
        (";;;;\r\n" * 3 + "\r\n", "3 empty rows at the end skipped"),
        ('"";"";;;', "1 empty row at the end skipped"),
        (";;\r\n" * 40_000, "40000 empty rows at the end skipped"),
    ):
        table = read_recording(write(tmp_path, german(50) + below))
        np.testing.assert_array_equal(table.values, whole.values)
        assert note in table.notes
    within = german(50).splitlines(keepends=True)
    within.insert(20, ";;;;\r\n")
    refused(write(tmp_path, "".join(within) + ";;;;\r\n"), "line 21", "the time is missing")
    # Where no time is missed, an empty row within is a gap.
    gap = read_recording(write(tmp_path, "a;b\n1;2\n;\n3;4\n;\n"))
    np.testing.assert_array_equal(gap.values, [[1, 2], [NAN, NAN], [3, 4]])


@pytest.mark.parametrize(
    ("cells", "expected"),
    [(["1,5", "-2,25"], [1.5, -2.25]), (["1,234.5", "7.0"], [1234.5, 7.0]), (["1.234.567,5", "0,5"], [1234567.5, 0.5])],
)
def test_quoted_numbers(tmp_path: Path, cells: list[str], expected: list[float]) -> None:
    text = "a,b\n" + "".join(f'"{cell}",1\n' for cell in cells)
    assert read_recording(write(tmp_path, text)).values[:, 0].tolist() == expected


def test_a_comma_that_may_mean_either_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,b\n"1,234",1\n"2,345",2\n')
    refused(path, "'1,234'", "--decimal , or --decimal .")
    assert read_recording(path, Switches(decimal=",")).values[0, 0] == 1.234
    assert read_recording(path, Switches(decimal=".")).values[0, 0] == 1234.0
    refused(write(tmp_path, "a;b\n1,5;1\n2.5;2\n"), "'2.5'", "'1,5'", "--decimal")
    # Not in the sample that the mark was found from.
    refused(write(tmp_path, "a;b\n" + "1;1\n" * 3000 + "1,5;2\n"), "line 3002", "'1,5'", "--decimal ,")


@pytest.mark.parametrize("cell", ["12 V", "<0.5", "1.2.3", "1_000", "0x1F", "5%"])
def test_a_cell_that_is_almost_a_number_is_not_lost(tmp_path: Path, cell: str) -> None:
    refused(write(tmp_path, f"a,b_c\n1,2\n3,4\n,6\n7,{cell}\n"), "line 5", "channel 'b_c'", repr(cell))


def test_a_column_of_labels_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "time,a,Normal/Attack,is anomaly\n1,5,Normal,0\n2,6,Attack,1\n")
    table = read_recording(path)
    assert table.channels == ("a",)
    assert "columns 'Normal/Attack', 'is anomaly' left out: labels; --channels takes them" in table.notes
    assert read_recording(path, Switches(channels=("is anomaly", "a"))).values.tolist() == [[0, 5], [1, 6]]
    refused(path, "'Normal/Attack'", "text", channels=("Normal/Attack",))
    # What only has the name of a label is a channel.
    many = "".join(f"{k},{k * k}\n" for k in range(20))
    assert read_recording(write(tmp_path, "time,class\n" + many)).channels == ("class",)


def test_unsorted_and_repeated_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "time,a\n3,1\n1,2\n3,4\n")
    refused(path, "line 3", "'time'", "--sort")
    table = read_recording(path, Switches(sort=True))
    assert table.times is not None
    assert (table.times.tolist(), table.values.ravel().tolist()) == ([1, 3], [2, 4])
    assert table.notes == ("rows sorted by time, 1 dropped because a later one has the same time",)
    assert read_recording(write(tmp_path, "time,a\n1,1\n2,2\n"), Switches(sort=True)).notes == ()


def test_several_devices_in_one_file_are_not_mixed(tmp_path: Path) -> None:
    rows = [f"2024-01-01 0{hour}:00,{name},{hour},{hour * hour}\n" for name in ("EWR", "JFK") for hour in range(6)]
    said = "column 'origin' tells 2 devices apart", "--device origin=EWR", "--device origin)"
    for lines in (rows, sorted(rows)):
        path = write(tmp_path, "time,origin,a,b\n" + "".join(lines))
        for switches in ({}, {"sort": True}, {"sort": True, "channels": ("a",)}):
            refused(path, *said, **switches)
        table = read_recording(path, Switches(sort=True, ignore=("origin",)))
        assert table.values[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        table = read_recording(path, Switches(device="origin=JFK"))
        assert (table.name, table.channels, table.values[:, 1].tolist()) == ("JFK", ("a", "b"), [0, 1, 4, 9, 16, 25])
        refused(path, "tells 2 devices apart", "--device origin=EWR (EWR, JFK)", device="origin")
        refused(path, "no device 'LGA'", "--device origin=EWR (EWR, JFK)", device="origin=LGA")
        refused(path, "there is no column 'station'", device="station=EWR")
        assert device_names(path, Switches(device="origin")) == ["EWR", "JFK"]
        with pytest.raises(TableError, match="names one device where all are wanted"):
            device_names(path, Switches(device="origin=EWR"))
    # A word for each row, or rows that nothing tells apart, are something else.
    remarks = "".join(f"{k // 2},remark {k},{k}\n" for k in range(8))
    refused(write(tmp_path, "time,remark,a\n" + remarks), "does not come after", "--sort")
    refused(write(tmp_path, "time,remark,a\n1,x,1\n1,x,2\n2,y,3\n2,y,4\n3,x,5\n"), "does not come after", "--sort")


def test_devices_are_told_apart_where_their_clocks_go_back(tmp_path: Path) -> None:
    """Four turbines as they are published: a clock of the place, so that an hour comes twice every year."""
    start, hours = np.datetime64("2024-01-01T00:00"), [*range(150), *range(148, 300)]
    names = "R80711", "R80721", "R80736", "R80790"
    rows = [f"{name},{start + np.timedelta64(hour, 'h')},{hour % 7},east\n" for hour in hours for name in names]
    path = write(tmp_path, "Wind_turbine_name,Date_time,P_avg,site\n" + "".join(rows))
    said = "column 'Wind_turbine_name' tells 4 devices apart", "--device Wind_turbine_name=R80711", "federate"
    refused(path, *said)
    refused(path, *said, sort=True)
    one = Switches(device="Wind_turbine_name=R80711", sort=True)
    assert read_recording(path, one).values[:, 0].tolist() == [hour % 7 for hour in range(300)]


def test_sorting_does_not_drop_most_of_the_rows(tmp_path: Path) -> None:
    """Devices that a number tells apart, or nothing."""
    path = write(tmp_path, "time,unit,a\n" + "".join(f"{k // 3},{k % 3},{k}\n" for k in range(30)))
    for switches in ({}, {"sort": True}):
        refused(path, "'time'", "20 of 30 rows have the same time as another", "--device", "--ignore time", **switches)
    assert read_recording(path, Switches(device="unit=1")).values[:, 0].tolist() == list(range(1, 30, 3))
    assert len(read_recording(path, Switches(ignore=("time",))).values) == 30


def test_a_bad_device_of_a_file_is_left_out_with_its_reason(tmp_path: Path) -> None:
    rows = [f"{hour},{name},{hour * hour}" for hour in range(6) for name in ("a", "b", "c")]
    rows[1] = "0,b,12 V"
    told: list[tuple[int, int]] = []
    path = write(tmp_path, "time,unit,flow\n" + "\n".join(rows) + "\n")
    tables, skipped = read_devices(path, Switches(device="unit"), lambda *step: told.append(step))
    assert {name: table.values[:, 0].tolist() for name, table in tables.items()} == {
        name: [0.0, 1.0, 4.0, 9.0, 16.0, 25.0] for name in ("a", "c")
    }
    assert list(skipped) == ["b"]
    assert skipped["b"].startswith(f"{path} (b), row 1, channel 'flow': expected a number, found '12 V'")
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_names_with_a_mark_of_equality_tell_devices_too(tmp_path: Path) -> None:
    path = write(tmp_path, "time,a=b,flow\n0,x=y,1\n0,z,2\n1,x=y,3\n1,z,4\n")
    assert device_names(path, Switches(device="a=b")) == ["x=y", "z"]
    table = read_recording(path, Switches(device="a=b=x=y"))
    assert (table.name, table.values[:, 0].tolist()) == ("x=y", [1.0, 3.0])


@pytest.mark.parametrize(
    ("header", "cells", "note"),
    [
        ("time,Year,month,flow", "2013,4", "columns 'Year', 'month' left out: parts of a date; --channels takes them"),
        ("k,year,mon,flow", "2013,4", '--time year,mon --time-format "%Y %m" takes them for the time'),
        ("k,year,quarter,flow", "2013,4", "columns 'year', 'quarter' left out: parts of a date; --channels takes them"),
        ("k,YEAR,hour,flow", "1998.0,12", '--time YEAR,hour --time-format "%Y.0 %H" takes them for the time'),
    ],
)
def test_parts_of_a_date_are_no_channels(tmp_path: Path, header: str, cells: str, note: str) -> None:
    rows = "".join(f"{k},{cells},{k * k}\n" for k in range(5))
    table = read_recording(write(tmp_path, f"{header}\n{rows}"))
    assert table.channels[-1] == "flow"
    assert len(table.channels) == 1 + header.startswith("k,")
    assert any(note in each for each in table.notes), table.notes
    year = header.split(",")[1]
    assert read_recording(tmp_path / "boiler.csv", Switches(channels=(year,))).channels == (year,)


def test_numbers_that_only_are_called_as_parts_of_a_date_are_channels(tmp_path: Path) -> None:
    path = write(tmp_path, "time,hour,year,month,day\n0,4711,12,0.5,1\n1,4712,13,1.5,2\n")
    assert read_recording(path).channels == ("hour", "year", "month")  # operating hours, years in service
    assert read_recording(write(tmp_path, "time,hour\n0,1\n1,2\n")).channels == ("hour",)  # there is nothing else


def test_years_and_other_parts_can_be_the_time(tmp_path: Path) -> None:
    years = write(tmp_path, "YEAR,sun\n1700,5\n1701,11\n1702,16\n")
    refused(years, "1700 is not a number of seconds", '--time-format "%Y"', time="YEAR")
    assert moments(read_recording(years, Switches(time="YEAR", time_format="%Y")))[1] == "1701-01-01T00:00:00.000"
    hours = write(tmp_path, "y,m,d,h,flow\n2013,1,1,5,1\n2013,1,1,6,2\n")
    refused(hours, "names 4 columns", '--time-format "%Y %m %d %H"', time="y,m,d,h")
    table = read_recording(hours, Switches(time="y,m,d,h", time_format="%Y %m %d %H"))
    assert moments(table) == ["2013-01-01T05:00:00.000", "2013-01-01T06:00:00.000"]
    assert table.channels == ("flow",)


def test_what_is_called_a_date_is_the_time_or_nothing(tmp_path: Path) -> None:
    refused(write(tmp_path, "flow,date\n1,week 1\n2,week 2\n"), "the time 'week 1'", "--time-format")
    years = write(tmp_path, "flow,date\n1,2000.0833\n2,2000.1667\n")
    table = read_recording(years)
    assert table.channels == ("flow",)
    assert "column 'date' left out: called a date; --time or --channels takes it" in table.notes
    assert read_recording(years, Switches(channels=("date",))).channels == ("date",)
    assert read_recording(write(tmp_path, "flow;time\n1,5;0,5\n2,5;0,75\n")).channels == ("flow", "time")
    assert read_recording(write(tmp_path, "flow,time\n1,12:00\n2,12:01\n")).channels == ("flow",)


def test_words_that_come_again_may_be_devices_where_no_time_tells(tmp_path: Path) -> None:
    rows = "".join(f"{city},{k}\n" for city in ("Waco", "Abilene") for k in range(30))
    [note] = read_recording(write(tmp_path, "city,sales\n" + rows)).notes
    assert note == ("column 'city' left out: text ('Abilene'); if it tells 2 devices apart, pass --device city=Abilene")
    assert read_recording(tmp_path / "boiler.csv", Switches(device="city=Waco")).values.shape == (30, 1)


def test_positions_of_a_switch_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "time,pump,ok,mode\n0,ON,True,auto\n1,off,,hand\n2, on,False,auto\n")
    table = read_recording(path)
    assert table.channels == ("pump", "ok")
    np.testing.assert_array_equal(table.values[:, 0], [1.0, 0.0, 1.0])
    assert (table.values[:, 1].tolist(), table.filled) == ([1.0, 1.0, 0.0], 1)
    assert table.notes[:2] == (
        "channel 'pump': off and on read as 0 and 1",
        "channel 'ok': false and true read as 0 and 1",
    )
    late = "time,pump\n" + "".join(f"{k},{'on' if k < 1500 else 'fault'}\n" for k in range(1600))
    table = read_recording(write(tmp_path, late))
    assert "channel 'pump': 100 cells taken as missing ('fault' ×100)" in table.notes


def test_numbers_that_stand_for_missing_values(tmp_path: Path) -> None:
    rows = "".join(f"{k},{-999.0 if k % 7 == 3 else k % 5},{k - 999}\n" for k in range(30))
    path = write(tmp_path, "time,wind,level\n" + rows)
    table = read_recording(path)
    assert table.values[3, 0] == -999.0
    said = (
        "channel 'wind': -999 comes 4 times, far from all other values; --missing -999 if it stands for a missing one"
    )
    assert table.notes == (said,)
    table = read_recording(path, Switches(missing=(-999.0,), max_fill=0))
    assert np.isnan(table.values[3::7, 0]).all()
    assert np.isnan(table.values).sum() == 5  # and the first level, as it was said
    assert table.notes == (
        "channel 'wind': 4 cells of -999 taken as missing",
        "channel 'level': 1 cell of -999 taken as missing",
    )


def test_a_table_on_its_side_is_told(tmp_path: Path) -> None:
    text = "tag,2024-01-01,2024-01-02,2024-01-03\nflow,1,2,3\nheat,4,5,6\n"
    refused(write(tmp_path, text), "line 1", "the first line holds times", "turn the table around")


def test_a_column_of_measurements_with_their_unit_is_refused(tmp_path: Path) -> None:
    refused(write(tmp_path, "time,u,v\n0,12 V,1\n1,13 V,2\n"), "line 2, channel 'u'", "found '12 V'", "--ignore")
    assert read_recording(write(tmp_path, "time,u,v\n0,12 High St,1\n1,13 Elm St,2\n")).channels == ("v",)


LONG = "time,tag,value,quality\n" + "".join(
    f"2024-01-01 00:0{minute}:00,{tag},{cell},Good\n"
    for tag, cells in (("TI-1", ("1.5", "Timeout", "1.7")), ("PI-1", ("2", "3", "4")))
    for minute, cell in enumerate(cells)
)


def test_long_format(tmp_path: Path) -> None:
    path = write(tmp_path, LONG)
    table = read_recording(path, Switches(max_fill=0))
    expected = pd.read_csv(path, na_values=["Timeout"]).pivot(index="time", columns="tag", values="value")
    assert table.channels == tuple(expected.columns)
    np.testing.assert_array_equal(table.values, expected)
    assert "6 values of 2 tags in 'tag' read as channels" in table.notes
    assert "channel 'value': 1 cell taken as missing ('Timeout' ×1)" in table.notes
    assert read_recording(path, wanted=("PI-1", "XI-1")).values[:, 0].tolist() == [2, 3, 4]
    assert read_recording(path, Switches(ignore=("TI-1",))).channels == ("PI-1",)
    again = write(tmp_path, LONG + "2024-01-01 00:00:00,PI-1,9,Good\n")
    refused(again, "1 value", "--sort")
    assert read_recording(again, Switches(sort=True)).values[0, 0] == 9
    refused(write(tmp_path, LONG + LONG.split("\n", 1)[1]), "6 values")


def test_a_workbook(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet, other = book.active, book.create_sheet("Notes")
    sheet.title = "Trend"
    sheet.append(["Pump 3"])
    sheet.append([])
    sheet.append(["Time", "Flow", "State", "Share"])
    start = datetime.datetime(2024, 3, 1, 23, 59, 50)
    for k in range(40):
        sheet.append([start + datetime.timedelta(seconds=k / 2), 1.1 * k, "#N/A" if k == 3 else k % 2, k / 3])
    other.append(["a", "b"])
    other.append([1, 2])
    book.save(tmp_path / "pump.xlsx")
    table = read_recording(tmp_path / "pump.xlsx", Switches(max_fill=0))
    assert (table.name, table.channels, table.period) == ("pump", ("Flow", "State", "Share"), 0.5)
    np.testing.assert_allclose(table.values[:, [0, 2]], np.arange(40)[:, None] * [[1.1, 1 / 3]], rtol=1e-15)
    assert np.isnan(table.values[3, 1])
    assert "sheet 'Trend' read, and not 'Notes'" in table.notes
    refused(write(tmp_path, b"not a workbook", "bad.xlsx"), "Excel")


def test_parquet(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(80, 3)), columns=list("abc")).mask(rng.random((80, 3)) < 0.2)
    frame["n"] = np.arange(80, dtype=np.int16)
    frame["k"] = pd.array([None, *range(79)], dtype="Int64")
    frame["on"] = np.arange(80) % 2 == 0
    frame["state"] = "idle"
    frame.index = pd.date_range("2024-03-30 22:00", periods=80, freq="15min", tz="Europe/Berlin")
    path = tmp_path / "site=4" / "pump-1.parquet"
    path.parent.mkdir()
    frame.to_parquet(path)  # pandas stores the index as the last column
    table = read_recording(path, Switches(max_fill=0))
    assert table.channels == ("a", "b", "c", "n", "k", "on")
    np.testing.assert_array_equal(
        table.values, frame.drop(columns="state").astype("Float64").to_numpy(np.float64, na_value=np.nan)
    )
    np.testing.assert_array_equal(table.times, frame.index.tz_convert(None).to_numpy("datetime64[ns]"))
    assert (table.period, table.utc) == (900.0, True)
    assert "column 'state' left out: text ('idle')" in table.notes
    frame["sent"] = frame.index
    frame.to_parquet(path)
    refused(path, "several columns hold times", "--time")
    assert "sent" not in read_recording(path, Switches(time="sent", ignore=("state", "__index_level_0__"))).channels
    for damage in (b"", path.read_bytes()[:-30]):
        refused(write(tmp_path, damage, "bad.parquet"), "cannot be read")


def test_gzip_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = write(tmp_path, gzip.compress(SCADA.encode("cp1252")), "boiler.1.CSV.gz")
    plain = write(tmp_path, SCADA.encode("cp1252"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(plain.read_bytes())))
    for table, name in ((read_recording(packed), "boiler.1"), (read_recording("-"), "stdin")):
        assert table.name == name
        np.testing.assert_array_equal(table.values, read_recording(plain).values)
    refused(write(tmp_path, packed.read_bytes()[:50], "cut.csv.gz"), "gzip")


def test_resampling_is_the_mean_of_each_period(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seconds = np.unique(rng.integers(0, 600_000, 900)) / 1000.0
    values = {"flow": rng.normal(size=len(seconds)), "valve": (seconds // 50 % 2).astype(int)}
    stamps = np.datetime64("2024-01-01T00:00:00", "ms") + (seconds * 1000).astype(np.int64)
    write_table(tmp_path / "a.csv", {"time": stamps.astype("datetime64[ns]"), **values})
    table = read_recording(tmp_path / "a.csv", Switches(resample=10.0))
    groups = pd.DataFrame(values, index=pd.DatetimeIndex(stamps)).groupby(pd.Grouper(freq="10s"))
    expected = groups.agg({"flow": "mean", "valve": "last"}).dropna()
    np.testing.assert_allclose(table.values, expected, rtol=1e-12)
    np.testing.assert_array_equal(table.times, expected.index.to_numpy("datetime64[ns]"))
    assert table.period == 10.0
    assert any("resampled" in note for note in table.notes)
    refused(write(tmp_path, "a\n1\n2\n"), "--time", resample=10.0)


def test_rows_that_count_and_columns_without_a_name(tmp_path: Path) -> None:
    table = read_recording(write(tmp_path, ",a,b\n0,5,6\n1,7,8\n"))
    assert (table.channels, table.notes) == (("a", "b"), ("column 1, which counts the rows, left out",))
    refused(write(tmp_path, "a,,b\n1,5,6\n2,9,8\n"), "column 2 has no name")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["empty"]),
        ("a,b\n", ["no rows"]),
        ("1,2\n3,4\n", ["line 1", "header"]),
        ("time,a\n1,1\n2\n3,4\n4,5\n", ["line 3", "1 cell", "names 2"]),
        ("a,b,a\n1,2,3\n", ["'a'", "columns 1 and 3"]),
        ('a,b\n1,2\n"3,4\n5,6\n', ["quote"]),
        ("state,mode\nhand,x\nauto,y\n", ["no column holds numbers"]),
        ("a,b\n1,inf\n", ["line 2", "'b'", "infinite"]),
        ("a,b\n1,\n2,NA\n", ["'b'", "every value is missing", "--ignore"]),
        ("time,a\n2024-01-01,1\nyesterday,2\n2024-01-03,3\n", ["line 3", "'yesterday'", "--time-format"]),
        ("time,a\n2024-01-01 00:00:00,1\n2024-01-01 00:00:01Z,2\n", ["line 3", "'2024-01-01 00:00:01Z'"]),
        ("time,a\n2024-01-01,1\n,2\n2024-01-03,3\n", ["line 3", "the time is missing"]),
        ("time,a\n1,1\nlater,2\n3,3\n", ["line 3", "'later'"]),
        ("time,a\n1066-10-14,1\n1066-10-15,1\n", ["line 2", "1678"]),
        (b"\x00\x01\x02\x03" * 9, ["not a text file"]),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str | bytes, parts: list[str]) -> None:
    refused(write(tmp_path, text), *parts)


def test_packed_files_are_told(tmp_path: Path) -> None:
    text = german(300).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("boiler.csv", text)
    refused(write(tmp_path, lzma.compress(text), "boiler.csv.xz"), "packed (xz)", "unpack it first")
    refused(write(tmp_path, bz2.compress(text), "boiler.csv.bz2"), "packed (bzip2)", "unpack it first")
    refused(write(tmp_path, packed.getvalue(), "boiler.zip"), "packed (zip)", "unpack it first")
    refused(write(tmp_path, packed.getvalue(), "boiler.csv"), "packed (zip)", "call it .xlsx if it is a workbook")
    refused(write(tmp_path, gzip.compress(text), "boiler.txt.gz"), "packed (gzip)", "call it .csv.gz")
    assert read_recording(write(tmp_path, "BZh;b\n1;2\n3;4\n")).channels == ("BZh", "b")
    refused(write(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(range(99)), "boiler.csv.zst"), "packed (zstd)")


def test_switches_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path, "time,a\n1,2\n3,4\n")
    refused(path, "'noon'", "time, a", time="noon")
    refused(path, "'x'", "time, a", channels=("x",))
    refused(path, "'x'", ignore=("x",))
    refused(path, "encoding 'klingon'", "--encoding", encoding="klingon")
    assert read_recording(write(tmp_path, "t;ä\n1;2\n3;4\n".encode("cp437")), Switches(encoding="cp437")).channels == (
        "ä",
    )


@draws(15)
@given(st.data())
def test_the_engine_reads_plain_csv_as_the_strict_reader_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(2, 6))
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    columns: dict[str, Any] = {
        "time": np.datetime64("2024-01-01", "ns") + np.arange(rows) * np.timedelta64(10**9, "ns")
    }
    for name in ("a", "b"):
        columns[name] = [0.5, *data.draw(st.lists(st.none() | numbers, min_size=rows - 1, max_size=rows - 1))]
    path = tmp_path_factory.mktemp("both") / "both.csv"
    write_table(path, columns)
    ours, strict = read_recording(path), read_table(path)
    np.testing.assert_array_equal(ours.values, strict.values)
    np.testing.assert_array_equal(ours.times, strict.times)
    assert (ours.channels, ours.filled, ours.utc, ours.notes) == (strict.channels, strict.filled, strict.utc, ())


def test_without_the_engine_plain_csv_is_read_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_engine, "find_spec", lambda name: None)
    path = write(tmp_path, "time,a,b\n1,2,3\n2,4,5\n")
    assert read_recording(path, wanted=("b", "c")).values[:, 0].tolist() == [3, 5]
    refused(path, "--sort", "pip install 'fedkad[read]'", sort=True)
    refused(write(tmp_path, SCADA.encode("cp1252")), "pip install 'fedkad[read]'")


@pytest.mark.slow
def test_neither_the_agent_nor_a_device_of_a_fleet_loads_the_engine(tmp_path: Path) -> None:
    write(tmp_path, "time,a\n" + "".join(f"{k},{k % 7}\n" for k in range(50)))
    code = (
        "import sys, fedkad.edge.main, fedkad.edge.assembly, fedkad.fleet.device.data\n"
        "from fedkad.tables import read_device\n"
        f"read_device({str(tmp_path / 'boiler.csv')!r})\n"
        "print([name for name in ('duckdb', 'openpyxl', 'pandas', 'fedkad.intake') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "[]", found.stderr


def test_a_large_file_is_told_of_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_engine, "PAUSE", 0.001)
    row = "1.25,-3.5,1e-3,7,0.125\n"
    path = write(tmp_path, "a,b,c,d,e\n" + 300_000 * row)
    told: list[tuple[int, int]] = []
    limit = time.monotonic() + 120.0
    while not any(0 < done < of for done, of in told) and time.monotonic() < limit:
        told.clear()
        table = read_recording(path, report=lambda done, of: told.append((done, of)))
        assert table.values.shape == (300_000, 5)
        assert told == sorted(told)
    assert any(0 < done < of for done, of in told)


@pytest.mark.parametrize("kind", ["workbook", "packed", "other encoding", "packed in another encoding"])
def test_copies_are_told_of_while_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(opening, "BLOCK", 512)
    monkeypatch.setattr(opening, "LINES", 20)
    count = 1000 if kind == "workbook" else 60_000  # gzip reads ahead
    numbers = np.random.default_rng(0).normal(size=count).tolist()
    start = datetime.datetime(2024, 3, 1)
    rows = [(str(start + datetime.timedelta(seconds=k)), value) for k, value in enumerate(numbers)]
    text = "time,Wärme\n" + "\n".join(f"{moment},{value!r}" for moment, value in rows) + "\n"
    content = text.encode("latin-1" if "encoding" in kind else "utf-8")
    if kind == "workbook":
        book = openpyxl.Workbook()
        for row in [("time", "Wärme"), *rows]:
            book.active.append(row)
        path = tmp_path / "boiler.xlsx"
        book.save(path)
    else:
        packed = "packed" in kind
        path = write(tmp_path, gzip.compress(content) if packed else content, "boiler.csv" + ".gz" * packed)
    told: list[tuple[int, int]] = []
    table = read_recording(path, report=lambda done, of: told.append((done, of)))
    assert len(table.values) == count
    assert told == sorted(told)
    ends = [500, 750] if kind == "packed in another encoding" else [500]
    assert {of for _, of in told} == {1000}
    for begun, end in zip([0, *ends], ends, strict=False):
        steps = {done for done, _ in told if begun < done <= end}
        assert len(steps) > 3, (begun, told)
        assert max(steps) > end - 50


@given(st.binary(max_size=30).map(lambda data: bytes(b"\r\n\na,"[byte % 5] for byte in data)), st.integers(1, 7))
@draws(200)
def test_line_ends_are_found_across_blocks(content: bytes, block: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), content)
        text = content.replace(b"\r\n", b"\n")
        found = line_ends(path, block)
        assert found.blank == (re.search(rb"\n\n[^\r\n]", text) is not None)
        assert found.mixed == (len(set(re.findall(rb"\r\n|\n|\r", content))) > 1)
