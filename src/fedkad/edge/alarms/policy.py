"""When an incident begins, goes on and ends: from a phase and a row to the next phase and its alerts.

A row is one of three things:

    abnormal   the detector says so, or it is far outside the known ranges, as many others were
    quiet      its score is below `release` times the threshold (with a threshold of 0 or less: not abnormal)
    neither    between the two: it neither begins an incident nor clears it

An open incident ends

    - after `clear_after` of only quiet rows; if it went astray, after as long as it lasted, up to a night
      (`Incident.clear_after`);
    - not while a channel that it is about is outside its known ranges (`Departures.is_of`), and one by rate not while
      rows are often abnormal (`Tally.may_end`); a gap begins the quiet again;
    - while it waits, when something begins that has nothing to do with it (`_is_news`);
    - by `silence`, whatever the scores are: maintenance, mute, normal, undone, relearn, settled, no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedkad.detect.stream import Reading
from fedkad.detect.threshold import parse_budget
from fedkad.detect.tracking import MARGINAL, REST
from fedkad.edge.alarms.departures import BACK, Departures
from fedkad.edge.alarms.episode import Episode
from fedkad.edge.alarms.phases import (
    IDLE,
    Calm,
    Cooling,
    Idle,
    Incident,
    Open,
    OpenPhase,
    Phase,
    Quiet,
    Suspect,
    Waiting,
    set_back,
    without_channels,
)
from fedkad.edge.alarms.recurrence import Recurrence
from fedkad.edge.alarms.tally import SLACK, Tally
from fedkad.edge.alert import Alert, AlertEvent, IncidentAlert, Kind, Reason, Severity, as_number, identity
from fedkad.edge.alerttext import alert_text
from fedkad.edge.device.grid import GridRow
from fedkad.edge.settings import Alarm

ASTRAY = 2.0
"""A row that is this far outside the known ranges counts towards the rate of abnormal ones, whatever its score."""

AFTER_COMMAND = 1.5
"""After a set-point change, another cause is told only if it scores this many times the first.

In simulated houses what followed a new set-point in other channels stayed below 1.41 times, and most faults were above.
"""

LONGEST_WAIT = 86400.0
"""Seconds between two updates of an incident that has lasted for long."""

Outcome = tuple[Phase, list[Alert]]
"""The next phase, and what is told."""


class JudgedRow(NamedTuple):
    """What the policy asks about a row that is not normal."""

    time: float
    reading: Reading
    is_abnormal: bool
    is_quiet: bool
    is_critical: bool
    is_astray: bool  # whether it is far outside the known ranges
    is_away: bool  # whether a channel that the open incident is about is outside


class IncidentPolicy:
    """The rules of one device, and what they count over all incidents.

    It never waits: all durations are differences of the rows' times. `state` is what `state()` returned.
    """

    def __init__(
        self, device: str, settings: Alarm, period: float, channels: Sequence[str], state: Mapping[str, Any]
    ) -> None:
        self._device, self._settings, self._names = device, settings, list(channels)
        self._slack, self._pause = SLACK * period, settings.pause(period)
        allowed = parse_budget(settings.budget) if settings.budget else None
        self._echoes = 0.0 if allowed is None else REST / allowed
        self.tally = Tally(settings, period, state)
        self._departures = Departures(settings, period, self._names, state.get("away"))
        self._is_provisional = False

    def state(self) -> dict[str, Any]:
        """Return all that is known beside the phase, for JSON."""
        return {**self.tally.to_json(), "away": self._departures.since}

    # -- rows -----------------------------------------------------------------------------------------------------

    def take(self, phase: Phase, row: GridRow, reading: Reading, outside: float, *, is_provisional: bool) -> Outcome:
        """Take a row; see `Alarms.update`."""
        self._is_provisional, tally, time = is_provisional, self.tally, row.time
        if reading.state == "gap":
            return self.interrupt(phase, time), []
        if not row.observed or math.isnan(reading.score):
            return phase, []
        if time < tally.time:
            phase = self._set_back(phase, time)
        self._departures.update(reading, outside, tally.time, time)
        is_astray, is_abnormal = outside > ASTRAY, reading.is_anomaly
        tally.count(time, reading.score, reading.threshold, abnormal=is_abnormal or is_astray)
        if phase is IDLE and not is_abnormal and not is_astray:  # nearly all rows
            return IDLE, []
        episode = phase.incident.episode if isinstance(phase, OpenPhase) else None
        score, threshold, settings = reading.score, reading.threshold, self._settings
        judged = JudgedRow(
            time,
            reading,
            is_abnormal=is_abnormal or (is_astray and episode is None and tally.is_frequent()),
            is_quiet=threshold <= 0.0 or score < settings.release * threshold,
            is_critical=bool(score > 0.0 if threshold <= 0.0 else score >= settings.critical * threshold),
            is_astray=is_astray,
            is_away=episode is not None and outside > BACK and self._departures.is_of(episode, reading),
        )
        if judged.is_abnormal and tally.channels != self._names:
            tally.use_channels(self._names)
            phase = without_channels(phase)
        phase = self._aged(phase)
        if isinstance(phase, OpenPhase):
            return self._go_on(phase, judged)
        if judged.is_abnormal:
            return self._suspect(phase, judged)
        return (self._calmed(phase) if judged.is_quiet else phase), []

    def _aged(self, phase: Phase) -> Phase:
        """Return what a phase has become by the time of the last row."""
        match phase:
            case Cooling(until, excursion) if self.tally.time >= until:
                return Suspect(excursion) if excursion else IDLE
            case Quiet(incident, since) if self._is_overdue(phase):
                return Waiting(incident, since)
            case Waiting(incident, since) if not self._is_overdue(phase):
                return Quiet(incident, since)
            case _:
                return phase

    def _is_overdue(self, phase: Quiet | Waiting) -> bool:
        least = self._settings.clear_after + self._pause
        return self.tally.time - phase.since >= least and self.tally.may_end(phase.incident.kind)

    # -- no incident is open --------------------------------------------------------------------------------------

    def _suspect(self, phase: Calm, row: JudgedRow) -> Outcome:
        """Take an abnormal row: an incident begins if it has lasted, or there are many of them."""
        excursion = None if isinstance(phase, Idle) else phase.excursion
        excursion = excursion or Episode(float(row.time), float(row.time))
        excursion = excursion.adding(float(row.time), row.reading, critical=row.is_critical)
        still = Cooling(phase.until, excursion) if isinstance(phase, Cooling) else Suspect(excursion)
        is_echo = self.tally.recurrence.is_echo(excursion, self._names, row.time)
        if (isinstance(phase, Cooling) or is_echo) and not row.is_critical:
            return still, []
        if row.reading.is_anomaly and self._has_lasted(excursion):
            return self._begin(excursion, Kind.SCORE, Reason.THRESHOLD, row)
        if self.tally.is_frequent():
            return self._begin(self.tally.with_recent(excursion), Kind.RATE, Reason.RATE, row)
        return still, []

    def _begin(self, episode: Episode, kind: Kind, reason: Reason, row: JudgedRow) -> Outcome:
        departed, before = (
            self._departures.origin(row.reading, self.tally.counted_until, row.time),
            self.tally.recurrence,
        )
        episode = replace(episode, departed=departed)
        incident = Incident(
            id=identity(self._device, episode.start, self.tally.incidents + 1),
            kind=kind,
            episode=episode,
            is_astray=row.is_astray or departed in row.reading.commands,
            alerted_at=-math.inf,
        )
        if before.last is not None and row.time < before.until:
            # The last incident is there again; told is what is seen now, which may be in other channels.
            self.tally.begin(is_new=False)
            incident = replace(incident, id=before.id, acknowledged=before.acknowledged, updates=before.updates)
            incident = replace(incident, episode=before.last.joined(episode))
            return self._tell(incident, AlertEvent.UPDATE, Reason.AGAIN, shown=episode)
        self.tally.begin(is_new=True)
        return self._tell(incident, AlertEvent.START, reason)

    def _has_lasted(self, excursion: Episode) -> bool:
        return self.tally.time - excursion.start >= self._settings.min_duration - self._slack

    def _calmed(self, phase: Phase) -> Phase:
        """Return a phase without its excursion, which may still be part of a rate, or of the open incident."""
        match phase:
            case Open(incident, beside) if beside:
                return Open(_joined(incident, beside))
            case Suspect(excursion):
                self.tally.keep(excursion)
                return IDLE
            case Cooling(until, excursion) if excursion:
                self.tally.keep(excursion)
                return Cooling(until)
            case _:
                return phase

    # -- an incident is open --------------------------------------------------------------------------------------

    def _go_on(self, phase: OpenPhase, row: JudgedRow) -> Outcome:
        """Take a row while an incident is open."""
        incident = phase.incident
        if isinstance(phase, Waiting) and row.is_abnormal and not row.is_away:
            if not self._is_news(phase, row.reading):
                return phase, []
            _, ended = self._end(phase, row.time, Reason.CLEARED)
            after, alerts = self._suspect(IDLE, row)  # the pause has been
            return after, ended + alerts
        if row.is_abnormal or row.is_away:
            incident = replace(incident, is_astray=incident.is_astray or row.is_astray)
        beside = phase.beside if isinstance(phase, Open) else None
        if row.is_abnormal:
            return self._worsen(incident, beside, row)
        if row.is_quiet and beside:
            incident, beside = _joined(incident, beside), None
        if row.is_away:
            incident = replace(incident, episode=replace(incident.episode, last=row.time))
        elif row.is_quiet or isinstance(phase, Waiting):
            since = phase.since if isinstance(phase, Quiet | Waiting) else row.time
            phase = replace(phase, incident=incident) if isinstance(phase, Quiet | Waiting) else Quiet(incident, since)
            is_long = row.time - since >= incident.clear_after(self._settings.clear_after) - self._slack
            is_over = is_long and self.tally.may_end(incident.kind)
            return self._end(phase, row.time, Reason.CLEARED) if is_over else (phase, [])
        return self._remind(incident, beside)

    def _worsen(self, incident: Incident, beside: Episode | None, row: JudgedRow) -> Outcome:
        """Take an abnormal row of an open incident, or of what is wrong beside it."""
        episode = incident.episode
        # It spreads for as long as the window of the rate. One that begins in the future was before the clock was set
        # back, and nothing may wait until that time comes again.
        is_old = not 0.0 <= row.time - episode.start < self._settings.rate_window
        if is_old and int(row.reading.shares.argmax()) not in episode.about(self._names):
            excursion = beside or Episode(float(row.time), float(row.time))
            excursion = excursion.adding(float(row.time), row.reading, critical=row.is_critical)
            return self._tell_another(incident, excursion, row.reading)
        if beside:
            incident = _joined(incident, beside)
        worse = incident.episode.adding(float(row.time), row.reading, critical=row.is_critical)
        is_news = worse.critical and not incident.episode.critical
        incident = replace(incident, episode=worse)
        return self._tell(incident, AlertEvent.UPDATE, Reason.WORSE) if is_news else self._remind(incident, None)

    def _tell_another(self, incident: Incident, excursion: Episode, reading: Reading) -> Outcome:
        """Tell what else is wrong, once it has lasted and is clearly higher than the open incident ever was.

        The incident is about that as well from then on.
        """
        episode = incident.episode
        margin = AFTER_COMMAND if episode.departed in reading.commands else MARGINAL
        if excursion.peak > margin * episode.peak and self._has_lasted(excursion):
            excursion = replace(excursion, departed=self._names[int(reading.shares.argmax())])
            self.tally.note_begun()
            incident = replace(incident, episode=episode.joined(excursion))
            return self._tell(incident, AlertEvent.UPDATE, Reason.ANOTHER, shown=excursion)
        if not excursion.critical or episode.critical:
            return self._remind(incident, excursion)
        incident = replace(incident, episode=replace(episode, critical=True))
        return self._tell(incident, AlertEvent.UPDATE, Reason.WORSE, shown=excursion, beside=excursion)

    def _remind(self, incident: Incident, beside: Episode | None) -> Outcome:
        """Tell what goes on, twice as long after the last alert as that was after the one before, up to a day."""
        every = self._settings.update_every
        wait = min(every * 2.0 ** min(incident.updates, 30), max(LONGEST_WAIT, every))
        if incident.acknowledged or not every or self.tally.time - incident.alerted_at < wait - self._slack:
            return Open(incident, beside), []
        incident = replace(incident, updates=incident.updates + 1)
        return self._tell(incident, AlertEvent.UPDATE, Reason.STILL, beside=beside)

    def _is_news(self, phase: Waiting, reading: Reading) -> bool:
        """Whether an abnormal row has nothing to do with the incident that waits: no echo of it, or no brief one.

        What follows a new set-point, even the next morning and in any channel, belongs to it.
        """
        episode = phase.incident.episode
        if self.tally.score > MARGINAL * episode.peak or self.tally.is_frequent(phase.since):
            return True
        if episode.departed in reading.commands:
            return False
        is_late = 0.0 < self._echoes <= self.tally.time - phase.since - self._settings.clear_after
        return is_late or int(reading.shares.argmax()) not in episode.about(self._names)

    def _end(self, phase: OpenPhase, time: float, reason: Reason) -> Outcome:
        """End an incident."""
        incident = phase.incident
        _, alerts = self._tell(incident, AlertEvent.END, reason, time)
        # What has become normal moves every channel a little, at levels that nobody has seen yet.
        about = range(len(self._names)) if reason == Reason.SETTLED else incident.episode.about(self._names)
        lasts = {Reason.CLEARED: self._echoes, Reason.SETTLED: self._settings.settle}.get(reason, 0.0)
        over = time if isinstance(phase, Open) else min(phase.since + self._settings.clear_after, time)
        recurrence = Recurrence(
            until=over + lasts - self._slack if lasts else -math.inf,
            channels=[self._names[k] for k in about],
            peak=incident.episode.peak,
            id=incident.id,
            acknowledged=incident.acknowledged,
            updates=incident.updates,
            last=incident.episode if reason == Reason.CLEARED else None,
            accepted=incident.episode if reason in (Reason.SETTLED, Reason.NORMAL) else None,
        )
        self.tally.end(recurrence)
        return Cooling(time + self._pause - self._slack), alerts

    def acknowledge(self, incident: Incident, sender: str) -> tuple[Incident, list[Alert]]:
        """Tell that an operator knows of an incident."""
        phase, alerts = self._tell(replace(incident, acknowledged=sender), AlertEvent.UPDATE, Reason.ACKNOWLEDGED)
        return phase.incident, alerts

    # -- both -----------------------------------------------------------------------------------------------------

    def silence(self, phase: Phase, time: float, reason: Reason) -> Outcome:
        """End what is open for a reason that is not in the scores, without a pause."""
        alerts = self._end(phase, time, reason)[1] if isinstance(phase, OpenPhase) else []
        self.tally.silence()
        return IDLE, alerts

    def interrupt(self, phase: Phase, time: float) -> Phase:
        """Return the phase after which the rows are not connected to those before."""
        if time < self.tally.time:
            phase = self._set_back(phase, time)
            self.tally.interrupt(time)
        return Open(phase.incident) if isinstance(phase, Quiet | Waiting) else self._calmed(phase)

    def _set_back(self, phase: Phase, time: float) -> Phase:
        """Forget what is in the future of a clock that was set back; nothing may wait until that time comes again."""
        self.tally.set_back(time, max(self._echoes, self._settings.settle))
        return set_back(phase, time, self._pause - self._slack)

    def _tell(
        self,
        incident: Incident,
        event: AlertEvent,
        reason: Reason,
        time: float | None = None,
        shown: Episode | None = None,
        beside: Episode | None = None,
    ) -> tuple[Open, list[Alert]]:
        """Tell of an incident, which is open then; described is that part of it that is `shown`, or all."""
        episode, time = incident.episode, self.tally.time if time is None else time
        shown = shown or episode
        # A cleared incident was over before the quiet that was waited for.
        until = episode.last if reason == Reason.CLEARED else float(time)
        alert = IncidentAlert(
            id=incident.id,
            device=self._device,
            event=event,
            kind=incident.kind,
            severity=Severity.CRITICAL if episode.critical else Severity.WARNING,
            start=episode.start,
            time=time,
            duration=round(max(until - episode.start, 0.0), 3),
            score=as_number(self.tally.score),
            peak=as_number(max(episode.peak, shown.peak)),
            worst=shown.worst,
            threshold=as_number(self.tally.threshold),
            rate=as_number(round(self.tally.rate.value, 4)),
            samples=episode.samples,
            channels=shown.causes(self.tally.channels),
            witness=shown.witness,
            sentence=shown.sentence,
            acknowledged=incident.acknowledged,
            reason=reason,
            provisional=self._is_provisional,
        )
        alert = replace(alert, text=alert_text(alert, self._settings.rate_window))
        return Open(replace(incident, alert=alert, alerted_at=time), beside), [alert]


def _joined(incident: Incident, beside: Episode) -> Incident:
    """Return an incident with what was wrong beside it, and too short to be told."""
    return replace(incident, episode=incident.episode.joined(beside))
