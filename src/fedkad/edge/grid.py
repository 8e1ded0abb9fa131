"""From samples at any time, of any channels, to one row for each slot of a device's fixed grid.

A detector learnt from rows that are `period` apart, each with a value of every channel. Devices send channels one by
one, late, twice, with a clock that is set while they run, or not at all. What closes a slot, what stands in for a
missing value and when a window breaks is decided here, in event time alone: the same samples give the same rows,
whether they come live or out of a broker's queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, isnan, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.edge.settings import Sampling

Array = NDArray[np.float64]

CONFIRM = 5  # moments in a row that must agree before another clock is believed
LEAP = 10  # periods that a clock may run ahead at once, even where `max_gap` is shorter
MAX_ASIDE = 256  # samples that wait for such an agreement; a clock that stands still would collect them for ever
COUNTERS = ("rows", "carried", "duplicates", "late", "off_clock", "jumps")
NEVER = -(2**62)  # the slot in which a channel was measured that was not


class Row(NamedTuple):
    """One row of the grid.

    Attributes
    ----------
    time : float
        The centre of its slot, in seconds since 1970.
    values : ndarray, shape (n,)
        One value a channel; NaN where none was measured for longer than `max_gap`: the window breaks here.
    observed : bool
        Whether at least one value was measured in this slot.
    complete : bool
        Whether all were: only such rows may train.
    """

    time: float
    values: Array
    observed: bool
    complete: bool


class Grid:
    """The grid of one device.

    The first sample is the centre of a slot, so a jitter of half a period either way does no harm. A slot is closed as
    soon as it has a value of every channel and all slots before it are closed, else when the newest time is `lateness`
    past its end. What is missing then is the last measured value, up to `max_gap` old.

    Parameters
    ----------
    sampling
        Channels, period, lateness and longest gap of the device.
    state
        What :meth:`state` gave: the grid goes on where that one stood. One of other channels or another period gives
        its counters only.

    Attributes
    ----------
    rows : int
        Rows given so far.
    carried : int
        Values in them that stand for missing ones.
    duplicates : int
        Values that were dropped since their slot had one of that channel already.
    late : int
        Values that were dropped since their slot was closed.
    off_clock : int
        Samples that were dropped since their time fitted to nothing.
    jumps : int
        Times that another clock was taken over, also after a long silence.

    Examples
    --------
    >>> grid = Grid(Sampling(channels=("flow", "heat"), period=10.0, lateness=5.0, max_gap=20.0))
    >>> grid.add(100.0, {"flow": 1.0, "heat": 7.0})
    [Row(time=100.0, values=array([1., 7.]), observed=True, complete=True)]
    >>> grid.add(111.0, {"flow": 2.0})
    []
    >>> grid.add(120.5, {"flow": 3.0, "heat": 9.0})
    [Row(time=110.0, values=array([2., 7.]), observed=True, complete=False),
     Row(time=120.0, values=array([3., 9.]), observed=True, complete=True)]
    >>> grid.rows, grid.carried
    (3, 1)
    """

    def __init__(self, sampling: Sampling, state: Mapping[str, Any] | None = None) -> None:
        self._names, self._period, self._lateness = sampling.channels, sampling.period, sampling.lateness
        self._index = {name: k for k, name in enumerate(self._names)}
        self._reach = floor(sampling.max_gap / self._period + 1e-9)  # slots that a value may be carried over
        self._step = max(sampling.max_gap, LEAP * self._period)
        self._ahead = max(self._step, self._lateness)
        self.rows = self.carried = self.duplicates = self.late = self.off_clock = self.jumps = 0
        self._broken: str | None = None
        self._seen = False  # every channel was measured once: from here on there is a window to break
        self._aside: list[tuple[float, dict[str, float]]] = []
        self._moments, self._moment = 0, nan
        self._begin(nan)
        if state is not None:
            self._resume(state)

    def _begin(self, origin: float) -> None:
        self._origin, self._newest = origin, origin
        self._next, self._begun = 0, False
        self._open: dict[int, dict[str, float]] = {}
        self._last = np.zeros(len(self._names))
        self._measured = [NEVER] * len(self._names)

    @property
    def broken(self) -> str | None:
        """Why there is no unbroken window right now: "gap", or "clock" for one that was set back; None if there is."""
        return self._broken

    def add(self, time: float, values: Mapping[str, float]) -> list[Row]:
        """Take a sample, with finite values of some or all channels; return the rows that it closed, in order."""
        if isnan(self._origin):
            self._begin(time)
        slot = floor((time - self._origin) / self._period + 0.5)
        if slot == self._next and not self._open and not self._aside and self._index.keys() <= values.keys():
            # As a rule a sample is the next row as it stands.
            self._newest = max(self._newest, time)
            return [self._measure(slot, values)]
        if self._is_off(time):
            return self._set_aside(time, values)
        self._drop_aside()
        self._newest = max(self._newest, time)
        self._put(slot, values)
        return self._close_ripe()

    def flush(self) -> list[Row]:
        """Close what is open, up to the newest slot with data: the source has been silent longer than `lateness`."""
        return self._close(max(self._open)) if self._open else []

    def state(self) -> dict[str, Any]:
        """All that the grid knows, ready for JSON."""
        return {
            "channels": list(self._names),
            "period": self._period,
            "origin": None if isnan(self._origin) else self._origin,
            "newest": None if isnan(self._newest) else self._newest,
            "next": self._next,
            "begun": self._begun,
            "open": [[slot, held.copy()] for slot, held in self._open.items()],
            "last": self._last.tolist(),
            "measured": self._measured.copy(),
            "seen": self._seen,
            "broken": self._broken,
            "aside": [[time, values.copy()] for time, values in self._aside],
            "moments": [self._moments, None if isnan(self._moment) else self._moment],
            "counters": {name: getattr(self, name) for name in COUNTERS},
        }

    def _resume(self, state: Mapping[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, int(state["counters"][name]))
        if list(state["channels"]) != list(self._names) or state["period"] != self._period or state["origin"] is None:
            return
        self._origin, self._newest = state["origin"], state["newest"]
        self._next, self._begun = state["next"], state["begun"]
        self._open = {slot: dict(held) for slot, held in state["open"]}
        self._last, self._measured = np.array(state["last"], dtype=np.float64), list(state["measured"])
        self._seen, self._broken = state["seen"], state["broken"]
        self._aside = [(time, dict(values)) for time, values in state["aside"]]
        self._moments = state["moments"][0]
        self._moment = nan if state["moments"][1] is None else state["moments"][1]

    # Slots.

    def _ripe(self) -> int:
        """The newest slot whose end lies `lateness` or more before the newest time."""
        return floor((self._newest - self._lateness - self._origin) / self._period - 0.5)

    def _put(self, slot: int, values: Mapping[str, float]) -> None:
        known = [name for name in values if name in self._index]
        if slot < self._next and (self._begun or slot <= self._ripe()):
            self.late += len(known)
            return
        self._next = min(self._next, slot)  # nothing is closed yet, and the first to arrive was not the first measured
        held = self._open.setdefault(slot, {})
        for name in known:
            if name in held:
                self.duplicates += 1
            else:
                held[name] = values[name]

    def _close_ripe(self) -> list[Row]:
        rows = self._close(self._ripe())
        while len(self._open.get(self._next, ())) == len(self._names):
            rows.append(self._measure(self._next, self._open.pop(self._next)))
        return rows

    def _close(self, last: int) -> list[Row]:
        """Close all slots up to `last`."""
        rows = []
        while self._next <= last:
            slot, held = self._next, self._open.pop(self._next, {})
            if len(held) == len(self._names):
                rows.append(self._measure(slot, held))
                continue
            row = self._fill(slot, held)
            self._next, self._begun = slot + 1, True
            if np.isnan(row.values).any():
                if not held:  # nor can any of the empty slots that follow be filled
                    self._next = min([last + 1, *self._open])
                if not self._seen or (self._broken and not held):
                    continue
                self._broken = self._broken or "gap"
            else:
                self._broken = None
            rows.append(row)
            self.rows += 1
            self.carried += int(np.count_nonzero(~np.isnan(row.values))) - len(held)
        return rows

    def _measure(self, slot: int, values: Mapping[str, float]) -> Row:
        """The row of the next slot with a value of every channel."""
        self._last = np.array([values[name] for name in self._names], dtype=np.float64)
        self._last.flags.writeable = False  # the row shares it
        self._measured = [slot] * len(self._names)
        self._next, self._begun = slot + 1, True
        self._seen, self._broken = True, None
        self.rows += 1
        return Row(self._origin + slot * self._period, self._last, True, True)

    def _fill(self, slot: int, held: Mapping[str, float]) -> Row:
        """The row of a slot that lacks channels, each carried forward while that is allowed."""
        if held:
            self._last = self._last.copy()
            for name, value in held.items():
                self._last[self._index[name]] = value
                self._measured[self._index[name]] = slot
            self._seen = self._seen or NEVER not in self._measured
        values = np.where(np.array(self._measured) < slot - self._reach, nan, self._last)
        return Row(self._origin + slot * self._period, values, bool(held), False)

    # Clocks.

    def _is_off(self, time: float) -> bool:
        oldest = self._origin + (self._next - 1.5) * self._period - self._lateness
        return time < oldest or time > self._newest + self._ahead

    def _set_aside(self, time: float, values: Mapping[str, float]) -> list[Row]:
        """Keep a sample whose time does not fit, until enough of them agree that the clock is another one."""
        newest = max((earlier for earlier, _ in self._aside), default=nan)
        # Channels with stamps of their own come out of order by a moment: a sample may be as old as in `_is_off`.
        if not -self._lateness - self._period <= time - newest <= self._step:
            self._drop_aside()
        if len(self._aside) == MAX_ASIDE:
            del self._aside[0]
            self.off_clock += 1
        self._aside.append((time, {name: values[name] for name in values if name in self._index}))
        # Messages of one channel each, stamped moments apart, are one moment: half a period tells two.
        if isnan(self._moment) or time - self._moment >= 0.5 * self._period:
            self._moments, self._moment = self._moments + 1, time
        return self._take_over() if self._moments >= CONFIRM else []

    def _drop_aside(self) -> None:
        if self._aside:
            self.off_clock += len(self._aside)
            self._aside = []
        self._moments, self._moment = 0, nan

    def _take_over(self) -> list[Row]:
        """Begin anew on the clock of the samples set aside; none of them is lost."""
        samples, self._aside = self._aside, []
        self._moments, self._moment = 0, nan
        rows = self.flush()
        why = "gap" if samples[-1][0] > self._newest else "clock"
        if self._seen:
            time = self._origin + self._next * self._period
            rows.append(Row(time, np.full(len(self._names), nan), False, False))
            self.rows += 1
            self._broken = why
        self.jumps += 1
        self._begin(samples[0][0])
        for sample in samples:
            rows += self.add(*sample)
        return rows
