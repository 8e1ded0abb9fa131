"""Reading and writing multivariate time series: CSV, Parquet, timestamps and gaps.

Nothing is repaired in silence: what was filled and what remains a gap is counted in the table, and whatever
cannot be read raises a :class:`TableError` that names the file, the row, the channel and the remedy.
"""

from fedkad.tables.errors import TableError
from fedkad.tables.fleet import DeviceTables, read_device, read_fleet
from fedkad.tables.reading import read_table
from fedkad.tables.table import SeriesTable, stretches
from fedkad.tables.writing import write_table

__all__ = [
    "DeviceTables",
    "SeriesTable",
    "TableError",
    "read_device",
    "read_fleet",
    "read_table",
    "stretches",
    "write_table",
]
