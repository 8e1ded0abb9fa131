"""Recordings as the commands read them: a device or a fleet, with every repair reported on stderr."""

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import typer

from fedkad.cli.failures import note, warn
from fedkad.detect.series import Series
from fedkad.intake import Switches, read_devices, read_recording
from fedkad.progress import unheard
from fedkad.tables import DeviceTables, FleetTables, SeriesTable, read_device, read_fleet
from fedkad.tables.fleet import matched
from fedkad.tables.times import looks_like_epoch
from fedkad.timesteps import GAP_FACTOR, gap_starts, is_other_rate
from fedkad.wording import counted

Progress = Callable[[str, float, int], None]

MANY = 20  # times that show whether their steps are even
UNEVEN, FEW = 0.1, 0.2  # how far a step may be from the usual one, and the share of steps that may be further
LONG = 1e6  # seconds, from where on a period is told in days
OFTEN = 0.05  # share of the steps that may be gaps: with more of them hardly a window is complete
MOSTLY = 0.5  # share of the runs between gaps that are equally long if gaps come regularly
HOLLOW = 0.2  # share of the rows that a channel may leave without a value before there is a note


def load_device(
    path: Path,
    switches: Switches,
    *,
    wanted: Sequence[str] | None = None,
    allow_silent: bool = False,
    progress: Progress | None = None,
) -> DeviceTables:
    """Read one device: a file, standard input (-), or a folder; the notes say what was done to it.

    `wanted` are the channels of a model: they are matched by name, and those that are missing have no value.
    """
    read = partial(read_recording, switches=switches, wanted=wanted, allow_silent=allow_silent)
    device = read_device(path, read, unheard if progress is None else partial(progress, "reading"))
    _report_passed_over(path)
    _report_repairs(device)
    return device


def load_fleet(folder: Path, switches: Switches, progress: Progress) -> FleetTables:
    """Read the devices of a folder, or of a file with a column of devices, by name; a bad one is left out and told."""
    if switches.device is not None and not folder.is_dir():
        tables, skipped = read_devices(folder, switches, partial(progress, "reading"))
        devices = {
            name: DeviceTables(name, table.channels, (table,), Path(f"{folder} ({name})"))
            for name, table in tables.items()
        }
        fleet = matched(devices, skipped)
        for device in fleet.devices.values():
            _report_repairs(device)
        return fleet
    fleet = read_fleet(folder, partial(read_recording, switches=switches), partial(progress, "reading"))
    _report_passed_over(folder)
    for device in fleet.devices.values():
        _report_repairs(device)
    return fleet


def _report_passed_over(path: Path) -> None:
    """Say which text files of a folder were not read: they may be recordings."""
    texts = sorted(file.name for file in path.glob("*.txt") if not file.name.lower().startswith((".", "readme")))
    if texts:
        note(f"{path}: {', '.join(texts)} passed over as notes; a recording must be called .csv to be read.")


def named_series(device: DeviceTables, *, overwrite_ok: bool = False) -> Series | list[Series]:
    """Return the stretches of a device with the names of its channels; a single one is not copied into another.

    Their values may be overwritten if the device is not looked at again.
    """
    stretches = [Series(values, device.channels, overwrite_ok=overwrite_ok) for values in device.series()]
    return stretches[0] if len(stretches) == 1 else stretches


def time_gaps(device: DeviceTables) -> int:
    """Count the gaps in time, over all tables of a device."""
    return sum(len(gap_starts(table.times)) for table in device.tables)


def usual_period(devices: Iterable[DeviceTables]) -> float | None:
    """Return the median over all tables of the seconds between samples; None if no table has times.

    Devices that are sampled at different rates have no dynamics in common, so a note points them out.
    """
    periods = [(device.name, table.period) for device in devices for table in device.tables]
    timed = [(name, period) for name, period in periods if period is not None]
    if not timed:
        return None
    usual = float(np.median([period for _, period in timed]))
    for name, period in timed:
        if abs(period - usual) > 0.01 * usual:
            note(f"device {name!r} has a sample every {period:g} s, others every {usual:g} s; resample them alike.")
            break
    return usual


def report_reading(devices: Collection[DeviceTables], period: float | None, *, fixed: bool = False) -> None:
    """Report on stderr how training data was read: its times, its stretches, and channels that look odd.

    The channels are `fixed` where a fleet has chosen them: none can be left out.
    """
    typer.echo(f"time: {_time_used(devices, period)}", err=True)
    tables = sum(len(device.tables) for device in devices)
    if tables > len(devices):
        of = "one device" if len(devices) == 1 else f"{len(devices)} devices"
        typer.echo(f"{tables} tables, taken as stretches of {of}", err=True)
    for device in devices:
        _report_odd_channels(device, fixed)
        for table in device.tables:
            _report_odd_steps(device, table)


def _report_odd_steps(device: DeviceTables, table: SeriesTable) -> None:
    """Say that samples come at irregular times, or that many are missing, as at weekends; neither fits."""
    if table.times is None or table.period is None or len(table.times) < MANY:
        return
    steps = np.diff(table.times).astype(np.float64)
    usual = np.median(steps)
    odd = np.abs(steps - usual * np.maximum(np.rint(steps / usual), 1.0)) > UNEVEN * usual
    gaps = np.flatnonzero(steps > GAP_FACTOR * usual)
    if odd.mean() <= FEW and len(gaps) > OFTEN * len(steps):
        runs = np.diff(gaps)
        remedy = f"--resample to a longer period, such as {_near(3.0 * table.period)}, bridges most of them"
        if np.mean(runs == np.median(runs)) > MOSTLY:  # as at weekends
            column = shlex.quote(table.time_column or "")
            remedy = f"--ignore {column} takes the rows as if they followed one another, as over weekends"
        often = f"a gap in time after every {len(steps) / len(gaps):.2g} rows"
        note(f"{device.path}: there is {often} on average, and nothing is learned across one; {remedy}.")
    if odd.mean() > FEW:
        shortest, longest = (table.period * np.quantile(steps, share) / usual for share in (0.05, 0.95))
        note(
            f"{device.path}: samples are {shortest:.3g} to {longest:.3g} s apart, usually {table.period:.3g} s, and "
            f"the detector expects even steps; --resample PERIOD, such as {_near(table.period)}, puts them on a grid."
        )


def _near(seconds: float) -> str:
    """Return a duration that is easily written."""
    return f"{seconds / 60.0:.0f}m" if seconds >= 60.0 else f"{max(seconds, 1.0):.0f}s"


def _time_used(devices: Iterable[DeviceTables], period: float | None) -> str:
    columns = {table.time_column for device in devices for table in device.tables}
    names = " or ".join(repr(name) for name in sorted(name for name in columns if name is not None))
    if not names:
        return "none; name one with --time"
    steps = "" if period is None else f", every {_length(period)}"
    return f"column {names}{steps}{'; none in some tables' if None in columns else ''}"


def _length(seconds: float) -> str:
    """Return a sampling period in words.

    >>> _length(3600.0), _length(31_536_000.0)
    ('3600 s', '365 days')
    """
    return f"{seconds:g} s" if seconds < LONG else f"{seconds / 86_400.0:g} days"


def _report_odd_channels(device: DeviceTables, fixed: bool) -> None:
    timeless = [table for table in device.tables if table.times is None]
    if any(looks_like_epoch(table.values[:, 0]) for table in timeless):
        name = device.channels[0]
        note(f"{device.path}: column {name!r} is read as a channel but looks like times; use --time {name} if it is.")
    values = np.concatenate([table.values for table in device.tables])
    numbers = [column[~np.isnan(column)] for column in values.T]
    constant = [
        name for name, cells in zip(device.channels, numbers, strict=True) if len(cells) and np.ptp(cells) == 0.0
    ]
    if len(constant) == 1:
        note(f"{device.path}: channel {constant[0]!r} never changes; the larger a change of it, the higher the score.")
    elif constant:
        names = ", ".join(map(repr, constant))
        note(f"{device.path}: channels {names} never change; the larger a change of one, the higher the score.")
    for name, cells in zip(device.channels, numbers, strict=True):
        missing = len(values) - len(cells)
        if missing > HOLLOW * len(values):
            remedy = "" if fixed else f"; --ignore {name} leaves the channel out"
            note(
                f"{device.path}: channel {name!r} has no value in {missing} of {len(values)} rows, and "
                f"nothing is learned from a row with a missing value{remedy}."
            )


def _report_repairs(device: DeviceTables) -> None:
    for table in device.tables:
        for done in (*table.notes, *([absent_channels(table)] if table.absent else [])):
            note(f"{device.path if len(device.tables) == 1 else f'{device.path}, {table.name}'}: {done}.")
    empty = sum(int(np.isnan(table.values).all(axis=1).sum()) for table in device.tables)
    whole = (
        f" ({empty} without any value, which --resample to a longer period bridges and --max-fill does not)"
        if empty
        else ""
    )
    filled = "missing cell filled with the value before it", "missing cells filled with the values before them"
    repairs = [
        (device.filled, *filled),
        (device.gap_rows, f"row remains a gap{whole}", f"rows remain gaps{whole}"),
        (time_gaps(device), "gap in time", "gaps in time"),
    ]
    counts = [counted(*repair) for repair in repairs if repair[0]]
    if counts:
        note(f"{device.path}: {', '.join(counts)}.")


def absent_channels(table: SeriesTable) -> str:
    """Say which channels of a model have no column in a table."""
    return f"{', '.join(map(repr, table.absent))} of the model {'is' if len(table.absent) == 1 else 'are'} not there"


def check_period(fitted: float | None, device: DeviceTables, path: Path) -> None:
    """Warn if samples come at another rate than those that a model was fitted to."""
    for period in (table.period for table in device.tables):
        if is_other_rate(period, fitted):
            warn(
                f"{path}: there is a sample every {period:g} s, but the model was fitted to one every {fitted:g} s; "
                "resample the data or fit a model to data of this rate."
            )
            return
