"""Recordings as the commands read them: a device or a fleet, with everything that was repaired told on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedkad.cli.failures import note
from fedkad.detect.series import Series
from fedkad.tables import Device, read_device, read_fleet


def load_device(path: Path, time: str | None, max_fill: int) -> Device:
    """One device: a file, or a folder of stretches."""
    device = read_device(path, time=time, max_fill=max_fill)
    _tell_repairs(str(path), device)
    return device


def load_fleet(folder: Path, time: str | None, max_fill: int) -> dict[str, Device]:
    """The devices of a folder, by name."""
    fleet = read_fleet(folder, time=time, max_fill=max_fill)
    for device in fleet.values():
        _tell_repairs(str(folder / device.name), device)
    return fleet


def named_series(device: Device) -> list[Series]:
    """The stretches of a device with the names of its channels."""
    return [Series(values, device.channels) for values in device.series()]


def rows_in(device: Device) -> int:
    """Rows of all tables of a device."""
    return sum(len(table.values) for table in device.tables)


def usual_period(devices: Iterable[Device]) -> float | None:
    """The median over all tables of the seconds between samples; None if none has times.

    Devices that are sampled at different rates have no dynamics in common, which is worth a note.
    """
    periods = [(device.name, table.period) for device in devices for table in device.tables]
    known = [(name, period) for name, period in periods if period is not None]
    if not known:
        return None
    usual = float(np.median([period for _, period in known]))
    for name, period in known:
        if abs(period - usual) > 0.01 * usual:
            note(f"device {name!r} has a sample every {period:g} s and others every {usual:g} s; resample them alike.")
            break
    return usual


def _tell_repairs(where: str, device: Device) -> None:
    time_gaps = sum(len(table.with_gaps()[1]) - len(table.values) for table in device.tables)
    told = [
        _counted(device.filled, "missing cell filled", "missing cells filled") + " with the value before it",
        _counted(device.gap_rows, "row remains a gap", "rows remain gaps"),
        _counted(time_gaps, "gap in time", "gaps in time"),
    ]
    happened = [text for text, count in zip(told, (device.filled, device.gap_rows, time_gaps), strict=True) if count]
    if happened:
        note(f"{where}: {', '.join(happened)}.")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
