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


class HealthFault(NamedTuple):
    """What every detector returns: what is wrong with a channel, or with the device, since when, in words."""

    kind: FaultKind
    channel: str  # empty if the fault is the device's
    start: float
    sentence: str


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
        self._faults = OpenFaults(device, sampling, state)
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
            **self._faults.state(),
            "interval": self._interval,
            "runs": self._runs.state(),
            **self._absence.state(),
            "faulty": sorted(map(list, self._faulty)),
            "recovered": self._recovered,
        }

    @property
    def open(self) -> list[FaultAlert]:
        """The start of every fault that is open, described as it is now, the oldest first."""
        return list(self._faults.open.values())

    @property
    def count(self) -> int:
        """Faults begun so far."""
        return self._faults.count

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
        faults = self._stuck(row.time, values) if judges else []
        faulty: set[Key] = set()
        if not row.complete or not self._absence.is_idle:
            rhythm = rhythm or [0] * len(self._names)
            lasting = self._absence.take(row, rhythm)
            faults += self._absent(lasting, rhythm)
            faulty = {(FaultKind.CHANNEL_SILENT, name) for name in lasting}  # a fault or not yet, it ends with a jump
        faults += [impossible_value(row, self._names[each.channel], each) for each in impossible]
        if self._interval is not None:
            faults.append(other_interval(row.time, self._interval, self._sampling.period))
        if faults:
            faulty |= {(each.kind, each.channel) for each in faults}
        recovered = row.time + memory * self._sampling.period
        if self._recovered is not None and self._recovered > recovered:  # the clock was set back
            self._recovered = None
        if not faulty and not self._faults.open and not self._faulty:
            return []
        if any(fault in RECOVERING and (fault, channel) not in faulty for fault, channel in self._faulty):
            self._recovered = recovered
        self._faulty = faulty
        return self._faults.update(row.time, faults)

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
        return self._faults.note(time, HealthFault(FaultKind.SILENT, "", since, sentence))

    def note_interval(self, interval: float | None) -> None:
        """Samples agree that they come at that interval, which is not the period; None if that is not so."""
        self._interval = interval

    def silence(self, time: float, reason: Reason) -> list[Alert]:
        """Tell nothing, because of maintenance or the like: what is open ends for that reason."""
        return [self._faults.end(key, time, time, reason) for key in list(self._faults.open)]

    def acknowledge(self, alert: FaultAlert, sender: str) -> FaultAlert:
        """The alert of a fault with who knows of it; if the fault is open, its end will say so, too."""
        return self._faults.acknowledge(alert, sender)

    def accept(self, alert: FaultAlert, time: float) -> list[Alert]:
        """Take what this alert tells for normal, because a person says so: a fault that is open ends.

        A channel that was stuck may stand still for so long from now on.
        """
        key = fault, channel = alert.fault, alert.channel or ""
        is_open = self._faults.is_open(alert)
        if fault == FaultKind.STUCK and channel in self._names:
            rows = round(alert.duration / self._sampling.period) + 1
            if is_open:
                rows = self._runs.length(self._names.index(channel))
            self._runs.allow(self._names.index(channel), rows)
        return [self._faults.end(key, time, time, Reason.NORMAL)] if is_open else []

    def longest(self, channel: str) -> int:
        """For how many rows a channel may stand still, as far as is known; see `forbid`."""
        return self._runs.longest(self._names.index(channel)) if channel in self._names else 0

    def forbid(self, channel: str, rows: int) -> None:
        """Take back what `accept` has allowed a channel: so many rows are the longest again."""
        if channel in self._names:
            self._runs.forbid(self._names.index(channel), rows)

    def _stuck(self, time: float, values: Array) -> list[HealthFault]:
        faults, period = [], self._sampling.period
        for k in self._runs.stuck():
            length = self._runs.length(k)
            lasted, longest = span(length * period), span(self._runs.longest(k) * period)
            sentence = f"has been {values[k]:.6g} for {lasted}, and never the same for more than {longest} before"
            start = time - (length - 1) * period
            faults.append(HealthFault(FaultKind.STUCK, self._names[k], start, f"{self._names[k]} {sentence}"))
        return faults

    def _absent(self, silent: Mapping[str, float], rhythm: Sequence[int]) -> list[HealthFault]:
        """The channels that should have sent, of those that are silent for so many seconds."""
        return [
            HealthFault(
                FaultKind.CHANNEL_SILENT,
                name,
                self._absence.since[name],
                f"{name} has sent nothing for {span(lasted)}, and the others are judged without it",
            )
            for name, lasted in silent.items()
            if self._absence.is_fault(name, lasted, rhythm)
        ]


def impossible_value(row: GridRow, channel: str, beyond: Beyond) -> HealthFault:
    """Return the fault of a channel whose value in that row is impossible."""
    normal = " to ".join(dict.fromkeys(compared(beyond.least, [beyond.greatest], beyond.greatest - beyond.least)))
    sentence = f"{channel} is {row.values[beyond.channel]:.6g}, which is impossible where {normal} is normal"
    return HealthFault(FaultKind.IMPOSSIBLE, channel, row.time, sentence)


def other_interval(time: float, interval: float, period: float) -> HealthFault:
    """Return the fault of a device that sends at another interval than its period."""
    sentence = (
        f"samples come every {span(interval)}, but the period is {span(period)}; "
        f'set period = "{interval:.12g}s" in [sampling]'
    )
    return HealthFault(FaultKind.PERIOD, "", time, sentence)


class OpenFaults:
    """The faults of one device that are open, from which alerts come; `state` is a part of what `Health` has stored."""

    def __init__(self, device: str, sampling: Sampling, state: Mapping[str, Any]) -> None:
        self._device, self._names = device, sampling.channels
        self._lasts = sampling.silent_after - SLACK * sampling.period
        self.count = int(state.get("count", 0))  # faults begun so far
        faults = [fault for each in state.get("open", []) if isinstance(fault := from_json(each), FaultAlert)]
        self.open: dict[Key, FaultAlert] = {(fault.fault, fault.channel or ""): fault for fault in faults}
        self._gone: dict[Key, float] = {(FaultKind(kind), name): time for kind, name, time in state.get("gone", [])}

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {
            "count": self.count,
            "open": [fault.to_json() for fault in self.open.values()],
            "gone": [[*key, time] for key, time in self._gone.items()],
        }

    def is_open(self, alert: FaultAlert) -> bool:
        """Whether the fault of an alert is open."""
        opened = self.open.get((alert.fault, alert.channel or ""))
        return opened is not None and opened.id == alert.id

    def update(self, time: float, faults: Sequence[HealthFault]) -> list[Alert]:
        """Note the faults that there are now; those that are gone for long enough end."""
        alerts: list[Alert] = [alert for fault in faults for alert in self.note(time, fault)]
        present = {(fault.kind, fault.channel) for fault in faults}
        for key in [key for key in self.open if key not in present]:
            if key[1] and key[1] not in self._names:
                alerts.append(self.end(key, time, time, Reason.CHANNEL_REMOVED))
                continue
            gone = self._gone[key] = min(self._gone.get(key, time), time)
            if time - gone >= self._lasts:
                alerts.append(self.end(key, gone, time, Reason.RECOVERED))
        return alerts

    def note(self, time: float, fault: HealthFault) -> list[Alert]:
        """Begin a fault, or describe it as it is now if it has lasted for clearly longer, which is no alert."""
        key, text = (fault.kind, fault.channel), f"{self._device}: {fault.sentence}"
        self._gone.pop(key, None)
        if (opened := self.open.get(key)) is not None:
            lasted = round(time - opened.start, 3)
            if lasted > RENEWED * opened.duration:
                self.open[key] = replace(opened, time=time, duration=lasted, sentence=fault.sentence, text=text)
            return []
        self.count += 1
        self.open[key] = FaultAlert(
            id=identity(self._device, fault.start, self.count, is_fault=True),
            device=self._device,
            event=AlertEvent.START,
            kind=Kind.HEALTH,
            fault=fault.kind,
            channel=fault.channel or None,
            severity=Severity.WARNING,
            start=fault.start,
            time=time,
            duration=round(max(time - fault.start, 0.0), 3),
            sentence=fault.sentence,
            reason=Reason.FAULT,
            text=text,
        )
        return [self.open[key]]

    def acknowledge(self, alert: FaultAlert, sender: str) -> FaultAlert:
        """Return the alert with who knows of the fault; if that is open, its end will say so, too."""
        known = replace(alert, acknowledged=sender)
        if self.is_open(alert):
            self.open[alert.fault, alert.channel or ""] = known
        return known

    def end(self, key: Key, gone: float, time: float, reason: Reason) -> FaultAlert:
        """End a fault that is gone since then, for that reason."""
        begun = self.open.pop(key)
        self._gone.pop(key, None)
        lasted = max(round(gone - begun.start, 3), 0.0)
        how = "over" if reason == Reason.RECOVERED else f"over ({reason})"
        text = f"{self._device}: {how}, lasted {span(lasted)}; {begun.sentence}"
        return replace(begun, event=AlertEvent.END, time=time, duration=lasted, reason=reason, text=text)
