"""Reading one recording of any kind into a table, and saying what had to be done for it."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.intake import longform
from fedkad.intake.calendar import DATES, format_of_parts, is_part_of_date
from fedkad.intake.clock import Clock, clock_of
from fedkad.intake.devices import devices_of, of_device
from fedkad.intake.engine import INSTALL, Relation, is_installed
from fedkad.intake.layout import is_measurement
from fedkad.intake.numbers import (
    NUMBER_LIKE,
    Marks,
    codes_in,
    is_type_of_numbers,
    marks_in,
    position_sql,
    positions_in,
    undecided,
)
from fedkad.intake.opening import STANDARD_INPUT, opened
from fedkad.intake.rows import in_order, resampled
from fedkad.intake.stages import Stages
from fedkad.intake.switches import Switches
from fedkad.intake.timecolumn import time_columns
from fedkad.intake.zones import minutes_ahead
from fedkad.progress import Report, unheard
from fedkad.tables.cells import MISSING, is_missing, no_rows, shown
from fedkad.tables.errors import TableError, TableSource
from fedkad.tables.reading import completed, read_table
from fedkad.tables.table import SeriesTable
from fedkad.tables.times import YEARS, Times
from fedkad.timesteps import steps_between
from fedkad.wording import counted

LABELS = frozenset(
    {"label", "labels", "anomaly", "anomalies", "is_anomaly", "isanomaly", "attack", "attacks", "outlier"}
    | {"outliers", "is_outlier", "fault_label", "class", "target", "ground_truth", "groundtruth"}
    | {"normal/attack", "changepoint", "change_point", "event_label"}
)
MOST_LABELS = 10  # different values of a column of labels
UNNAMED = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
SAMPLE = 1000
LEAST_ROWS = 20  # of a word that may be the name of a device
MOST_REPEATED = 0.01  # share of the rows of equal time that a column of devices may leave together
LEAST_NUMBERS = 0.1  # share of the cells of a channel that are numbers; below it, the column is text

Array = NDArray[np.float64]


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
    require_file(path)
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
    """The table of an opened file, or of one device in it."""
    if switches.device is not None:
        relation, column = of_device(relation, switches.device)
        switches = replace(switches, ignore=(*switches.ignore, column))
    table = _Recording(relation, switches, wanted, report).table()
    return completed(table, relation.source, max_fill=switches.max_fill, allow_silent=silent)


def require_file(path: Path) -> None:
    """Refuse what is not there, or a folder."""
    # os.path, because the methods of Path raise where a folder may not be entered.
    if path == STANDARD_INPUT:
        return
    if os.path.isdir(path):
        raise TableSource(path).error("expected a file, found a folder", "give the path of a table")
    if not os.path.exists(path):
        raise TableSource(path).error("there is no such file", "check the path")


def _plainly(
    path: Path, switches: Switches, wanted: Sequence[str] | None, allow_silent: bool, report: Report
) -> SeriesTable:
    """The strict reader of the library, for plain CSV."""
    used = switches.used(without=("time", "max_fill"))
    if used:
        raise TableSource(path).error(f"{used[0]} needs the package duckdb", INSTALL)
    try:
        silent = allow_silent or wanted is not None
        table = read_table(path, time=switches.time, max_fill=switches.max_fill, allow_silent=silent, report=report)
    except TableError as error:
        raise TableError(f"{str(error).rstrip('.')} (to read other than plain CSV, {INSTALL}).") from None
    return table if wanted is None else table.with_channels(wanted)


@dataclass(frozen=True)
class _Column:
    """A column as it was read."""

    name: str
    values: Array  # NaN where there is no number
    odd: int  # cells that are neither empty nor a number


class _Recording:
    """The steps from an opened file to a table."""

    def __init__(
        self, relation: Relation, switches: Switches, wanted: Sequence[str] | None, report: Report = unheard
    ) -> None:
        self.relation, self.switches, self.wanted, self.report = relation, switches, wanted, report
        self.source, self.notes = relation.source, relation.notes
        if not relation.names:
            raise self.source.error("the file has no columns", "add a column for each channel")
        cells = ", ".join(f"CAST(c{at} AS VARCHAR)" for at in range(len(relation.names)))
        rows = relation.rows(cells, f"LIMIT {SAMPLE}")
        if not rows:
            raise no_rows(self.source)
        self.sample = [[cell for cell in column if cell and not is_missing(cell)] for column in zip(*rows, strict=True)]
        self.absent: tuple[str, ...] = ()  # channels that are asked for and not there
        self.zones: tuple[Times, NDArray[np.int64]] | None = None  # minutes ahead of UTC at each time of the file
        self.clock = self._clock()
        self.marks = self._marks()
        texts = [at for at, kind in enumerate(relation.kinds) if kind == "VARCHAR"]
        found = {at: positions_in(self.sample[at]) for at in texts}
        self.positions = {at: positions for at, positions in found.items() if positions is not None}

    def table(self) -> SeriesTable:
        """The series, in the order of time."""
        tag = longform.tag_column(self.relation, self.sample, self.clock)
        times, channels, values = self._from_wide() if tag is None else self._from_long(tag)
        name, clock = self.relation.name, self.clock
        if times is not None and clock is not None:
            if tag is None and (steps_between(times) <= 0).any():
                self._refuse_several_devices(clock)
            order, repeated = in_order(times, clock.name, self.source, sort=self.switches.sort)
            if order is not None:
                times, values = times[order], values[order]
                dropped = f", {repeated} dropped because a later one has the same time" if repeated else ""
                self.notes.append(f"rows sorted by time{dropped}")
        if self.switches.resample is not None:
            if times is None:
                raise self.source.error("--resample needs times", "name the time column with --time")
            rows = len(values)
            times, values = resampled(times, values, self.switches.resample)
            self.notes.append(
                f"{rows} rows resampled to {len(values)}, one every {self.switches.resample:g} s: the mean of each, "
                "and the last value of a channel with only two"
            )
        table = SeriesTable(name, channels, values, times, notes=tuple(self.notes), absent=self.absent)
        if clock is None:
            return table
        return replace(table, time_column=clock.name, utc=clock.utc, offsets=self._offsets(times))

    def _refuse_several_devices(self, clock: Clock) -> None:
        """Refuse rows of the same time that a column of words tells apart: sorted, they would be one mixed device.

        A few rows may repeat the time of their own device, as where the clocks go back.
        """
        found = []
        for at, name in enumerate(self.relation.names):
            if self.relation.kinds[at] != "VARCHAR" or at in clock.at or name in self.switches.ignore:
                continue
            moments, device = clock.sql, f"c{at}"
            counts = (f"count(DISTINCT {each})" for each in (moments, device, f"({device}, {moments})"))
            [(rows, numbers, times, devices, pairs)] = self.relation.rows(
                ", ".join(("count(*)", f"count({self._number(at)})", *counts))
            )
            if rows - pairs <= MOST_REPEATED * (rows - times) and 1 < devices < rows / 2 and not numbers:
                found.append((rows - pairs, devices, name))
        if found:
            _, devices, name = min(found)
            what = f"column {name!r} tells {devices} devices apart, which have rows of the same time"
            first = devices_of(self.relation, name)[0]
            remedy = f"pass --device {name}={first} to read one of them (federate reads all with --device {name})"
            raise self.source.error(what, remedy)

    def _offsets(self, times: Times | None) -> NDArray[np.int64] | None:
        """How far the clock of the file is ahead of UTC at these times, which may be sorted or resampled."""
        if self.zones is None or times is None:
            return None
        known, minutes = self.zones
        order = np.argsort(known, kind="stable")
        at = np.searchsorted(known[order], times)
        return np.asarray(minutes[order][np.minimum(at, len(known) - 1)])

    # -- what the columns are -----------------------------------------------------------------------------------

    def _clock(self) -> Clock | None:
        at = time_columns(self.relation, self.sample, self.switches)
        if not at:
            return None
        cells = [" ".join(parts) for parts in zip(*(self.sample[each] for each in at), strict=False)]
        return clock_of(self.relation, at, cells, self.switches.time_format)

    def _marks(self) -> Marks:
        if "VARCHAR" not in self.relation.kinds:
            return Marks()
        cells = [cell for at in self._voters() for cell in self.sample[at]]
        marks, notes = marks_in(cells, self.switches.decimal, self.source, comma_is_decimal=self.relation.decimal_comma)
        self.notes.extend(notes)
        return marks

    def _voters(self) -> list[int]:
        """The columns whose cells show how numbers are written: those that will be read."""
        names, times = self.relation.names, self.clock.at if self.clock is not None else ()
        chosen = {*(self.wanted or ()), *(self.switches.channels or ())}.intersection(names)
        others = [at for at in range(len(names)) if at not in times and names[at] not in self.switches.ignore]
        return [at for at in others if names[at] in chosen] if chosen else others

    def _number(self, at: int) -> str:
        kind = self.relation.kinds[at]
        if at in self.positions:
            return position_sql(f"c{at}", self.positions[at])
        if kind == "VARCHAR":
            return self.marks.number(f"c{at}")
        if kind == "BOOLEAN":
            return f"CAST(CAST(c{at} AS INTEGER) AS DOUBLE)"
        return f"CAST(c{at} AS DOUBLE)" if is_type_of_numbers(kind) else "CAST(NULL AS DOUBLE)"

    # -- one column for each channel ----------------------------------------------------------------------------

    def _from_wide(self) -> tuple[Times | None, tuple[str, ...], Array]:
        chosen = self._chosen()
        times, columns = self._read(chosen)
        kept = [column for at, column in zip(chosen, columns, strict=True) if self._is_channel(at, column)]
        if self.wanted is None and self.switches.channels is None and not self.switches.keep_labels:
            kept = self._without_calendar(kept)
        if self.wanted is None:
            self._require_names(kept)
        return times, *self._stacked(kept)

    def _without_calendar(self, kept: list[_Column]) -> list[_Column]:
        """The columns that are no dates and no parts of one, such as a year, which would be abnormal every January."""
        dates = [column.name for column in kept if column.name.lower() in DATES]
        if dates and len(dates) < len(kept):
            self._leave_out(dates, "called a date", "--time or --channels takes {it}")
            kept = [column for column in kept if column.name not in dates]
        parts = [column for column in kept if is_part_of_date(column.name, column.values)]
        if not parts or len(parts) == len(kept):
            return kept
        names = [column.name for column in parts]
        cells = [self.sample[self.relation.at(name)] for name in names]
        spelt = format_of_parts(names, [cell[0].strip() if cell else "" for cell in cells])
        switches = "--channels takes {it}"
        if spelt and self.clock is None:
            switches = f'--time {",".join(names)} --time-format "{spelt}" takes {{it}} for the time'
        self._leave_out(names, "part of a date" if len(names) == 1 else "parts of a date", switches)
        return [column for column in kept if column not in parts]

    def _chosen(self) -> list[int]:
        """The columns to read as numbers."""
        relation, switches = self.relation, self.switches
        times = self.clock.at if self.clock is not None else ()
        for name in switches.ignore:
            relation.at(name)
        if self.wanted is not None:
            wanted = [name for name in self.wanted if name not in switches.ignore]
            return [relation.names.index(name) for name in wanted if name in relation.names]
        if switches.channels is not None:
            return [relation.at(name) for name in dict.fromkeys(switches.channels)]
        others = [at for at, name in enumerate(relation.names) if at not in times and name not in switches.ignore]
        labels = [at for at in others if not switches.keep_labels and self._is_label(at)]
        if labels:
            self._leave_out([relation.names[at] for at in labels], "labels", "--channels takes {it}")
        chosen = [at for at in others if at not in labels]
        if not chosen:
            raise self.source.error("there is no channel beside the time", "add a column for each channel")
        return chosen

    def _is_label(self, at: int) -> bool:
        name = re.sub(r"[\s-]+", "_", self.relation.names[at].lower())
        if name not in LABELS:
            return False
        [(different,)] = self.relation.rows(f"count(DISTINCT c{at})")
        return bool(different <= MOST_LABELS)

    def _read(self, chosen: Sequence[int]) -> tuple[Times | None, list[_Column]]:
        """The times and the columns; the file is read once."""
        relation, clock = self.relation, self.clock
        selected = [f"{clock.sql} AS t"] if clock is not None else []
        selected += [f"CAST({clock.offset} AS INTEGER) AS z"] if clock is not None and clock.keeps_zone else []
        for at in chosen:
            number = self._number(at)
            selected += [f"{number} AS v{at}", f"c{at} IS NOT NULL AND ({number}) IS NULL AS o{at}"]
        found = relation.columns(", ".join(selected) or "c0", report=self.report)
        times = None if clock is None else self._times(clock, found.pop("t"))
        if times is not None and "z" in found:
            self.zones = times, np.asarray(found.pop("z"), dtype=np.int64)
        elif times is not None and clock is not None and clock.zone:
            minutes = minutes_ahead(np.asarray(times, dtype="datetime64[ns]"), clock.zone)
            self.zones = None if minutes is None else (times, minutes)
        columns = []
        for at in chosen:
            odd = int(np.count_nonzero(found.pop(f"o{at}")))
            values = self._without_codes(relation.names[at], np.ma.filled(found.pop(f"v{at}"), np.nan))
            columns.append(_Column(relation.names[at], values, odd))
            if at in self.positions:
                self.notes.append(
                    "channel {!r}: {} and {} read as 0 and 1".format(relation.names[at], *self.positions[at])
                )
        return times, columns

    def _without_codes(self, name: str, values: Array) -> Array:
        """The values without numbers that stand for missing ones; says which look as if they did."""
        if self.switches.missing:
            coded = np.isin(values, self.switches.missing)
            if coded.any():
                listed = ", ".join(f"{number:g}" for number in np.unique(values[coded]))
                self.notes.append(f"channel {name!r}: {counted(int(coded.sum()), 'cell')} of {listed} taken as missing")
            return np.where(coded, np.nan, values)
        if self.wanted is None:
            for code, count in codes_in(values):
                what = f"channel {name!r}: {code:g} comes {count} times, far from all other values"
                self.notes.append(f"{what}; --missing {code:g} if it stands for a missing one")
        return values

    def _times(self, clock: Clock, found: Any) -> Times:
        unknown = np.broadcast_to(getattr(found, "mask", False), found.shape)
        if clock.is_number:
            found = np.ma.filled(found, np.nan)
            unknown = ~np.isfinite(found)
        if unknown.any():
            row = int(np.argmax(unknown))
            [(cell,)] = self.relation.rows(clock.text, f"LIMIT 1 OFFSET {row}")
            what = f"the time {shown(cell)} is not like the first ones" if cell and not is_missing(cell) else None
            remedy = "correct the cell or remove the row" + (", or name the format with --time-format" if what else "")
            where = f"time column {clock.name!r}"
            raise self.source.error(what or "the time is missing", remedy, row=row, where=where)
        times: Times = np.asarray(found)
        if clock.is_number:
            return times
        years = times.astype("datetime64[Y]").astype(np.int64) + 1970
        outside = (years < YEARS.start) | (years >= YEARS.stop)
        if outside.any():
            what = f"a time is not between {YEARS.start} and {YEARS.stop - 1}"
            remedy, row = "correct the cell or remove the row", int(np.argmax(outside))
            raise self.source.error(what, remedy, row=row, where=f"time column {clock.name!r}")
        return times.astype("datetime64[ns]")

    def _is_channel(self, at: int, column: _Column) -> bool:
        """Whether the column holds numbers; says what is left out of it, or that it is left out."""
        numbers = int(np.count_nonzero(~np.isnan(column.values)))
        kind = self.relation.kinds[at]
        words = self._words(at) if column.odd and kind == "VARCHAR" else []
        odd = sum(count for _, count in words)
        asked = self.switches.channels is not None
        if kind != "VARCHAR" and not is_type_of_numbers(kind):
            words, odd = [(kind.lower(), 1)], 1
        if odd and numbers < LEAST_NUMBERS * (numbers + odd):
            if kind == "VARCHAR" and all(is_measurement(word) for word, _ in words):
                self._refuse_near_numbers(at, column.name, words)
            if asked:
                what = f"the column holds text ({shown(words[0][0])}) where numbers belong"
                raise self.source.error(what, "leave it out of --channels", where=f"channel {column.name!r}")
            self._leave_out([column.name], f"text ({shown(words[0][0])})", self._device_switch(column.name, words))
            return False
        if not column.name or UNNAMED.fullmatch(column.name):
            return self._is_named(at, column, numbers)
        if odd:
            self._refuse_near_numbers(at, column.name, words)
            listed = ", ".join(f"{shown(word)} ×{count}" for word, count in words[:5])
            more = f" and {len(words) - 5} other words" if len(words) > 5 else ""
            self.notes.append(f"channel {column.name!r}: {counted(odd, 'cell')} taken as missing ({listed}{more})")
        return True

    def _device_switch(self, name: str, words: Sequence[tuple[str, int]]) -> str:
        """What to do about a few words that come again and again, if no times show whether they are devices."""
        least = min((count for _, count in words), default=0)
        if self.clock is not None or self.wanted is not None or len(words) < 2 or least < LEAST_ROWS:
            return ""
        return f"if it tells {len(words)} devices apart, pass --device {name}={min(word for word, _ in words)}"

    def _words(self, at: int) -> list[tuple[str, int]]:
        """What the cells hold that are neither numbers nor missing, and how often."""
        condition = f"WHERE c{at} IS NOT NULL AND ({self._number(at)}) IS NULL"
        counted = self.relation.rows(f"trim(c{at}), count(*)", f"{condition} GROUP BY 1 ORDER BY 2 DESC, 1")
        return [(word, count) for word, count in counted if word.lower() not in MISSING]

    def _refuse_near_numbers(self, at: int, name: str, words: Sequence[tuple[str, int]]) -> None:
        """Refuse cells such as 12 V or <0.5: taken as missing, a measurement would be lost."""
        if self.switches.decimal is not None:
            words = [(word, count) for word, count in words if not re.fullmatch(r"[+-]?[\d.,]+", word)]
        near = next((word for word, _ in words if NUMBER_LIKE.fullmatch(word)), None)
        if near is None:
            return
        if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", near):
            raise undecided(near, self.source)
        position = f"SELECT row_number() OVER () - 1 AS row, c{at} FROM {self.relation.sql}"
        within = replace(self.relation, sql=f"({position})")
        [(row,)] = within.rows("row", f"WHERE trim(c{at}) = ? LIMIT 1", [near])
        remedy = (
            "write a number, leave the cell empty where the value is missing, or leave the column out with --ignore"
        )
        if re.fullmatch(r"[+-]?\d+,\d+", near):
            remedy = "pass --decimal , if numbers have a decimal comma"
        what = f"expected a number, found {shown(near)}"
        raise self.source.error(what, remedy, row=row, where=f"channel {name!r}")

    def _is_named(self, at: int, column: _Column, numbers: int) -> bool:
        """Whether a column without a name is a channel, which it never is: it may count the rows, or be empty."""
        if numbers == 0:
            return False
        counts = column.values - column.values[0]
        if column.values[0] in (0.0, 1.0) and np.array_equal(counts, np.arange(len(counts))):
            self.notes.append(f"column {at + 1}, which counts the rows, left out")
            return False
        if numbers < LEAST_NUMBERS * len(counts):  # where all lines end in a separator, a surplus cell comes here
            what = f"the row has a value in column {at + 1}, which has no name and is empty in most rows"
            row = int(np.argmin(np.isnan(column.values)))
            raise self.source.error(what, "write one cell for each name, or name the column", row=row)
        remedy = "name the channel in the header or remove the column"
        raise self.source.error(f"column {at + 1} has no name", remedy)

    def _leave_out(self, names: Sequence[str], what: str, switch: str = "") -> None:
        listed = ", ".join(map(repr, names))
        remedy = f"; {switch.format(it='it' if len(names) == 1 else 'them')}" if switch else ""
        self.notes.append(f"column{'s' * (len(names) > 1)} {listed} left out: {what}{remedy}")

    def _require_names(self, kept: Sequence[_Column]) -> None:
        if not kept:
            raise self.source.error("no column holds numbers", "check the separator and the decimal mark (--decimal)")
        names = [column.name for column in kept]
        for name in names:
            if names.count(name) > 1:
                first, second = [at + 1 for at, each in enumerate(self.relation.names) if each == name][:2]
                what = f"columns {first} and {second} have the same name"
                raise self.source.error(what, "give each channel its own name", where=f"channel {name!r}")

    def _stacked(self, kept: Sequence[_Column]) -> tuple[tuple[str, ...], Array]:
        """The channels and their values; a column that a model wants and the file lacks is empty."""
        columns = {column.name: column for column in kept}
        names = tuple(columns) if self.wanted is None else tuple(self.wanted)
        if not any(name in columns for name in names):
            listed, found = ", ".join(names), ", ".join(name for name in self.relation.names if name)
            raise self.source.error(f"none of the channels {listed} is there", f"its columns are {found}")
        self.absent = tuple(name for name in names if name not in columns)
        rows = len(next(iter(columns.values())).values)
        values = np.full((rows, len(names)), np.nan)
        for k, name in enumerate(names):
            if name in columns:
                values[:, k] = columns.pop(name).values
        return names, values

    # -- one row for each value ---------------------------------------------------------------------------------

    def _from_long(self, tag: longform.TagColumns) -> tuple[Times | None, tuple[str, ...], Array]:
        chosen = self.wanted if self.wanted is not None else self.switches.channels
        times, [column] = self._read([tag.value])
        assert times is not None
        self._is_channel(tag.value, column)
        tags, at = longform.tags_of(self.relation, tag)
        names = tuple(chosen if chosen is not None else (name for name in tags if name not in self.switches.ignore))
        if not any(name in tags for name in names):
            what = f"none of the channels {', '.join(names)} is there"
            raise self.source.error(what, f"its tags are {', '.join(tags)}")
        self.absent = tuple(name for name in names if name not in tags)
        moments, values, repeated = longform.spread(times, at, column.values, tags, names)
        if repeated and not self.switches.sort:
            what = f"{repeated} values have the same time and tag as another"
            raise self.source.error(what, "remove them, or pass --sort to keep the last of each")
        self.notes.append(
            f"{len(times)} values of {len(names)} tags in {self.relation.names[tag.tag]!r} read as channels"
        )
        if repeated:
            self.notes.append(f"{repeated} repeated values dropped")
        left_out = [self.relation.names[each] for each in tag.others]
        if left_out:
            self._leave_out(left_out, "not part of time, tag and value")
        return moments, names, values
