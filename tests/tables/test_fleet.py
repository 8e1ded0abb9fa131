"""Devices and fleets in folders."""

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedkad.tables import TableError, read_device, read_fleet, read_table

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
    write(tmp_path / "pump-1" / "c.csv", HEAD + "1,2,3.5\n")
    device = read_device(tmp_path / "pump-1")
    assert device.name == "pump-1"
    assert [table.name for table in device.tables] == ["a", "b", "c"]
    series = [stretch.tolist() for stretch in device.series()]
    assert series == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9]], [[1, 2, 3.5]]]


def test_options_reach_every_file_and_counts_are_summed(tmp_path: Path) -> None:
    text = "clock,a,b\n1,1,1\n2,,2\n3,,3\n"
    write(tmp_path / "pump-1" / "a.csv", text)
    write(tmp_path / "pump-1" / "b.csv", text)
    device = read_fleet(tmp_path, partial(read_table, time="clock", max_fill=1)).devices["pump-1"]
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
    devices = read_fleet(tmp_path).devices
    assert list(devices) == ["pump", "pump-1", "pump-2", "pump-3"]
    assert all(device.name == name for name, device in devices.items())


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
    ],
)
def test_all_tables_of_a_device_have_the_same_channels(tmp_path: Path, header: str, difference: str) -> None:
    other = header + "\n" + ",".join("1" * len(header.split(","))) + "\n"
    files = write(tmp_path / "one" / "a.csv"), write(tmp_path / "one" / "b.csv", other)
    refused(read_device, tmp_path / "one", *map(str, files), difference)


def test_channels_are_matched_by_name(tmp_path: Path) -> None:
    write(tmp_path / "pump-1" / "a.csv")
    write(tmp_path / "pump-1" / "b.csv", "heat,speed,flow\n8,9,7\n")
    write(tmp_path / "pump-2.csv", "noise,heat,speed,flow\n0,8,9,7\n")
    write(tmp_path / "pump-3.csv", "flow,heat\n7,8\n")
    devices, skipped = read_fleet(tmp_path)
    assert {device.channels for device in devices.values()} == {("flow", "heat", "speed")}
    assert [table.values.tolist() for table in devices["pump-1"].tables] == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9]]]
    assert devices["pump-2"].tables[0].values.tolist() == [[7, 8, 9]]
    assert devices["pump-2"].tables[0].notes == ("left out because other devices do not have it: 'noise'",)
    assert list(skipped) == ["pump-3"]
    assert "(missing speed)" in skipped["pump-3"]


def test_the_odd_device_is_not_the_measure_of_the_others(tmp_path: Path) -> None:
    write(tmp_path / "pump-1.csv", "noise\n1\n")
    for name in ("pump-2", "pump-3"):
        write(tmp_path / f"{name}.csv")
    devices, skipped = read_fleet(tmp_path)
    assert (list(devices), list(skipped)) == (["pump-2", "pump-3"], ["pump-1"])


def test_days_in_a_folder_are_one_recording(tmp_path: Path) -> None:
    text = "time,a,b\n{0}:00,{1},0\n{0}:01,{2},0\n{0}:02,,0\n"
    for name, day, first in (("x", "2024-01-02T00", 4), ("y", "2024-01-01T23", 1)):
        write(tmp_path / "pump-1" / f"{name}.csv", text.format(day, first, first + 1))
    [table] = read_device(tmp_path / "pump-1").tables
    assert (table.name, table.values[:, 0].tolist(), table.filled) == ("pump-1", [1, 2, 2, 4, 5, 5], 2)
    write(tmp_path / "pump-1" / "z.csv", text.format("2024-01-01T23", 7, 8))  # the same hour again
    assert [table.name for table in read_device(tmp_path / "pump-1").tables] == ["x", "y", "z"]


def test_a_bad_device_is_left_out_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path / "pump-1.csv")
    path = write(tmp_path / "pump-2" / "a.csv", HEAD + "1,2,x\n")
    devices, skipped = read_fleet(tmp_path)
    assert list(devices) == ["pump-1"]
    assert skipped["pump-2"].startswith(f"{path}, line 2, channel 'speed': ")
    (tmp_path / "pump-1.csv").unlink()
    refused(read_fleet, tmp_path, str(path), "line 2", "channel 'speed'")


def test_folders_that_are_not_a_fleet(tmp_path: Path) -> None:
    refused(read_fleet, tmp_path, str(tmp_path), "no table in the folder")
    refused(read_fleet, tmp_path / "absent", str(tmp_path / "absent"), "no such folder")
    refused(read_device, tmp_path / "absent.csv", str(tmp_path / "absent.csv"), "no such file")
    file = write(tmp_path / "pump-1.csv")
    refused(read_fleet, file, str(file), "expected a folder, found a file")
    (tmp_path / "pump-2").mkdir()
    assert "no table in the folder" in read_fleet(tmp_path).skipped["pump-2"]


def test_no_data_is_left_out_unnoticed(tmp_path: Path) -> None:
    write(tmp_path / "pump-1.csv")
    strange = write(tmp_path / "pump-2.docx")
    refused(read_fleet, tmp_path, str(strange), "neither a table nor a note")
    strange.unlink()
    write(tmp_path / "pump-2" / "a.csv")
    (tmp_path / "pump-2" / "deeper").mkdir()
    assert "folder inside" in read_fleet(tmp_path).skipped["pump-2"]


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
