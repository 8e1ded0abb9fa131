"""Recordings as the commands read them: a device or a fleet, with everything that was repaired told on stderr."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import typer

from fedkad.cli.failures import note
from fedkad.detect.series import Series
from fedkad.report.wording import counted
from fedkad.tables import Device, read_device, read_fleet
from fedkad.tables.times import looks_like_epoch


def load_device(path: Path, time: str | None, max_fill: int, *, allow_silent: bool = False) -> Device:
    """One device: a file, or a folder of stretches."""
    device = read_device(path, time=time, max_fill=max_fill, allow_silent=allow_silent)
    _tell_repairs(device)
    return device


def load_fleet(folder: Path, time: str | None, max_fill: int, *, allow_silent: bool = False) -> dict[str, Device]:
    """The devices of a folder, by name."""
    fleet = read_fleet(folder, time=time, max_fill=max_fill, allow_silent=allow_silent)
    for device in fleet.values():
        _tell_repairs(device)
    return fleet


def named_series(device: Device) -> list[Series]:
    """The stretches of a device with the names of its channels."""
    return [Series(values, device.channels) for values in device.series()]


def rows_in(device: Device) -> int:
    """Rows of all tables of a device."""
    return sum(len(table.values) for table in device.tables)


def time_gaps(device: Device) -> int:
    """Gaps in time of all tables of a device."""
    return sum(len(table.with_gaps()[1]) - len(table.values) for table in device.tables)


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


def tell_reading(devices: Collection[Device], period: float | None) -> None:
    """Say on stderr how training data was understood: its time, its stretches, and channels that look odd."""
    typer.echo(f"time: {_time_taken(devices, period)}", err=True)
    tables = sum(len(device.tables) for device in devices)
    if tables > len(devices):
        of = "one device" if len(devices) == 1 else f"{len(devices)} devices"
        typer.echo(f"{tables} tables, taken as stretches of {of}", err=True)
    for device in devices:
        _tell_odd_channels(device)


def _time_taken(devices: Iterable[Device], period: float | None) -> str:
    columns = {table.time_column for device in devices for table in device.tables}
    names = " or ".join(repr(name) for name in sorted(name for name in columns if name is not None))
    if not names:
        return "none; name one with --time"
    steps = "" if period is None else f", every {period:g} s"
    return f"column {names}{steps}{'; none in some tables' if None in columns else ''}"


def _tell_odd_channels(device: Device) -> None:
    timeless = [table for table in device.tables if table.times is None]
    if any(looks_like_epoch(table.values[:, 0]) for table in timeless):
        name = device.channels[0]
        note(f"{device.path}: column {name!r} is read as a channel and looks like times; --time {name} makes it these.")
    constant = _constant_channels(device)
    if len(constant) == 1:
        note(f"{device.path}: channel {constant[0]!r} never changes; any change of it will count as abnormal.")
    elif constant:
        names = ", ".join(map(repr, constant))
        note(f"{device.path}: channels {names} never change; any change of one will count as abnormal.")


def _constant_channels(device: Device) -> list[str]:
    values = np.concatenate([table.values for table in device.tables])
    known = [values[~np.isnan(values[:, at]), at] for at in range(len(device.channels))]
    return [name for name, cells in zip(device.channels, known, strict=True) if len(cells) and np.ptp(cells) == 0.0]


def _tell_repairs(device: Device) -> None:
    gaps = time_gaps(device)
    told = [
        counted(
            device.filled,
            "missing cell filled with the value before it",
            "missing cells filled with the values before them",
        ),
        counted(device.gap_rows, "row remains a gap", "rows remain gaps"),
        counted(gaps, "gap in time", "gaps in time"),
    ]
    happened = [text for text, count in zip(told, (device.filled, device.gap_rows, gaps), strict=True) if count]
    if happened:
        note(f"{device.path}: {', '.join(happened)}.")
