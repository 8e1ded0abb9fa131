"""Frames in, frames out: results for a pandas DataFrame have its index.

Neither pandas nor polars is ever imported here: a frame can only come in where they are loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedkad.detect.events import Event


def is_frame(data: Any) -> bool:
    """Whether this is a DataFrame of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def columns_of_times(data: Any) -> list[str]:
    """Columns of a polars frame that hold dates or times, which it would turn into numbers without a word."""
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(data, polars.DataFrame):
        return []
    return [name for name, kind in data.schema.items() if kind.is_temporal()]


def framed(results: NDArray[Any], data: Any, columns: Sequence[str]) -> Any:
    """The results of every row and column, as a frame with the index of the data if that is one."""
    return sys.modules["pandas"].DataFrame(results, data.index, list(columns)) if is_frame(data) else results


def event_table(events: Sequence[Event], data: Any) -> Any:
    """Events as a frame, with the labels of the data's index as start, end and peak; as they are for other data."""
    if not is_frame(data):
        return tuple(events)

    def at(rows: list[int]) -> Any:
        return data.index.take(np.array(rows, dtype=np.intp))

    return sys.modules["pandas"].DataFrame(
        {
            "start": at([event.start for event in events]),
            "end": at([event.end for event in events]),
            "peak": at([event.peak for event in events]),
            "kind": [event.kind for event in events],  # the witness that leads
            "channels": [", ".join(cause.channel for cause in event.main_causes) for event in events],
            "sentence": [event.sentence for event in events],
        }
    )
