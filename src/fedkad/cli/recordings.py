"""Recordings as the commands read them: a device or a fleet, with every repair reported on stderr."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import typer

from fedkad.cli.failures import note
from fedkad.detect.series import Series
from fedkad.intake import Switches, read_recording
from fedkad.report.wording import counted
from fedkad.tables import DeviceTables, FleetTables, read_device, read_fleet
from fedkad.tables.times import gap_starts, looks_like_epoch


def load_device(
    path: Path, switches: Switches, *, wanted: Sequence[str] | None = None, allow_silent: bool = False
) -> DeviceTables:
    """Read one device: a file, standard input (-), or a folder; the notes say what was done to it.

    `wanted` are the channels of a model: they are matched by name, and those that are missing have no value.
    """
    device = read_device(path, partial(read_recording, switches=switches, wanted=wanted, allow_silent=allow_silent))
    _report_repairs(device)
    return device


def load_fleet(folder: Path, switches: Switches) -> FleetTables:
    """Read the devices of a folder, by name; a bad one is left out with its reason."""
    fleet = read_fleet(folder, partial(read_recording, switches=switches))
    for device in fleet.devices.values():
        _report_repairs(device)
    return fleet


def named_series(device: DeviceTables) -> list[Series]:
    """The stretches of a device with the names of its channels."""
    return [Series(values, device.channels) for values in device.series()]


def time_gaps(device: DeviceTables) -> int:
    """The number of gaps in time, over all tables of a device."""
    return sum(len(gap_starts(table.times)) for table in device.tables)


def usual_period(devices: Iterable[DeviceTables]) -> float | None:
    """The median over all tables of the seconds between samples; None if no table has times.

    Devices that are sampled at different rates have no dynamics in common, so a note points them out.
    """
    periods = [(device.name, table.period) for device in devices for table in device.tables]
    known = [(name, period) for name, period in periods if period is not None]
    if not known:
        return None
    usual = float(np.median([period for _, period in known]))
    for name, period in known:
        if abs(period - usual) > 0.01 * usual:
            note(f"device {name!r} has a sample every {period:g} s, others every {usual:g} s; resample them alike.")
            break
    return usual


def report_reading(devices: Collection[DeviceTables], period: float | None) -> None:
    """Report on stderr how training data was read: its times, its stretches, and channels that look odd."""
    typer.echo(f"time: {_time_used(devices, period)}", err=True)
    tables = sum(len(device.tables) for device in devices)
    if tables > len(devices):
        of = "one device" if len(devices) == 1 else f"{len(devices)} devices"
        typer.echo(f"{tables} tables, taken as stretches of {of}", err=True)
    for device in devices:
        _report_odd_channels(device)


def _time_used(devices: Iterable[DeviceTables], period: float | None) -> str:
    columns = {table.time_column for device in devices for table in device.tables}
    names = " or ".join(repr(name) for name in sorted(name for name in columns if name is not None))
    if not names:
        return "none; name one with --time"
    steps = "" if period is None else f", every {period:g} s"
    return f"column {names}{steps}{'; none in some tables' if None in columns else ''}"


def _report_odd_channels(device: DeviceTables) -> None:
    timeless = [table for table in device.tables if table.times is None]
    if any(looks_like_epoch(table.values[:, 0]) for table in timeless):
        name = device.channels[0]
        note(f"{device.path}: column {name!r} is read as a channel but looks like times; use --time {name} if it is.")
    values = np.concatenate([table.values for table in device.tables])
    known = [column[~np.isnan(column)] for column in values.T]
    constant = [name for name, cells in zip(device.channels, known, strict=True) if len(cells) and np.ptp(cells) == 0.0]
    if len(constant) == 1:
        note(f"{device.path}: channel {constant[0]!r} never changes; any change of it will count as abnormal.")
    elif constant:
        names = ", ".join(map(repr, constant))
        note(f"{device.path}: channels {names} never change; any change of one will count as abnormal.")


def _report_repairs(device: DeviceTables) -> None:
    for table in device.tables:
        for done in table.notes:
            note(f"{device.path if len(device.tables) == 1 else f'{device.path}, {table.name}'}: {done}.")
    filled = "missing cell filled with the value before it", "missing cells filled with the values before them"
    repairs = [
        (device.filled, *filled),
        (device.gap_rows, "row remains a gap", "rows remain gaps"),
        (time_gaps(device), "gap in time", "gaps in time"),
    ]
    made = [counted(*repair) for repair in repairs if repair[0]]
    if made:
        note(f"{device.path}: {', '.join(made)}.")
