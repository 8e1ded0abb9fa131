"""Faults of sensors, told as alerts of their own beside those of incidents.

    silent           the device: no row for `stale_after`
    channel silent   a channel without a value for `stale_after`, while others come (`absence`)
    stuck            a channel that stands still for longer than it ever did (`standstill`)
    impossible       a value more than five ranges outside of all that the channel has shown
    period           samples that come at another interval than the configured one

Each has a start and an end. At most one of a kind is open per channel, and it ends only after it was gone for
`stale_after`, so that what comes and goes is one fault. There is no clock and no I/O: the same rows give the same
alerts, and the state is a small JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.explanations import compared
from fedkad.edge.alert import Alert, AlertEvent, FaultAlert, FaultKind, Kind, Reason, Severity, from_json, identity
from fedkad.edge.alerttext import span
from fedkad.edge.device.grid import GridRow, without
from fedkad.edge.health.absence import SLACK, Absence
from fedkad.edge.health.standstill import Standstill
from fedkad.edge.settings import Sampling

RECOVERING = (FaultKind.CHANNEL_SILENT, FaultKind.STUCK)
"""Faults after which a channel returns with a jump: it is no news, as long as the window remembers what was before."""

RENEWED = 1.1
"""What is open is described anew, in the state and the list of incidents, when it has lasted longer by this factor."""

Array = NDArray[np.float64]
Key = tuple[FaultKind, str]
"""A fault and its channel, which is empty if the fault is the device's."""


class Beyond(NamedTuple):
    """A channel whose value is impossible, and the least and the greatest that it should have."""

    channel: int
    least: float
    greatest: float


class Health:
    """The faults of one device.

    `state` is what `state()` returned, to continue from there.

    >>> health = Health("pump-1", Sampling(channels=("flow",), period=1.0, max_gap=3.0, stale_after=10.0))
    >>> for second, flow in enumerate([3.0, 3.1, -3277.0, 3.2] + [3.0] * 11):
    ...     row = GridRow(float(second), np.array([flow]), True, True)
    ...     for alert in health.take(row, [Beyond(0, 0.0, 9.0)] if flow < 0.0 else []):
    ...         print(alert.event, alert.id, alert.fault, alert.duration)
    ...         print(alert.text)
    start pump-1-19700101T000002Z-h1 impossible 0.0
    pump-1: flow is -3277, which is impossible where 0 to 9 is normal
    end pump-1-19700101T000002Z-h1 impossible 1.0
    pump-1: over, lasted 1 s; flow is -3277, which is impossible where 0 to 9 is normal
    """

    def __init__(self, device: str, sampling: Sampling, state: Mapping[str, Any] | None = None) -> None:
        self._device, self._sampling, self._names = device, sampling, list(sampling.channels)
        self._slack = SLACK * sampling.period
        state = state or {}
        self.count = int(state.get("count", 0))  # faults begun so far
        faults = [fault for each in state.get("open", []) if isinstance(fault := from_json(each), FaultAlert)]
        self._open: dict[Key, FaultAlert] = {(fault.fault, fault.channel or ""): fault for fault in faults}
        self._gone: dict[Key, float] = {(FaultKind(kind), name): time for kind, name, time in state.get("gone", [])}
        self._interval: float | None = state.get("interval")
        is_same = state.get("channels") == self._names
        self._runs = Standstill(len(self._names), state.get("runs") if is_same else None)
        self._absence = Absence(sampling, state if is_same else None)
        faulty = state.get("faulty", []) if is_same else []
        self._faulty: set[Key] = {(FaultKind(kind), name) for kind, name in faulty}
        self._recovered: float | None = state.get("recovered")

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {
            "channels": self._names,
            "count": self.count,
            "open": [fault.to_json() for fault in self._open.values()],
            "gone": [[*key, time] for key, time in self._gone.items()],
            "interval": self._interval,
            "runs": self._runs.state(),
            **self._absence.state(),
            "faulty": sorted(map(list, self._faulty)),
            "recovered": self._recovered,
        }

    @property
    def open(self) -> list[FaultAlert]:
        """The start of every fault that is open, described as it is now, the oldest first; not to be changed."""
        return list(self._open.values())

    # -- what happens -------------------------------------------------------------------------------------------------

    def take(
        self,
        row: GridRow,
        impossible: Sequence[Beyond] = (),
        rhythm: Sequence[int] = (),
        *,
        judges: bool = True,
        learns: bool = True,
        memory: int = 0,
    ) -> list[Alert]:
        """Take the next row; returns its alerts, usually none.

        How long channels stand still is learned if it `learns`, and judged if it `judges`; `rhythm` has the slots for
        which each channel is silent when all is well, and `memory` is the number of rows that the score of a row
        depends on.
        """
        values = without(row.values, [each.channel for each in impossible]) if impossible else row.values
        self._runs.add(values, learns=learns)
        if not row.observed:  # nothing was measured, which neither begins nor ends anything
            return []
        found = self._stuck(values) if judges else {}
        silent: set[Key] = set()
        if not row.complete or not self._absence.is_idle:
            silent = self._tell_absence(row, rhythm or [0] * len(self._names), found)
        for each in impossible:
            found[FaultKind.IMPOSSIBLE, self._names[each.channel]] = self._impossible(row, each)
        if self._interval is not None:
            found[FaultKind.PERIOD, ""] = self._period(self._interval)
        faulty, recovered = silent | found.keys(), row.time + memory * self._sampling.period
        if self._recovered is not None and self._recovered > recovered:  # the clock was set back
            self._recovered = None
        if not faulty and not self._open and not self._faulty:
            return []
        if any(fault in RECOVERING and (fault, channel) not in faulty for fault, channel in self._faulty):
            self._recovered = recovered
        self._faulty = faulty
        return self._judge(row.time, found)

    def is_recovering(self, time: float) -> bool:
        """Whether a channel has just come back, so that a score says nothing new."""
        return self._recovered is not None and time < self._recovered - self._slack

    @property
    def faulty(self) -> list[int]:
        """The channels whose values mean nothing now, because they are stuck or impossible."""
        if not self._faulty:  # usual, and asked for every row
            return []
        senseless = (FaultKind.STUCK, FaultKind.IMPOSSIBLE)
        return [self._names.index(name) for fault, name in sorted(self._faulty) if fault in senseless]

    @property
    def resting(self) -> list[int]:
        """The channels that are known to rest by nature: that they stand still means nothing."""
        return [k for k in range(len(self._names)) if self._runs.rests(k)]

    def note_silence(self, time: float, since: float, sentence: str) -> list[Alert]:
        """No row has come between `since` and `time`."""
        key = (FaultKind.SILENT, "")
        self._gone.pop(key, None)
        if key not in self._open:
            return [self._begin(key, since, time, sentence)]
        self._renew(key, time, sentence)
        return []

    def note_interval(self, interval: float | None) -> None:
        """Samples agree that they come at that interval, which is not the period; None if that is not so."""
        self._interval = interval

    def silence(self, time: float, reason: Reason) -> list[Alert]:
        """Tell nothing, because of maintenance or the like: what is open ends for that reason."""
        return [self._end(key, time, time, reason) for key in list(self._open)]

    def acknowledge(self, alert: FaultAlert, sender: str) -> FaultAlert:
        """The alert of a fault with who knows of it; if the fault is open, its end will say so, too."""
        known = replace(alert, acknowledged=sender)
        key = alert.fault, alert.channel or ""
        if key in self._open and self._open[key].id == alert.id:
            self._open[key] = known
        return known

    def accept(self, alert: FaultAlert, time: float) -> list[Alert]:
        """Take what this alert tells for normal, because a person says so: a fault that is open ends.

        A channel that was stuck may stand still for so long from now on.
        """
        key = fault, channel = alert.fault, alert.channel or ""
        is_open = key in self._open and self._open[key].id == alert.id
        if fault == FaultKind.STUCK and channel in self._names:
            rows = round(alert.duration / self._sampling.period) + 1
            if is_open:
                rows = self._runs.length(self._names.index(channel))
            self._runs.allow(self._names.index(channel), rows)
        return [self._end(key, time, time, Reason.NORMAL)] if is_open else []

    def longest(self, channel: str) -> int:
        """For how many rows a channel may stand still, as far as is known; see `forbid`."""
        return self._runs.longest(self._names.index(channel)) if channel in self._names else 0

    def forbid(self, channel: str, rows: int) -> None:
        """Take back what `accept` has allowed a channel: so many rows are the longest again."""
        if channel in self._names:
            self._runs.forbid(self._names.index(channel), rows)

    # -- which faults there are ---------------------------------------------------------------------------------------

    def _stuck(self, values: Array) -> dict[Key, str]:
        found = {}
        for k in self._runs.stuck():
            rows = (self._runs.length(k), self._runs.longest(k))
            lasted, longest = (span(count * self._sampling.period) for count in rows)
            sentence = f"has been {values[k]:.6g} for {lasted}, and never the same for more than {longest} before"
            found[FaultKind.STUCK, self._names[k]] = f"{self._names[k]} {sentence}"
        return found

    def _impossible(self, row: GridRow, beyond: Beyond) -> str:
        channel, least, greatest = beyond
        normal = " to ".join(dict.fromkeys(compared(least, [greatest], greatest - least)))
        return f"{self._names[channel]} is {row.values[channel]:.6g}, which is impossible where {normal} is normal"

    def _period(self, interval: float) -> str:
        return (
            f"samples come every {span(interval)}, but the period is {span(self._sampling.period)}; "
            f'set period = "{interval:.12g}s" in [sampling]'
        )

    def _tell_absence(self, row: GridRow, rhythm: Sequence[int], found: dict[Key, str]) -> set[Key]:
        """Add the channels that should have sent to what is `found`; returns all that are silent for so long.

        When one of these comes back, it comes with a jump, whether its silence was a fault or not.
        """
        silent = self._absence.take(row, rhythm)
        for name, lasted in silent.items():
            if self._absence.is_fault(name, lasted, rhythm):
                sentence = f"{name} has sent nothing for {span(lasted)}, and the others are judged without it"
                found[FaultKind.CHANNEL_SILENT, name] = sentence
        return {(FaultKind.CHANNEL_SILENT, name) for name in silent}

    # -- from faults to alerts ----------------------------------------------------------------------------------------

    def _judge(self, time: float, found: Mapping[Key, str]) -> list[Alert]:
        alerts: list[Alert] = []
        for key, sentence in found.items():
            self._gone.pop(key, None)
            if key in self._open:
                self._renew(key, time, sentence)
            else:
                alerts.append(self._begin(key, self._start(key, time), time, sentence))
        for key in [key for key in self._open if key not in found]:
            if key[1] and key[1] not in self._names:
                alerts.append(self._end(key, time, time, Reason.CHANNEL_REMOVED))
                continue
            gone = self._gone[key] = min(self._gone.get(key, time), time)
            if time - gone >= self._sampling.silent_after - self._slack:
                alerts.append(self._end(key, gone, time, Reason.RECOVERED))
        return alerts

    def _start(self, key: Key, time: float) -> float:
        """When a fault that is told now began."""
        fault, channel = key
        if fault == FaultKind.STUCK:
            return time - (self._runs.length(self._names.index(channel)) - 1) * self._sampling.period
        if fault == FaultKind.CHANNEL_SILENT:
            return self._absence.since[channel]
        return time

    def _begin(self, key: Key, start: float, time: float, sentence: str) -> FaultAlert:
        self.count += 1
        fault, channel = key
        begun = self._open[key] = FaultAlert(
            id=identity(self._device, start, self.count, is_fault=True),
            device=self._device,
            event=AlertEvent.START,
            kind=Kind.HEALTH,
            fault=fault,
            channel=channel or None,
            severity=Severity.WARNING,
            start=start,
            time=time,
            duration=round(max(time - start, 0.0), 3),
            sentence=sentence,
            reason=Reason.FAULT,
            text=f"{self._device}: {sentence}",
        )
        return begun

    def _renew(self, key: Key, time: float, sentence: str) -> None:
        """Describe what is open as it is now, if it has lasted for clearly longer; nobody is told."""
        opened = self._open[key]
        lasted = round(time - opened.start, 3)
        if lasted > RENEWED * opened.duration:
            text = f"{self._device}: {sentence}"
            self._open[key] = replace(opened, time=time, duration=lasted, sentence=sentence, text=text)

    def _end(self, key: Key, gone: float, time: float, reason: Reason) -> FaultAlert:
        begun = self._open.pop(key)
        self._gone.pop(key, None)
        lasted = max(round(gone - begun.start, 3), 0.0)
        how = "over" if reason == Reason.RECOVERED else f"over ({reason})"
        text = f"{self._device}: {how}, lasted {span(lasted)}; {begun.sentence}"
        return replace(begun, event=AlertEvent.END, time=time, duration=lasted, reason=reason, text=text)
