"""What a device does on a command: one function a verb, from the parts of the device and the command to a plan.

A handler reads and changes nothing; `carry_out` acts on its plan. Everything must be committed just before: the effects
and the reply are then committed together. What is written to a model before that carries the mark of the command, so
that a command that was cut off by a kill acts once all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.edge.alert import Alert, AlertEvent, FaultAlert, FaultKind, IncidentAlert, Reason, format_time
from fedkad.edge.alerttext import alert_text
from fedkad.edge.commands.command import Command, CommandError, budget_of, incident_of, mute_of, stretch_of
from fedkad.edge.device.overrides import Overrides, UndoRecord
from fedkad.edge.device.parts import DeviceParts
from fedkad.edge.sources.payload import find_zone, quoted


class Lesson(Enum):
    """What a command does to the model, with what to say if that is impossible."""

    CONFIRM = "cannot learn these rows"
    GO_BACK = "cannot go back"
    START_OVER = "cannot learn anew"


@dataclass(frozen=True)
class CommandPlan:
    """What is to be done on a command, in this order, and the reply."""

    reply: str
    lesson: Lesson | None = None  # first, since it may be impossible
    rows: Sequence[NDArray[np.float64]] = ()  # to be learned as normal
    accepted: Sequence[FaultAlert] = ()  # faults that are normal from now on
    limits: Sequence[tuple[str, int]] = ()  # for how many rows channels may stand still
    acknowledged: Sequence[FaultAlert] = ()  # faults that the sender knows of
    is_acknowledged: bool = False  # whether the sender knows of the open incident
    closes: Reason | None = None  # why the open incident ends
    reopens: tuple[str, str] | None = None  # an incident that is not normal any more, and who knows of it
    history: Sequence[IncidentAlert] = ()  # incidents that are over, as they are remembered from now on
    left_out: tuple[float, float] | None = None  # the rows between these times are not to be learned from
    forgiven: str = ""  # an incident that does not count against the budget any more
    overrides: Overrides | None = None  # None for those of before
    undo: UndoRecord | None = None


class CommandResult(NamedTuple):
    """What came of a command: the reply, and the alerts to be sent."""

    reply: str
    alerts: list[Alert]


def plan_command(parts: DeviceParts, command: Command) -> CommandPlan:
    """Return what a device has to do on a command; raises a `CommandError` with the reply if it is impossible."""
    return _HANDLERS[command.verb](parts, command)


def carry_out(
    plan: CommandPlan, parts: DeviceParts, command: Command, number: int, while_waiting: Callable[[], None]
) -> list[Alert]:
    """Do what a plan says; returns the alerts. `number` is that of the last row of the device."""
    learner, health, mark, sender = parts.learner, parts.health, mark_of(command), _sender(command)
    try:
        if plan.lesson is Lesson.CONFIRM:
            learner.confirm(np.array(plan.rows), mark, while_waiting)
        elif plan.lesson is Lesson.GO_BACK:
            learner.go_back(mark, while_waiting)
        elif plan.lesson is Lesson.START_OVER:
            learner.start_over(number, mark, while_waiting)
    except (ValueError, OSError) as error:
        assert plan.lesson is not None
        raise CommandError(f"{parts.name} {plan.lesson.value}: {error}") from None
    alerts = [alert for fault in plan.accepted for alert in health.accept(fault, parts.alarms.time)]
    for channel, rows in plan.limits:
        health.forbid(channel, rows)
    for fault in plan.acknowledged:
        parts.store.alerts.put([], health.acknowledge(fault, sender))
    if plan.is_acknowledged:
        alerts += parts.alarms.acknowledge(sender)
    if plan.closes is not None:
        alerts += parts.alarms.silence(parts.alarms.time, plan.closes)
    if plan.reopens is not None:
        parts.alarms.take_back(*plan.reopens)
    for incident in plan.history:
        parts.store.alerts.put([], incident)
    if plan.left_out is not None:
        learner.leave_out_between(*plan.left_out)
    if parts.budget is not None:
        parts.budget.forgive(plan.forgiven)
    return alerts


def mark_of(command: Command) -> str:
    """Return what a model is marked with: letters and digits, whatever the id is."""
    return hashlib.blake2b(f"{command.device}/{command.id}".encode(), digest_size=8).hexdigest()


def _sender(command: Command) -> str:
    return command.sender or "somebody"


# -- incidents and faults ---------------------------------------------------------------------------------------------


def _subject(parts: DeviceParts, identity: str) -> IncidentAlert | list[FaultAlert]:
    """Return the last alert of what a command is about: an incident, or faults.

    Without an id that is what a screen shows: the open incident, or else all open faults. If nothing is open, it is the
    last incident, but not one from before a fault, which would surprise.
    """
    opened = parts.alarms.open
    if opened is not None and identity in ("", opened.id):
        return opened
    if faults := [fault for fault in parts.health.open if identity in ("", fault.id)]:
        return faults
    last = parts.store.alerts.incident(parts.name, identity)
    if last is None:
        what = f"no incident {quoted(identity)}" if identity else "no incident yet"
        raise CommandError(f"{parts.name} has {what}; see fedkad-agent incidents.")
    if isinstance(last, IncidentAlert):
        return last
    assert isinstance(last, FaultAlert)
    if not identity:
        which = f"the last that was told is the fault {last.id}"
        raise CommandError(f"Nothing is open on {parts.name}, and {which}; name what you mean by its id.")
    return [last]


def _is_open(parts: DeviceParts, incident: IncidentAlert | None) -> bool:
    return incident is not None and parts.alarms.open is not None and parts.alarms.open.id == incident.id


def _corrected(parts: DeviceParts, incident: IncidentAlert, reason: Reason, acknowledged: str | None) -> IncidentAlert:
    """Return an incident that is over with another reason in its text."""
    corrected = replace(incident, reason=reason, acknowledged=acknowledged)
    return replace(corrected, text=alert_text(corrected, parts.settings.alarm.rate_window))


def _acknowledge(parts: DeviceParts, command: Command) -> CommandPlan:
    subject, identity = _subject(parts, incident_of(command)), incident_of(command)
    first = subject if isinstance(subject, IncidentAlert) else subject[0]
    unknown = [fault for fault in parts.health.open if not fault.acknowledged]
    if not identity and first.acknowledged and unknown:
        subject = unknown  # what is left of all that is open
    if not isinstance(subject, IncidentAlert):
        names = ", ".join(fault.id for fault in subject)
        reply = f"The fault {names} is acknowledged." if len(subject) == 1 else f"The faults {names} are acknowledged."
        return CommandPlan(reply, acknowledged=subject)
    reply = f"The incident {subject.id} is acknowledged."
    if _is_open(parts, subject):
        return CommandPlan(reply, is_acknowledged=True)
    return CommandPlan(
        reply,
        history=[replace(subject, acknowledged=_sender(command))],
        left_out=(subject.start, subject.time),  # a young model has learned from it, and is fitted again without it
        forgiven=subject.id,
    )


# -- what is normal ---------------------------------------------------------------------------------------------------


def _normal(parts: DeviceParts, command: Command) -> CommandPlan:
    stretch, now = stretch_of(command, find_zone(parts.settings.sampling.zone)), parts.alarms.time
    incident, start, end = None, stretch.start, stretch.end
    if start is None or end is None:
        subject = _subject(parts, stretch.incident)
        if not isinstance(subject, IncidentAlert):
            return _accept_faults(parts, subject)
        incident = subject
        start, end = incident.start, max(incident.time, now) if _is_open(parts, incident) else incident.time
    elif parts.alarms.open is not None and start <= parts.alarms.open.start <= end:
        incident = parts.alarms.open
    if _is_open(parts, incident) and not parts.model.has_file:
        # A model without its file cannot learn what is normal, and the incident would stay open.
        plan = _relearn(parts, command)
        return replace(plan, reply=f"The file of its model is gone: {plan.reply}")
    plan = _confirm(parts, start, end)
    if incident is None:
        return plan
    if _is_open(parts, incident):
        return replace(plan, closes=Reason.NORMAL, undo=UndoRecord(incident.id, acknowledged=incident.acknowledged))
    return replace(
        plan,
        history=[_corrected(parts, incident, Reason.NORMAL, None)],  # it may have been taken for a fault
        undo=UndoRecord(incident.id, incident.reason, incident.acknowledged),
    )


def _accept_faults(parts: DeviceParts, faults: Sequence[FaultAlert]) -> CommandPlan:
    """Take faults of sensors for normal: that they stand still for so long, or have such values."""
    stuck = [fault for fault in faults if fault.fault == FaultKind.STUCK]
    impossible = [fault for fault in faults if fault.fault == FaultKind.IMPOSSIBLE]
    if not stuck and not impossible:
        named = f"{faults[0].id} is {faults[0].fault}"
        raise CommandError(f"{named}; only what is stuck or impossible can be normal.")
    plan = CommandPlan("", undo=parts.undo._replace(is_learned=False))
    if impossible:  # all of them at once, since the model takes one command once
        start, end = min(fault.start for fault in impossible), impossible[-1].time
        end = max(end, parts.alarms.time) if impossible[-1].event == AlertEvent.START else end
        plan = _confirm(parts, start, end)
    still = [f"It is normal that {fault.channel} of {parts.name} stands still for so long." for fault in stuck]
    before = [(fault.channel or "", parts.health.longest(fault.channel or "")) for fault in stuck]
    assert plan.undo is not None
    return replace(
        plan,
        reply=" ".join([plan.reply, *still]).strip(),
        accepted=[*impossible, *stuck],
        undo=plan.undo._replace(stuck=before),
    )


def _confirm(parts: DeviceParts, start: float, end: float) -> CommandPlan:
    """Learn the rows of a time as confirmed, with those before that fill the window."""
    if parts.model.current is None:
        raise CommandError(f"{parts.name} has no model yet, and takes all rows that come for normal.")
    if not parts.model.has_file:
        raise CommandError(f"The file of the model of {parts.name} is gone; put it back, or tell relearn.")
    sampling = parts.settings.sampling
    lead = parts.model.memory * sampling.period
    rows = parts.store.rows.between(parts.name, start - lead, end, len(sampling.channels))
    if not rows:
        raise CommandError(
            f"No row of {parts.name} from {format_time(start)} to {format_time(end)} is kept; "
            "name a later time or incident."
        )
    reply = f"{len(rows)} rows since {format_time(start)} are learned as normal."
    return CommandPlan(reply, Lesson.CONFIRM, rows, undo=UndoRecord())


def _undo(parts: DeviceParts, command: Command) -> CommandPlan:
    undo = parts.undo
    if undo.stuck and not undo.is_learned:
        channels = " and ".join(channel for channel, _ in undo.stuck)
        reply = f"It is not normal any more that {channels} of {parts.name} stands still for so long."
        return CommandPlan(reply, limits=undo.stuck, undo=undo._replace(stuck=(), is_learned=True))
    reply = "The model of before is in use again, without what was learned since."
    plan = CommandPlan(reply, Lesson.GO_BACK, limits=undo.stuck, undo=UndoRecord())
    incident = parts.store.alerts.incident(parts.name, undo.incident) if undo.incident else None
    if not isinstance(incident, IncidentAlert):
        return plan
    acknowledged = incident.acknowledged or undo.acknowledged
    was_open = undo.reason == Reason.UNDONE  # then it may be there still
    return replace(
        plan,
        reopens=(incident.id, acknowledged or _sender(command)),
        history=[_corrected(parts, incident, undo.reason, acknowledged)],
        left_out=(incident.start, parts.alarms.time if was_open else incident.time),
    )


def _relearn(parts: DeviceParts, command: Command) -> CommandPlan:
    reply = f"{parts.name} learns anew, from the next {parts.settings.first_rows} normal rows."
    return CommandPlan(reply, Lesson.START_OVER, closes=Reason.RELEARN, undo=UndoRecord())


# -- overrides --------------------------------------------------------------------------------------------------------


def _mute(parts: DeviceParts, command: Command) -> CommandPlan:
    seconds = mute_of(command)
    overrides = parts.overrides.muted(command.time, seconds)
    if not seconds:
        return CommandPlan(f"{parts.name} is not mute any more.", overrides=overrides)
    reply = f"{parts.name} is mute until {format_time(overrides.muted_until)}."
    return CommandPlan(reply, closes=Reason.MUTED, overrides=overrides)


def _budget(parts: DeviceParts, command: Command) -> CommandPlan:
    budget = budget_of(command)
    now = f"a budget of {budget}" if budget else "the configured threshold or budget again"
    return CommandPlan(f"{parts.name} has {now}.", overrides=replace(parts.overrides, budget=budget))


_HANDLERS: dict[str, Callable[[DeviceParts, Command], CommandPlan]] = {
    "normal": _normal,
    "mute": _mute,
    "acknowledge": _acknowledge,
    "relearn": _relearn,
    "budget": _budget,
    "undo": _undo,
}
