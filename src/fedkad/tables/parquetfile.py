"""Reading a Parquet file; pyarrow is imported here only, and only when a Parquet file is read."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.cells import channels_beside, names_zone, no_rows, time_column
from fedkad.tables.errors import TableSource, reason_in
from fedkad.tables.table import SeriesTable
from fedkad.tables.times import Times, increasing, offsets_in_text, times_from_text

Arrow = Any  # pyarrow has no type hints


def read_parquet(path: Path, name: str, time: str | None) -> tuple[SeriesTable, TableSource]:
    """Read a Parquet file whose channels are columns of integers, floats or decimals.

    A single column of timestamps or dates is the time, in any position (pandas writes its index last); otherwise the
    rule for CSV files applies. Rows are counted from 1.
    """
    source = TableSource(path)
    columns = _columns_in(source)
    names = [name.strip() for name in columns.column_names]
    if not names:
        raise source.error("the file has no columns", "add a column for each channel")
    if columns.num_rows == 0:
        raise no_rows(source)
    time_at = _time_column(columns, names, time, source)
    channels = channels_beside(time_at, names, source)
    times, time_name, utc, offsets = None, None, False, None
    if time_at is not None:
        time_name, utc = names[time_at], _is_zoned(columns.column(time_at))
        times = _times(columns.column(time_at), time_name, source)
        offsets = _offsets(columns.column(time_at)) if utc else None
    at_channels = (at for at in range(len(names)) if at != time_at)
    values = np.column_stack([_numbers(columns.column(at), names[at], source) for at in at_channels])
    return SeriesTable(name, channels, values, times, time_column=time_name, utc=utc, offsets=offsets), source


def _columns_in(source: TableSource) -> Arrow:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        remedy = "run pip install 'fedkad[parquet]'"
        raise source.error("reading Parquet needs the package pyarrow", remedy) from error
    try:
        # Not read_table: it would add columns for folders called key=value.
        with parquet.ParquetFile(source.path) as file:
            return file.read()
    except (arrow.ArrowException, OSError, ValueError) as error:
        what = f"the file cannot be read as Parquet ({reason_in(error)})"
        raise source.error(what, "check its permissions, or write or fetch it again") from error


def _time_column(columns: Arrow, names: list[str], time: str | None, source: TableSource) -> int | None:
    if time is None:
        stamped = [at for at, field in enumerate(columns.schema) if _is_timestamp(field.type)]
        if len(stamped) > 1:
            listed = ", ".join(names[at] for at in stamped)
            raise source.error(f"several columns hold times ({listed})", "keep one of them as the time column")
        if stamped:
            return stamped[0]
    first_cell = columns.column(0)[0].as_py() if _is_text(columns.schema.field(0).type) else None
    return time_column(names, time, first_cell or "", source)


def _times(column: Arrow, name: str, source: TableSource) -> Times:
    import pyarrow as arrow

    if _is_text(column.type):
        return times_from_text([cell or "" for cell in column.to_pylist()], name, source)
    if not _is_timestamp(column.type):
        return increasing(_numbers(column, name, source), name, source)
    try:
        # Arrow keeps zoned timestamps in UTC, and dropping the zone leaves them there.
        times: Times = column.cast(arrow.timestamp("ns")).to_numpy()
    except arrow.ArrowException as error:
        what = f"a time does not fit into nanoseconds around 1970 ({reason_in(error)})"
        raise source.error(what, "correct it or remove the row", where=f"time column {name!r}") from error
    return increasing(times, name, source)


def _offsets(column: Arrow) -> NDArray[np.int64]:
    """Minutes that the zone of the column is ahead of UTC at each of its times."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    if _is_text(column.type):
        return offsets_in_text(column.to_pylist())
    naive = arrow.timestamp(column.type.unit)
    local, there = (array.cast(naive).to_numpy() for array in (compute.local_timestamp(column), column))
    return np.asarray((local - there).astype("timedelta64[m]").astype(np.int64))


def _numbers(column: Arrow, name: str, source: TableSource) -> NDArray[np.float64]:
    import pyarrow as arrow

    kind = column.type
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_decimal(kind)):
        what = f"the column holds {kind} where numbers belong"
        raise source.error(what, "remove the column or replace it by numbers", where=f"channel {name!r}")
    if name.startswith("__index_level_"):
        what = "the column is the unnamed index of a pandas frame"
        raise source.error(what, "write the file with index=False", where=f"channel {name!r}")
    # Unsafe only in that integers beyond 2^53 are rounded.
    values: NDArray[np.float64] = column.cast(arrow.float64(), safe=False).to_numpy()
    return values


def _is_timestamp(kind: Arrow) -> bool:
    return str(kind).startswith(("timestamp[", "date32[", "date64["))


def _is_text(kind: Arrow) -> bool:
    return str(kind) in ("string", "large_string")


def _is_zoned(column: Arrow) -> bool:
    if _is_text(column.type):
        return names_zone(column[0].as_py() or "")
    return getattr(column.type, "tz", None) is not None
