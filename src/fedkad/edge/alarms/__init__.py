"""From scored rows to alerts: one incident with a start, updates and an end, not an alert per row.

    phases        what an incident may be, and become
    policy        when it does
    episode       what is known of a run of abnormal rows
    departures    which channels are outside their known ranges
    recurrence    what comes back
    tally         what is counted over all incidents, and how many rows are abnormal
    stored        the state, also that of earlier versions
    acceptance    when an incident becomes normal

There is no clock and no I/O: the same rows give the same alerts, and the state is a small JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedkad.detect.stream import Reading
from fedkad.edge.alarms.phases import IDLE, Cooling, OpenPhase, Phase, Quiet, Suspect, Waiting
from fedkad.edge.alarms.policy import IncidentPolicy
from fedkad.edge.alarms.stored import phase_state, restored_phase, upgraded
from fedkad.edge.alert import Alert, IncidentAlert, Reason
from fedkad.edge.device.grid import GridRow
from fedkad.edge.settings import Alarm


class Alarms:
    """The alarms of one device.

    An incident begins when the scores have been abnormal for `min_duration` without a quiet row, or when the share of
    abnormal rows in `rate_window` reaches `rate_limit`, provided that half of the window was scored; rows up to the end
    of the last incident do not count. It ends after `clear_after` of only quiet rows, or later or sooner by the rules
    in `policy`. For `cool_down` after that only a critical score begins another one; an excursion that still goes on
    then becomes an incident. All durations are differences of the rows' times.

    What is wrong in another channel while an incident is open is told as well, if its score is a quarter higher than
    all of the incident, or half as high again after a new set-point. Otherwise a false alarm would hide the fault that
    follows it.

    A fault that comes and goes is one incident and its *echoes*, which are not told: with a budget, for a while after
    an incident the channels that it was about begin another one only with a score that is a quarter higher, or if that
    lasts for an hour. The while is 1/28 of the time in which the budget allows one. After an incident that became
    normal it is `settle`, for every channel.
    Whatever else begins in that while is told as the same incident again, unless that became normal.

    The start of an incident is its first abnormal row, not the row at which `min_duration` was reached; a
    rate-triggered one starts with the first abnormal row counted in it, about one window back. A cleared incident has
    lasted until its last abnormal row, without the quiet after it.

    `period` is the seconds between two rows; `state` is what `state()` returned, to continue from there.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> alarms = Alarms("pump-1", Alarm(min_duration=2.0, clear_after=2.0), 1.0, ["flow", "pressure"])
    >>> for second, score in enumerate([1.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0]):
    ...     row = GridRow(float(second), np.array([3.2, 1.0]), True, True)
    ...     reading = SimpleNamespace(
    ...         state="ok", score=score, threshold=6.0, is_anomaly=score > 6.0,
    ...         shares=np.array([7.0, 2.0]), seen=row.values, expected=np.array([5.1, 1.2]), explanation=None,
    ...         commands=[], outside_by_channel=np.zeros(2))
    ...     for alert in alarms.update(row, reading):
    ...         print(alert.event, alert.id, alert.duration)
    ...         print(alert.text)
    start pump-1-19700101T000001Z-1 2.0
    pump-1: at worst (00:00:01Z) flow 3.2 instead of 5.1 (78 %), then pressure (22 %); score 9, threshold 6
    end pump-1-19700101T000001Z-1 2.0
    pump-1: over, lasted 2 s; at worst (00:00:01Z) flow 3.2 instead of 5.1 (78 %), then pressure (22 %); peak 9
    """

    def __init__(
        self,
        device: str,
        settings: Alarm,
        period: float,
        channels: Sequence[str],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        state = upgraded(state or {})
        self._policy = IncidentPolicy(device, settings, period, channels, state)
        self._tally = self._policy.tally
        self.phase: Phase = restored_phase(state)

    def state(self) -> dict[str, Any]:
        """Return all that is known, for JSON."""
        return {**phase_state(self.phase), **self._policy.state()}

    @property
    def open(self) -> IncidentAlert | None:
        """The last alert of the open incident."""
        return self.phase.incident.alert if isinstance(self.phase, OpenPhase) else None

    @property
    def is_quiet(self) -> bool:
        """Whether the open incident is quiet now, and may be over."""
        return isinstance(self.phase, Quiet | Waiting)

    @property
    def incidents(self) -> int:
        """Incidents begun so far."""
        return self._tally.incidents

    @property
    def time(self) -> float:
        """Time of the last scored row; minus infinity before the first."""
        return self._tally.time

    @property
    def watched(self) -> float:
        """Seconds scored so far."""
        return self._tally.watched

    @property
    def rate(self) -> float:
        """Share of the scored rows in `rate_window` that were abnormal; NaN without any."""
        return self._tally.rate.value

    def begun_since(self, time: float) -> int:
        """Return how many incidents have begun since then, as far as they are remembered."""
        return sum(moment >= time for moment in self._tally.begun)

    def update(
        self, row: GridRow, reading: Reading, *, outside: float = 0.0, is_provisional: bool = False
    ) -> list[Alert]:
        """Take one judged row; returns its alerts, usually none. The reading is explained for abnormal rows only.

        `outside` is how far the device is outside its known ranges, where 99 % of normal rows stay below 1. The alerts
        of a model that has not seen a whole week yet are provisional.
        """
        self.phase, alerts = self._policy.take(self.phase, row, reading, outside, is_provisional=is_provisional)
        return alerts

    def interrupt(self, time: float) -> None:
        """Note that the following rows are not connected to those before: a gap, a stale device, another clock.

        An excursion shorter than `min_duration` is dropped. An open incident stays open without updates until rows come
        again; then it needs another `clear_after` of quiet to end.
        """
        self.phase = self._policy.interrupt(self.phase, time)

    def silence(self, time: float, reason: Reason = Reason.MAINTENANCE) -> list[Alert]:
        """Begin maintenance, or the like: an open incident ends, and what was counted towards another one is dropped.

        No cool-down follows: what is wrong after maintenance is news.
        """
        self.phase, alerts = self._policy.silence(self.phase, time, reason)
        return alerts

    def acknowledge(self, sender: str) -> list[Alert]:
        """Note that an operator knows of the open incident: it is told once more, then only when it gets worse."""
        if not isinstance(self.phase, OpenPhase) or self.phase.incident.acknowledged:
            return []
        incident, alerts = self._policy.acknowledge(self.phase.incident, sender)
        self.phase = replace(self.phase, incident=incident)
        return alerts

    def take_back(self, identity: str, sender: str) -> None:
        """Note that an operator does not take an incident for normal any more: if it is still there, it is told again.

        It is acknowledged then, and so it does not become normal once more by itself.
        """
        self._tally.take_back(identity, sender, is_open=isinstance(self.phase, OpenPhase))
        if isinstance(self.phase, Cooling):
            self.phase = Suspect(self.phase.excursion) if self.phase.excursion else IDLE
