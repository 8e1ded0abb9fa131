"""Writing columns, such as scores, to a CSV file that is either whole or absent."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad.tables.errors import TableSource, channel_called, reason_in
from fedkad.tables.times import time_text

Column = Sequence[object] | NDArray[Any]


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a ``.csv`` file, replacing it in one step.

    Numbers are written so that they read back exactly, a column of whole numbers without decimal point; truth
    values as 1 and 0; ``datetime64`` as ISO-8601 text; None, NaN and NaT as an empty cell.

    Parameters
    ----------
    path
        The file. A reader sees the old file or the new one, never a part.
    columns
        The columns by name, in the order in which they are written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "scores.csv")
    ...     write_table(path, {"row": [0, 1], "score": [np.nan, 0.25], "is_anomaly": [False, True]})
    ...     print(path.read_text())
    row,score,is_anomaly
    0,,0
    1,0.25,1
    """
    path = Path(path)
    require_csv_name(path)
    cells = _cells_of(columns, TableSource(path))
    try:
        write_atomically(path, _as_csv(columns, cells).encode())
    except OSError as error:
        what = f"the file cannot be written ({error.strerror or reason_in(error)})"
        raise TableSource(path).error(what, "check the folder, its permissions and its free space") from error


def require_csv_name(path: Path) -> None:
    """Refuse the name of a file that is not written as CSV; a caller with much to do first may ask early."""
    if path.suffix.lower() != ".csv":
        raise TableSource(path).error("tables are written as CSV", "choose a name that ends in .csv")


def _as_csv(names: Mapping[str, Column], cells: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()


def _cells_of(columns: Mapping[str, Column], source: TableSource) -> list[list[str]]:
    if not columns:
        raise source.error("there are no columns to write", "give at least one")
    cells = []
    for name, values in columns.items():
        array = np.asarray(values)
        if array.ndim != 1:
            what = f"the column has {array.ndim} dimensions"
            raise source.error(what, "give one value for each row", where=channel_called(name))
        cells.append(_as_text(array))
        if len(cells[-1]) != len(cells[0]):
            what = f"the column has {len(cells[-1])} rows and the first one {len(cells[0])}"
            raise source.error(what, "give columns of equal length", where=channel_called(name))
    return cells


def _as_text(array: NDArray[Any]) -> list[str]:
    if array.dtype.kind == "M":
        return _blanked(time_text(array), np.isnat(array))
    if array.dtype.kind == "f":
        missing = np.isnan(array)
        known = array[~missing]
        whole = bool(((known == np.rint(known)) & (np.abs(known) < 2.0**63)).all())
        return _blanked([f"{x:.0f}" if whole else repr(x) for x in array.tolist()], missing)
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    return ["" if x is None else str(x) for x in array.tolist()]


def _blanked(cells: list[str], blank: NDArray[np.bool_]) -> list[str]:
    return ["" if missing else cell for cell, missing in zip(cells, blank, strict=True)]
