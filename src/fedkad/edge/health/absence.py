"""Which channels of a device are silent while others come, for how long, and from when on that is a fault.

A channel that sends rarely is silent most of the time, and how often it sends it shows only with time: by silences
that it repeats (`rhythm`), or by coming for long without any. Until then only a long silence says something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkad.edge.device.grid import GridRow
from fedkad.edge.settings import BY_PERIOD, Sampling

PROOF = 10
"""A channel sends often if it has come for so many times `stale_after` and was never silent for as long."""

UNPROVEN = 6 * 3600.0
"""Seconds of silence that are a fault of a channel of which it is not known yet how often it sends."""

SLACK = 1e-3
"""Durations may fall short by this share of a period, because times in seconds since 1970 are rounded."""


class Absence:
    """The silences of the channels of one device; `state` is what `state()` returned, to continue from there.

    >>> absence = Absence(Sampling(channels=("heat", "humidity"), period=300.0))
    >>> for k in range(80):
    ...     row = GridRow(300.0 * k, np.array([20.0, 55.0 if k < 4 else np.nan]), True, k < 4)
    ...     silent = absence.take(row, [0, 0])
    ...     if silent and absence.is_fault("humidity", silent["humidity"], [0, 0]):
    ...         print(k, silent)
    ...         break
    73 {'humidity': 21600.0}
    """

    def __init__(self, sampling: Sampling, state: Mapping[str, Any] | None = None) -> None:
        self._sampling, self._index = sampling, {name: k for k, name in enumerate(sampling.channels)}
        self._slack = SLACK * sampling.period
        known = {"unproven": dict.fromkeys(sampling.channels, 0)} if state is None else state
        self.since: dict[str, float] = dict(known.get("missing", {}))  # when each that has no value fell silent
        # Rows since the last long silence of channels that have not shown how often they send.
        self._unproven: dict[str, int] = dict(known.get("unproven", {}))

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {"missing": self.since, "unproven": self._unproven}

    @property
    def is_idle(self) -> bool:
        """Whether a complete row has no news."""
        return not self.since and not self._unproven

    def take(self, row: GridRow, rhythm: Sequence[int]) -> dict[str, float]:
        """Take a row; the channels that are silent for `stale_after`, or longer by their rhythm, with the seconds.

        `rhythm` has the slots for which each channel is silent when all is well.
        """
        names, before, self.since = self._sampling.channels, self.since, {}
        for k in np.flatnonzero(np.isnan(row.values)).tolist():
            begun = before.get(names[k], row.time - self._held(rhythm[k]))
            self.since[names[k]] = min(begun, row.time)  # the clock may have been set back
        lasted = {name: row.time - since for name, since in self.since.items()}
        self._look(lasted, rhythm)
        return {name: each for name, each in lasted.items() if each >= self._allowed(name, rhythm) - self._slack}

    def is_fault(self, name: str, lasted: float, rhythm: Sequence[int]) -> bool:
        """Whether a channel that is silent for so long should have sent: whoever has written `stale_after` knows."""
        is_known = name not in self._unproven or rhythm[self._index[name]] > 0
        return is_known or self._sampling.stale_after != BY_PERIOD or lasted >= UNPROVEN - self._slack

    def _look(self, lasted: Mapping[str, float], rhythm: Sequence[int]) -> None:
        """Count the rows in which channels came often enough; what a rhythm explains proves nothing."""
        sampling = self._sampling
        for name, rows in list(self._unproven.items()):
            if rhythm[self._index[name]]:
                continue
            is_long = lasted.get(name, 0.0) >= sampling.silent_after - self._slack
            self._unproven[name] = 0 if is_long else rows + 1
            if self._unproven[name] * sampling.period >= PROOF * sampling.silent_after:
                del self._unproven[name]

    def _held(self, slots: int) -> float:
        """Seconds for which the last value of a channel stands."""
        sampling = self._sampling
        return max(sampling.hold, slots * sampling.period) if sampling.max_gap == BY_PERIOD else sampling.hold

    def _allowed(self, name: str, rhythm: Sequence[int]) -> float:
        """Seconds for which a channel may be silent: what its rhythm adds counts unless both durations are written."""
        sampling = self._sampling
        if BY_PERIOD not in (sampling.max_gap, sampling.stale_after):
            return sampling.silent_after
        return sampling.silent_after + max(rhythm[self._index[name]] * sampling.period - sampling.hold, 0.0)
