"""Whether a device is silent: no sample of it comes, or none that can be judged."""

from __future__ import annotations

import math

from fedkad.edge.alerttext import span
from fedkad.edge.settings import BY_PERIOD, Sampling

AWAITED = 7200.0
"""Seconds that a channel has to come for the first time: many sensors give a sign of life once an hour."""


class Staleness:
    """Keeps when samples and rows came, on the monotonic clock that the caller passes as `now`.

    `heard` is when the last sample arrived, in seconds since 1970, perhaps at an agent that ran earlier.

    >>> staleness = Staleness(Sampling(period=1.0, stale_after=10.0), now=0.0)
    >>> staleness.note_sample(5.0, arrival=1_700_000_005.0, is_judged=True)
    >>> staleness.check(14.0), staleness.check(16.0), staleness.check(17.0), staleness.reason
    (False, True, False, 'no sample has come for 12 s')
    """

    def __init__(self, sampling: Sampling, now: float, heard: float | None = None) -> None:
        self._sampling, self.heard, self._is_known = sampling, heard, heard is not None
        self._last_sample = self._last_row = now
        self._was_heard = self._has_unflushed = False
        self._deaf = -math.inf  # when the agent last heard nobody
        self.reason = ""  # why the device is stale; empty while it is not
        self.is_heard = False  # whether it is stale although samples come

    def note_sample(self, now: float, arrival: float, *, is_judged: bool) -> None:
        """A sample has come, and it closes rows, or waits until the period is known, if it `is_judged`."""
        self.heard = arrival
        self._last_sample, self._was_heard, self._has_unflushed = now, True, True
        if is_judged:
            self._last_row, self.reason, self.is_heard = now, "", False

    def note_row(self, now: float) -> None:
        """A row was judged."""
        self._last_row, self.reason, self.is_heard = now, "", False

    def note_deafness(self, now: float) -> None:
        """The agent hears nobody now."""
        self._deaf = now

    def is_certain(self, now: float) -> bool:
        """Whether the device is stale, and none of its samples can be on its way from when the agent heard nobody."""
        return bool(self.reason) and now - self._deaf > self._sampling.silent_after

    def span(self, now: float, clock: float, last: float | None, scored: float) -> tuple[float, float]:
        """Return from when to when there was no row, by the clock of the device, whose `last` row has that time.

        Without one since the agent was started, it is the time of the last that was `scored`; `clock` is the agent's.
        """
        lasted = now - self._last_row
        if last is None and self.heard is not None:  # the agent was restarted, and the silence did not begin then
            lasted = max(lasted, clock - self.heard)
        if last is None:
            last = scored if math.isfinite(scored) else clock - lasted
        return last, last + lasted

    def is_flush_due(self, now: float) -> bool:
        """Whether open slots of the grid should be closed because nothing more comes; True once per silence."""
        is_due = self._has_unflushed and now - self._last_sample > self._sampling.lateness + self._sampling.period
        self._has_unflushed = self._has_unflushed and not is_due
        return is_due

    def check(self, now: float, rhythm: float = 0.0, *, awaits: bool = False) -> bool:
        """Whether the device has become stale; True once, and from then on `reason` says why, until now.

        Without a written `stale_after` it may be silent for twice as long as it is by its rhythm, and a channel that
        it `awaits`, because it has never come, has longer.
        """
        is_written = self._sampling.stale_after != BY_PERIOD
        allowed = self._sampling.silent_after if is_written else max(self._sampling.silent_after, 2.0 * rhythm)
        is_heard = self._was_heard and now - self._last_sample < allowed
        patience = max(allowed, AWAITED) if is_heard and awaits and not is_written else allowed
        if not self.reason and now - self._last_row <= patience:
            return False
        was_stale, self.is_heard = bool(self.reason), is_heard
        self.reason = self._why(now)
        return not was_stale

    def _why(self, now: float) -> str:
        if not self._was_heard:
            advice = "" if self._is_known else "; check its name, and topics or path in [source]"
            return f"no sample has come since the agent was started{advice}"
        if self.is_heard:
            return f"samples come, but none could be judged for {span(round(now - self._last_row))}"
        return f"no sample has come for {span(round(now - self._last_sample))}"
