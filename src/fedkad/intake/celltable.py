"""Read a file of labels (`--labels`) as text, cell by cell, with times in ISO-8601; `reading` reads recordings."""

from collections.abc import Sequence
from pathlib import Path

from fedkad.intake.clock import clock_of, is_moment
from fedkad.intake.engine import Relation, is_installed
from fedkad.intake.opening import opened, require_input
from fedkad.intake.stages import Stages
from fedkad.intake.switches import Switches
from fedkad.progress import unheard
from fedkad.tables.cells import is_iso_time, is_missing, is_number
from fedkad.tables.csvrows import NumberedRow, numbered_rows_of
from fedkad.tables.errors import TableSource
from fedkad.tables.textfile import opened_text

CellTable = tuple[tuple[str, ...], list[tuple[str, ...]]]


def read_cells(path: Path, switches: Switches, moments: Sequence[str] = ()) -> CellTable:
    """Read the names of the columns and the rows as text; times in the columns `moments` are turned into ISO-8601.

    Of the switches those count that say how text and times are written.
    """
    require_input(path)
    if not is_installed():
        return _plain_cells(path)
    with opened(path, switches.encoding, Stages(unheard)) as relation:
        cells = [f"trim(CAST(c{at} AS VARCHAR))" for at in range(len(relation.names))]
        for name in moments:
            if name in relation.names:
                at = relation.at(name)
                cells[at] = _iso_sql(relation, at, switches.time_format) or cells[at]
        rows = relation.rows(", ".join(f"coalesce({cell}, '')" for cell in cells))
        return relation.names, rows


def _iso_sql(relation: Relation, at: int, given: str | None) -> str | None:
    """Return an expression for the times of a column as text; None if the cells can stay as they are."""
    filled = [cell for (cell,) in relation.rows(f"CAST(c{at} AS VARCHAR)") if cell and not is_missing(cell)]
    if all(is_number(cell) or is_iso_time(cell) for cell in filled) or not (given or any(map(is_moment, filled))):
        return None
    clock = clock_of(relation, (at,), filled, given)
    unread = f"CASE WHEN ({clock.sql}) IS NULL THEN {clock.text}"
    return f"{unread} ELSE replace(CAST({clock.sql} AS VARCHAR), ' ', 'T') || '{'Z' if clock.utc else ''}' END"


def _plain_cells(path: Path) -> CellTable:
    source = TableSource(path)
    with opened_text(path) as (_, text):
        filled = [row for row in numbered_rows_of(text) if row.cells]
    header, *rows = filled or [NumberedRow(1, [])]
    for line, cells in rows:
        if len(cells) != len(header.cells):
            what = f"the row has {len(cells)} cells where the header names {len(header.cells)}"
            raise source.error(what, "write one cell for each name", where=f"line {line}")
    return tuple(map(str.strip, header.cells)), [tuple(map(str.strip, row.cells)) for row in rows]
