"""How the columns of an opened file are read, found from a sample of their cells before all of them are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkad.intake.clock import Clock, clock_of
from fedkad.intake.engine import Relation
from fedkad.intake.numbers import Marks, is_type_of_numbers, marks_in, position_sql, positions_in
from fedkad.intake.switches import Switches
from fedkad.intake.timecolumn import time_columns
from fedkad.tables.cells import is_missing, no_rows

SAMPLE = 1000  # rows


@dataclass(frozen=True)
class Interpretation:
    """An opened file, what is asked of it, and what its cells mean."""

    relation: Relation
    switches: Switches
    wanted: Sequence[str] | None  # the channels of a model
    sample: Sequence[Sequence[str]]  # some cells of each column, those that are missing left out
    clock: Clock | None
    positions: Mapping[int, tuple[str, str]]  # the words for off and on in columns of switches
    numbers: Sequence[str]  # an expression for the numbers of each column, NULL where there is none


def interpret(
    relation: Relation, switches: Switches, wanted: Sequence[str] | None
) -> tuple[Interpretation, tuple[str, ...]]:
    """Interpret the columns of a file; also return notes on how its numbers are written."""
    names, texts = relation.names, [at for at, kind in enumerate(relation.kinds) if kind == "VARCHAR"]
    if not names:
        raise relation.source.error("the file has no columns", "add a column for each channel")
    rows = relation.rows(", ".join(f"CAST(c{at} AS VARCHAR)" for at in range(len(names))), f"LIMIT {SAMPLE}")
    if not rows:
        raise no_rows(relation.source)
    sample = [[cell for cell in column if cell and not is_missing(cell)] for column in zip(*rows, strict=True)]
    times_at = time_columns(relation, sample, switches)
    clock = None
    if times_at:
        moments = [" ".join(parts) for parts in zip(*(sample[at] for at in times_at), strict=False)]
        clock = clock_of(relation, times_at, moments, switches.time_format)
    marks, notes = Marks(), tuple[str, ...]()
    if texts:
        # Only columns that will be read show how numbers are written.
        asked = {*(wanted or ()), *(switches.channels or ())}.intersection(names) or set(names)
        read = asked.difference(switches.ignore)
        columns = [sample[at] for at, name in enumerate(names) if name in read and at not in times_at]
        cells = [cell for column in columns for cell in column]
        marks, notes = marks_in(cells, switches.decimal, relation.source, comma_is_decimal=relation.decimal_comma)
    positions = {at: words for at in texts if (words := positions_in(sample[at])) is not None}
    numbers = [_number_sql(f"c{at}", kind, marks, positions.get(at)) for at, kind in enumerate(relation.kinds)]
    return Interpretation(relation, switches, wanted, sample, clock, positions, numbers), notes


def _number_sql(column: str, kind: str, marks: Marks, positions: tuple[str, str] | None) -> str:
    if positions is not None:
        return position_sql(column, positions)
    if kind == "VARCHAR":
        return marks.number(column)
    if kind == "BOOLEAN":
        return f"CAST(CAST({column} AS INTEGER) AS DOUBLE)"
    return f"CAST({column} AS DOUBLE)" if is_type_of_numbers(kind) else "CAST(NULL AS DOUBLE)"
