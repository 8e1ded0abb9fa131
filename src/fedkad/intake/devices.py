"""One device of a file that holds several: a column tells them apart."""

from dataclasses import replace
from pathlib import Path

from fedkad.intake.engine import Relation, quoted
from fedkad.tables.errors import TableSource

MOST_NAMED = 5  # devices in a message


def device_column(relation: Relation, given: str) -> tuple[str, str | None]:
    """The column that a switch names, and the device if it names one, as in origin=EWR."""
    if given in relation.names or "=" not in given:
        return given, None
    marks = [at for at, mark in enumerate(given) if mark == "="]
    at = next((at for at in marks if given[:at] in relation.names), marks[0])
    return given[:at], given[at + 1 :]


def devices_of(relation: Relation, column: str) -> list[str]:
    """The devices of a file, sorted."""
    told = _told(relation, column)
    found = [name for (name,) in relation.rows(told, f"WHERE {told} <> '' GROUP BY 1 ORDER BY 1")]
    if not found:
        raise relation.source.error(f"column {column!r} names no device", "name another column with --device")
    return found


def of_device(relation: Relation, given: str) -> tuple[Relation, str]:
    """The rows of the device that a switch names, which are called as it is, and the column that tells it."""
    column, name = device_column(relation, given)
    devices = devices_of(relation, column)
    if name not in devices:
        listed = listed_devices(devices)
        what = f"there is no device {name!r}" if name else f"column {column!r} tells {len(devices)} devices apart"
        raise relation.source.error(what, f"name one of them, as in --device {column}={devices[0]} ({listed})")
    rows = f"(SELECT * FROM {relation.sql} WHERE {_told(relation, column)} = {quoted(name)})"
    source = TableSource(Path(f"{relation.source.path} ({name})"))
    return replace(relation, sql=rows, name=name, source=source, notes=list(relation.notes)), column


def listed_devices(devices: list[str]) -> str:
    """The first devices by name.

    >>> listed_devices(list("abcdefg"))
    'a, b, c, d, e and 2 others'
    """
    others = len(devices) - MOST_NAMED
    return ", ".join(devices[:MOST_NAMED]) + (f" and {others} others" if others > 0 else "")


def _told(relation: Relation, column: str) -> str:
    return f"trim(CAST(c{relation.at(column)} AS VARCHAR))"
