"""Writing columns, such as scores, to a CSV file that is either whole or absent."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_pieces
from fedkad.tables.errors import TableSource, reason_in
from fedkad.tables.times import time_text

Column = Sequence[object] | NDArray[Any]


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a ``.csv`` file, replacing it in one step.

    Numbers are written so that they read back exactly, a column of integers without a decimal point; booleans as 1
    and 0; ``datetime64`` as ISO-8601 text; None, NaN and NaT as an empty cell.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "scores.csv")
    ...     write_table(path, {"row": [0, 1], "score": [np.nan, 0.25], "is_anomaly": [False, True]})
    ...     print(path.read_text())
    row,score,is_anomaly
    0,,0
    1,0.25,1
    """
    write_blocks(path, [columns])


def write_blocks(path: str | os.PathLike[str], blocks: Iterable[Mapping[str, Column]]) -> None:
    """Write blocks of the same columns below each other, as `write_table` writes one.

    Blocks that are made while they are written need not fit into memory together.
    """
    path = Path(path)
    require_csv_name(path)
    try:
        write_pieces(path, _texts(blocks, TableSource(path)))
    except OSError as error:
        what = f"the file cannot be written ({error.strerror or reason_in(error)})"
        raise TableSource(path).error(what, "check the folder, its permissions and its free space") from error


def _texts(blocks: Iterable[Mapping[str, Column]], source: TableSource) -> Iterator[bytes]:
    """Yield the text of the header and of each block."""
    for number, columns in enumerate(blocks):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if number == 0:
            writer.writerow(columns)
        writer.writerows(zip(*_cells_of(columns, source), strict=True))
        yield text.getvalue().encode()


def require_csv_name(path: Path) -> None:
    """Refuse a name that does not end in .csv; a caller with much work before it writes may check early."""
    if path.suffix.lower() != ".csv":
        raise TableSource(path).error("tables are written as CSV", "choose a name that ends in .csv")


def _cells_of(columns: Mapping[str, Column], source: TableSource) -> list[list[str]]:
    if not columns:
        raise source.error("there are no columns to write", "give at least one")
    cells = []
    for name, values in columns.items():
        array = np.asarray(values)
        if array.ndim != 1:
            what = f"the column has {array.ndim} dimensions"
            raise source.error(what, "give one value for each row", where=f"channel {name!r}")
        cells.append(_as_text(array))
        if len(cells[-1]) != len(cells[0]):
            what = f"the column has {len(cells[-1])} rows and the first one {len(cells[0])}"
            raise source.error(what, "give columns of equal length", where=f"channel {name!r}")
    return cells


def _as_text(array: NDArray[Any]) -> list[str]:
    if array.dtype.kind == "M":
        return _blanked(time_text(array), np.isnat(array))
    if array.dtype.kind == "f":
        missing = np.isnan(array)
        numbers = array[~missing]
        whole = bool(((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**63)).all())
        return _blanked([f"{x:.0f}" if whole else repr(x) for x in array.tolist()], missing)
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    return ["" if x is None else str(x) for x in array.tolist()]


def _blanked(cells: list[str], blank: NDArray[np.bool_]) -> list[str]:
    return ["" if missing else cell for cell, missing in zip(cells, blank, strict=True)]
