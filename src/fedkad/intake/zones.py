"""How far the clock of a file is ahead of UTC, also where only pandas, which wrote it, has named the zone."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray


class ClockOffsets(NamedTuple):
    """How many minutes the clock of a file is ahead of UTC at the times of its rows."""

    times: NDArray[Any]
    minutes: NDArray[np.int64]

    def at(self, times: NDArray[Any]) -> NDArray[np.int64]:
        """Return the minutes at other times, which are those of rows that were sorted or resampled."""
        order = np.argsort(self.times, kind="stable")
        at = np.searchsorted(self.times[order], times)  # none is after the last: a period has the time of its beginning
        return np.asarray(self.minutes[order][at])


def zones_in_pandas_metadata(text: str) -> Mapping[str, str]:
    """Return the zone of each column that has one, from what pandas writes into the file; empty if it is not readable.

    >>> zones_in_pandas_metadata('{"columns": [{"field_name": "time", "metadata": {"timezone": "Europe/Berlin"}}]}')
    {'time': 'Europe/Berlin'}
    """
    try:
        columns: list[Any] = json.loads(text)["columns"]
        kept = {column["field_name"]: (column["metadata"] or {}).get("timezone") for column in columns}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: zone for name, zone in kept.items() if isinstance(zone, str)}


def minutes_ahead(times: NDArray[np.datetime64], zone: str) -> NDArray[np.int64] | None:
    """Return how far a clock in this zone is ahead of UTC at each time in UTC; None if the zone is unknown here.

    >>> minutes_ahead(np.array(["2025-03-30T00:59", "2025-03-30T01:00"], dtype="datetime64[m]"), "Europe/Berlin")
    array([ 60, 120])
    >>> minutes_ahead(np.array(["2025-03-30T01:00"], dtype="datetime64[m]"), "-03:30")
    array([-210])
    """
    clock = _clock(zone)
    if clock is None:
        return None
    # Clocks change at whole quarters of an hour.
    quarters, which = np.unique(times.astype("datetime64[m]").astype(np.int64) // 15, return_inverse=True)
    ahead = [datetime.fromtimestamp(900 * quarter, UTC).astimezone(clock).utcoffset() for quarter in quarters.tolist()]
    minutes = [0 if each is None else int(each.total_seconds()) // 60 for each in ahead]
    return np.array(minutes, dtype=np.int64)[which]


def _clock(zone: str) -> tzinfo | None:
    if fixed := re.fullmatch(r"([+-])(\d\d):(\d\d)", zone):
        ahead = timedelta(hours=int(fixed[2]), minutes=int(fixed[3]))
        return timezone(-ahead if fixed[1] == "-" else ahead)
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
