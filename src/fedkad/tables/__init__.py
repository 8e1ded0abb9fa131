"""Reading plain CSV, writing tables, devices and fleets in folders, timestamps and gaps.

Nothing is repaired silently: a table counts what was filled and what remains a gap, and a file that
cannot be read raises a :class:`TableError` that names the file, the row, the channel and the remedy.
"""

from fedkad.tables.errors import TableError
from fedkad.tables.fleet import DeviceTables, FleetTables, read_device, read_fleet
from fedkad.tables.reading import read_table
from fedkad.tables.table import SeriesTable
from fedkad.tables.writing import write_table

__all__ = [
    "DeviceTables",
    "FleetTables",
    "SeriesTable",
    "TableError",
    "read_device",
    "read_fleet",
    "read_table",
    "write_table",
]
