"""How the cells of a text column become numbers: the decimal mark, separators of thousands, and words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.errors import TableError, TableSource

POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
BY_COMMA = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?"  # 1,234,567.8
BY_POINT = r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?"  # 1.234.567,8
NUMBER_LIKE = re.compile(r"[<>~≈±+-]?\s*[.,]?\d.*")
POSITIONS = (
    ("false", "true"),
    ("off", "on"),
    ("no", "yes"),
    ("closed", "open"),
    ("stopped", "running"),
    ("aus", "ein"),
)
"""Words for the two positions of a switch, 0 and 1."""

CODES = (-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0)
"""Numbers that stand for missing values in many exports."""

TYPES_OF_NUMBERS = ("DOUBLE", "FLOAT", "DECIMAL", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "U")


@dataclass(frozen=True)
class Marks:
    """The marks in the numbers of a file; without `thousands`, a cell that may have separators is no number."""

    decimal: str = "."
    thousands: bool = False

    def number(self, column: str) -> str:
        """Return an expression for the number in a column of text, NULL where there is none."""
        # The engine reads 1_000 as a number, which it is not outside of programs. And a cast that stands alone it does
        # while it reads the file, where TRY_CAST fails as CAST does.
        other, form = (",", BY_COMMA) if self.decimal == "." else (".", BY_POINT)
        bare = f"replace({column}, '{other}', '')"
        plain, grouped = (each if self.decimal == "." else f"replace({each}, ',', '.')" for each in (column, bare))
        split = (
            f"CASE WHEN regexp_full_match(trim({column}), '{form}') THEN try_cast({grouped} AS DOUBLE) END"
            if self.thousands
            else "NULL"
        )
        return (
            f"CASE WHEN contains({column}, '_') THEN NULL WHEN contains({column}, '{other}') THEN {split} "
            f"ELSE try_cast({plain} AS DOUBLE) END"
        )


def codes_in(values: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Find numbers such as -999 that look as if they stood for missing values, and how often they come.

    They come at least twice, and lie farther from all other values than these reach.

    >>> codes_in(np.array([3.0, -999.0, 5.0, 4.0, -999.0])), codes_in(np.array([-990.0, -999.0, -999.0, 3.0]))
    ([(-999.0, 2)], [])
    """
    codes = []
    for code in CODES:
        is_code = values == code
        count = int(np.count_nonzero(is_code))
        if count < 2:
            continue
        others = values[~is_code & ~np.isnan(values) & ~np.isin(values, CODES)]
        if len(others) and min(abs(others.min() - code), abs(others.max() - code)) > np.ptp(others):
            outside = code < others.min() or code > others.max()
            codes += [(code, count)] if outside else []
    return codes


def positions_in(cells: Iterable[str]) -> tuple[str, str] | None:
    """Find the words for off and on that these cells consist of; None if they hold something else.

    >>> positions_in(["ON", "off ", "on"]), positions_in(["on", "auto"]), positions_in([])
    (('off', 'on'), None, None)
    """
    words = {cell.strip().lower() for cell in cells}
    return next((pair for pair in POSITIONS if words and words <= set(pair)), None)


def position_sql(column: str, positions: tuple[str, str]) -> str:
    """Return an expression for 0 and 1 in a column of such words, NULL where there is another."""
    return f"CASE lower(trim({column})) WHEN '{positions[0]}' THEN 0.0 WHEN '{positions[1]}' THEN 1.0 END"


def marks_in(
    cells: Iterable[str], given: str | None, source: TableSource, *, comma_is_decimal: bool
) -> tuple[Marks, tuple[str, ...]]:
    """Find the marks from a sample of cells, and notes on them.

    >>> from pathlib import Path
    >>> source = TableSource(Path("pump.csv"))
    >>> marks_in(["1.234,5", "-0,25", "7"], None, source, comma_is_decimal=True)
    (Marks(decimal=',', thousands=True), ('numbers have a decimal comma',))
    """
    if given is not None:
        return Marks(given, thousands=True), ()
    stripped = [cell.strip() for cell in cells]
    by_comma = [cell for cell in stripped if re.fullmatch(BY_COMMA, cell)]
    by_point = [cell for cell in stripped if re.fullmatch(BY_POINT, cell)]
    points = [cell for cell in stripped if POINT.fullmatch(cell) or ("." in cell and cell in by_comma)]
    commas = [cell for cell in stripped if COMMA.fullmatch(cell) or ("," in cell and cell in by_point)]
    if not commas and not by_comma:
        return Marks(), ()
    if points and commas and set(commas) <= set(by_comma) and set(points) <= set(by_point):
        raise undecided(commas[0], source)
    if points and commas and set(commas) <= set(by_comma):
        return Marks(".", thousands=True), ("thousands are separated by commas",)
    if points and set(points) <= set(by_point) and commas:
        points = []
    if points and commas:
        what = f"{points[0]!r} has a decimal point and {commas[0]!r} a decimal comma"
        raise source.error(what, "write all numbers alike, or pass --decimal to count the others as missing")
    if not comma_is_decimal and not points and set(commas or by_comma) <= set(by_comma):
        raise undecided((commas or by_comma)[0], source)
    if points:
        return Marks(".", thousands=True), ("thousands are separated by commas",)
    return Marks(",", thousands=True), ("numbers have a decimal comma",)


def undecided(cell: str, source: TableSource) -> TableError:
    """Return the error for a comma that may be a decimal mark or separate thousands."""
    what = f"{cell!r} may be {cell.replace(',', '.')} or {cell.replace(',', '')}"
    return source.error(what, "pass --decimal , or --decimal . to say which")


def is_type_of_numbers(kind: str) -> bool:
    """Tell whether the engine's type is one of numbers; true and false count as 1 and 0."""
    return kind == "BOOLEAN" or (kind.startswith(TYPES_OF_NUMBERS) and not kind.endswith("]") and kind != "UUID")
