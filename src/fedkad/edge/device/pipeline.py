"""One device: from its samples to its alerts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.model import Model
from fedkad.detect.stream import Reading
from fedkad.detect.threshold import FixedThreshold, parse_budget
from fedkad.detect.witnesses import WitnessScoring
from fedkad.edge.alarms import Alarms
from fedkad.edge.alert import Alert, AlertEvent, FaultAlert, IncidentAlert, Kind, Reason, Severity
from fedkad.edge.budget import BudgetLoop
from fedkad.edge.commands.command import Command
from fedkad.edge.commands.handler import Obedience, Obeyed, TakenForNormal
from fedkad.edge.device.grid import GridRow, SampleGrid
from fedkad.edge.device.learning import Learner
from fedkad.edge.device.model import DeviceModel, fitted_period
from fedkad.edge.device.overrides import StandingOrders
from fedkad.edge.device.period import FirstSamples, Pace
from fedkad.edge.device.status import DeviceStatus, Staleness, budget_status
from fedkad.edge.health.faults import Health
from fedkad.edge.settings import BY_PERIOD, INFERRED, DeviceSettings, Maintenance
from fedkad.edge.settling import Settling, why_not, without_outliers
from fedkad.edge.sources.payload import Sample
from fedkad.edge.store import Store

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

PROVISIONAL = 6 * 86400.0
"""Seconds judged by a model of the agent's own in which alarms are provisional: with its first day, a week."""

WEEK = 604800.0
OFTEN = 5.0
"""Incidents per week, in budgets, from which on they are taken for something that the model has to learn."""

BRIEF = 3600.0
"""Seconds up to which an incident that went away by itself may be learned from."""

MANY_AT_ONCE = 20
"""Values that share a slot with others, and are dropped, before that is logged."""


UNKNOWN_SILENCE = 3600.0
"""Seconds that a device may be silent while its period is not known."""

OTHER = 1.5
"""Samples whose interval differs from the period by this factor come at another one."""


class Watcher:
    """Watches one device: puts its samples on the grid, scores the rows, applies the alarm policy.

    The state of the device is read from the store, and changes are put into it; the agent commits. `on_reading` takes
    every reading, as a line for JSON.
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
        self._orders = self._stored_orders()
        self._row: GridRow | None = None
        self._reading: Reading | None = None
        self._deaf = -math.inf  # when the agent last heard nobody
        self._silenced: Reason | None = None  # why no incident may begin: maintenance, muted
        self._is_timeless_logged = self._is_end_logged = self._is_pace_logged = False
        self._begin()

    def _begin(self, state: Mapping[str, Any] | None = None) -> None:
        """Watch from that state on, or from the stored one."""
        name = self.name
        self._period = self._configured.sampling.period or self._known_period(state)
        self._settings = self._orders.applied(self._with_period(self._configured))
        self.model = DeviceModel(name, self._settings, self._store)
        try:
            is_reshaped = self._restore((self._store.states.get(name) or {}) if state is None else state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("%s: its stored state cannot be read (%r); it starts again.", name, error)
            is_reshaped = self._restore({"seq": self._store.rows.last_number(name)})
        self._staleness = Staleness(self._settings.sampling, time.monotonic(), is_known=self._heard is not None)
        self.is_changed = self.learner.settle()
        if self.model.current is not None:
            self.model.restart(empty=is_reshaped)
        elif self._first is None:
            logger.info(
                "%s: no model yet; one is fitted to %d normal rows, of which %d are there.",
                *(name, self.learner.needed, self.learner.fresh),
            )

    def _known_period(self, state: Mapping[str, Any] | None) -> float:
        """A period that is not written: that of before, or of the model; `INFERRED` if the samples must show it."""
        try:
            stored = (self._store.states.get(self.name) or {}) if state is None else state
            before = stored.get("period") or (stored.get("grid") or {}).get("period")
        except (TypeError, ValueError, AttributeError):
            before = None  # that the state cannot be read is logged elsewhere
        is_counted = self._configured.sampling.clock == "count"  # then the samples show nothing
        return float(before or fitted_period(self._configured) or (1.0 if is_counted else INFERRED))

    def _with_period(self, settings: DeviceSettings) -> DeviceSettings:
        """The settings with the period that is in use; while there is none, a device may be silent for an hour."""
        sampling = settings.sampling
        if self._period:
            return replace(settings, sampling=replace(sampling, period=self._period))
        stale_after = UNKNOWN_SILENCE if sampling.stale_after == BY_PERIOD else sampling.stale_after
        return replace(settings, sampling=replace(sampling, period=1.0, stale_after=stale_after))

    # -- durable state --------------------------------------------------------------------------------------------

    def _restore(self, state: Mapping[str, Any]) -> bool:
        """Continue from a stored state; True if its rows have other channels or another period."""
        sampling, grid = self._settings.sampling, state.get("grid")
        self._first = None if self._period else FirstSamples(state.get("first"))
        self.model.restore_hidden(state.get("hidden", []))
        self._rows, self._counted = int(state.get("seq", 0)), int(state.get("counted", 0))
        self._refused = int(state.get("refused", 0))
        self.learner = Learner(self.name, self._settings, self._store, self.model, state)
        self._grid = SampleGrid(sampling, grid)
        self._alarms = Alarms(self.name, self._settings.alarm, sampling.period, sampling.channels, state.get("alarms"))
        self._budget = self._budget_loop(state.get("budget"))
        self._settling = Settling.restored(state.get("settling"))
        self._taken = TakenForNormal.restored(state.get("taken", ()))
        self._unjudged, self._heard = float(state.get("unjudged", 0.0)), state.get("heard")
        self._health, self._pace = Health(self.name, sampling, state.get("health")), Pace(state.get("pace"))
        is_reshaped = grid is not None and (
            tuple(grid["channels"]) != tuple(sampling.channels) or grid["period"] != sampling.period
        )
        if is_reshaped:
            self.learner.forget_all(self._rows)
        return is_reshaped

    def _budget_loop(self, state: Mapping[str, Any] | float | None = None) -> BudgetLoop | None:
        allowed = parse_budget(self._settings.alarm.budget) if self._settings.alarm.budget else None
        return None if allowed is None else BudgetLoop(allowed, state)

    def _stored_orders(self) -> StandingOrders:
        try:
            return StandingOrders.restored((self._store.states.get(self.name) or {}).get("orders", {}))
        except (TypeError, ValueError, AttributeError):
            return StandingOrders()  # that the state cannot be read is logged below

    def put_state(self) -> None:
        """Put the state of the device into the store, if it has changed."""
        if not self.is_changed:
            return
        self.is_changed = False
        state = {
            "seq": self._rows,
            "period": self._period,
            "first": None if self._first is None else self._first.state(),
            "counted": self._counted,
            "refused": self._refused,
            **self.learner.state(),
            "grid": self._grid.state() if self._first is None else None,
            "alarms": self._alarms.state(),
            "health": self._health.state(),
            "pace": self._pace.state(),
            "hidden": self.model.hidden(),
            "budget": None if self._budget is None else self._budget.state,
            "orders": self._orders.state(),
            "settling": self._settling.state(),
            "taken": self._taken,
            "unjudged": self._unjudged,
            "heard": self._heard,
            "shown": {"learning": self._learning(), "budget": self._budget_status()},  # by fedkad-agent status
        }
        self._store.states.put(self.name, state)
        self.model.put_threshold()

    # -- samples and rows -----------------------------------------------------------------------------------------

    def take(self, sample: Sample, arrival: float) -> list[Alert]:
        """Take a sample; returns its alerts, usually none."""
        self._staleness.note_sample(time.monotonic())
        self.is_changed, self._heard = True, arrival
        if self._first is not None:
            self._staleness.note_row(time.monotonic())  # it waits for its period, and for nothing else
            return self._find_period(self._first, sample, arrival)
        sampling, moment = self._settings.sampling, sample.time
        if sampling.clock == "count":
            self._counted += 1
            moment = self._counted * sampling.period
        elif moment is None or sampling.clock == "arrival":
            moment = arrival
            self._warn_if_timeless()
        rows = self._grid.add(moment, sample.values, None if sampling.clock == "count" else arrival)
        if sampling.clock != "count" and self._pace.note(moment, sample.values):
            self._judge_pace(is_timed=sample.time is not None)
        return [alert for row in rows for alert in self._take_row(row, arrival)]

    def _find_period(self, first: FirstSamples, sample: Sample, arrival: float) -> list[Alert]:
        """Keep a sample until the period is known; then all of them are taken."""
        is_timed = sample.time is not None and self._settings.sampling.clock == "message"
        moment = sample.time if sample.time is not None and is_timed else arrival
        period = first.add(moment, sample.values, arrival, is_timed=is_timed)
        return [] if period is None else self._use_period(first)

    def _use_period(self, first: FirstSamples) -> list[Alert]:
        """Begin with the period that the first samples show."""
        kept = {"refused": self._refused, "orders": self._orders.state(), "health": self._health.state()}
        self._begin({**kept, "period": first.period})
        how = "come every %g s, which is its period" if first.is_regular else "are irregular, and its period is %g s"
        logger.info(f"%s: its samples {how} from now on.", self.name, self._period)
        return [
            alert
            for time, values, arrival in first.samples
            for alert in self.take(Sample(self.name, time, values), arrival)
        ]

    def _judge_pace(self, *, is_timed: bool) -> None:
        """Tell a device that sends more slowly than the grid has rows, and log what comes faster and is dropped."""
        interval, period = self._pace.agreed or math.nan, self._settings.sampling.period
        self._health.note_interval(interval if interval >= OTHER * period else None)
        surplus = self._grid.duplicates + self._grid.late
        is_fast = is_timed and interval * OTHER <= period
        if self._is_pace_logged or not (is_fast or surplus >= MANY_AT_ONCE):
            return
        self._is_pace_logged = True
        if is_fast:
            logger.warning(
                "%s: samples come every %g s, but the period is %g s: only the first one in each period counts.",
                *(self.name, interval, period),
            )
        elif (self._pace.shortest or 0.0) >= period:  # no interval explains it
            logger.warning(
                "%s: %d values were dropped, since their channel had another one at the same time, of which the first "
                "counts; let only one series be published under each name.",
                *(self.name, surplus),
            )
        else:
            logger.warning(
                "%s: %d values were dropped, since their period of %g s had one already or was judged: samples come "
                "every %g s or so, and some %.3g s after the last; set a shorter period in [sampling] if all count.",
                *(self.name, surplus, period, self._pace.interval, self._pace.shortest),
            )

    def _warn_if_timeless(self) -> None:
        """Log once that samples without a time come too fast: only the first one per period counts."""
        surplus = self._grid.duplicates + self._grid.late
        if surplus >= max(MANY_AT_ONCE, self._grid.rows) and not self._is_timeless_logged:
            self._is_timeless_logged = True
            logger.warning(
                "%s: many samples without a known time come in one period, and only the first one counts; set time_key "
                'in [source], or clock = "count" in [sampling] if they are one period apart.',
                self.name,
            )

    def count_refusal(self) -> None:
        """Count a message of the device, or the values in it, that could not be read."""
        self._refused += 1
        self.is_changed = True

    def _take_row(self, row: GridRow, arrival: float) -> list[Alert]:
        self._staleness.note_row(time.monotonic())
        self._rows += 1
        alerts = self._end_without_model() + self._apply_maintenance(row, arrival)
        judged, faults = self._check_health(row)
        is_learnable = judged.complete and not self._silenced
        self._row, self._reading = judged, self._judge(judged, adapt=is_learnable)
        reading = self._reading
        # What a channel that has come back does to the score is no news; an incident that is open must end, though.
        is_recovering = self._health.is_recovering(row.time) and self._alarms.open is None
        if reading is not None and not self._silenced and not is_recovering:
            alerts += self._alarm(judged, reading)
        self.learner.keep(self._rows, row, is_learnable=is_learnable)
        for alert in alerts:
            self._conclude(alert, row.time)
        self._report_reading()
        return alerts + faults

    def _judge(self, row: GridRow, *, adapt: bool) -> Reading | None:
        """The reading of a row; with a budget, by the threshold that follows its alarms."""
        model = self.model
        if model.stream is None or model.current is None:
            self._unjudged = self._alarms.watched
            return None
        if self._budget is not None:
            model.stream.judge = FixedThreshold(self._budget.threshold(model.current.threshold, model.lowest))
        return model.stream.update(row.values, adapt=adapt, bridge=False)

    def _alarm(self, row: GridRow, reading: Reading) -> list[Alert]:
        """The alerts of a reading."""
        watched = self._alarms.watched
        is_young = watched - self._unjudged < PROVISIONAL
        is_provisional = bool(self.learner.is_own) and is_young
        alerts = self._alarms.update(row, reading, outside=reading.outside, is_provisional=is_provisional)
        if any(alert.reason in (Reason.AGAIN, Reason.ANOTHER) for alert in alerts):
            self._settling = Settling()  # what it shows now is looked at from now on
        if self._budget is not None:
            self._budget.watch(self._alarms.watched - watched)
        if (opened := self._alarms.open) is not None and self._settings.alarm.settle and row.observed:
            self._settling.note(opened.id, row.time, reading.score, self._settings.alarm.settle)
        return alerts

    def _check_health(self, row: GridRow) -> tuple[GridRow, list[Alert]]:
        """Tell faults of sensors; returns the row without what a faulty sensor says, if the model can do without it."""
        model = self.model
        if self._silenced:
            return row, self._health.silence(row.time, self._silenced)
        alerts = self._health.take(
            row,
            model.impossible(row.values),
            self._grid.silences,
            judges=model.stream is not None,
            learns=self._alarms.open is None,
            memory=model.memory,
        )
        faulty = self._health.faulty if model.bridges else []
        return model.hide(self._rows, row, faulty), alerts

    def _end_without_model(self) -> list[Alert]:
        """End an incident whose model is gone: nothing could clear it, and nothing is learned while it is open."""
        if self.model.stream is not None or (incident := self._alarms.open) is None:
            return []
        self.is_changed = True
        logger.warning(
            "%s: the model that judged %s is gone; the incident ends, and the device learns again.",
            *(self.name, incident.id),
        )
        return self._alarms.silence(self._alarms.time, Reason.NO_MODEL)

    def _apply_maintenance(self, row: GridRow, arrival: float) -> list[Alert]:
        """Begin and end planned maintenance and muteness; rows that are only counted have no time but their arrival."""
        now = row.time if self._settings.sampling.clock == "message" else arrival
        was_silenced, self._silenced = self._silenced, self._why_silent(now, arrival)
        if was_silenced or not self._silenced:
            return []
        return self._alarms.silence(row.time, self._silenced)

    def _why_silent(self, now: float, arrival: float) -> Reason | None:
        if self._maintenance and any(each.start <= now < each.end for each in self._maintenance):
            return Reason.MAINTENANCE
        return Reason.MUTED if self._orders.is_muted(now, arrival) else None

    def _conclude(self, alert: Alert, now: float) -> None:
        """Keep what an operator may ask for; at the end of an incident count it, and decide whether to learn from it.

        An incident is taken for a fault and left out. But where there are many more than a budget allows, it is the
        model that is wrong: what goes away by itself within the hour is then learned from, unless it was critical or
        somebody calls it a fault. Otherwise the device would alarm for ever at what it does every day. And a young
        model has not seen enough to call anything a fault.
        """
        self._keep_evidence(alert, now)
        if alert.event != AlertEvent.END or not isinstance(alert, IncidentAlert):
            return
        is_fault = alert.severity == Severity.CRITICAL or alert.duration > BRIEF or not self._is_alarmed_often()
        if alert.reason != Reason.CLEARED or alert.acknowledged or (is_fault and not self.learner.young):
            self.learner.leave_out(self._row_number(alert.start))
        # What lasts, or dwells where the device has not been, would not have been prevented by a higher threshold.
        is_brief = alert.kind == Kind.SCORE and alert.duration <= BRIEF
        if self._budget is not None and is_brief and not alert.acknowledged and alert.peak is not None:
            self._budget.count(alert.id, alert.peak)

    def _is_alarmed_often(self) -> bool:
        """Whether there were so many incidents in a week that they are hardly faults."""
        allowed = 1.0 if self._budget is None else max(self._budget.allowed * WEEK, 1.0)
        return self._alarms.begun_since(self._alarms.time - WEEK) > OFTEN * allowed

    def _row_number(self, moment: float) -> int:
        """The number of the row at that time, or of one shortly before it."""
        return self._rows - math.ceil(max(self._alarms.time - moment, 0.0) / self._settings.sampling.period) - 1

    def _keep_evidence(self, alert: Alert, now: float) -> None:
        """Keep the rows of an incident, and those that fill the window before it: it may turn out to be normal."""
        period, memory = self._settings.sampling.period, self.model.memory
        start = alert.start - memory * period
        self._store.rows.put_evidence(alert, self._rows - math.ceil(max(now - start, 0.0) / period) - 1, start)

    def _report_reading(self) -> None:
        """Hand out a line with the reading and the three channels that contribute most to its score."""
        if self._on_reading is None:
            return
        state, progress, reading = self._state(), self._progress(), self._reading
        moment = None if self._row is None else self._row.time
        line: dict[str, Any] = {"device": self.name, "time": moment, "state": state}
        if progress:
            line["progress"] = progress
        if reading is not None and reading.state == "ok" and state != "stale":
            score = reading.score if reading.score > 0.0 else 1.0
            channels = [{"channel": name, "share": share / score} for name, share in reading.channels[:3]]
            line |= {"score": reading.score, "threshold": reading.threshold, "abnormal": reading.is_anomaly}
            line |= {"channels": channels}
        self._on_reading(line)

    # -- time passes ----------------------------------------------------------------------------------------------

    def tick(self, now: float, *, hears: bool = True) -> list[Alert]:
        """Notice silence; `now` is monotonic. While the agent hears nobody, no device can be said to be silent."""
        if not hears:
            self._deaf = now
        alerts = self._end_without_model()
        for alert in alerts:
            self._conclude(alert, self._alarms.time)
        if self._staleness.is_flush_due(now):
            alerts += self.flush()
        if self._staleness.check(now, self._grid.rhythm, awaits=bool(self._grid.unseen)):
            self.is_changed = True
            logger.warning("%s: %s; it is stale.", self.name, self._silence())
            if self._row is not None:
                self._alarms.interrupt(self._row.time)
            self._report_reading()
        return alerts + self._tell_silence(now)

    def _tell_silence(self, now: float) -> list[Alert]:
        """Tell that the device is stale, in the time of its rows; during maintenance it may be switched off.

        A device that is muted, or stale during maintenance, has no faults, though no row may come to say so.
        """
        clock, lasted, opened = time.time(), self._staleness.lasted(now), self._health.open
        if self._row is None and self._heard is not None:  # the agent was restarted, and the silence did not begin then
            lasted = max(lasted, clock - self._heard)
        since = clock - lasted if (last := self._last_time) is None else last
        is_muted = self._orders.is_muted(clock)
        if is_muted or (self._staleness.reason and self._why_silent(clock, clock)):
            alerts = self._health.silence(since + lasted, Reason.MUTED if is_muted else Reason.MAINTENANCE)
        elif not self._staleness.reason or now - self._deaf <= self._settings.sampling.silent_after:
            return []  # it sends, or its samples may still be on their way
        else:
            alerts = self._health.note_silence(since + lasted, since, self._silence())
        self.is_changed = self.is_changed or self._health.open != opened
        return alerts

    @property
    def _last_time(self) -> float | None:
        """The time of the last row, or after a restart of the last that was scored; None if neither is known."""
        if self._row is not None:
            return self._row.time
        return self._alarms.time if math.isfinite(self._alarms.time) else None

    def _silence(self) -> str:
        """Why the device is stale, with the channels that have never come: there is no row without them."""
        unseen = self._grid.unseen if self._staleness.is_heard else []
        return self._staleness.reason + (f", since {_never_come(unseen)}" if unseen else "")

    def flush(self) -> list[Alert]:
        """Judge the rows that still wait for late values."""
        rows = self._grid.flush()
        self.is_changed = self.is_changed or bool(rows)
        return [alert for row in rows for alert in self._take_row(row, time.time())]

    def finish(self) -> list[Alert]:
        """Judge the last rows, after the input has ended."""
        alerts = [] if self._first is None or not self._first.samples else self._use_period(self._first)
        needed = self.learner.needed
        if self.model.stream is None and self.learner.fresh < needed and not self._is_end_logged:
            self._is_end_logged = True
            logger.warning(
                "%s: the input has ended with %d of %d rows for a first model.", self.name, self.learner.fresh, needed
            )
        return alerts + self.flush()

    # -- operators ------------------------------------------------------------------------------------------------

    def obey(self, command: Command, while_waiting: Callable[[], None] = lambda: None) -> Obeyed:
        """Carry out a command, or raise a `CommandError`; everything must be committed just before."""
        parts = (self.model, self.learner, self._alarms, self._health, self._orders, self._taken, self._rows)
        device = Obedience(self.name, self._settings, self._store, *parts, self._alarms.time, while_waiting)
        obeyed = device.obey(command)
        for alert in obeyed.alerts:
            if not isinstance(alert, FaultAlert):
                self._conclude(alert, self._alarms.time)
        self.is_changed = True
        if self.model.stream is None:
            self._reading = None
        if self._budget is not None:
            self._budget.forgive(obeyed.forgiven)
        has_budget = obeyed.orders.budget != self._orders.budget
        self._orders, self._taken = obeyed.orders, obeyed.taken
        if has_budget:
            self.configure(self._configured)
        return obeyed

    def configure(self, settings: DeviceSettings, maintenance: Sequence[Maintenance] | None = None) -> None:
        """Use another alarm policy, learning and maintenance; everything must be committed just before."""
        if maintenance is not None:
            self._maintenance = [each for each in maintenance if each.device in ("", self.name)]
        self._configured, self._settings = settings, self._orders.applied(self._with_period(settings))
        alarm, sampling = self._settings.alarm, self._settings.sampling
        self._alarms = Alarms(self.name, alarm, sampling.period, sampling.channels, self._alarms.state())
        self._budget = self._budget_loop(None if self._budget is None else self._budget.state)
        self.learner.configure(self._settings)
        self.model.configure(self._settings)

    # -- models ---------------------------------------------------------------------------------------------------

    def adopt_model(self) -> None:
        """Use the new model on the disk, with the same window; everything must be committed just before."""
        if self.model.reload():
            self.model.restart()
            self.learner.grow_up()
            self.learner.note_origin()
            self.is_changed = self.learner.settle() or self.is_changed
            logger.info("%s: a new model is in use.", self.name)

    @property
    def is_learning_due(self) -> bool:
        """Whether there are enough rows to learn from, and no incident is open that may be a fault."""
        opened = self._alarms.open
        return self.learner.is_due and (opened is None or (bool(self.learner.young) and not opened.acknowledged))

    @property
    def is_settling_due(self) -> bool:
        """Whether the open incident has gone on for long enough to be looked at as a new normal."""
        opened, settle = self._alarms.open, self._settings.alarm.settle
        is_this = opened is not None and opened.id == self._settling.incident
        return bool(settle) and is_this and self._settling.is_due(self._alarms.time, settle)

    def settle(self, while_waiting: Callable[[], None] = lambda: None) -> list[Alert]:
        """Take what the open incident shows for normal, if it may be; everything must be committed just before.

        Where the file of the model is gone, nothing can be added to it, and the device learns anew.
        """
        opened, model, settle = self._alarms.open, self.model.current, self._settings.alarm.settle
        assert opened is not None
        self.is_changed = True
        reason = self._why_unsettled(opened, model)
        if not reason:
            try:
                self._learn_settled(f"settled{self._alarms.incidents}", while_waiting)
            except (ValueError, OSError) as error:
                reason = f"its rows cannot be learned: {error}"
        if reason:
            self._settling.look_later(settle)
            logger.info("%s: the incident %s does not become normal yet: %s.", self.name, opened.id, reason)
            return []
        if self.model.current is None:
            self._reading, self._taken = None, TakenForNormal()
            alerts = self._end_without_model()
        else:
            logger.info("%s: what the incident %s shows is normal from now on.", self.name, opened.id)
            self._taken = TakenForNormal(opened.id)
            alerts = self._alarms.silence(self._alarms.time, Reason.SETTLED)
        for alert in alerts:
            self._conclude(alert, self._alarms.time)
        return alerts

    def _learn_settled(self, mark: str, while_waiting: Callable[[], None]) -> None:
        """Learn the rows that settle; or all that follow, if there is no file to add them to."""
        if self.model.has_file:
            self.learner.confirm(self._steady_rows(self.model.current), mark, while_waiting)
        else:
            self.learner.begin_anew(self._rows, mark, while_waiting)

    def _why_unsettled(self, incident: IncidentAlert, model: Model | None) -> str:
        """Why the open incident must not become normal yet; empty if it may."""
        rows = self._rows_since(self._settings.alarm.settle)
        if model is None or not isinstance(model.scoring, WitnessScoring):
            return "its model has no witnesses"
        if self._alarms.is_quiet:
            return "it is quiet now, and may be over"
        if not self._settling.is_steady:
            return "its scores still grow"
        if not len(rows):
            return "no row is kept"
        scaled, bounds, window = model.setup.scale(rows), model.scoring.bounds, model.settings.window
        return why_not(incident, scaled, bounds, window, resting=self._health.resting, inputs=model.setup.inputs)

    def _steady_rows(self, model: Model | None) -> Array:
        """The rows that settle, without what is no part of their level."""
        assert model is not None
        assert isinstance(model.scoring, WitnessScoring)
        scaled = model.setup.scale(self._rows_since(self._settings.alarm.settle))
        return model.setup.scaling.restore(without_outliers(scaled, model.scoring.bounds))

    def _rows_since(self, seconds: float) -> Array:
        """The rows of the last so many seconds, as far as they are kept."""
        now, channels = self._alarms.time, len(self._settings.sampling.channels)
        return np.array(self._store.rows.between(self.name, now - seconds, now, channels)).reshape(-1, channels)

    def learn(self, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Learn from the committed rows; everything must be committed just before."""
        was_young = bool(self.learner.young)
        # Where it alarms all the time, the model is wrong, and what is far from it is what it lacks.
        if self.learner.learn(while_waiting, cautiously=not self._is_alarmed_often()):
            self.is_changed = True
            if was_young:  # the threshold is another one, and followed alarms of a model that is gone
                self._budget = self._budget_loop()

    # -- status ---------------------------------------------------------------------------------------------------

    def status(self) -> DeviceStatus:
        """What is known of the device now; may be called from another thread."""
        reading, grid, alarms, state = self._reading, self._grid, self._alarms, self._state()
        is_scored = reading is not None and state in ("ok", "maintenance", "muted") and reading.state == "ok"
        return DeviceStatus(
            state=state,
            progress=self._progress(),
            time=None if self._row is None else self._row.time,
            score=reading.score if reading is not None and is_scored else None,
            threshold=None if reading is None else reading.threshold,
            abnormal=bool(reading is not None and is_scored and reading.is_anomaly),
            rate=None if math.isnan(alarms.rate) else alarms.rate,
            why=self._silence() or self._without() or grid.broken,
            budget=self._budget_status(),
            incident=alarms.open,
            faults=self._health.open,
            muted=self._orders.muted_until if self._orders.is_muted(time.time()) else None,
            heard=self._heard,
            counters={
                "rows": grid.rows,
                "carried": grid.carried,
                "late": grid.late,
                "duplicates": grid.duplicates,
                "off_clock": grid.off_clock,
                "refused": self._refused,
                "incidents": alarms.incidents,
                "faults": self._health.count,
                "learnt": self.learner.learned,
            },
        )

    def _without(self) -> str:
        """What is missing, in words: the period, or channels while the others are judged."""
        if self._first is not None:
            return "its period is not known yet"
        if self._heard is not None and (unseen := self._grid.unseen):
            return _never_come(unseen)
        reading = self._reading
        absent = reading.absent if reading is not None and reading.state == "ok" else []
        return f"judged without {', '.join(absent)}" if absent else ""

    def _state(self) -> str:
        if self._staleness.reason:
            return "stale"
        if self._silenced:
            return self._silenced.value
        if self.model.stream is None:
            return "learning"
        return "waiting" if self._reading is None else self._reading.state

    def _budget_status(self) -> dict[str, Any] | None:
        factor = 1.0 if self._budget is None else self._budget.factor
        return budget_status(self._settings.alarm.budget, self._alarms, factor)

    def _progress(self) -> dict[str, float] | None:
        stream, reading = self.model.stream, self._reading
        if stream is None or reading is None or reading.state == "ok":
            return self._learning()
        return {"have": stream.length - reading.missing, "need": stream.length}

    def _learning(self) -> dict[str, float] | None:
        """How far the first model has come; None if there is one. Without a period at least a cycle has to pass."""
        if self.model.stream is not None:
            return None
        if self._first is not None:
            return {"have": 0, "need": self._configured.first_rows, "seconds": self._configured.learning.cycle}
        need = self.learner.needed
        have = min(self.learner.fresh, need)
        return {"have": have, "need": need, "seconds": (need - have) * self._settings.sampling.period}


def _never_come(channels: Sequence[str]) -> str:
    """That these channels have never come, in words."""
    return f"{', '.join(channels)} {'have' if len(channels) > 1 else 'has'} never come"
