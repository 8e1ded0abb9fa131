"""Which columns of a file are channels, and the numbers in them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.intake.calendar import DATES, format_of_parts, is_part_of_date
from fedkad.intake.clock import Clock
from fedkad.intake.engine import Relation
from fedkad.intake.interpretation import Interpretation
from fedkad.intake.layout import is_measurement
from fedkad.intake.numbers import NUMBER_LIKE, codes_in, is_type_of_numbers, undecided
from fedkad.intake.zones import ClockOffsets, minutes_ahead
from fedkad.progress import Report, unheard
from fedkad.tables.cells import MISSING, is_missing, shown
from fedkad.tables.times import YEARS, Times
from fedkad.wording import counted

LABELS = frozenset(
    {"label", "labels", "anomaly", "anomalies", "is_anomaly", "isanomaly", "attack", "attacks", "outlier"}
    | {"outliers", "is_outlier", "fault_label", "class", "target", "ground_truth", "groundtruth"}
    | {"normal/attack", "changepoint", "change_point", "event_label"}
)
MOST_LABELS = 10  # different values of a column of labels
UNNAMED = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
LEAST_ROWS = 20  # of a word that may be the name of a device
LEAST_NUMBERS = 0.1  # share of the cells of a channel that are numbers; below it, the column is text

Array = NDArray[np.float64]
Words = Sequence[tuple[str, int]]
"""What cells hold that are neither numbers nor missing, and how often."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column that was read as numbers."""

    at: int
    name: str
    values: Array  # NaN where there is no number
    odd: int  # cells that are neither empty nor a number


@dataclass(frozen=True, eq=False)
class Columns:
    """The times and some columns of a file, in its order."""

    times: Times | None
    offsets: ClockOffsets | None
    columns: tuple[Column, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Samples:
    """The channels of a recording."""

    times: Times | None
    offsets: ClockOffsets | None
    channels: tuple[str, ...]
    values: Array  # (time, channel)
    absent: tuple[str, ...]  # channels that were asked for and are not there
    notes: tuple[str, ...]


def left_out(names: Sequence[str], reason: str, remedy: str = "") -> str:
    """Return the note on columns that are left out; in the remedy, ``{it}`` stands for them."""
    listed = ", ".join(map(repr, names))
    instead = f"; {remedy.format(it='it' if len(names) == 1 else 'them')}" if remedy else ""
    return f"column{'s' * (len(names) > 1)} {listed} left out: {reason}{instead}"


# -- which columns to read --------------------------------------------------------------------------------------


def choose_columns(how: Interpretation) -> tuple[list[int], tuple[str, ...]]:
    """Choose the columns to read as numbers; also return notes on those that are left out."""
    relation, switches = how.relation, how.switches
    for name in switches.ignore:
        relation.at(name)
    if how.wanted is not None:
        wanted = [name for name in how.wanted if name not in switches.ignore]
        return [relation.names.index(name) for name in wanted if name in relation.names], ()
    if switches.channels is not None:
        return [relation.at(name) for name in dict.fromkeys(switches.channels)], ()
    times_at = how.clock.at if how.clock is not None else ()
    others = [at for at, name in enumerate(relation.names) if at not in times_at and name not in switches.ignore]
    labels = [] if switches.keep_labels else [at for at in others if _is_label(relation, at)]
    chosen = [at for at in others if at not in labels]
    if not chosen:
        raise relation.source.error("there is no channel beside the time", "add a column for each channel")
    names = [relation.names[at] for at in labels]
    return chosen, (left_out(names, "labels", "--channels takes {it}"),) if labels else ()


def _is_label(relation: Relation, at: int) -> bool:
    if re.sub(r"[\s-]+", "_", relation.names[at].lower()) not in LABELS:
        return False
    [(different,)] = relation.rows(f"count(DISTINCT c{at})")
    return bool(different <= MOST_LABELS)


# -- reading them -----------------------------------------------------------------------------------------------


def read_columns(how: Interpretation, chosen: Sequence[int], report: Report = unheard) -> Columns:
    """Read the times and the chosen columns in one pass over the file."""
    relation, clock = how.relation, how.clock
    # t: times, z: minutes ahead of UTC; for each column v: numbers, o: whether a cell is odd
    selected = [f"{clock.sql} AS t"] if clock is not None else []
    selected += [f"CAST({clock.offset} AS INTEGER) AS z"] if clock is not None and clock.keeps_zone else []
    for at in chosen:
        number = how.numbers[at]
        selected += [f"{number} AS v{at}", f"c{at} IS NOT NULL AND ({number}) IS NULL AS o{at}"]
    arrays = relation.columns(", ".join(selected) or "c0", report=report)
    times = None if clock is None else _checked_times(relation, clock, arrays.pop("t"))
    minutes = np.asarray(arrays.pop("z"), dtype=np.int64) if "z" in arrays else None
    if times is not None and clock is not None and clock.zone:
        minutes = minutes_ahead(np.asarray(times, dtype="datetime64[ns]"), clock.zone)
    offsets = None if times is None or minutes is None else ClockOffsets(times, minutes)
    columns, notes = [], list[str]()
    for at in chosen:
        name, odd = relation.names[at], int(np.count_nonzero(arrays.pop(f"o{at}")))
        values, about_codes = _without_codes(how, name, np.ma.filled(arrays.pop(f"v{at}"), np.nan))
        columns.append(Column(at, name, values, odd))
        notes += about_codes
        if at in how.positions:
            notes.append("channel {!r}: {} and {} read as 0 and 1".format(name, *how.positions[at]))
    return Columns(times, offsets, tuple(columns), tuple(notes))


def _checked_times(relation: Relation, clock: Clock, moments: Any) -> Times:
    """Return the times as the engine read them, once each is known and has a year that numpy can hold."""
    where, remedy = f"time column {clock.name!r}", "correct the cell or remove the row"
    unknown = np.broadcast_to(getattr(moments, "mask", False), moments.shape)
    if clock.is_number:
        moments = np.ma.filled(moments, np.nan)
        unknown = ~np.isfinite(moments)
    if unknown.any():
        row = int(np.argmax(unknown))
        [(cell,)] = relation.rows(clock.text, f"LIMIT 1 OFFSET {row}")
        if not cell or is_missing(cell):
            raise relation.source.error("the time is missing", remedy, row=row, where=where)
        what, remedy = (
            f"the time {shown(cell)} is not like the first ones",
            f"{remedy}, or name the format with --time-format",
        )
        raise relation.source.error(what, remedy, row=row, where=where)
    times: Times = np.asarray(moments)
    if clock.is_number:
        return times
    years = times.astype("datetime64[Y]").astype(np.int64) + 1970
    outside = (years < YEARS.start) | (years >= YEARS.stop)
    if outside.any():
        what = f"a time is not between {YEARS.start} and {YEARS.stop - 1}"
        raise relation.source.error(what, remedy, row=int(np.argmax(outside)), where=where)
    return times.astype("datetime64[ns]")


def _without_codes(how: Interpretation, name: str, values: Array) -> tuple[Array, list[str]]:
    """Return the values without numbers that stand for missing ones, and notes on numbers that look as if they did."""
    codes = how.switches.missing
    if codes:
        coded = np.isin(values, codes)
        listed = ", ".join(f"{number:g}" for number in np.unique(values[coded]))
        note = f"channel {name!r}: {counted(int(coded.sum()), 'cell')} of {listed} taken as missing"
        return np.where(coded, np.nan, values), [note] if coded.any() else []
    if how.wanted is not None:
        return values, []
    return values, [
        f"channel {name!r}: {code:g} comes {count} times, far from all other values; "
        f"--missing {code:g} if it stands for a missing one"
        for code, count in codes_in(values)
    ]


# -- which of them are channels ---------------------------------------------------------------------------------


def channels_of(how: Interpretation, read: Columns) -> Samples:
    """Return the columns that are channels, side by side."""
    channels, notes = [], [*read.notes]
    for column in read.columns:
        is_channel, about_column = judge_column(how, column)
        channels += [column] if is_channel else []
        notes += about_column
    if how.wanted is None:
        if how.switches.channels is None and not how.switches.keep_labels:
            channels, about_dates = _without_calendar(how, channels)
            notes += about_dates
        _require_names(how.relation, channels)
    by_name = {column.name: column for column in channels}
    names = tuple(by_name) if how.wanted is None else tuple(how.wanted)
    if not any(name in by_name for name in names):
        there = ", ".join(name for name in how.relation.names if name)
        raise how.relation.source.error(f"none of the channels {', '.join(names)} is there", f"its columns are {there}")
    absent = tuple(name for name in names if name not in by_name)
    values = np.full((len(channels[0].values), len(names)), np.nan)
    for k, name in enumerate(names):
        if name in by_name:
            values[:, k] = by_name[name].values
    return Samples(read.times, read.offsets, names, values, absent, tuple(notes))


def judge_column(how: Interpretation, column: Column) -> tuple[bool, list[str]]:
    """Tell whether a column is a channel, with a note on why it is not, or on what is taken as missing in it."""
    source, kind, name = how.relation.source, how.relation.kinds[column.at], column.name
    words = _words(how, column.at) if column.odd and kind == "VARCHAR" else []
    if kind != "VARCHAR" and not is_type_of_numbers(kind):
        words = [(kind.lower(), 1)]
    odd, numbers = sum(count for _, count in words), int(np.count_nonzero(~np.isnan(column.values)))
    # Mostly words: text, which is left out, or measurements with their units, which are refused.
    if odd and numbers < LEAST_NUMBERS * (numbers + odd):
        if kind == "VARCHAR" and all(is_measurement(word) for word, _ in words):
            _refuse_near_numbers(how, column, words)
        text = f"text ({shown(words[0][0])})"
        if how.switches.channels is not None:
            what = f"the column holds {text} where numbers belong"
            raise source.error(what, "leave it out of --channels", where=f"channel {name!r}")
        return False, [left_out([name], text, _device_remedy(how, name, words))]
    if not name or UNNAMED.fullmatch(name):
        return False, _note_on_unnamed(how, column, numbers)
    if not odd:
        return True, []
    _refuse_near_numbers(how, column, words)
    listed = ", ".join(f"{shown(word)} ×{count}" for word, count in words[:5])
    more = f" and {len(words) - 5} other words" if len(words) > 5 else ""
    return True, [f"channel {name!r}: {counted(odd, 'cell')} taken as missing ({listed}{more})"]


def _words(how: Interpretation, at: int) -> Words:
    condition = f"WHERE c{at} IS NOT NULL AND ({how.numbers[at]}) IS NULL"
    cells = how.relation.rows(f"trim(c{at}), count(*)", f"{condition} GROUP BY 1 ORDER BY 2 DESC, 1")
    return [(word, count) for word, count in cells if word.lower() not in MISSING]


def _device_remedy(how: Interpretation, name: str, words: Words) -> str:
    """Return what to do about a few words that come again and again, if no times show whether they are devices."""
    least = min((count for _, count in words), default=0)
    if how.clock is not None or how.wanted is not None or len(words) < 2 or least < LEAST_ROWS:
        return ""
    return f"if it tells {len(words)} devices apart, pass --device {name}={min(word for word, _ in words)}"


def _refuse_near_numbers(how: Interpretation, column: Column, words: Words) -> None:
    """Refuse cells such as 12 V or <0.5: taken as missing, a measurement would be lost."""
    relation, at = how.relation, column.at
    if how.switches.decimal is not None:
        words = [(word, count) for word, count in words if not re.fullmatch(r"[+-]?[\d.,]+", word)]
    near = next((word for word, _ in words if NUMBER_LIKE.fullmatch(word)), None)
    if near is None:
        return
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", near):
        raise undecided(near, relation.source)
    numbered = replace(relation, sql=f"(SELECT row_number() OVER () - 1 AS row, c{at} FROM {relation.sql})")
    [(row,)] = numbered.rows("row", f"WHERE trim(c{at}) = ? LIMIT 1", [near])
    remedy = "write a number, leave the cell empty where the value is missing, or leave the column out with --ignore"
    if re.fullmatch(r"[+-]?\d+,\d+", near):
        remedy = "pass --decimal , if numbers have a decimal comma"
    what = f"expected a number, found {shown(near)}"
    raise relation.source.error(what, remedy, row=row, where=f"channel {column.name!r}")


def _note_on_unnamed(how: Interpretation, column: Column, numbers: int) -> list[str]:
    """Return the note on a column without a name that is empty or counts the rows; refuse others."""
    source, at, values = how.relation.source, column.at, column.values
    if numbers == 0:
        return []
    if values[0] in (0.0, 1.0) and np.array_equal(values - values[0], np.arange(len(values))):
        return [f"column {at + 1}, which counts the rows, left out"]
    if numbers < LEAST_NUMBERS * len(values):  # where all lines end in a separator, a surplus cell comes here
        what = f"the row has a value in column {at + 1}, which has no name and is empty in most rows"
        row = int(np.argmin(np.isnan(values)))
        raise source.error(what, "write one cell for each name, or name the column", row=row)
    raise source.error(f"column {at + 1} has no name", "name the channel in the header or remove the column")


def _without_calendar(how: Interpretation, channels: list[Column]) -> tuple[list[Column], list[str]]:
    """Leave out dates and parts of dates, such as a year, which would be abnormal every January."""
    notes = list[str]()
    dates = [column.name for column in channels if column.name.lower() in DATES]
    if dates and len(dates) < len(channels):
        notes.append(left_out(dates, "called a date", "--time or --channels takes {it}"))
        channels = [column for column in channels if column.name not in dates]
    parts = [column for column in channels if is_part_of_date(column.name, column.values)]
    if not parts or len(parts) == len(channels):
        return channels, notes
    names = [column.name for column in parts]
    firsts = [cells[0].strip() if cells else "" for cells in (how.sample[how.relation.at(name)] for name in names)]
    spelt, remedy = format_of_parts(names, firsts), "--channels takes {it}"
    if spelt and how.clock is None:
        remedy = f'--time {",".join(names)} --time-format "{spelt}" takes {{it}} for the time'
    notes.append(left_out(names, "part of a date" if len(names) == 1 else "parts of a date", remedy))
    return [column for column in channels if column not in parts], notes


def _require_names(relation: Relation, channels: Sequence[Column]) -> None:
    """Refuse a file without channels, or with two of one name."""
    if not channels:
        raise relation.source.error("no column holds numbers", "check the separator and the decimal mark (--decimal)")
    names = [column.name for column in channels]
    for name in names:
        if names.count(name) > 1:
            first, second = [at + 1 for at, each in enumerate(relation.names) if each == name][:2]
            what = f"columns {first} and {second} have the same name"
            raise relation.source.error(what, "give each channel its own name", where=f"channel {name!r}")
