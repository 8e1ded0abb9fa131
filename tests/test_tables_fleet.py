"""Devices and fleets in folders."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedkad.tables import TableError, read_device, read_fleet

HEAD = "flow,heat,speed\n"


def write(path: Path, text: str = HEAD + "1,2,3\n4,5,6\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_is_a_device_with_one_stretch(tmp_path: Path) -> None:
    device = read_device(write(tmp_path / "pump-1.csv", "time,a,b\n0,1,2\n1,3,\n5,5,6\n6,7,8\n7,9,10\n"))
    assert (device.name, device.channels, len(device.tables)) == ("pump-1", ("a", "b"), 1)
    (series,) = device.series()
    nan = np.nan
    np.testing.assert_array_equal(series, [[1, 2], [3, 2], [nan, nan], [5, 6], [7, 8], [9, 10]])
    assert (device.filled, device.gap_rows) == (1, 0)


def test_a_folder_is_a_device_with_a_stretch_for_each_file(tmp_path: Path) -> None:
    write(tmp_path / "pump-1" / "b.csv", HEAD + "7,8,9\n")
    write(tmp_path / "pump-1" / "a.csv")
    pd.DataFrame({"flow": [1.0], "heat": [2.0], "speed": [3.5]}).to_parquet(tmp_path / "pump-1" / "c.parquet")
    device = read_device(tmp_path / "pump-1")
    assert device.name == "pump-1"
    assert [table.name for table in device.tables] == ["a", "b", "c"]
    series = [stretch.tolist() for stretch in device.series()]
    assert series == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9]], [[1, 2, 3.5]]]


def test_options_reach_every_file_and_counts_are_summed(tmp_path: Path) -> None:
    text = "clock,a,b\n1,1,1\n2,,2\n3,,3\n"
    write(tmp_path / "pump-1" / "a.csv", text)
    write(tmp_path / "pump-1" / "b.csv", text)
    fleet = read_fleet(tmp_path, time="clock", max_fill=1)
    device = fleet["pump-1"]
    assert device.channels == ("a", "b")
    assert (device.filled, device.gap_rows) == (2, 2)


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "pump-1" / "a.csv")
    monkeypatch.chdir(tmp_path / "pump-1")
    assert read_device(".").name == "pump-1"


def test_a_fleet_is_sorted_and_ignores_notes(tmp_path: Path) -> None:
    write(tmp_path / "pump-3.csv")
    write(tmp_path / "pump-1" / "a.csv")
    write(tmp_path / "pump-1" / "notes.txt", "x")
    write(tmp_path / "pump-2.csv")
    write(tmp_path / "pump.csv")  # the last file by name, the first device by name
    for note in (".hidden.csv", "README", "Readme.rst", "about.md", "labels.json", "list.TXT"):
        write(tmp_path / note, "x")
    write(tmp_path / ".cache" / "x.csv")
    fleet = read_fleet(tmp_path)
    assert list(fleet) == ["pump", "pump-1", "pump-2", "pump-3"]
    assert all(device.name == name for name, device in fleet.items())


def refused(read: object, path: Path, *parts: str) -> None:
    assert callable(read)
    with pytest.raises(TableError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("header", "difference"),
    [
        ("flow,speed", "(missing heat)"),
        ("flow,heat,speed,noise", "(extra noise)"),
        ("flow,heat,noise", "(missing speed and extra noise)"),
        ("heat,flow,speed", "(reordered heat, flow)"),
    ],
)
def test_all_tables_have_the_same_channels(tmp_path: Path, header: str, difference: str) -> None:
    other = header + "\n" + ",".join("1" * len(header.split(","))) + "\n"
    files = write(tmp_path / "one" / "a.csv"), write(tmp_path / "one" / "b.csv", other)
    refused(read_device, tmp_path / "one", *map(str, files), difference)
    devices = write(tmp_path / "two" / "pump-1.csv"), write(tmp_path / "two" / "pump-2.csv", other)
    refused(read_fleet, tmp_path / "two", *map(str, devices), "'pump-1'", "'pump-2'", difference)


def test_an_error_in_one_file_of_a_fleet_names_it(tmp_path: Path) -> None:
    write(tmp_path / "pump-1.csv")
    path = write(tmp_path / "pump-2" / "a.csv", HEAD + "1,2,x\n")
    refused(read_fleet, tmp_path, str(path), "line 2", "channel 'speed'")


def test_folders_that_are_not_a_fleet(tmp_path: Path) -> None:
    refused(read_fleet, tmp_path, str(tmp_path), "no table in the folder")
    refused(read_fleet, tmp_path / "absent", str(tmp_path / "absent"), "no such folder")
    refused(read_device, tmp_path / "absent.csv", str(tmp_path / "absent.csv"), "no such file")
    file = write(tmp_path / "pump-1.csv")
    refused(read_fleet, file, str(file), "expected a folder, found a file")
    (tmp_path / "pump-2").mkdir()
    refused(read_fleet, tmp_path, str(tmp_path / "pump-2"), "no table in the folder")


def test_no_data_is_left_out_unnoticed(tmp_path: Path) -> None:
    write(tmp_path / "pump-1.csv")
    strange = write(tmp_path / "pump-2.xlsx")
    refused(read_fleet, tmp_path, str(strange), "neither a table nor a note")
    strange.unlink()
    write(tmp_path / "pump-2" / "a.csv")
    (tmp_path / "pump-2" / "deeper").mkdir()
    refused(read_fleet, tmp_path, str(tmp_path / "pump-2" / "deeper"), "folder inside")


def test_a_device_has_one_place(tmp_path: Path) -> None:
    file, folder = write(tmp_path / "pump-1.csv"), tmp_path / "pump-1"
    write(folder / "a.csv")
    refused(read_fleet, tmp_path, str(file), str(folder), "'pump-1'")


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder in which this process has no special rights: root, who may read everything, becomes nobody."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        if root:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)


def test_what_may_not_be_read(ordinary_folder: Path) -> None:
    fleet = ordinary_folder / "fleet"
    file = write(fleet / "pump-1.csv")
    file.chmod(0)
    refused(read_fleet, fleet, str(file), "cannot be read")
    fleet.chmod(0)
    try:
        refused(read_fleet, fleet, str(fleet), "cannot be read")
    finally:
        fleet.chmod(0o700)
