"""Long tables, with one row for each value: time, tag, value."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.intake.channels import Columns, Samples, judge_column, left_out
from fedkad.intake.interpretation import Interpretation
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


def tag_columns(how: Interpretation) -> TagColumns | None:
    """Find the columns of a long table: a time, a column of names, and one of values, by what they are called."""
    if how.clock is None:
        return None
    names = [name.lower().replace(" ", "") for name in how.relation.names]
    tags, values = ([at for at, name in enumerate(names) if name in usual] for usual in (TAGS, VALUES))
    others = tuple(at for at in range(len(names)) if at not in (*how.clock.at, *tags, *values))
    if len(tags) != 1 or len(values) != 1 or len(others) > MOST_OTHERS or not how.sample[tags[0]]:
        return None
    return TagColumns(tags[0], values[0], others)


def tags_as_channels(how: Interpretation, read: Columns, columns: TagColumns) -> Samples:
    """Return the values of each tag as a channel; of those with the same time and tag, the last one counts."""
    relation, switches = how.relation, how.switches
    times, [values] = read.times, read.columns
    assert times is not None
    notes = [*read.notes, *judge_column(how, values)[1]]
    tag = f"trim(CAST(c{columns.tag} AS VARCHAR))"
    tags = tuple(name for (name,) in relation.rows(tag, f"WHERE {tag} <> '' GROUP BY 1 ORDER BY 1"))
    position = relation.columns(f"coalesce(list_position(?, {tag}), 0) - 1 AS at", [list(tags)])["at"]
    chosen = how.wanted if how.wanted is not None else switches.channels
    names = tuple(chosen if chosen is not None else (name for name in tags if name not in switches.ignore))
    if not any(name in tags for name in names):
        what = f"none of the channels {', '.join(names)} is there"
        raise relation.source.error(what, f"its tags are {', '.join(tags)}")
    moments, wide, repeated = spread(times, np.asarray(position, dtype=np.intp), values.values, tags, names)
    if repeated and not switches.sort:
        what = f"{repeated} values have the same time and tag as another"
        raise relation.source.error(what, "remove them, or pass --sort to keep the last of each")
    notes.append(f"{len(times)} values of {len(names)} tags in {relation.names[columns.tag]!r} read as channels")
    notes += [f"{repeated} repeated values dropped"] if repeated else []
    others = [relation.names[at] for at in columns.others]
    notes += [left_out(others, "not part of time, tag and value")] if others else []
    absent = tuple(name for name in names if name not in tags)
    return Samples(moments, read.offsets, names, wide, absent, tuple(notes))


def spread(
    times: Times, tags_at: NDArray[np.intp], values: NDArray[np.float64], tags: Sequence[str], names: Sequence[str]
) -> tuple[Times, NDArray[np.float64], int]:
    """Return one row for each time and one column for each name, and how many values another one replaced.

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
    is_filled = np.zeros(wide.shape, dtype=np.bool_)
    is_filled[row, column[kept]] = True
    return moments, wide, int(kept.sum() - is_filled.sum())
