"""One device of a file that holds several: a column tells them apart."""

from dataclasses import replace
from pathlib import Path

from fedkad.intake.engine import Relation, quoted
from fedkad.intake.interpretation import Interpretation
from fedkad.tables.errors import TableSource

MOST_NAMED = 5  # devices in a message
MOST_REPEATED = 0.01  # share of the rows of equal time that a column of devices may leave together


def device_column(relation: Relation, given: str) -> tuple[str, str | None]:
    """Return the column that a switch names, and the device if it names one, as in origin=EWR."""
    if given in relation.names or "=" not in given:
        return given, None
    marks = [at for at, mark in enumerate(given) if mark == "="]
    at = next((at for at in marks if given[:at] in relation.names), marks[0])
    return given[:at], given[at + 1 :]


def devices_of(relation: Relation, column: str) -> list[str]:
    """Return the devices of a file, sorted."""
    cell = _cell_sql(relation, column)
    devices = [name for (name,) in relation.rows(cell, f"WHERE {cell} <> '' GROUP BY 1 ORDER BY 1")]
    if not devices:
        raise relation.source.error(f"column {column!r} names no device", "name another column with --device")
    return devices


def of_device(relation: Relation, given: str) -> tuple[Relation, str]:
    """Return the rows of the device that a switch names, under its name, and the column of devices."""
    column, name = device_column(relation, given)
    devices = devices_of(relation, column)
    if name not in devices:
        others = len(devices) - MOST_NAMED
        listed = ", ".join(devices[:MOST_NAMED]) + (f" and {others} others" if others > 0 else "")
        what = f"there is no device {name!r}" if name else f"column {column!r} tells {len(devices)} devices apart"
        raise relation.source.error(what, f"name one of them, as in --device {column}={devices[0]} ({listed})")
    rows = f"(SELECT * FROM {relation.sql} WHERE {_cell_sql(relation, column)} = {quoted(name)})"
    source = TableSource(Path(f"{relation.source.path} ({name})"))
    return replace(relation, sql=rows, name=name, source=source), column


def refuse_mixed_devices(how: Interpretation) -> None:
    """Refuse rows of the same time that a column of words tells apart: sorted, they would be one mixed device.

    A few rows may repeat the time of their own device, as where the clocks go back.
    """
    relation, clock = how.relation, how.clock
    assert clock is not None
    candidates = []
    for at, name in enumerate(relation.names):
        if relation.kinds[at] != "VARCHAR" or at in clock.at or name in how.switches.ignore:
            continue
        counts = (f"count(DISTINCT {each})" for each in (clock.sql, f"c{at}", f"(c{at}, {clock.sql})"))
        [(rows, numbers, times, devices, pairs)] = relation.rows(
            ", ".join(("count(*)", f"count({how.numbers[at]})", *counts))
        )
        if rows - pairs <= MOST_REPEATED * (rows - times) and 1 < devices < rows / 2 and not numbers:
            candidates.append((rows - pairs, devices, name))
    if candidates:
        _, devices, name = min(candidates)
        what = f"column {name!r} tells {devices} devices apart, which have rows of the same time"
        first = devices_of(relation, name)[0]
        remedy = f"pass --device {name}={first} to read one of them (federate reads all with --device {name})"
        raise relation.source.error(what, remedy)


def _cell_sql(relation: Relation, column: str) -> str:
    return f"trim(CAST(c{relation.at(column)} AS VARCHAR))"
