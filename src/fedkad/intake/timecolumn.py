"""Which column of a file holds its times, or which columns do together."""

import re
from collections.abc import Callable, Sequence

from fedkad.intake.clock import TIME_NAMES, is_moment, is_time_of_day
from fedkad.intake.engine import Relation
from fedkad.intake.switches import Switches

NUMBER = re.compile(r"\s*[+-]?[\d.,]+([eE][+-]?\d+)?\s*")
COUNT = re.compile(r"\s*\d+(\.\d*)?([eE][+-]?\d+)?\s*")
FEW = 9  # cells that show what a column holds


def time_columns(relation: Relation, sample: Sequence[Sequence[str]], switches: Switches) -> tuple[int, ...]:
    """Find where the times are: in the columns that are named, in one that holds dates, or in one called time.

    `sample` are some cells of each column that are not missing. There may be no such column.
    """
    if switches.time is not None:
        return _named(relation, switches.time, switches)
    others = [at for at, name in enumerate(relation.names) if name not in switches.ignore]
    dated = [at for at in others if _all(relation.kinds[at], sample[at], is_moment, "TIMESTAMP", "DATE")]
    clocks = [at for at in others if _all(relation.kinds[at], sample[at], is_time_of_day, "TIME ")]
    if len(dated) == len(clocks) == 1 and abs(clocks[0] - dated[0]) == 1 and _only_days(sample[dated[0]]):
        return dated[0], clocks[0]
    days = [at for at in dated if _only_days(sample[at]) and len(set(sample[at])) < len(sample[at])]
    if days and (0 not in dated or 0 in days):  # a day of many rows is not their time if another column is
        finer = [at for at in others if _goes_on(relation.names[at], sample[at], len(sample[days[0]]), at in dated)]
        if len(finer) == 1:
            return tuple(finer)
    if len(dated) == 1 or 0 in dated:
        return (0,) if 0 in dated else tuple(dated)
    if dated:
        listed = ", ".join(relation.names[at] for at in dated)
        raise relation.source.error(f"several columns hold times ({listed})", "name the time column with --time")
    called = [at for at in others if _is_called_time(relation.names[at])]
    return tuple(at for at in called if at == 0 or _holds_words(relation.kinds[at], sample[at]))[:1]


def _named(relation: Relation, given: str, switches: Switches) -> tuple[int, ...]:
    parts = [given] if given in relation.names else [part.strip() for part in given.split(",")]
    if len(parts) > 2 and switches.time_format is None:
        what = f"--time {given} names {len(parts)} columns"
        remedy = 'name one, or a date and a time, or how they read in a row, as in --time-format "%Y %m %d %H"'
        raise relation.source.error(what, remedy)
    for part in parts:
        if part not in relation.names:
            listed = ", ".join(name for name in relation.names if name)
            raise relation.source.error(f"there is no time column {part!r}", f"choose one of its columns: {listed}")
    return tuple(relation.at(part) for part in parts)


def _is_called_time(name: str) -> bool:
    return re.sub(r"\s*[\[(].*[\])]$", "", name).lower().replace(" ", "") in TIME_NAMES


def _goes_on(name: str, cells: Sequence[str], rows: int, dated: bool) -> bool:
    """Tell whether no two rows have the same time in a column of dates, or of increasing numbers called time."""
    if len(cells) != rows or len(set(cells)) < rows:
        return False
    if dated:
        return True
    numbers = [float(cell) for cell in cells if COUNT.fullmatch(cell)] if _is_called_time(name) else []
    return len(numbers) == rows and numbers == sorted(numbers)


def _holds_words(kind: str, cells: Sequence[str]) -> bool:
    """Tell whether a column holds text, not numbers and times of day: if it is called time, in an unknown format."""
    is_known = any(NUMBER.fullmatch(cell) or is_time_of_day(cell) for cell in cells[:FEW])
    return kind == "VARCHAR" and bool(cells) and not is_known


def _all(kind: str, cells: Sequence[str], holds: Callable[[str], bool], *kinds: str) -> bool:
    return f"{kind} ".startswith(kinds) if kind != "VARCHAR" else bool(cells) and all(map(holds, cells))


def _only_days(cells: Sequence[str]) -> bool:
    return all(":" not in cell for cell in cells)
