"""The share of abnormal rows in a sliding window of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

BUCKETS = 60
"""The window is counted in this many parts, so that months of rows need no more memory than a minute."""


class AbnormalRate:
    """Counts the scored and the abnormal rows of the last `window` seconds; a window of 0 counts nothing.

    >>> rate = AbnormalRate(60.0)
    >>> for second in range(90):
    ...     rate.count(second, second >= 75)
    >>> rate.value, rate.since(79.5)
    (0.25, (10, 10))
    """

    def __init__(self, window: float, buckets: Iterable[Sequence[int]] = ()) -> None:
        self.width = window / BUCKETS
        self.buckets = [list(map(int, bucket)) for bucket in buckets]  # index of the part, scored rows, abnormal rows

    def count(self, time: float, abnormal: bool) -> None:
        """Count a row; forgets parts that are out of the window, or in the future of a clock that was set back."""
        if not self.width:
            return
        index = int(time // self.width)
        if not self.buckets or self.buckets[-1][0] != index:
            self.buckets = [bucket for bucket in self.buckets if index - BUCKETS < bucket[0] <= index]
            if not self.buckets or self.buckets[-1][0] != index:
                self.buckets.append([index, 0, 0])
        self.buckets[-1][1] += 1
        self.buckets[-1][2] += int(abnormal)

    def since(self, time: float) -> tuple[int, int]:
        """The scored and the abnormal rows in the parts that begin after that time."""
        counted = [bucket for bucket in self.buckets if bucket[0] * self.width > time]
        return sum(bucket[1] for bucket in counted), sum(bucket[2] for bucket in counted)

    @property
    def value(self) -> float:
        """The share of abnormal rows among the scored rows; NaN without any."""
        scored, abnormal = self.since(-math.inf)
        return abnormal / scored if scored else math.nan
