"""Which rows of a device are learned from, and when.

One day does not show how far the weather, the seasons of a plant or the habits of people go. A model of the agent's own
is therefore *young* until it has seen a week: it is fitted anew, to all rows so far, each time that they have doubled,
and takes what it alarmed at for normal unless somebody has acknowledged it as a fault. After that it learns on: its
scaling stays, and rows of incidents are left out, and so are those far outside of where the device has been, which may
be a fault that nobody noticed. In a simulated house, devices whose first model had seen one day of
weather and never another one had an incident open for weeks (`python -m measurements.house`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.model import Model
from fedkad.detect.tracking import ThresholdTracker
from fedkad.edge.alarms import Alarms
from fedkad.edge.alert import AlertEvent, IncidentAlert, Reason, Severity
from fedkad.edge.device.grid import GridRow
from fedkad.edge.device.model import DeviceModel
from fedkad.edge.device.state import SavedState
from fedkad.edge.process import run_forked
from fedkad.edge.settings import ENOUGH_ROWS, DeviceSettings
from fedkad.edge.store import Store

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

FORGET_EVERY = 500
"""Rows between two deletions of old rows."""

KEPT_ROWS = 2048
"""Rows that are kept at least, for when somebody says that they were normal."""

WEEK = 604800.0
MATURE, MATURE_ROWS = WEEK, 20_000
"""Seconds of rows that a model is fitted to before it is mature, and the most rows, which must fit into memory."""

RETRY_AFTER = 600.0
"""Seconds before another attempt after learning failed."""

OFTEN = 5.0
"""Incidents per week, in budgets, from which on they are taken for something that the model has to learn."""

BRIEF = 3600.0
"""Seconds up to which an incident that went away by itself may be learned from, and counts against the budget."""


def is_alarmed_often(alarms: Alarms, budget: ThresholdTracker | None) -> bool:
    """Return whether a week had so many incidents that they are hardly faults."""
    allowed = 1.0 if budget is None else max(budget.allowed * WEEK, 1.0)
    return alarms.begun_since(alarms.time - WEEK) > OFTEN * allowed


class Learner:
    """Decides which rows of a device are learned from, keeps them, and fits its model to them once there are enough.

    A row is learned from if all of this holds:

    - it is complete: each channel was measured, or is silent by its rhythm (`GridRow.complete`);
    - no sensor in it was hidden as faulty, and the device was not silenced (`keep`);
    - no incident that may have been a fault took it along (`conclude`), nor one that an operator calls a fault
      (`leave_out_between`);
    - no value is more than a tenth of a range outside, unless the model is young or alarms often (`ModelFolder.learn`).

    Impossible values are gaps, unless a channel has many of them (`detect.learning`).

    The model file names the last row that it has learned from; if the agent is killed before it commits that, it does
    so after its restart.

    Attributes
    ----------
    fresh, learned : int
        Rows to learn from so far, and how often the model was fitted.
    is_own : bool, optional
        Whether the model was fitted here from the first; None while there is none.
    young : int, optional
        Rows that the model was fitted to as long as it is young; 0 for any other model, None while there is none.
    """

    def __init__(self, store: Store, model: DeviceModel, state: SavedState) -> None:
        self._device, self._settings, self._store, self._model = model.device, model.settings, store, model
        self.fresh, self.learned = int(state.fresh), int(state.learnt)
        self._spent, self._retry_at = int(state.spent), 0.0
        self._through = self._spent if state.through is None else int(state.through)
        self.is_own, self.young = state.own, state.young
        self._note_origin()

    def state(self) -> dict[str, Any]:
        """The counters to be committed, by the names of `SavedState`."""
        return {
            "fresh": self.fresh,
            "spent": self._spent,
            "through": self._through,
            "young": self.young,
            "learnt": self.learned,
            "own": self.is_own,
        }

    def configure(self, settings: DeviceSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    # -- which rows -----------------------------------------------------------------------------------------------

    def keep(self, number: int, row: GridRow, *, is_sound: bool) -> None:
        """Keep a row, and whether it may be learned from: only if it is complete and `is_sound`.

        A sensor that is faulty, and all of a device that is silenced, is not sound.
        """
        is_learnable = row.complete and is_sound
        self.fresh += is_learnable
        self._store.rows.add(self._device, number, row.time, row.values, trains=is_learnable)
        if number % FORGET_EVERY == 0:
            kept = 2 * self._mature if self.young else 4 * self.needed
            self._store.rows.forget(self._device, number - max(kept, self._model.memory, KEPT_ROWS))

    def conclude(
        self, alert: IncidentAlert, number: int, now: float, alarms: Alarms, budget: ThresholdTracker | None
    ) -> None:
        """Keep the rows of an incident as evidence, and leave them out at its end if it may have been a fault.

        Where there are many more than a budget allows, it is the model that is wrong: what goes away by itself within
        the hour is then learned from, unless it was critical or somebody calls it a fault. Otherwise the device would
        alarm every day at what it does every day. And a young model has not seen enough to call anything a fault.

        `number` is that of the last row, and `now` its time.
        """
        period = self._settings.sampling.period
        begun = alert.start - self._model.memory * period  # with what fills the window before it
        self._store.rows.put_evidence(alert, number - math.ceil(max(now - begun, 0.0) / period) - 1, begun)
        if alert.event != AlertEvent.END:
            return
        is_brief = alert.severity != Severity.CRITICAL and alert.duration <= BRIEF
        is_usual = self.young or (is_brief and is_alarmed_often(alarms, budget))
        if alert.reason != Reason.CLEARED or alert.acknowledged or not is_usual:
            first = number - math.ceil(max(alarms.time - alert.start, 0.0) / period) - 1
            self._store.rows.revoke(self._device, first - self._model.memory)

    def leave_out_between(self, start: float, end: float) -> None:
        """Do not learn again from the rows between two times, nor from those that fill the window before them."""
        lead = self._model.memory * self._settings.sampling.period
        self._store.rows.revoke_between(self._device, start - lead, end)

    def forget_all(self, number: int) -> None:
        """Drop the rows up to that number: they have other channels or another period, or are not to be learned."""
        self.fresh = 0
        self._store.rows.forget(self._device, number + 1)
        self._store.rows.forget_evidence(self._device)

    # -- when -----------------------------------------------------------------------------------------------------

    @property
    def needed(self) -> int:
        """Rows to collect before learning from them; 0 if nothing is ever learned."""
        every = self._settings.learning.every
        if self._model.stream is None:
            return self._settings.first_rows
        return min(self.young, self._mature - self.young, every) if self.young else every

    @property
    def _mature(self) -> int:
        """Rows that a model of the agent's own is fitted to in the end: `first` if it is set, otherwise a week."""
        first, a_week = self._settings.first_rows, math.ceil(MATURE / self._settings.sampling.period)
        return first if self._settings.learning.first else max(min(a_week, MATURE_ROWS), first)

    def is_due(self, incident: IncidentAlert | None) -> bool:
        """Whether there are enough rows, and no `incident` is open that may be a fault; not just after a failure."""
        if not 0 < self.needed <= self.fresh or time.monotonic() < self._retry_at:
            return False
        return incident is None or (bool(self.young) and not incident.acknowledged)

    def learn(self, while_waiting: Callable[[], None] = lambda: None, *, cautiously: bool = True) -> bool:
        """Learn from the committed rows; True if the model has changed. Everything must be committed just before.

        A mature model that learns `cautiously` leaves out what is far from where the device has been. This takes a
        while, in a forked process because of the memory; `while_waiting` is called every half second.
        """
        last, rows = self._store.rows.to_learn(self._device, len(self._settings.sampling.channels), self._spent)
        complete = int(np.isfinite(rows.sum(axis=1)).sum())
        self.fresh = complete - (self.young or 0)  # some were revoked after they were counted
        if self.fresh < self.needed:
            return False
        model, before, gathered = self._model, self._model.current, self.fresh
        through = f"{self._store.identity}/{self._device}:{last}"
        fit = partial(model.folder.learn, is_young=bool(self.young), cautiously=cautiously)
        try:
            run_forked(lambda: (fit if before is not None else model.folder.fit)(rows, through), while_waiting)
        except (ValueError, OSError) as error:
            self._retry_at = time.monotonic() + RETRY_AFTER
            logger.warning("%s: nothing was learned (%s); trying again later.", self._device, error)
            return False
        if not model.reload():  # another model was put in its place in the meantime
            self._retry_at = time.monotonic() + RETRY_AFTER
            return False
        model.restart()
        self._note_origin()
        self.mark_learned()
        if not self.young:
            self._store.rows.forget(self._device, last - max(model.memory, KEPT_ROWS))
        _log_learning(self._device, complete if before is None else gathered, model.current, before)
        return True

    # -- what an operator tells -----------------------------------------------------------------------------------
    # Once for each mark; everything must be committed just before. A `ValueError` says why it is impossible.

    def confirm(self, rows: Array, mark: str, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Learn rows that somebody called normal; `go_back` takes it back."""
        model = self._model
        if model.current is None or model.current.confirmation != mark:  # or the agent was killed before it committed
            run_forked(lambda: model.folder.confirm(rows, mark), while_waiting)
            self._use_again()

    def go_back(self, mark: str, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Use the model of before the last `confirm` again."""
        run_forked(lambda: self._model.folder.go_back(mark), while_waiting)
        self._use_again()

    def start_over(self, number: int, mark: str, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Set the model aside and drop the rows up to that number: the first model is fitted to those that follow."""
        run_forked(lambda: self._model.folder.put_aside(mark), while_waiting)
        self._model.forget()
        self._note_origin()
        self.forget_all(number)
        self._retry_at = 0.0

    def _use_again(self) -> None:
        if not self._model.reload():
            raise ValueError("the model on the disk cannot be used; see the log of the agent.")
        self._model.restart()

    # -- what the model has learned from --------------------------------------------------------------------------

    def adopt_model(self) -> bool:
        """Use the model that was put in place meanwhile, with the same window, and learn on; True if it is used."""
        if not self._model.reload():
            return False
        self._model.restart()
        if self.young:
            self._spend(self._through)
        self._note_origin()
        self.mark_learned()
        return True

    def _note_origin(self) -> None:
        """Note where a model comes from that is there for the first time: what it has learned says so.

        The agent may have been killed just after it fitted the model, so that nothing else says it.
        """
        if self._model.current is None:
            self.is_own = self.young = None
        elif self.is_own is None:
            self.is_own = self._learnt_here is not None
            self.young = self.young if self.is_own else 0

    @property
    def _learnt_here(self) -> int | None:
        """The last of this device's rows that the model has learned from, None if it has not learned from any."""
        learnt_through = self._model.current.learnt_through if self._model.current is not None else ""
        feed, _, last = learnt_through.rpartition(":")
        return int(last) if feed == f"{self._store.identity}/{self._device}" and last.isdigit() else None

    def mark_learned(self) -> bool:
        """Mark the rows that the model has learned from; True if there are any that were not marked."""
        last = self._learnt_here
        if last is None or last <= self._through:
            return False
        fitted = 0 if self.young == 0 else self._store.rows.count_to_learn(self._device, self._spent, last)
        self.fresh, self._through = 0, last
        self.learned += 1
        if 0 < fitted < self._mature and self._settings.learning.every:
            self.young = fitted
        else:
            self._spend(last)
        return True

    def _spend(self, last: int) -> None:
        """Never learn from the rows up to that one again."""
        self._spent, self.young = last, 0
        self._store.rows.spend(self._device, last)


def _log_learning(device: str, rows: int, model: Model | None, before: Model | None) -> None:
    assert model is not None
    if before is None:
        doubt = "; from so few it is a guess, expect false alarms" if rows < ENOUGH_ROWS else ""
        logger.info(
            "%s: a first model was fitted to %d rows, with threshold %.3g%s.", device, rows, model.threshold, doubt
        )
    else:
        logger.info(
            "%s: %d more rows were learned; its threshold is %.3g, and was %.3g before.",
            *(device, rows, model.threshold, before.threshold),
        )
