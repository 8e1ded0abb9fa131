"""A file of several devices, which a column tells apart."""

from dataclasses import replace
from pathlib import Path

from fedkad.intake.devices import device_column, devices_of
from fedkad.intake.engine import INSTALL, Relation, is_installed
from fedkad.intake.opening import opened, require_input
from fedkad.intake.reading import table_of
from fedkad.intake.stages import Stages
from fedkad.intake.switches import Switches
from fedkad.progress import Report, unheard
from fedkad.tables.errors import TableError, TableSource
from fedkad.tables.table import SeriesTable


def device_names(path: Path, switches: Switches) -> list[str]:
    """Return the devices in a file, by the column that the switches name."""
    _require_several(path, switches)
    with opened(path, switches.encoding, Stages(unheard)) as relation:
        return devices_of(relation, _column_of_all(relation, switches))


def read_devices(
    path: Path, switches: Switches, report: Report = unheard
) -> tuple[dict[str, SeriesTable], dict[str, str]]:
    """Read every device of a file of several, and why others could not be read; the file is opened once."""
    _require_several(path, switches)
    tables: dict[str, SeriesTable] = {}
    skipped: dict[str, str] = {}
    with opened(path, switches.encoding, Stages(unheard)) as relation:
        column = _column_of_all(relation, switches)
        names = devices_of(relation, column)
        for done, name in enumerate(names):
            try:
                one = replace(switches, device=f"{column}={name}")
                tables[name] = table_of(relation, one, None, silent=False, report=unheard)
            except TableError as error:
                skipped[name] = str(error)
            report(done + 1, len(names))
    return tables, skipped


def _require_several(path: Path, switches: Switches) -> None:
    require_input(path)
    if not is_installed():
        raise TableSource(path).error("--device needs the package duckdb", INSTALL)
    assert switches.device is not None


def _column_of_all(relation: Relation, switches: Switches) -> str:
    column, name = device_column(relation, switches.device or "")
    if name is not None:
        what = f"--device {switches.device} names one device where all are wanted"
        raise relation.source.error(what, f"pass --device {column}, or name the model file of that device")
    return column
