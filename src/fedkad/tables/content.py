"""What a file holds before holes are filled: the form that every file format is read into."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkad.tables.errors import TableError, TableSource, channel_called
from fedkad.tables.times import Times


@dataclass(frozen=True, eq=False)
class Content:
    """The channels, values and times of one file as they stand in it; `utc` where its times name a zone."""

    source: TableSource
    channels: tuple[str, ...]
    values: NDArray[np.float64]
    times: Times | None
    time_column: str | None = None
    utc: bool = False


def channels_beside(time_at: int | None, names: Sequence[str], source: TableSource) -> tuple[str, ...]:
    """Return the names of the channels, each known to be present and unique.

    Only the time column may go without a name.

    Examples
    --------
    >>> from pathlib import Path
    >>> channels_beside(0, ["", "flow", "heat"], TableSource(Path("pump-1.csv")))
    ('flow', 'heat')
    """
    channels = tuple(name for at, name in enumerate(names) if at != time_at)
    if not channels:
        raise source.error("there is no channel beside the time", "add a column for each channel")
    if "" in channels:
        at = next(at for at, name in enumerate(names) if name == "" and at != time_at)
        raise source.error(f"column {at + 1} has no name", "name the channel in the header or remove the column")
    for at, name in enumerate(names):
        if name in names[:at]:
            what = f"columns {names.index(name) + 1} and {at + 1} have the same name"
            raise source.error(what, "give each channel its own name", where=channel_called(name))
    return channels


def no_rows(source: TableSource) -> TableError:
    """Return the error of a file that names channels and holds no sample."""
    return source.error("there are no rows below the names of the channels", "add at least one row of values")


def checked(content: Content, *, allow_silent: bool = False) -> Content:
    """Return the content unchanged once its values are finite and, unless allowed, no channel is missing as a whole."""
    source, channels, values = content.source, content.channels, content.values
    infinite = np.isinf(values)
    if infinite.any():
        row, at = np.argwhere(infinite)[0]
        remedy = "correct it or leave the cell empty where the value is missing"
        raise source.error("the value is infinite", remedy, row=int(row), where=channel_called(channels[at]))
    empty = np.isnan(values).all(axis=0)
    if empty.any() and not allow_silent:
        where = channel_called(channels[int(np.argmax(empty))])
        raise source.error("every value is missing", "remove the channel from every file", where=where)
    return content
