"""Columns that are parts of a date: a year, a month, an hour. They are no measurements, and may be the time."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PARTS = {
    "year": ("%Y", 1500, 2200),
    "month": ("%m", 1, 12),
    "day": ("%d", 1, 31),
    "hour": ("%H", 0, 24),
    "minute": ("%M", 0, 59),
    "second": ("%S", 0, 60),
    "weekday": ("", 0, 7),
    "yearday": ("", 1, 366),
    "quarter": ("", 1, 4),
}
"""How strptime writes each part, and the least and the greatest that it can be."""

DATES = frozenset({"date", "datetime", "date_time", "date/time", "timestamp", "datum", "zeitstempel"})
"""Names of columns that are no measurement, even if they hold numbers such as 2000.0833."""

NAMES = {
    **{name: name for name in PARTS},
    **dict.fromkeys(("yr", "jahr"), "year"),
    **dict.fromkeys(("mon", "monat", "mnth"), "month"),
    **dict.fromkeys(("dayofmonth", "dom"), "day"),
    **dict.fromkeys(("hr", "hourofday", "stunde"), "hour"),
    **dict.fromkeys(("dayofweek", "dow", "wochentag"), "weekday"),
    **dict.fromkeys(("dayofyear", "doy"), "yearday"),
    "quartal": "quarter",
}


def is_part_of_date(name: str, values: NDArray[np.float64]) -> bool:
    """Tell whether a column is part of a date: it is called so, and holds whole numbers that a calendar has.

    >>> is_part_of_date("Year", np.array([2013.0, 2014.0])), is_part_of_date("hour", np.array([4711.0, 4712.0]))
    (True, False)
    """
    part = _part(name)
    numbers = values[~np.isnan(values)]
    if part is None or not len(numbers):
        return False
    _, least, most = PARTS[part]
    return bool(numbers.min() >= least and numbers.max() <= most and (numbers == np.rint(numbers)).all())


def format_of_parts(names: Sequence[str], cells: Sequence[str]) -> str:
    """Return the format, for strptime, of these columns with these cells side by side; empty if they are no date.

    >>> format_of_parts(["year", "month"], ["2013", "4.0"]), format_of_parts(["month", "hour"], ["4", "5"])
    ('%Y %m.0', '')
    """
    parts = [_part(name) for name in names]
    if "year" not in parts or len(set(parts)) < len(parts):
        return ""
    spelt = [PARTS[part][0] for part in parts if part is not None]
    ends = [".0" if cell.endswith(".0") else "" for cell in cells]
    return " ".join(map("".join, zip(spelt, ends, strict=True))) if all(spelt) else ""


def is_year(name: str) -> bool:
    """Tell whether a column is called a year."""
    return _part(name) == "year"


def _part(name: str) -> str | None:
    return NAMES.get(re.sub(r"[\s_-]+", "", name.lower()))
