"""The parts of a device, for whatever acts on several of them: the pipeline, the status and commands."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedkad.detect.threshold import parse_budget
from fedkad.detect.tracking import ThresholdTracker
from fedkad.edge.alarms import Alarms
from fedkad.edge.alarms.acceptance import Settling
from fedkad.edge.alert import Alert, AlertEvent, IncidentAlert, Kind
from fedkad.edge.device.grid import SampleGrid
from fedkad.edge.device.learning import BRIEF, Learner
from fedkad.edge.device.model import DeviceModel
from fedkad.edge.device.overrides import Overrides, UndoRecord
from fedkad.edge.device.period import Period
from fedkad.edge.device.state import SavedState
from fedkad.edge.health.faults import Health
from fedkad.edge.health.silence import Staleness
from fedkad.edge.settings import Alarm, DeviceSettings
from fedkad.edge.store import Store


@dataclass(frozen=True)
class DeviceParts:
    """What one device is made of."""

    name: str
    configured: DeviceSettings
    settings: DeviceSettings  # those in force: with the period in use, and as an operator has ordered
    store: Store
    model: DeviceModel
    period: Period
    grid: SampleGrid
    health: Health
    alarms: Alarms
    budget: ThresholdTracker | None
    settling: Settling
    learner: Learner
    staleness: Staleness
    overrides: Overrides  # what an operator has ordered, until further notice
    undo: UndoRecord  # what was taken for normal last

    @classmethod
    def restored(
        cls, store: Store, model: DeviceModel, configured: DeviceSettings, period: float, state: SavedState
    ) -> DeviceParts:
        """Return the parts as that state has them; raises one of `UNREADABLE` if it is damaged."""
        name, settings = model.device, model.settings
        sampling, alarm = settings.sampling, settings.alarm
        model.restore_hidden(state.hidden)
        return cls(
            name=name,
            configured=configured,
            settings=settings,
            store=store,
            model=model,
            period=Period(period, state.first, state.pace),
            grid=SampleGrid(sampling, state.grid),
            health=Health(name, sampling, state.health),
            alarms=Alarms(name, alarm, sampling.period, sampling.channels, state.alarms),
            budget=budget_loop(alarm, state.budget),
            settling=Settling.restored(state.settling),
            learner=Learner(store, model, state),
            staleness=Staleness(sampling, time.monotonic(), state.heard),
            overrides=state.orders,
            undo=state.taken,
        )

    def state(self) -> dict[str, Any]:
        """Return what the parts continue from, by the names of `SavedState`."""
        first = self.period.first
        return {
            "period": self.period.seconds,
            "first": None if first is None else first.state(),
            **self.learner.state(),
            "grid": self.grid.state() if first is None else None,
            "alarms": self.alarms.state(),
            "health": self.health.state(),
            "pace": self.period.pace.state(),
            "hidden": self.model.hidden(),
            "budget": None if self.budget is None else self.budget.state,
            "settling": self.settling.state(),
            "heard": self.staleness.heard,
            "orders": self.overrides,
            "taken": self.undo,
        }

    def conclude(self, alerts: Iterable[Alert], number: int, now: float) -> None:
        """Keep the rows of incidents, and decide at their end what to learn from them and whether the budget counts it.

        `number` is that of the last row of the device, and `now` its time.
        """
        for alert in alerts:
            if not isinstance(alert, IncidentAlert):
                continue
            self.learner.conclude(alert, number, now, self.alarms, self.budget)
            # What lasts, or dwells where the device has not been, would not have been prevented by a higher threshold.
            is_brief = alert.event == AlertEvent.END and alert.kind == Kind.SCORE and alert.duration <= BRIEF
            if self.budget is not None and is_brief and not alert.acknowledged and alert.peak is not None:
                self.budget.count(alert.id, alert.peak)

    @property
    def is_level_due(self) -> bool:
        """Whether the open incident has gone on for long enough to be looked at as a new normal."""
        opened, settle = self.alarms.open, self.settings.alarm.settle
        is_this = opened is not None and opened.id == self.settling.incident
        return bool(settle) and is_this and self.settling.is_due(self.alarms.time, settle)

    def with_settings(self, configured: DeviceSettings, settings: DeviceSettings) -> DeviceParts:
        """Return the parts with another alarm policy and learning; those that keep their settings take them."""
        alarm, sampling = settings.alarm, settings.sampling
        self.learner.configure(settings)
        self.model.configure(settings)
        return replace(
            self,
            configured=configured,
            settings=settings,
            alarms=Alarms(self.name, alarm, sampling.period, sampling.channels, self.alarms.state()),
            budget=budget_loop(alarm, None if self.budget is None else self.budget.state),
        )


def budget_loop(alarm: Alarm, state: Mapping[str, Any] | float | None = None) -> ThresholdTracker | None:
    """Return the threshold that follows its alarms; None without a budget."""
    allowed = parse_budget(alarm.budget) if alarm.budget else None
    return None if allowed is None else ThresholdTracker(allowed, state)
