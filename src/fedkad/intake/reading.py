"""Reading one recording of any kind into a table, and saying what had to be done for it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedkad.intake.channels import Samples, channels_of, choose_columns, read_columns
from fedkad.intake.devices import of_device, refuse_mixed_devices
from fedkad.intake.engine import INSTALL, Relation, is_installed
from fedkad.intake.interpretation import Interpretation, interpret
from fedkad.intake.longform import tag_columns, tags_as_channels
from fedkad.intake.opening import opened, require_input
from fedkad.intake.rows import in_order, resampled
from fedkad.intake.stages import Stages
from fedkad.intake.switches import Switches
from fedkad.progress import Report, unheard
from fedkad.tables.errors import TableError, TableSource
from fedkad.tables.reading import completed, read_table
from fedkad.tables.table import SeriesTable
from fedkad.timesteps import steps_between


def read_recording(
    path: str | os.PathLike[str],
    switches: Switches | None = None,
    *,
    wanted: Sequence[str] | None = None,
    allow_silent: bool = False,
    report: Report = unheard,
) -> SeriesTable:
    """Read a text file, ``.csv.gz``, ``.xlsx`` or ``.parquet``, or standard input (``-``), as one series.

    Parameters
    ----------
    path
        The file.
    switches
        What the file does not say.
    wanted
        The channels of a model, in its order: others are left out, and one that is not there has no value.
    allow_silent
        Whether a channel may have no value at all.
    report
        Told how much of how much is read, by another thread.
    """
    path, switches = Path(path), switches or Switches()
    require_input(path)
    if not is_installed():
        return _plainly(path, switches, wanted, allow_silent, report)
    silent = allow_silent or wanted is not None
    stages = Stages(report)
    with opened(path, switches.encoding, stages) as relation:
        last = unheard if report is unheard else stages.last()
        return table_of(relation, switches, wanted, silent, last)


def table_of(
    relation: Relation, switches: Switches, wanted: Sequence[str] | None, silent: bool, report: Report
) -> SeriesTable:
    """Return the table of an opened file, or of one device in it."""
    if switches.device is not None:
        relation, column = of_device(relation, switches.device)
        switches = replace(switches, ignore=(*switches.ignore, column))
    how, about_numbers = interpret(relation, switches, wanted)
    notes = (*relation.notes, *about_numbers)
    # A long table has a row for each value and names its channel in it; others have a column for each channel.
    tag = tag_columns(how)
    if tag is None:
        chosen, about_choice = choose_columns(how)
        samples = channels_of(how, read_columns(how, chosen, report))
        notes += about_choice
    else:
        samples = tags_as_channels(how, read_columns(how, [tag.value], report), tag)
    samples = _resampled(how, _in_order(how, samples, is_long=tag is not None))
    table = SeriesTable(
        relation.name,
        samples.channels,
        samples.values,
        samples.times,
        notes=(*notes, *samples.notes),
        absent=samples.absent,
    )
    if how.clock is not None and samples.times is not None:
        offsets = None if samples.offsets is None else samples.offsets.at(samples.times)
        table = replace(table, time_column=how.clock.name, utc=how.clock.utc, offsets=offsets)
    return completed(table, relation.source, max_fill=switches.max_fill, allow_silent=silent)


def _in_order(how: Interpretation, samples: Samples, *, is_long: bool) -> Samples:
    """Return the samples in the order of time."""
    times = samples.times
    if times is None or how.clock is None:
        return samples
    if not is_long and (steps_between(times) <= 0).any():
        refuse_mixed_devices(how)
    order, repeated = in_order(times, how.clock.name, how.relation.source, sort=how.switches.sort)
    if order is None:
        return samples
    dropped = f", {repeated} dropped because a later one has the same time" if repeated else ""
    notes = (*samples.notes, f"rows sorted by time{dropped}")
    return replace(samples, times=times[order], values=samples.values[order], notes=notes)


def _resampled(how: Interpretation, samples: Samples) -> Samples:
    """Return the samples on the grid that was asked for, if one was."""
    period = how.switches.resample
    if period is None:
        return samples
    if samples.times is None:
        raise how.relation.source.error("--resample needs times", "name the time column with --time")
    times, values = resampled(samples.times, samples.values, period)
    note = (
        f"{len(samples.values)} rows resampled to {len(values)}, one every {period:g} s: the mean of each, "
        "and the last value of a channel with only two"
    )
    return replace(samples, times=times, values=values, notes=(*samples.notes, note))


def _plainly(
    path: Path, switches: Switches, wanted: Sequence[str] | None, allow_silent: bool, report: Report
) -> SeriesTable:
    """Read plain CSV with the strict reader of the library."""
    used = switches.used(without=("time", "max_fill"))
    if used:
        raise TableSource(path).error(f"{used[0]} needs the package duckdb", INSTALL)
    try:
        silent = allow_silent or wanted is not None
        table = read_table(path, time=switches.time, max_fill=switches.max_fill, allow_silent=silent, report=report)
    except TableError as error:
        raise TableError(f"{str(error).rstrip('.')} (to read other than plain CSV, {INSTALL}).") from None
    return table if wanted is None else table.with_channels(wanted)
