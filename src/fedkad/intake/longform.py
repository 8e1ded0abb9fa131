"""Long tables, with one row for each value: time, tag, value."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.intake.clock import Clock
from fedkad.intake.engine import Relation
from fedkad.tables.times import Times

TAGS = frozenset(
    {"tag", "tagname", "tag_name", "name", "sensor", "sensor_id", "variable", "channel", "metric", "signal"}
    | {"item", "point", "parameter"}
)
VALUES = frozenset(["value", "val", "reading", "measurement", "wert"])
MOST_OTHERS = 3  # such as quality and unit


class TagColumns(NamedTuple):
    """Where the tag and the value are, and the columns beside them."""

    tag: int
    value: int
    others: tuple[int, ...]


def tag_column(relation: Relation, sample: Sequence[Sequence[str]], clock: Clock | None) -> TagColumns | None:
    """Find the columns of a long table: a time, a column of names, and one of values, by what they are called."""
    if clock is None:
        return None
    names = [name.lower().replace(" ", "") for name in relation.names]
    tags, values = ([at for at, name in enumerate(names) if name in known] for known in (TAGS, VALUES))
    others = tuple(at for at in range(len(names)) if at not in (*clock.at, *tags, *values))
    if len(tags) != 1 or len(values) != 1 or len(others) > MOST_OTHERS or not sample[tags[0]]:
        return None
    return TagColumns(tags[0], values[0], others)


def tags_of(relation: Relation, columns: TagColumns) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """The tags, sorted, and for each row which it has; -1 where there is none."""
    tag = f"trim(CAST(c{columns.tag} AS VARCHAR))"
    tags = tuple(name for (name,) in relation.rows(tag, f"WHERE {tag} <> '' GROUP BY 1 ORDER BY 1"))
    position = relation.columns(f"coalesce(list_position(?, {tag}), 0) - 1 AS at", [list(tags)])["at"]
    return tags, np.asarray(position, dtype=np.intp)


def spread(
    times: Times, tags_at: NDArray[np.intp], values: NDArray[np.float64], tags: Sequence[str], names: Sequence[str]
) -> tuple[Times, NDArray[np.float64], int]:
    """One row for each time and one column for each name, and how many values another one replaced.

    >>> at = np.array([0, 1, 0])
    >>> names = ["flow", "heat"]
    >>> times, wide, _ = spread(np.array([5.0, 5.0, 6.0]), at, np.array([1.0, 2.0, 3.0]), names, names)
    >>> times.tolist(), wide.tolist()
    ([5.0, 6.0], [[1.0, 2.0], [3.0, nan]])
    """
    column = np.array([names.index(tag) if tag in names else -1 for tag in tags], dtype=np.intp)[tags_at]
    kept = (tags_at >= 0) & (column >= 0)
    moments: Any
    moments, row = np.unique(times[kept], return_inverse=True)
    wide = np.full((len(moments), len(names)), np.nan)
    wide[row, column[kept]] = values[kept]
    cells = np.unique(row * len(names) + column[kept])
    return moments, wide, int(kept.sum() - len(cells))
