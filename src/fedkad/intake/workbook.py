"""A sheet of an Excel workbook as text, so that everything else is the same as for a CSV file."""

import csv
import datetime
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from fedkad.progress import Report, unheard
from fedkad.tables.errors import TableSource, reason_in


def write_sheet(path: Path, target: Path, source: TableSource, report: Report = unheard) -> tuple[str, ...]:
    """Write the first visible sheet that has rows as CSV in UTF-8, and say which it is if there are others.

    `report` is told how many rows of how many are read.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise source.error("reading Excel needs the package openpyxl", "run pip install 'fedkad[read]'") from error
    try:
        with warnings.catch_warnings():  # about styles, which do not matter
            warnings.simplefilter("ignore")
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
            of, counter = sum(sheet.max_row or 0 for sheet in sheets), count(1)
            rows = {sheet.title: _rows(sheet, lambda: report(next(counter), of)) for sheet in sheets}
            book.close()
    except Exception as error:  # openpyxl raises whatever zip, XML and its own parts raise
        what = f"the file cannot be read as an Excel workbook ({reason_in(error)})"
        raise source.error(what, "save it again as .xlsx, or export it as CSV") from error
    filled = {title: each for title, each in rows.items() if len(each) > 1}
    if not filled:
        raise source.error("the workbook has no sheet with rows", "add a header line and rows of values")
    title = next(iter(filled))
    with target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(filled[title])
    others = [other for other in filled if other != title]
    return (f"sheet {title!r} read, and not {', '.join(map(repr, others))}",) if others else ()


def _rows(sheet: Any, tell: Callable[[], None]) -> list[list[str]]:
    """Return the rows as text, without empty ones at the end and columns that are empty throughout."""
    cells = []
    for row in sheet.iter_rows(values_only=True):
        cells.append(list(row))
        tell()
    days = _columns_of_days(cells)
    rows = [[_text(cell, is_day=at in days) for at, cell in enumerate(row)] for row in cells]
    while rows and not any(rows[-1]):
        rows.pop()
    width = max((at + 1 for row in rows for at, cell in enumerate(row) if cell), default=0)
    return [(row + [""] * width)[:width] for row in rows]


def _columns_of_days(rows: list[list[Any]]) -> set[int]:
    """Return columns whose dates have no time of day: openpyxl gives them one."""
    at_midnight: dict[int, bool] = {}
    for row in rows:
        for at, cell in enumerate(row):
            if isinstance(cell, datetime.datetime):
                at_midnight[at] = at_midnight.get(at, True) and cell.time() == datetime.time()
    return {at for at, is_day in at_midnight.items() if is_day}


def _text(cell: Any, *, is_day: bool = False) -> str:
    if cell is None:
        return ""
    if isinstance(cell, datetime.datetime) and is_day:
        return cell.date().isoformat()
    if isinstance(cell, datetime.datetime):
        # Excel keeps days as floats, so a time of day is off by microseconds.
        return (cell + datetime.timedelta(microseconds=500)).isoformat(" ", "milliseconds")
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat()
    return repr(cell) if isinstance(cell, float) else str(cell).strip()
