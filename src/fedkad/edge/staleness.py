"""When a device is stale: it has been silent for too long, or its samples give no rows."""

from __future__ import annotations

from fedkad.edge.settings import Sampling


class Staleness:
    """Keeps when samples and rows came, on the monotonic clock that the caller passes as `now`.

    >>> staleness = Staleness(Sampling(period=1.0, stale_after=10.0), now=0.0)
    >>> staleness.note_sample(5.0)
    >>> staleness.note_row(5.0)
    >>> staleness.check(14.0), staleness.check(16.0), staleness.check(17.0), staleness.reason
    (False, True, False, 'no sample has come for 11 s')
    """

    def __init__(self, sampling: Sampling, now: float) -> None:
        self._sampling = sampling
        self._last_sample = self._last_row = now
        self._was_heard = self._has_unflushed = False
        self.reason = ""

    @property
    def is_stale(self) -> bool:
        """Whether there has been no row for `stale_after`."""
        return bool(self.reason)

    def note_sample(self, now: float) -> None:
        """A sample has come."""
        self._last_sample, self._was_heard, self._has_unflushed = now, True, True

    def note_row(self, now: float) -> None:
        """A row was judged."""
        self._last_row, self.reason = now, ""

    def is_flush_due(self, now: float) -> bool:
        """Whether open slots of the grid should be closed because nothing more comes; True once per silence."""
        is_due = self._has_unflushed and now - self._last_sample > self._sampling.lateness + self._sampling.period
        self._has_unflushed = self._has_unflushed and not is_due
        return is_due

    def check(self, now: float) -> bool:
        """Whether the device has become stale; True once, then `reason` says why."""
        if self.is_stale or now - self._last_row <= self._sampling.stale_after:
            return False
        silent = now - self._last_sample
        if not self._was_heard:
            self.reason = (
                "no sample has come since the agent was started; check its name, and topics or path in [source]"
            )
        elif silent < self._sampling.stale_after:
            self.reason = f"samples come, but none could be judged for {self._sampling.stale_after:g} s"
        else:
            self.reason = f"no sample has come for {silent:.0f} s"
        return True
