"""One device, from its samples to its alerts.

A sample closes rows of the grid, usually one. A row goes through five steps, in `_take_row`:

    health    what its sensors say that cannot be; the model does without that if it can
    keep      stored, and marked if it may be learned from
    score     judged by the model
    policy    begins, goes on with or ends an incident
    conclude  the rows of an incident are evidence, and may be left out of learning

Between the samples the agent calls `tick`, and what else is due: learning, another model, a command, other settings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedkad.detect.stream import Reading
from fedkad.edge.alarms.acceptance import Settling, level_of, why_not_yet
from fedkad.edge.alert import Alert, IncidentAlert, Reason
from fedkad.edge.commands.command import Command
from fedkad.edge.commands.handler import CommandResult, carry_out, plan_command
from fedkad.edge.device.grid import GridRow
from fedkad.edge.device.learning import is_alarmed_often
from fedkad.edge.device.model import DeviceModel
from fedkad.edge.device.overrides import UndoRecord, why_silenced
from fedkad.edge.device.parts import DeviceParts, budget_loop
from fedkad.edge.device.period import MANY_AT_ONCE, NO_TIMES, FirstSamples, find_period, with_period
from fedkad.edge.device.state import UNREADABLE, SavedState, load_state, without_state
from fedkad.edge.device.status import DeviceStatus, DeviceView, budget_status, learning_progress, why_stale
from fedkad.edge.settings import DeviceSettings, Maintenance
from fedkad.edge.sources.payload import Sample
from fedkad.edge.store import Store
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

PROVISIONAL = 6 * 86400.0
"""Seconds judged by a model of the agent's own in which alarms are provisional: with its first day, a week."""


class Device:
    """Watches one device.

    Its state is read from the store, and changes are put into it; the agent commits. `on_reading` takes every reading,
    as a line for JSON.
    """

    def __init__(
        self,
        name: str,
        settings: DeviceSettings,
        store: Store,
        maintenance: Sequence[Maintenance] = (),
        on_reading: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.name, self._configured, self._store, self._on_reading = name, settings, store, on_reading
        self._maintenance = [each for each in maintenance if each.device in ("", name)]
        self._row: GridRow | None = None
        self._reading: Reading | None = None
        self._silenced: Reason | None = None  # why no incident may begin: maintenance, muted
        self._repeats = RepeatFilter()
        self._begin(load_state(store, name))

    def _begin(self, state: SavedState) -> None:
        """Watch from that state on."""
        period = find_period(self._configured, state.period)
        settings = state.orders.applied(with_period(self._configured, period))
        model = DeviceModel(self.name, settings, self._store)
        try:
            parts = DeviceParts.restored(self._store, model, self._configured, period, state)
        except UNREADABLE as error:
            state = replace(without_state(self._store, self.name, error), orders=state.orders)
            parts = DeviceParts.restored(self._store, model, self._configured, period, state)
        self.parts = parts
        self._number, self._counted, self._refused = int(state.seq), int(state.counted), int(state.refused)
        self._unjudged = float(state.unjudged)
        is_reshaped = state.grid is not None and not parts.grid.fits(state.grid)
        if is_reshaped:
            parts.learner.forget_all(self._number)
        self.is_changed = parts.learner.mark_learned()
        if model.current is not None:
            model.restart(empty=is_reshaped)
        elif parts.period.first is None:
            logger.info(
                "%s: no model yet; one is fitted to %d normal rows, of which %d are there.",
                *(self.name, parts.learner.needed, parts.learner.fresh),
            )

    def save(self) -> None:
        """Put the state of the device into the store, if it has changed."""
        if not self.is_changed:
            return
        self.is_changed, parts = False, self.parts
        state = SavedState(
            seq=self._number,
            counted=self._counted,
            refused=self._refused,
            unjudged=self._unjudged,
            shown={"learning": learning_progress(parts), "budget": budget_status(parts)},
            **parts.state(),
        )
        self._store.states.put(self.name, state.to_json())

    # -- samples and rows -----------------------------------------------------------------------------------------

    def take(self, sample: Sample, arrival: float) -> list[Alert]:
        """Take a sample; returns its alerts, usually none."""
        parts, self.is_changed = self.parts, True
        if (first := parts.period.first) is not None:  # it waits until the period is known
            parts.staleness.note_sample(time.monotonic(), arrival, is_judged=True)
            own = sample.time if self._configured.sampling.clock == "message" else None
            return self._use_period(first) if first.add(own, sample.values, arrival) else []
        sampling, moment = parts.settings.sampling, sample.time
        is_counted = sampling.clock == "count"
        if is_counted:
            self._counted += 1
            moment = self._counted * sampling.period
        elif moment is None or sampling.clock == "arrival":
            moment = arrival
            if parts.grid.surplus >= max(MANY_AT_ONCE, parts.grid.rows) and self._repeats.allows("no time"):
                logger.warning(NO_TIMES, self.name)
        rows = parts.grid.add(moment, sample.values, None if is_counted else arrival)
        parts.staleness.note_sample(time.monotonic(), arrival, is_judged=bool(rows))
        if not is_counted and parts.period.pace.note(moment, sample.values):
            parts.health.note_interval(parts.period.exceeding_interval)
            note = parts.period.surplus_note(parts.grid.surplus, is_timed=sample.time is not None)
            if note and self._repeats.allows("surplus"):
                logger.warning("%s: %s", self.name, note)
        return [alert for row in rows for alert in self._take_row(row, arrival)]

    def _use_period(self, first: FirstSamples) -> list[Alert]:
        """Begin with the period that the first samples show."""
        health = self.parts.health.state()
        self._begin(SavedState(period=first.period, refused=self._refused, orders=self.parts.overrides, health=health))
        how = "come every %g s, which is its period" if first.is_regular else "are irregular, and its period is %g s"
        logger.info(f"%s: its samples {how} from now on.", self.name, first.period)
        return [
            alert
            for moment, values, arrival in first.samples
            for alert in self.take(Sample(self.name, moment, values), arrival)
        ]

    def _take_row(self, row: GridRow, arrival: float) -> list[Alert]:
        parts = self.parts
        model, health, alarms = parts.model, parts.health, parts.alarms
        self._number += 1
        alerts = self._end_without_model()
        # Maintenance is planned by the clock of the device; rows that are only counted have no time but their arrival.
        now = row.time if parts.settings.sampling.clock == "message" else arrival
        was_silenced, self._silenced = self._silenced, why_silenced(self._maintenance, parts.overrides, now, arrival)
        hidden: list[int] = []
        if self._silenced:
            alerts += [] if was_silenced else alarms.silence(row.time, self._silenced)
            faults = health.silence(row.time, self._silenced)
        else:
            judges, learns, impossible = model.stream is not None, alarms.open is None, model.impossible(row.values)
            silences, memory = parts.grid.silences, model.memory
            faults = health.take(row, impossible, silences, judges=judges, learns=learns, memory=memory)
            hidden = health.faulty if model.bridges else []
        parts.learner.keep(self._number, row, is_sound=not (hidden or self._silenced))
        self._row = row = model.hide(self._number, row, hidden) if hidden else row
        reading = None
        if model.stream is None or model.current is None:
            self._unjudged = alarms.watched
        else:
            threshold, budget = model.current.threshold, parts.budget
            threshold = budget.threshold(threshold, model.current.lowest_threshold) if budget is not None else threshold
            reading = model.stream.update(row.values, threshold=threshold, bridge=False)
        self._reading = reading
        # What a channel that has come back does to the score is no news; an incident that is open must end, though.
        is_recovering = health.is_recovering(row.time) and alarms.open is None
        if reading is not None and not self._silenced and not is_recovering:
            alerts += self._alarm(row, reading)
        parts.conclude(alerts, self._number, row.time)
        if self._on_reading is not None:
            self._on_reading(self._view().line())
        return alerts + faults

    def _alarm(self, row: GridRow, reading: Reading) -> list[Alert]:
        """The alerts of a reading."""
        parts = self.parts
        watched, settle = parts.alarms.watched, parts.settings.alarm.settle
        is_provisional = bool(parts.learner.is_own) and watched - self._unjudged < PROVISIONAL
        alerts = parts.alarms.update(row, reading, outside=reading.outside, is_provisional=is_provisional)
        if any(alert.reason in (Reason.AGAIN, Reason.ANOTHER) for alert in alerts):
            self.parts = parts = replace(parts, settling=Settling())  # what it shows now is looked at from now on
        if parts.budget is not None:
            parts.budget.watch(parts.alarms.watched - watched)
        if (opened := parts.alarms.open) is not None and settle and row.observed:
            parts.settling.note(opened.id, row.time, reading.score, settle)
        return alerts

    def _end_without_model(self) -> list[Alert]:
        """End an incident whose model is gone: nothing could clear it, and nothing is learned while it is open."""
        alarms = self.parts.alarms
        if self.parts.model.stream is not None or alarms.open is None:
            return []
        self.is_changed = True
        logger.warning(
            "%s: the model that judged %s is gone; the incident ends, and the device learns again.",
            *(self.name, alarms.open.id),
        )
        return alarms.silence(alarms.time, Reason.NO_MODEL)

    def count_refusal(self) -> None:
        """Count a message of the device, or the values in it, that could not be read."""
        self._refused += 1
        self.is_changed = True

    # -- time passes ----------------------------------------------------------------------------------------------

    def tick(self, now: float, *, hears: bool = True) -> list[Alert]:
        """Notice silence; `now` is monotonic. While the agent hears nobody, no device can be said to be silent."""
        parts, staleness, health = self.parts, self.parts.staleness, self.parts.health
        if not hears:
            staleness.note_deafness(now)
        alerts = self._end_without_model()
        parts.conclude(alerts, self._number, parts.alarms.time)
        if staleness.is_flush_due(now):
            alerts += self._flush()
        last = None if self._row is None else self._row.time
        if staleness.check(now, parts.grid.rhythm, awaits=bool(parts.grid.unseen)):
            self.is_changed = True
            logger.warning("%s: %s; it is stale.", self.name, why_stale(parts))
            if last is not None:
                parts.alarms.interrupt(last)
            if self._on_reading is not None:
                self._on_reading(self._view().line())
        # A device that is muted, or stale during maintenance, has no faults, though no row may come to say so.
        clock, opened = time.time(), health.open
        since, until = staleness.span(now, clock, last, parts.alarms.time)
        if parts.overrides.is_muted(clock):
            alerts += health.silence(until, Reason.MUTED)
        elif staleness.reason and why_silenced(self._maintenance, parts.overrides, clock, clock):
            alerts += health.silence(until, Reason.MAINTENANCE)
        elif staleness.is_certain(now):
            alerts += health.note_silence(until, since, why_stale(parts))
        self.is_changed = self.is_changed or health.open != opened
        return alerts

    def _flush(self) -> list[Alert]:
        """Judge the rows that still wait for late values."""
        if rows := self.parts.grid.flush():
            self.is_changed = True
            self.parts.staleness.note_row(time.monotonic())
        return [alert for row in rows for alert in self._take_row(row, time.time())]

    def finish(self) -> list[Alert]:
        """Judge the last rows, after the input has ended."""
        first = self.parts.period.first
        alerts = self._use_period(first) if first is not None and first.samples else []
        learner = self.parts.learner
        is_short = self.parts.model.stream is None and learner.fresh < learner.needed
        if is_short and self._repeats.allows("end"):
            logger.warning(
                "%s: the input has ended with %d of %d rows for a first model.",
                *(self.name, learner.fresh, learner.needed),
            )
        return alerts + self._flush()

    # -- operators ------------------------------------------------------------------------------------------------

    def obey(self, command: Command, while_waiting: Callable[[], None] = lambda: None) -> CommandResult:
        """Carry out a command, or raise a `CommandError` with the reply; everything must be committed just before."""
        parts, before = self.parts, self.parts.overrides
        plan = plan_command(parts, command)
        alerts = carry_out(plan, parts, command, self._number, while_waiting)
        parts.conclude(alerts, self._number, parts.alarms.time)
        self.is_changed = True
        if parts.model.stream is None:
            self._reading = None
        self.parts = replace(parts, overrides=plan.overrides or before, undo=plan.undo or parts.undo)
        if self.parts.overrides.budget != before.budget:
            self.configure(self._configured)
        return CommandResult(plan.reply, alerts)

    def configure(self, settings: DeviceSettings, maintenance: Sequence[Maintenance] | None = None) -> None:
        """Use another alarm policy, learning and maintenance; everything must be committed just before."""
        if maintenance is not None:
            self._maintenance = [each for each in maintenance if each.device in ("", self.name)]
        self._configured = settings
        in_force = self.parts.overrides.applied(with_period(settings, self.parts.period.seconds))
        self.parts = self.parts.with_settings(settings, in_force)

    # -- models ---------------------------------------------------------------------------------------------------

    def adopt_model(self) -> None:
        """Use the new model on the disk, with the same window; everything must be committed just before."""
        if self.parts.learner.adopt_model():
            self.is_changed = True
            logger.info("%s: a new model is in use.", self.name)

    @property
    def is_learning_due(self) -> bool:
        """Whether there are enough rows to learn from, and no incident is open that may be a fault."""
        return self.parts.learner.is_due(self.parts.alarms.open)

    def learn(self, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Learn from the committed rows; everything must be committed just before."""
        parts = self.parts
        was_young = bool(parts.learner.young)
        # Where it alarms all the time, the model is wrong, and what is far from it is what it lacks.
        if parts.learner.learn(while_waiting, cautiously=not is_alarmed_often(parts.alarms, parts.budget)):
            self.is_changed = True
            if was_young:  # the threshold is another one, and followed alarms of a model that is gone
                self.parts = replace(parts, budget=budget_loop(parts.settings.alarm))

    def accept_level(self, while_waiting: Callable[[], None] = lambda: None) -> list[Alert]:
        """Take what the open incident shows for normal, if it may be; everything must be committed just before.

        Where the file of the model is gone, nothing can be added to it, and the device learns anew.
        """
        parts, model, incident = self.parts, self.parts.model, self.parts.alarms.open
        assert incident is not None
        self.is_changed = True
        if reason := _learn_level(parts, incident, self._number, while_waiting):
            parts.settling.look_later(parts.settings.alarm.settle)
            logger.info("%s: the incident %s does not become normal yet: %s.", self.name, incident.id, reason)
            return []
        if model.current is None:
            self._reading, undo = None, UndoRecord()
            alerts = self._end_without_model()
        else:
            logger.info("%s: what the incident %s shows is normal from now on.", self.name, incident.id)
            undo = UndoRecord(incident.id)
            alerts = parts.alarms.silence(parts.alarms.time, Reason.SETTLED)
        self.parts = parts = replace(parts, undo=undo)
        parts.conclude(alerts, self._number, parts.alarms.time)
        return alerts

    # -- status ---------------------------------------------------------------------------------------------------

    def status(self) -> DeviceStatus:
        """What is known of the device now; may be called from another thread."""
        return self._view().status()

    def _view(self) -> DeviceView:
        return DeviceView(self.parts, self._row, self._reading, self._silenced, self._refused)


def _learn_level(parts: DeviceParts, incident: IncidentAlert, number: int, while_waiting: Callable[[], None]) -> str:
    """Learn the rows of an incident that has gone on for `settle`; returns why that is impossible yet, if it is.

    If the model has no file to add them to, all rows after that `number` are learned anew.
    """
    model, settle, now = parts.model, parts.settings.alarm.settle, parts.alarms.time
    channels = len(parts.settings.sampling.channels)
    rows = np.array(parts.store.rows.between(parts.name, now - settle, now, channels)).reshape(-1, channels)
    is_quiet, resting = parts.alarms.is_quiet, parts.health.resting
    if reason := why_not_yet(incident, parts.settling, model.current, rows, is_quiet=is_quiet, resting=resting):
        return reason
    mark = f"settled{parts.alarms.incidents}"
    try:
        if model.has_file and model.current is not None:
            parts.learner.confirm(level_of(model.current, rows), mark, while_waiting)
        else:
            parts.learner.start_over(number, mark, while_waiting)
    except (ValueError, OSError) as error:
        return f"its rows cannot be learned: {error}"
    return ""
