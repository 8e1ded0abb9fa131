"""From scored rows to alerts: one incident with a start, updates and an end, not an alert per row.

The alarm policy of one device. It has no clock and does no I/O: the same rows give the same alerts, and its state is a
small JSON object. A row is one of three things:

    abnormal   the detector says so
    quiet      its score is below `release` times the threshold (with a threshold of 0 or less: not abnormal)
    neither    between the two: it neither begins an incident nor clears it

An *excursion* begins with an abnormal row and lasts until a quiet one; after `min_duration` it becomes an incident.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedkad.detect.stream import Reading
from fedkad.detect.threshold import parse_budget
from fedkad.edge.alarmstate import EPISODES, MOST_BEGUN, AbnormalRate, AlarmState, Episode
from fedkad.edge.alert import Alert, AlertEvent, IncidentAlert, Kind, Reason, Severity, as_number, identity
from fedkad.edge.alerttext import alert_text
from fedkad.edge.budget import MARGINAL, REST
from fedkad.edge.device.grid import GridRow
from fedkad.edge.settings import Alarm

SLACK = 1e-3
"""Durations may fall short by this share of a period, because times in seconds since 1970 are rounded."""

ASTRAY = 2.0
"""A row farther outside than this counts towards the rate of abnormal ones, whatever its score."""

BACK = 0.25
"""An incident goes on while the device is farther outside than this: its new level is news, and not learned."""

PART = 0.1
"""A channel has a part in a score from this share of it on."""

AFTER_COMMAND = 1.5
"""After a new set-point another cause is told from so many times its score on.

In simulated houses what followed a new set-point in other channels stayed below 1.41 times, and most faults were above.
"""

LOOKS = 60
"""How often in the window of the rate it is looked which channels are away: that costs as much as many scores."""

LONGEST_WAIT = 86400.0
"""Seconds between two updates of an incident that has lasted for long."""

LONGEST_QUIET = 43200.0
"""Seconds that an incident that went astray must be quiet at most, however long it has lasted: a night."""

ECHO_LASTS = 3600.0
"""Seconds after which what comes back is no echo."""

Named = tuple[str, Kind, str | None]
"""The id of an incident, its kind, and who has acknowledged it."""


class Alarms:
    """The alarms of one device.

    An incident begins when the scores have been abnormal for `min_duration` without a quiet row, or when the share of
    abnormal rows in `rate_window` reaches `rate_limit`, provided that half of the window was scored; rows up to the end
    of the last incident do not count. It ends after `clear_after` of only quiet rows; a rate-triggered one also
    needs the rate to fall below `release` times the limit. For `cool_down` after that only a critical score begins
    another one; an excursion that still goes on then becomes an incident. All durations are differences of the rows'
    times.

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
    ...         shares=np.array([7.0, 2.0]), seen=row.values, expected=np.array([5.1, 1.2]), told=None,
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
        self._device, self._settings, self._period, self._channels = device, settings, period, list(channels)
        self._slack, self._is_provisional, self._pause = SLACK * period, False, settings.pause(period)
        self._limit = settings.rate_limit if settings.rate_window > 0.0 else 0.0
        self._look_every = max(settings.rate_window / LOOKS, period)
        allowed = parse_budget(settings.budget) if settings.budget else None
        self._echoes = 0.0 if allowed is None else REST / allowed
        state = state or {}
        self._state = AlarmState.from_json(state)
        self._rate = AbnormalRate(settings.rate_window)
        if state.get("width") == self._rate.width:  # counts of another window would be counted in the wrong places
            self._rate = AbnormalRate(settings.rate_window, state.get("buckets", []))

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {**self._state.to_json(), "width": self._rate.width, "buckets": self._rate.buckets}

    @property
    def open(self) -> IncidentAlert | None:
        """The last alert of the open incident; not to be changed."""
        return self._state.open

    @property
    def is_quiet(self) -> bool:
        """Whether the open incident is quiet now, and may be over."""
        return self._state.quiet is not None

    @property
    def incidents(self) -> int:
        """Incidents begun so far."""
        return self._state.incidents

    @property
    def time(self) -> float:
        """Time of the last scored row; minus infinity before the first."""
        return self._state.time

    def begun_since(self, time: float) -> int:
        """How many incidents have begun since then, as far as they are remembered."""
        return sum(moment >= time for moment in self._state.begun)

    @property
    def watched(self) -> float:
        """Seconds scored so far."""
        return self._state.watched

    @property
    def rate(self) -> float:
        """Share of the scored rows in `rate_window` that were abnormal; NaN without any."""
        return self._rate.value

    def update(
        self, row: GridRow, reading: Reading, *, outside: float = 0.0, is_provisional: bool = False
    ) -> list[Alert]:
        """Take one judged row; returns its alerts, usually none. The reading is explained for abnormal rows only.

        `outside` is how far the device is from where it has been, where 99 % of normal rows stay below 1. The alerts of
        a model that has not seen a whole week yet are provisional.
        """
        self._is_provisional = is_provisional
        if reading.state == "gap":
            self.interrupt(row.time)
            return []
        if not row.observed or math.isnan(reading.score):
            return []
        state = self._state
        if row.time < state.time:
            self._go_back(row.time)
        is_look_due = row.time // self._look_every != state.time // self._look_every
        state.time, state.score, state.threshold = row.time, reading.score, reading.threshold
        state.watched += self._period
        if outside <= BACK:
            state.away = {}
        elif is_look_due:
            self._note_departures(reading)
        is_astray = outside > ASTRAY
        self._rate.count(row.time, reading.is_anomaly or is_astray)
        is_away = state.incident is not None and outside > BACK and self._stays_away(reading)
        if reading.is_anomaly or (is_astray and state.incident is None and self._is_frequent()):
            return self._take_abnormal(reading, is_astray, is_away)
        if state.incident is None and state.excursion is None:
            return []
        is_quiet = reading.threshold <= 0.0 or reading.score < self._settings.release * reading.threshold
        if state.incident is not None and is_away:
            if is_quiet:
                self._drop_excursion()
            state.astray, state.incident.last = state.astray or is_astray, row.time
            return self._take_normal(is_quiet=False)
        return self._take_normal(is_quiet or self._waits)

    def _note_departures(self, reading: Reading) -> None:
        """Note since when each channel is where it has not been."""
        state, far = self._state, reading.outside_by_channel
        away = [name for name, distance in zip(self._channels, far, strict=False) if distance > BACK]
        state.away = {name: min(state.away.get(name, state.time), state.time) for name in away}

    def _departed(self, reading: Reading) -> str:
        """The channel that is farthest from where it has been, of those that have just left.

        That is within the window of the rate. A command may have left within `settle`, if no incident was told since
        and it has a part in the score: a new set-point may show hours later, when the heating is needed.
        """
        self._note_departures(reading)
        state, settings = self._state, self._settings
        recent = [name for name, since in state.away.items() if state.time - since <= settings.rate_window]
        if commands := [name for name in reading.commands if state.told < state.away.get(name, -math.inf)]:
            shares, least = dict(zip(self._channels, reading.shares, strict=True)), PART * reading.shares.sum()
            recent += [n for n in commands if shares[n] > least and state.time - state.away[n] <= settings.settle]
        far = dict(zip(self._channels, reading.outside_by_channel.tolist(), strict=True)) if recent else {}
        return max(recent, key=far.__getitem__, default="")

    def _stays_away(self, reading: Reading) -> bool:
        """Whether a channel that the open incident is about is still where it has not been."""
        incident = self._state.incident
        about = [] if incident is None else incident.about(self._channels)
        return any(reading.outside_by_channel[k] > BACK for k in about)

    def acknowledge(self, sender: str) -> list[Alert]:
        """Note that somebody knows of the open incident: it is told once more, then only when it gets worse."""
        state = self._state
        if state.open is None or state.open.acknowledged:
            return []
        state.open = replace(state.open, acknowledged=sender)
        return [self._alert(AlertEvent.UPDATE, Reason.ACKNOWLEDGED, state.time)]

    def take_back(self, identity: str, sender: str) -> None:
        """Note that somebody does not take an incident for normal any more: if it is still there, it is told again.

        It is acknowledged then, and so it does not become normal once more by itself.
        """
        state = self._state
        state.echo_until = state.cool_until = -math.inf
        if state.incident is None and state.taken is not None and state.last_id == identity:
            state.last, state.taken, state.last_acknowledged = state.taken, None, sender
            state.echo_channels, state.echo_until = [], state.time + self._settings.settle

    def silence(self, time: float, reason: Reason = Reason.MAINTENANCE) -> list[Alert]:
        """Begin maintenance, or the like: an open incident ends, and what was counted towards another one is dropped.

        No cool-down follows: what is wrong after maintenance is news.
        """
        state = self._state
        alerts: list[Alert] = [] if state.incident is None else [self._end(time, reason)]
        state.excursion, state.recent = None, []
        state.told, state.cool_until = state.time, -math.inf
        return alerts

    def interrupt(self, time: float) -> None:
        """Note that the following rows are not connected to those before: a gap, a stale device, another clock.

        An excursion shorter than `min_duration` is dropped. An open incident stays open without updates until rows come
        again; then it needs another `clear_after` of quiet to end.
        """
        if time < self._state.time:
            self._go_back(time)
            self._state.time = time
        self._state.quiet = None
        self._drop_excursion()

    def _go_back(self, time: float) -> None:
        """Forget what is in the future of a clock that was set back; nothing may wait until that time comes again."""
        state = self._state
        state.excursion = state.quiet = None
        state.recent = [episode for episode in state.recent if episode.last <= time]
        state.begun = [moment for moment in state.begun if moment <= time]
        state.said, state.told = min(state.said, time), min(state.told, time)
        state.cool_until = min(state.cool_until, time + self._pause - self._slack)
        state.echo_until = min(state.echo_until, time + max(self._echoes, self._settings.settle))

    def _take_abnormal(self, reading: Reading, is_astray: bool, is_away: bool) -> list[Alert]:
        state, ended = self._state, []
        self._note_channels()
        if self._waits and not is_away:
            if not self._is_news(reading):
                return []
            ended = [self._end(state.time, Reason.CLEARED)]
            state.cool_until = -math.inf  # the pause has been
        state.quiet, is_critical = None, self._is_critical()
        if state.incident is None:
            excursion = self._excursion(reading, is_critical=is_critical)
            state.astray = is_astray
            return ended + self._begin(excursion, is_critical, reading)
        state.astray = state.astray or is_astray
        if self._is_beside(reading):
            return self._tell_another(self._excursion(reading, is_critical=is_critical), reading)
        self._drop_excursion()
        was_critical = state.incident.critical
        state.incident.add(float(state.time), is_critical, reading)
        if is_critical and not was_critical:
            return [self._alert(AlertEvent.UPDATE, Reason.WORSE, state.time)]
        return self._continue()

    def _excursion(self, reading: Reading, *, is_critical: bool) -> Episode:
        """The excursion that goes on with this abnormal row, or begins with it."""
        state = self._state
        if state.excursion is None:
            state.excursion = Episode(float(state.time), float(state.time))
        state.excursion.add(float(state.time), is_critical, reading)
        return state.excursion

    def _is_beside(self, reading: Reading) -> bool:
        """Whether an abnormal row is led by a channel that the open incident is not about, and not because it spreads.

        It spreads for as long as the window of the rate.
        """
        incident = self._state.incident
        assert incident is not None
        # After the clock was set back it begins in the future, and nothing may wait until that time comes again.
        is_old = not 0.0 <= self._state.time - incident.start < self._settings.rate_window
        return is_old and int(reading.shares.argmax()) not in incident.about(self._channels)

    def _tell_another(self, excursion: Episode, reading: Reading) -> list[Alert]:
        """Tell what else is wrong, once it has lasted and is clearly higher than the open incident ever was.

        The incident is about that as well from then on.
        """
        state = self._state
        assert state.incident is not None
        margin = AFTER_COMMAND if state.incident.departed in reading.commands else MARGINAL
        if excursion.peak <= margin * state.incident.peak or not self._has_lasted(excursion):
            if not excursion.critical or state.incident.critical:
                return self._continue()
            state.incident.critical = True
            return [self._alert(AlertEvent.UPDATE, Reason.WORSE, state.time, excursion)]
        excursion.departed = self._channels[int(reading.shares.argmax())]
        state.incident, state.excursion = state.incident.joined(excursion), None
        self._note_begun()
        return [self._alert(AlertEvent.UPDATE, Reason.ANOTHER, state.time, excursion)]

    @property
    def _waits(self) -> bool:
        """Whether the open incident would be over, and only waits for its level to come back."""
        quiet = self._state.quiet
        if self._state.incident is None or quiet is None or not self._is_rare():
            return False
        return self._state.time - quiet >= self._settings.clear_after + self._pause

    def _is_news(self, reading: Reading) -> bool:
        """Whether an abnormal row has nothing to do with the incident that waits: no echo of it, or no brief one.

        What follows a new set-point, even the next morning and in any channel, belongs to it.
        """
        state, incident = self._state, self._state.incident
        assert incident is not None
        assert state.quiet is not None
        if state.score > MARGINAL * incident.peak or self._is_frequent(state.quiet):
            return True
        if incident.departed in reading.commands:
            return False
        is_late = 0.0 < self._echoes <= state.time - state.quiet - self._settings.clear_after
        return is_late or int(reading.shares.argmax()) not in incident.about(self._channels)

    def _note_channels(self) -> None:
        state = self._state
        if self._channels == state.channels:
            return
        state.channels = self._channels
        for episode in (*(getattr(state, name) for name in EPISODES), *state.recent):
            if episode is not None:
                episode.forget_channels()

    def _is_critical(self) -> bool:
        state = self._state
        if state.threshold <= 0.0:
            return bool(state.score > 0.0)
        return bool(state.score >= self._settings.critical * state.threshold)

    def _begin(self, excursion: Episode, is_critical: bool, reading: Reading) -> list[Alert]:
        state = self._state
        if (state.time < state.cool_until or self._is_echo(excursion)) and not is_critical:
            return []
        if reading.is_anomaly and self._has_lasted(excursion):
            state.incident, kind, reason = excursion, Kind.SCORE, Reason.THRESHOLD
        elif self._is_frequent():
            state.incident, kind, reason = self._with_recent(excursion), Kind.RATE, Reason.RATE
        else:
            return []
        state.excursion, state.recent, state.incident.departed = None, [], self._departed(reading)
        state.astray = state.astray or state.incident.departed in reading.commands
        self._note_begun()
        if state.last is not None and state.time < state.echo_until:
            return self._go_on(state.last, kind)
        state.incidents += 1
        state.updates = 0
        named = identity(self._device, state.incident.start, state.incidents), kind, None
        return [self._alert(AlertEvent.START, reason, state.time, named=named)]

    def _has_lasted(self, excursion: Episode) -> bool:
        return self._state.time - excursion.start >= self._settings.min_duration - self._slack

    def _note_begun(self) -> None:
        self._state.begun = [*self._state.begun[1 - MOST_BEGUN :], float(self._state.time)]

    def _go_on(self, before: Episode, kind: Kind) -> list[Alert]:
        """Tell that the last incident is there again, and what is seen now: that may be in other channels."""
        state, now = self._state, self._state.incident
        assert now is not None
        state.incident = before.joined(now)
        state.last, named = None, (state.last_id, kind, state.last_acknowledged)
        return [self._alert(AlertEvent.UPDATE, Reason.AGAIN, state.time, now, named)]

    def _is_echo(self, excursion: Episode) -> bool:
        """Whether an excursion is what the last incident was, and neither worse nor long."""
        state = self._state
        if state.time >= state.echo_until or excursion.cause(self._channels) not in state.echo_channels:
            return False
        return excursion.peak <= MARGINAL * state.echo_peak and state.time - excursion.start < ECHO_LASTS

    def _is_frequent(self, since: float | None = None) -> bool:
        """Whether many rows of the window are abnormal, of those that belong to no incident unless `since` is given."""
        if not self._limit:
            return False
        scored, abnormal = self._rate.since(self._state.told if since is None else since)
        half = 0.5 * self._settings.rate_window - self._slack
        return scored * self._period >= half and abnormal >= self._limit * scored

    def _with_recent(self, excursion: Episode) -> Episode:
        """The abnormal rows of about one window: those of recent excursions and of this one."""
        episode = excursion
        for earlier in reversed(self._state.recent):
            if excursion.last - earlier.last <= self._settings.rate_window:
                episode = earlier.joined(episode)
        return episode

    def _drop_excursion(self) -> None:
        """Drop an excursion that was too short to be reported; it may still be part of a rate, or of the open incident.

        Two episodes of half a window each are kept: enough to explain an incident, without one per row.
        """
        state = self._state
        excursion, state.excursion = state.excursion, None
        if excursion is None:
            return
        if state.incident is not None:
            state.incident = state.incident.joined(excursion)
            return
        if not self._limit:
            return
        if state.recent and excursion.start - state.recent[-1].start <= 0.5 * self._settings.rate_window:
            state.recent[-1] = state.recent[-1].joined(excursion)
        else:
            state.recent = [*state.recent[-1:], excursion]

    def _take_normal(self, is_quiet: bool) -> list[Alert]:
        state = self._state
        if is_quiet:
            self._drop_excursion()
        if state.incident is None:
            return []
        if not is_quiet:
            state.quiet = None
            return self._continue()
        if state.quiet is None:
            state.quiet = state.time
        if state.time - state.quiet >= self._clear_after - self._slack and self._is_rare():
            return [self._end(state.time, Reason.CLEARED)]
        return []

    @property
    def _clear_after(self) -> float:
        """How long it must be quiet; after an incident that went astray, as long as that lasted, up to a night.

        A new level that comes by day and goes at night is one incident then, and may settle. So is a new set-point.
        """
        incident, least = self._state.incident, self._settings.clear_after
        assert incident is not None
        return max(least, min(incident.last - incident.start, LONGEST_QUIET)) if self._state.astray else least

    def _is_rare(self) -> bool:
        assert self._state.open is not None
        by_rate = self._state.open.kind == Kind.RATE and self._limit
        return not by_rate or self._rate.value < self._settings.release * self._limit

    def _continue(self) -> list[Alert]:
        """An update once more, twice as long after the last one as that was after the one before, up to a day."""
        state, every = self._state, self._settings.update_every
        wait = min(every * 2.0 ** min(state.updates, 30), max(LONGEST_WAIT, every))
        is_known = state.open is not None and state.open.acknowledged
        if is_known or not every or state.time - state.said < wait - self._slack:
            return []
        state.updates += 1
        return [self._alert(AlertEvent.UPDATE, Reason.STILL, state.time)]

    def _end(self, time: float, reason: Reason) -> IncidentAlert:
        state, incident = self._state, self._state.incident
        assert incident is not None
        alert = self._alert(AlertEvent.END, reason, time)
        # What has become normal moves every channel a little, at levels that nobody has seen yet.
        about = range(len(self._channels)) if reason == Reason.SETTLED else incident.about(self._channels)
        state.echo_channels, state.echo_peak = [self._channels[k] for k in about], incident.peak
        lasts = {Reason.CLEARED: self._echoes, Reason.SETTLED: self._settings.settle}.get(reason, 0.0)
        over = time if state.quiet is None else min(state.quiet + self._settings.clear_after, time)
        state.echo_until = over + lasts - self._slack if lasts else -math.inf
        state.last, state.last_id = incident if reason == Reason.CLEARED else None, alert.id
        state.taken = incident if reason in (Reason.SETTLED, Reason.NORMAL) else None
        state.last_acknowledged = alert.acknowledged
        state.open = state.incident = state.quiet = None
        state.told, state.cool_until = state.time, time + self._pause - self._slack
        return alert

    def _alert(
        self, event: AlertEvent, reason: Reason, time: float, shown: Episode | None = None, named: Named | None = None
    ) -> IncidentAlert:
        """An alert of the open incident, which describes that part of it that is `shown`, or all.

        One that begins is `named`: it has that id, kind, and who has acknowledged it.
        """
        state, incident = self._state, self._state.incident
        assert incident is not None
        shown = shown or incident
        if named is None:
            assert state.open is not None
            named = state.open.id, state.open.kind, state.open.acknowledged
        # A cleared incident was over before the quiet that was waited for.
        until = incident.last if reason == Reason.CLEARED else float(time)
        alert = IncidentAlert(
            id=named[0],
            device=self._device,
            event=event,
            kind=named[1],
            severity=Severity.CRITICAL if incident.critical else Severity.WARNING,
            start=incident.start,
            time=time,
            duration=round(max(until - incident.start, 0.0), 3),
            score=as_number(state.score),
            peak=as_number(max(incident.peak, shown.peak)),
            worst=shown.worst,
            threshold=as_number(state.threshold),
            rate=as_number(round(self._rate.value, 4)),
            samples=incident.samples,
            channels=shown.causes(state.channels),
            witness=shown.witness,
            sentence=shown.sentence,
            acknowledged=named[2],
            reason=reason,
            provisional=self._is_provisional,
        )
        state.open, state.said = replace(alert, text=alert_text(alert, self._settings.rate_window)), time
        return state.open
