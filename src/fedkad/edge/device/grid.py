"""From samples at any time, of any channels, to one row per slot of a device's fixed grid.

A detector learns from rows that are `period` apart, each with a value of every channel. Devices send channels one by
one, late, twice, with a clock that is set while they run, or not at all. This module decides when a slot closes, what
replaces a missing value and when a window breaks. The times of the samples count; their arrival only confirms a time
that would otherwise have to be confirmed by the samples that follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, isnan, nan
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.edge.device.rhythm import DAY, Rhythm
from fedkad.edge.settings import BY_PERIOD, Sampling

Array = NDArray[np.float64]

CONFIRM = 5  # times in a row that must agree before another clock is believed, unless they agree with their arrival
PUNCTUAL = 60.0  # seconds by which a time that agrees with its arrival may differ from it, or `lateness`
LEAP = 10  # periods that a clock may run ahead at once, even where `max_gap` is shorter
MAX_SUSPECTS = 256  # samples that wait for such an agreement; a clock that stands still would collect them forever
COUNTERS = ("rows", "carried", "duplicates", "late", "off_clock", "jumps")
NEVER = -(2**62)  # the slot of a channel that was never measured


class GridRow(NamedTuple):
    """One row of the grid, at the centre of its slot in seconds since 1970.

    It has one value per channel; NaN if none was measured for longer than it may be held: the window breaks here.
    """

    time: float
    values: Array
    observed: bool  # at least one value was measured in this slot
    complete: bool  # all were, or are silent by their rhythm: only such rows are learned from


def without(values: Array, channels: Sequence[int]) -> Array:
    """The values of a row, with NaN in those channels."""
    if not channels:
        return values
    values = values.copy()
    values[list(channels)] = nan
    return values


class SampleGrid:
    """The grid of one device.

    The first sample is the centre of a slot, so a jitter of half a period either way does no harm. A slot closes as
    soon as it has a value of every channel and all slots before it are closed, or when the newest time is `lateness`
    past its end. A missing value is then replaced by the last measured one, up to `max_gap` old. If that is
    not written, it is three periods, or as long as the channel is silent by its rhythm (`rhythm`).

    Parameters
    ----------
    sampling : Sampling
    state : mapping, optional
        What :meth:`state` returned, to continue from there; with other channels or another period only the counters
        are kept.

    Attributes
    ----------
    rows, carried : int
        Rows returned so far, and the values in them that replace missing ones.
    duplicates, late : int
        Values dropped because their slot already had one of that channel, and because it was closed.
    off_clock, jumps : int
        Samples dropped because their time was implausible, and how often another clock was adopted, including after a
        silence longer than any by rhythm.
    broken : str, optional
        Why there is no unbroken window now: "gap", or "clock" if it was set back.

    Examples
    --------
    >>> grid = SampleGrid(Sampling(channels=("flow", "heat"), period=10.0, lateness=5.0, max_gap=20.0))
    >>> grid.add(100.0, {"flow": 1.0, "heat": 7.0})
    [GridRow(time=100.0, values=array([1., 7.]), observed=True, complete=True)]
    >>> grid.add(111.0, {"flow": 2.0})
    []
    >>> grid.add(120.5, {"flow": 3.0, "heat": 9.0})
    [GridRow(time=110.0, values=array([2., 7.]), observed=True, complete=False),
     GridRow(time=120.0, values=array([3., 9.]), observed=True, complete=True)]
    >>> grid.rows, grid.carried
    (3, 1)
    """

    def __init__(self, sampling: Sampling, state: Mapping[str, Any] | None = None) -> None:
        self._names, self._period, self._lateness = sampling.channels, sampling.period, sampling.lateness
        self._index = {name: k for k, name in enumerate(self._names)}
        self._in_order = itemgetter(*self._names)
        self._reach = floor(sampling.hold / self._period + 1e-9)  # slots that a value may be carried over
        self._is_reach_written = sampling.max_gap != BY_PERIOD
        self._ahead = max(sampling.hold, LEAP * self._period, self._lateness)
        self._rhythm = Rhythm(len(self._names), self._period)
        self.rows = self.carried = self.duplicates = self.late = self.off_clock = self.jumps = 0
        self.broken: str | None = None
        self._seen = False  # whether every channel was measured once, so that there is a window to break
        self._is_void = False  # whether the last row had no value at all
        self._suspects = Suspects(self._period, self._lateness)
        self._begin(nan)
        if state is not None:
            self._resume(state)

    def _begin(self, origin: float) -> None:
        self._origin, self._newest = origin, origin
        self._next, self._begun = 0, False
        self._open: dict[int, dict[str, float]] = {}
        self._last = np.zeros(len(self._names))
        self._measured = [NEVER] * len(self._names)
        self._steady = NEVER  # the slot in which the next row has every channel measured one slot after the last time

    def add(self, time: float, values: Mapping[str, float], arrival: float | None = None) -> list[GridRow]:
        """Take a sample with finite values of some or all channels; returns the rows that it closed, in order.

        A time that agrees with the arrival of the sample is believed, whatever the times before it were.
        """
        if isnan(self._origin):
            self._begin(time)
        slot = floor((time - self._origin) / self._period + 0.5)
        if slot == self._next and not self._open and not self._suspects.samples and self._index.keys() <= values.keys():
            # Usually a sample is the next row as it is.
            self._newest = max(self._newest, time)
            return [self._measure(slot, values)]
        if not self._is_off(time):
            self.off_clock += self._suspects.drop()
            return self._take(time, values)
        if arrival is not None and abs(time - arrival) <= max(PUNCTUAL, self._lateness):
            self.off_clock += self._suspects.drop()
            return self._adopt_clock([(time, dict(values))])
        self.off_clock += self._suspects.add(
            time, {name: values[name] for name in values if name in self._index}, max(self._ahead, DAY)
        )
        return self._adopt_clock(self._suspects.take()) if self._suspects.agree else []

    def _take(self, time: float, values: Mapping[str, float]) -> list[GridRow]:
        """Put the values of a sample into its slot; returns the rows that can be closed then."""
        self._newest = max(self._newest, time)
        slot = floor((time - self._origin) / self._period + 0.5)
        known = [name for name in values if name in self._index]
        if slot < self._next and (self._begun or slot <= self._ripe()):
            self.late += len(known)
        else:
            self._next = min(self._next, slot)  # the first sample to arrive was not the first measured
            held = self._open.setdefault(slot, {})
            for name in known:
                if name in held:
                    self.duplicates += 1
                else:
                    held[name] = values[name]
        rows = self._close(self._ripe())
        while len(self._open.get(self._next, ())) == len(self._names):
            rows.append(self._measure(self._next, self._open.pop(self._next)))
        return rows

    @property
    def unseen(self) -> list[str]:
        """The channels that have never come, without which there are no rows; empty once all have."""
        if self._seen:
            return []
        waiting = set().union(*self._open.values())
        measured = zip(self._names, self._measured, strict=True)
        return [name for name, slot in measured if slot == NEVER and name not in waiting]

    @property
    def rhythm(self) -> float:
        """The seconds for which the most silent channel is silent when all is well; 0 if none repeats a silence."""
        return max(self._rhythm.slots, default=0) * self._period

    @property
    def silences(self) -> list[int]:
        """The slots for which each channel is silent when all is well, 0 if it repeats none; not to be changed."""
        return self._rhythm.slots

    @property
    def surplus(self) -> int:
        """Values dropped because they came too soon or too late for a slot."""
        return self.duplicates + self.late

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is that of a grid with these channels and this period."""
        return list(state["channels"]) == list(self._names) and bool(state["period"] == self._period)

    def flush(self) -> list[GridRow]:
        """Close all slots up to the newest with data: the source has been silent longer than `lateness`."""
        return self._close(max(self._open)) if self._open else []

    def state(self) -> dict[str, Any]:
        """All that the grid knows, for JSON."""
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
            "broken": self.broken,
            "void": self._is_void,
            "rhythm": self._rhythm.state(),
            **self._suspects.state(),
            "counters": {name: getattr(self, name) for name in COUNTERS},
        }

    def _resume(self, state: Mapping[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, int(state["counters"][name]))
        if not self.fits(state) or state["origin"] is None:
            return
        self._origin, self._newest = state["origin"], state["newest"]
        self._next, self._begun = state["next"], state["begun"]
        self._open = {slot: dict(held) for slot, held in state["open"]}
        self._last, self._measured = np.array(state["last"], dtype=np.float64), list(state["measured"])
        self._seen, self.broken, self._is_void = state["seen"], state["broken"], state.get("void", False)
        self._rhythm = Rhythm(len(self._names), self._period, state.get("rhythm"))
        self._suspects = Suspects(self._period, self._lateness, state)

    # -- slots ----------------------------------------------------------------------------------------------------

    def _ripe(self) -> int:
        """The newest slot whose end is `lateness` or more before the newest time."""
        return floor((self._newest - self._lateness - self._origin) / self._period - 0.5)

    def _close(self, last: int) -> list[GridRow]:
        """Close all slots up to `last`."""
        rows = []
        while self._next <= last:
            slot, held = self._next, self._open.pop(self._next, {})
            if len(held) == len(self._names):
                rows.append(self._measure(slot, held))
                continue
            row = self._fill(slot, held)
            self._next, self._begun = slot + 1, True
            missing = int(np.count_nonzero(np.isnan(row.values)))
            was_void, self._is_void = self._is_void, missing == len(self._names)
            if self._is_void:  # the empty slots that follow cannot be filled either
                self._next = min([last + 1, *self._open])
            if (missing and not self._seen) or (self._is_void and was_void):
                continue
            self.broken = (self.broken or "gap") if missing else None
            rows.append(row)
            self.rows += 1
            self.carried += len(self._names) - missing - len(held)
        return rows

    def _measure(self, slot: int, values: Mapping[str, float]) -> GridRow:
        """The row of the next slot, with a value of every channel."""
        self._last = np.array(self._in_order(values), dtype=np.float64, ndmin=1)  # one name gives a bare number
        self._last.flags.writeable = False  # the row shares it
        if slot != self._steady:
            for k in range(len(self._names)):
                self._note_silence(k, slot)
        self._measured, self._steady = [slot] * len(self._names), slot + 1
        self._next, self._begun = slot + 1, True
        self._seen, self.broken, self._is_void = True, None, False
        self.rows += 1
        return GridRow(self._origin + slot * self._period, self._last, True, True)

    def _fill(self, slot: int, held: Mapping[str, float]) -> GridRow:
        """The row of a slot that lacks channels, whose last values are held for a while."""
        self._steady = NEVER
        if held:
            self._last = self._last.copy()
            for name, value in held.items():
                self._last[self._index[name]] = value
                self._note_silence(self._index[name], slot)
                self._measured[self._index[name]] = slot
            self._seen = self._seen or NEVER not in self._measured
        ages, rhythm = slot - np.array(self._measured), np.array(self._rhythm.slots)
        reach = self._reach if self._is_reach_written else np.maximum(self._reach, rhythm)
        values = np.where(ages > reach, nan, self._last)
        is_usual = bool(((ages <= rhythm) & (ages <= reach) | (ages == 0)).all())
        return GridRow(self._origin + slot * self._period, values, bool(held), is_usual)

    def _note_silence(self, k: int, slot: int) -> None:
        if (last := self._measured[k]) != NEVER:
            self._rhythm.note(k, self._origin + slot * self._period, slot - last)

    # -- clocks ---------------------------------------------------------------------------------------------------

    def _is_off(self, time: float) -> bool:
        oldest = self._origin + (self._next - 1.5) * self._period - self._lateness
        return time < oldest or time > self._newest + max(self._ahead, self.rhythm)

    def _adopt_clock(self, samples: Sequence[tuple[float, Mapping[str, float]]]) -> list[GridRow]:
        """Start again on the clock of these samples; none of them is lost."""
        rows = self.flush()
        why = "gap" if samples[-1][0] > self._newest else "clock"
        if self._seen:
            time = self._origin + self._next * self._period
            rows.append(GridRow(time, np.full(len(self._names), nan), False, False))
            self.rows += 1
            self.broken, self._is_void = why, True
        if why == "gap":  # by its rhythm, each channel may be silent for as long again
            for name, k in self._index.items():
                times = [time for time, values in samples if name in values]
                if times and self._measured[k] != NEVER:
                    last = self._origin + self._measured[k] * self._period
                    self._rhythm.note(k, times[0], round((times[0] - last) / self._period))
        self.jumps += 1
        self._begin(samples[0][0])
        for sample in samples:
            rows += self._take(*sample)
        return rows


class Suspects:
    """Samples whose time does not fit the clock so far, until enough of them agree that it was changed.

    `state` is what `state()` returned, to continue from there.
    """

    def __init__(self, period: float, lateness: float, state: Mapping[str, Any] | None = None) -> None:
        self._period, self._lateness = period, lateness
        aside, (moments, last) = (state["aside"], state["moments"]) if state else ([], (0, None))
        self.samples: list[tuple[float, dict[str, float]]] = [(time, dict(values)) for time, values in aside]
        self._moments: int = moments  # how many distinct times they have,
        self._last: float = nan if last is None else last  # and the last of these

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {
            "aside": [[time, values.copy()] for time, values in self.samples],
            "moments": [self._moments, None if isnan(self._last) else self._last],
        }

    @property
    def agree(self) -> bool:
        """Whether there are so many distinct times that another clock is believed."""
        return self._moments >= CONFIRM

    def add(self, time: float, values: dict[str, float], ahead: float) -> int:
        """Hold one more, at most so many seconds `ahead` of the others; returns how many were dropped."""
        dropped, newest = 0, max((earlier for earlier, _ in self.samples), default=nan)
        # Channels with their own timestamps come slightly out of order: a sample may be as old as in `_is_off`.
        if not -self._lateness - self._period <= time - newest <= ahead:
            dropped = self.drop()
        if len(self.samples) == MAX_SUSPECTS:
            del self.samples[0]
            dropped += 1
        self.samples.append((time, values))
        # Messages of one channel each are one time if their timestamps are less than half a period apart.
        if isnan(self._last) or time - self._last >= 0.5 * self._period:
            self._moments, self._last = self._moments + 1, time
        return dropped

    def take(self) -> list[tuple[float, dict[str, float]]]:
        """Hand out all of them."""
        samples = self.samples
        self.drop()
        return samples

    def drop(self) -> int:
        """Forget all of them; returns how many there were."""
        count, self.samples = len(self.samples), []
        self._moments, self._last = 0, nan
        return count
