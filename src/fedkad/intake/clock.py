"""What the cells of a time column mean: ISO-8601, the ways of plants and spreadsheets, or a format that is given."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedkad.intake.calendar import is_year
from fedkad.intake.engine import Relation, quoted
from fedkad.intake.numbers import Marks
from fedkad.tables.errors import TableError

TIME_NAMES = frozenset(
    {"time", "timestamp", "date", "datetime", "ts", "t", "date/time", "date_time", "dateandtime", "zeit"}
    | {"zeitstempel", "datum", "uhrzeit", "datum/zeit", "time_stamp", "recorded_at"}
)
DAY = r"(?P<first>\d{1,4})(?P<sep>[./-])(?P<second>\d{1,2}|[A-Za-z]{3,9})(?P=sep)(?P<third>\d{4}|\d{1,2})"
CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?P<seconds>:\d{2})?(?P<fraction>[.,]\d+)?"
    r"(?P<half> ?[AaPp]\.?[Mm]\.?)?(?P<zone> ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
)
TIME_AFTER = rf"(?:(?P<gap>[T ]|, ?| {{2}}){CLOCK})?"
MOMENT = re.compile(rf"{DAY}{TIME_AFTER}")
MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
WORDED = re.compile(
    rf"(?:(?P<month>{MONTH}) \d{{1,2}}(?P<comma>,?) \d{{4}}|\d{{1,2}} {MONTH} \d{{4}}){TIME_AFTER}", re.IGNORECASE
)
TIME_OF_DAY = re.compile(CLOCK)
COMPACT = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])(([01]\d|2[0-3])[0-5]\d([0-5]\d)?)?")
COMPACT_FORMATS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
YEAR = re.compile(r"(1[5-9]|2[01])\d\d(\.0)?")
EXCEL_DAY = re.compile(r"[2-7]\d{4}(\.\d+)?")
MIXED = "write all times alike, or name their format with --time-format"


@dataclass(frozen=True)
class Clock:
    """How the cells of the time become times: an expression for the engine, and whether they name a zone."""

    sql: str  # a TIMESTAMP in UTC, or without a zone, or a DOUBLE
    name: str  # of the column, or of both
    at: tuple[int, ...]  # which columns
    utc: bool = False
    is_number: bool = False
    keeps_zone: bool = False  # whether the text of a cell says how far ahead of UTC its clock is
    zone: str = ""  # of all cells, where the file names it apart

    @property
    def text(self) -> str:
        """An expression for the text of the cell."""
        return joined(self.at)

    @property
    def offset(self) -> str:
        """An expression for the minutes that the clock of the cell is ahead of UTC."""
        hours, minutes = (f"regexp_extract({self.text}, '([+-]\\d\\d):?(\\d\\d)?$', {k})" for k in (1, 2))
        east = f"60 * CAST({hours} AS INTEGER) + sign(60 * CAST({hours} || '1' AS INTEGER)) * "
        return f"CASE WHEN {hours} = '' THEN 0 ELSE {east}coalesce(try_cast({minutes} AS INTEGER), 0) END"


def is_moment(cell: str) -> bool:
    """Tell whether a cell is a date, with or without a time of day.

    >>> [is_moment(cell) for cell in ("01.03.2024 00:00", "3/1/2024 1:05 PM", "2024-03-01T00:00:00Z", "12.5", "1.2.3")]
    [True, True, True, False, True]
    >>> [is_moment(cell) for cell in ("Mar 1 2024", "March 1, 2024 13:05", "1 Mar 2024", "Pump 1 2024")]
    [True, True, True, False]
    """
    return MOMENT.fullmatch(cell.strip()) is not None or WORDED.fullmatch(cell.strip()) is not None


def is_time_of_day(cell: str) -> bool:
    """Tell whether a cell is a time without a date."""
    return TIME_OF_DAY.fullmatch(cell.strip()) is not None


def joined(at: Sequence[int]) -> str:
    """Return the text of one column, or of a date and a time of day."""
    cells = [f"trim(CAST(c{each} AS VARCHAR))" for each in at]
    return cells[0] if len(cells) == 1 else f"({' || chr(32) || '.join(cells)})"


def clock_of(relation: Relation, at: tuple[int, ...], sample: Sequence[str], given: str | None) -> Clock:
    """Find what the cells of the time mean from a sample of them, and from all where a sample does not decide."""
    name = " and ".join(relation.names[each] for each in at)
    kind = relation.kinds[at[0]]
    if len(at) == 1 and kind.startswith(("TIMESTAMP", "DATE")):
        zoned = "WITH TIME ZONE" in kind
        return Clock(
            f"CAST(c{at[0]} AS TIMESTAMP)", name, at, zoned, zone=relation.zones.get(name, "") if zoned else ""
        )
    text = joined(at)
    if given is not None:
        return Clock(
            _with_midnight(f"CAST(try_strptime({text}, {quoted(given)}) AS TIMESTAMP)", text),
            name,
            at,
            utc="%z" in given.lower(),
            keeps_zone="%z" in given,
        )
    if len(at) == 1 and (kind != "VARCHAR" or (sample and _is_number(sample[0]))):
        _refuse_coded(relation, name, sample)
        number = Marks().number(f"c{at[0]}") if kind == "VARCHAR" else f"CAST(c{at[0]} AS DOUBLE)"
        return Clock(number, name, at, is_number=True)
    worded = [each for each in (WORDED.fullmatch(cell.strip()) for cell in sample) if each is not None]
    if worded:
        comma = worded[0]["comma"] or ""
        days = [f"{month} %d{comma} %Y" if worded[0]["month"] else f"%d {month} %Y" for month in ("%b", "%B")]
        zoned = any(each["zone"] for each in worded)
        return Clock(_with_midnight(_timed(text, days, worded), text), name, at, zoned, keeps_zone=zoned)
    matches = [MOMENT.fullmatch(cell.strip()) for cell in sample]
    if not sample or matches[0] is None:
        raise _unknown(relation, name, sample[0] if sample else "")
    moments = [each for each in matches if each is not None]
    first, zoned = moments[0], bool(moments[0]["zone"])
    if first["sep"] == "-" and len(first["first"]) == 4:
        parsed = _iso(text, zoned=zoned, comma="," in (first["fraction"] or ""))
        return Clock(_with_midnight(parsed, text), name, at, zoned, keeps_zone=zoned)
    if first["sep"] == "-" and len(first["third"]) < 4 and first["second"].isdigit():
        raise _unknown(relation, name, sample[0])  # 24-03-01 and 01-03-24 look alike
    return Clock(_with_midnight(_parsed(relation, name, text, moments), text), name, at, zoned, keeps_zone=zoned)


def _with_midnight(parsed: str, text: str) -> str:
    """Return an expression for times, `parsed` from `text`, where 24:00 is the end of a day: 00:00 of the next one.

    The first test is quick and finds 10:24:00, too; the second one is for the few that it finds.
    """
    is_midnight = f"regexp_matches({text}, '[T ]24:00')"
    next_day = parsed.replace(text, f"replace({text}, '24:00', '00:00')")
    return f"CASE WHEN contains({text}, '24:00') AND {is_midnight} THEN ({next_day}) + INTERVAL 1 DAY ELSE {parsed} END"


def _refuse_coded(relation: Relation, name: str, sample: Sequence[str]) -> None:
    """Refuse numbers that are not seconds: 20240301005900, 20240301, and days since 1900 in a column of dates."""
    if not sample:
        return
    ends = sample[0].strip(), sample[-1].strip()
    if is_year(name) and all(YEAR.fullmatch(cell) for cell in ends):
        remedy = f'pass --time-format "%Y{ends[0][4:]}"'
        raise relation.source.error(f"the time {ends[0]} is not a number of seconds", remedy, where=f"column {name!r}")
    if all(COMPACT.fullmatch(cell) for cell in ends):
        remedy = f'pass --time-format "{COMPACT_FORMATS[len(ends[0])]}"'
        raise relation.source.error(f"the time {ends[0]} is not a number of seconds", remedy, where=f"column {name!r}")
    if re.search(r"date|datum", name, re.IGNORECASE) and all(EXCEL_DAY.fullmatch(cell) for cell in ends):
        remedy = "format the column as a date and time before it is exported, or name another with --time"
        what = f"the time {ends[0]} looks like a number of days, as Excel counts them"
        raise relation.source.error(what, remedy, where=f"column {name!r}")


def _iso(text: str, *, zoned: bool, comma: bool) -> str:
    """Return an expression for ISO-8601; the engine would drop a zone where others have none, and take none for UTC."""
    clock = f"substr({text}, 11)"
    has_zone = f"(ends_with({text}, 'Z') OR ends_with({text}, 'C') OR contains({clock}, '+') OR contains({clock}, '-'))"
    plain = f"replace({text}, ',', '.')" if comma else text
    cast = f"CAST(try_cast({plain} AS {'TIMESTAMPTZ' if zoned else 'TIMESTAMP'}) AS TIMESTAMP)"
    return f"CASE WHEN {'' if zoned else 'NOT '}{has_zone} THEN {cast} END"


def _parsed(relation: Relation, name: str, text: str, moments: Sequence[re.Match[str]]) -> str:
    """Return an expression for dates that begin with a day or a month."""
    first, sep = moments[0], moments[0]["sep"]
    year = "%Y" if len(first["third"]) == 4 else "%y"
    if len(first["first"]) == 4:
        day = f"%Y{sep}%m{sep}%d"
    elif first["second"].isalpha():
        day = f"%d{sep}{'%b' if len(first['second']) == 3 else '%B'}{sep}{year}"
    else:
        order = ("%d", "%m") if sep == "." or _day_first(relation, name, text, sep) else ("%m", "%d")
        day = sep.join((*order, year))
    return _timed(text, [day], moments)


def _timed(text: str, days: Sequence[str], moments: Sequence[re.Match[str]]) -> str:
    """Return an expression for dates of these formats, with the time of day that such moments have."""
    timed = next((each for each in moments if each["hour"]), None)
    formats = list(days)
    if timed is not None:
        gap, half = timed["gap"], (" %p" if (timed["half"] or "").startswith(" ") else "%p") if timed["half"] else ""
        hour, zone = ("%I" if half else "%H"), ""
        if timed["zone"]:
            zone = (" " if timed["zone"].startswith(" ") else "") + "%z"
            text = f"regexp_replace({text}, ' ?(Z|UTC|GMT)$', '{zone[:-2]}+00:00')"
        clocks = [f"{hour}:%M:%S.%f", f"{hour}:%M:%S,%f", f"{hour}:%M:%S", f"{hour}:%M"]
        formats = [f"{day}{gap}{clock}{half}{zone}" for day in days for clock in clocks] + ([] if zone else list(days))
    listed = ", ".join(quoted(each) for each in formats)
    return f"CAST(try_strptime({text}, [{listed}]) AS TIMESTAMP)"


def _day_first(relation: Relation, name: str, text: str, sep: str) -> bool:
    """Tell whether the day comes first: the larger numbers of the whole column show it, if any do."""
    parts = ", ".join(f"max(try_cast(split_part({text}, {quoted(sep)}, {k}) AS INTEGER))" for k in (1, 2))
    [(first, second)] = relation.rows(parts)
    if (first or 0) > 12 and (second or 0) > 12:
        raise relation.source.error(
            f"some dates have the day first and some the month, as up to {first}{sep}{second} occur",
            MIXED,
            where=f"time column {name!r}",
        )
    if (first or 0) > 12 or (second or 0) > 12:
        return bool((first or 0) > 12)
    [(cell,)] = relation.rows(text, "LIMIT 1")
    shape, year = re.sub(r"^\d+\D\d+\D\d+", "", cell), "%Y" if re.match(r"\d+\D\d+\D\d{4}", cell) else "%y"
    clock = " %H:%M:%S" if shape.count(":") == 2 else " %H:%M" if ":" in shape else ""
    clock = clock.replace("%H", "%I") + " %p" if re.search(r"[AaPp]\.?[Mm]", shape) else clock
    raise relation.source.error(
        f"in {cell!r} the day or the month may come first",
        f'pass --time-format "%d{sep}%m{sep}{year}{clock}" if it is the day, '
        f'"%m{sep}%d{sep}{year}{clock}" if it is the month',
        where=f"time column {name!r}",
    )


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\s*", cell) is not None


def _unknown(relation: Relation, name: str, cell: str) -> TableError:
    what = f"the time {cell!r} is neither a number nor a date that is understood" if cell else "no cell holds a time"
    remedy = 'name its format with --time-format, such as "%Y%m%d %H%M%S", or another column with --time'
    return relation.source.error(what, remedy, where=f"time column {name!r}")
