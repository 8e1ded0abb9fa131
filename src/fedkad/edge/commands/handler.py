"""How a device carries out what an operator tells.

Everything must be committed just before. The effects and the reply are then committed together; what is written to a
model before that carries the mark of the command, so that a command that a kill has cut off acts once all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedkad.edge.alarms import Alarms
from fedkad.edge.alert import Alert, AlertEvent, FaultAlert, FaultKind, IncidentAlert, Reason, format_time
from fedkad.edge.alerttext import alert_text
from fedkad.edge.commands.command import Command, CommandError, budget_of, incident_of, mute_of, stretch_of
from fedkad.edge.device.learning import Learner
from fedkad.edge.device.model import DeviceModel
from fedkad.edge.device.overrides import StandingOrders, TakenForNormal
from fedkad.edge.health.faults import Health
from fedkad.edge.settings import DeviceSettings
from fedkad.edge.sources.payload import find_zone, quoted
from fedkad.edge.store import Store


class Obeyed(NamedTuple):
    """What came of a command: the reply, the alerts to be sent, and the orders that hold from now on."""

    reply: str
    alerts: list[Alert]
    orders: StandingOrders
    taken: TakenForNormal
    forgiven: str = ""  # the incident that does not count against the budget any more


@dataclass(frozen=True)
class Obedience:
    """One device at the moment of a command; `row` and `time` are the number and the time of its last row."""

    device: str
    settings: DeviceSettings
    store: Store
    model: DeviceModel
    learner: Learner
    alarms: Alarms
    health: Health
    orders: StandingOrders
    taken: TakenForNormal
    row: int
    time: float
    while_waiting: Callable[[], None] = lambda: None

    def obey(self, command: Command) -> Obeyed:
        """Carry out a command; raises a `CommandError` with the reply if that is impossible."""
        verbs: dict[str, Callable[[Command], Obeyed]] = {
            "normal": self._normal,
            "mute": self._mute,
            "acknowledge": self._acknowledge,
            "relearn": self._relearn,
            "budget": self._budget,
            "undo": self._undo,
        }
        return verbs[command.verb](command)

    def _obeyed(self, reply: str, alerts: list[Alert] | None = None, orders: StandingOrders | None = None) -> Obeyed:
        return Obeyed(reply, alerts or [], orders or self.orders, self.taken)

    # -- incidents ------------------------------------------------------------------------------------------------

    def _meant(self, identity: str) -> IncidentAlert | list[FaultAlert]:
        """The last alert of what an answer is about: an incident, or faults.

        Without an id that is what a screen shows: the open incident, or else all open faults. If nothing is open, it is
        the incident that was just told, but not one from before a fault: nobody would expect that.
        """
        opened = self.alarms.open
        if opened is not None and identity in ("", opened.id):
            return opened
        if faults := [fault for fault in self.health.open if identity in ("", fault.id)]:
            return faults
        found = self.store.alerts.incident(self.device, identity)
        if found is None:
            what = f"no incident {quoted(identity)}" if identity else "no incident yet"
            raise CommandError(f"{self.device} has {what}; see fedkad-agent incidents.")
        if isinstance(found, IncidentAlert):
            return found
        assert isinstance(found, FaultAlert)
        if not identity:
            last = f"the last that was told is the fault {found.id}"
            raise CommandError(f"Nothing is open on {self.device}, and {last}; name what you mean by its id.")
        return [found]

    def _is_open(self, incident: IncidentAlert) -> bool:
        return self.alarms.open is not None and self.alarms.open.id == incident.id

    def _correct(self, incident: IncidentAlert, reason: Reason, acknowledged: str | None) -> None:
        """Change what the history says about an incident that is over; nobody is told."""
        corrected = replace(incident, reason=reason, acknowledged=acknowledged)
        self.store.alerts.put([], replace(corrected, text=alert_text(corrected, self.settings.alarm.rate_window)))

    def _acknowledge(self, command: Command) -> Obeyed:
        meant, sender = self._meant(incident_of(command)), command.sender or "somebody"
        first = meant if isinstance(meant, IncidentAlert) else meant[0]
        faults = [fault for fault in self.health.open if not fault.acknowledged]
        if not incident_of(command) and first.acknowledged and faults:
            return self._acknowledge_faults(faults, sender)  # what is left of all that is open
        if not isinstance(meant, IncidentAlert):
            return self._acknowledge_faults(meant, sender)
        incident = meant
        reply = f"The incident {incident.id} is acknowledged."
        if self._is_open(incident):
            return self._obeyed(reply, self.alarms.acknowledge(sender))
        self.store.alerts.put([], replace(incident, acknowledged=sender))
        # A young model has learned from it, and is fitted anew without it.
        self.learner.leave_out_between(incident.start, incident.time)
        return self._obeyed(reply)._replace(forgiven=incident.id)

    def _acknowledge_faults(self, faults: list[FaultAlert], sender: str) -> Obeyed:
        """Note who knows of faults, of which all are open or the only one may be over."""
        for fault in faults:
            self.store.alerts.put([], self.health.acknowledge(fault, sender))
        named = ", ".join(fault.id for fault in faults)
        what = f"fault {named} is" if len(faults) == 1 else f"faults {named} are"
        return self._obeyed(f"The {what} acknowledged.")

    # -- what is normal -------------------------------------------------------------------------------------------

    def _normal(self, command: Command) -> Obeyed:
        stretch = stretch_of(command, find_zone(self.settings.sampling.zone))
        incident, alerts = None, list[Alert]()
        start, end = stretch.start, stretch.end
        if start is None or end is None:
            meant = self._meant(stretch.incident)
            if not isinstance(meant, IncidentAlert):
                return self._accept(meant, command)
            incident = meant
            start, end = incident.start, incident.time
            end = max(end, self.time) if self._is_open(incident) else end
        elif (opened := self.alarms.open) is not None and start <= opened.start <= end:
            incident = opened
        if incident is not None and self._is_open(incident) and not self.model.has_file:
            return self._learn_without_file(command)
        count = self._learn(start, end, _mark(command))
        taken = TakenForNormal()
        if incident is not None and self._is_open(incident):
            taken = TakenForNormal(incident.id, acknowledged=incident.acknowledged)
            alerts = self.alarms.silence(self.time, Reason.NORMAL)
        elif incident is not None:  # somebody may have taken it for a fault
            taken = TakenForNormal(incident.id, incident.reason, incident.acknowledged)
            self._correct(incident, Reason.NORMAL, None)
        return self._learned(count, start)._replace(alerts=alerts, taken=taken)

    def _learn_without_file(self, command: Command) -> Obeyed:
        """Learn anew: a model without its file cannot learn what is normal, and the incident would stay open."""
        obeyed = self._relearn(command)
        return obeyed._replace(reply=f"The file of its model is gone: {obeyed.reply}")

    def _learned(self, count: int, start: float) -> Obeyed:
        reply = f"{count} rows since {format_time(start)} are learned as normal."
        return self._obeyed(reply)._replace(taken=TakenForNormal())

    def _accept(self, faults: list[FaultAlert], command: Command) -> Obeyed:
        """Take what was told of sensors for normal: that they stand still for so long, or have such values."""
        stuck = [fault for fault in faults if fault.fault == FaultKind.STUCK]
        impossible = [fault for fault in faults if fault.fault == FaultKind.IMPOSSIBLE]
        if not stuck and not impossible:
            named = f"{faults[0].id} is {faults[0].fault}"
            raise CommandError(f"{named}; only what is stuck or impossible can be normal.")
        before = [(fault.channel or "", self.health.longest(fault.channel or "")) for fault in stuck]
        obeyed = self._obeyed("")._replace(taken=self.taken._replace(is_learned=False))
        if impossible:  # all of them at once, since the model takes one command once
            start, end = min(each.start for each in impossible), impossible[-1].time
            end = max(end, self.time) if impossible[-1].event == AlertEvent.START else end
            obeyed = self._learned(self._learn(start, end, _mark(command)), start)
        ended = [alert for fault in (*impossible, *stuck) for alert in self.health.accept(fault, self.time)]
        for fault in stuck:
            still = f"It is normal that {fault.channel} of {self.device} stands still for so long."
            obeyed = obeyed._replace(reply=f"{obeyed.reply} {still}".strip())
        return obeyed._replace(alerts=ended, taken=obeyed.taken._replace(stuck=before))

    def _learn(self, start: float, end: float, mark: str) -> int:
        """Learn the rows of a time as confirmed, with those before that fill the window; returns how many there are."""
        if self.model.current is None:
            raise CommandError(f"{self.device} has no model yet, and takes all rows that come for normal.")
        if not self.model.has_file:
            raise CommandError(f"The file of the model of {self.device} is gone; put it back, or tell relearn.")
        lead = self.model.memory * self.settings.sampling.period
        rows = self.store.rows.between(self.device, start - lead, end, len(self.settings.sampling.channels))
        if not rows:
            raise CommandError(
                f"No row of {self.device} from {format_time(start)} to {format_time(end)} is kept; "
                "name a later time or incident."
            )
        try:
            self.learner.confirm(np.array(rows), mark, self.while_waiting)
        except (ValueError, OSError) as error:
            raise CommandError(f"{self.device} cannot learn these rows: {error}") from None
        return len(rows)

    def _undo(self, command: Command) -> Obeyed:
        if self.taken.stuck and not self.taken.is_learned:
            return self._forbid()._replace(taken=self.taken._replace(stuck=(), is_learned=True))
        try:
            self.learner.go_back(_mark(command), self.while_waiting)
        except (ValueError, OSError) as error:
            raise CommandError(f"{self.device} cannot go back: {error}") from None
        self._forbid()
        taken = self.taken
        incident = self.store.alerts.incident(self.device, taken.incident) if taken.incident else None
        if isinstance(incident, IncidentAlert):
            acknowledged = incident.acknowledged or taken.acknowledged
            self._correct(incident, taken.reason, acknowledged)
            self.alarms.take_back(incident.id, acknowledged or command.sender or "somebody")
            was_open = taken.reason == Reason.UNDONE  # then it may be there still
            end = self.time if was_open else incident.time
            self.learner.leave_out_between(incident.start, end)
        reply = "The model of before is in use again, without what was learned since."
        return self._obeyed(reply)._replace(taken=TakenForNormal())

    def _forbid(self) -> Obeyed:
        """Take back for how long channels may stand still."""
        for channel, rows in self.taken.stuck:
            self.health.forbid(channel, rows)
        named = " and ".join(channel for channel, _ in self.taken.stuck)
        return self._obeyed(f"It is not normal any more that {named} of {self.device} stands still for so long.")

    def _relearn(self, command: Command) -> Obeyed:
        try:
            self.learner.start_over(self.row, _mark(command), self.while_waiting)
        except (ValueError, OSError) as error:
            raise CommandError(f"{self.device} cannot learn anew: {error}") from None
        alerts = self.alarms.silence(self.time, Reason.RELEARN)
        reply = f"{self.device} learns anew, from the next {self.learner.needed} normal rows."
        return self._obeyed(reply, alerts)._replace(taken=TakenForNormal())

    # -- standing orders ------------------------------------------------------------------------------------------

    def _mute(self, command: Command) -> Obeyed:
        seconds = mute_of(command)
        orders = self.orders.muted(command.time, seconds)
        if not seconds:
            return self._obeyed(f"{self.device} is not mute any more.", orders=orders)
        alerts = self.alarms.silence(self.time, Reason.MUTED)
        return self._obeyed(f"{self.device} is mute until {format_time(orders.muted_until)}.", alerts, orders)

    def _budget(self, command: Command) -> Obeyed:
        budget = budget_of(command)
        now = f"a budget of {budget}" if budget else "the configured threshold or budget again"
        return self._obeyed(f"{self.device} has {now}.", orders=replace(self.orders, budget=budget))


def _mark(command: Command) -> str:
    """What a model is marked with: letters and digits, whatever the id is."""
    return hashlib.blake2b(f"{command.device}/{command.id}".encode(), digest_size=8).hexdigest()
