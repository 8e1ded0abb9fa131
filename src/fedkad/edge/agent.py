"""The loop: messages in, one commit, acknowledgements and alerts out."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from fedkad.edge.assembly import assemble, serve_numbers
from fedkad.edge.notify import Notifier
from fedkad.edge.reading import SAID_ALOUD, Reader
from fedkad.edge.settings import AgentSettings
from fedkad.edge.sinks import Sink
from fedkad.edge.sinks.stdout import Lines
from fedkad.edge.sources import MOST_IN_HAND, Message
from fedkad.edge.store import Store
from fedkad.edge.watcher import Watcher
from fedkad.locks import holding

Say = Callable[[str], None]

IDLE = 0.2
"""Seconds that the loop waits for something to arrive."""

READ_ON = 0.05
"""Seconds that the loop listens to brokers now and then while it waits for something else."""

LOOK_FOR_MODELS = 2.0
TICK = 0.25
DISK_RETRY = 1.0
"""Seconds until a commit is tried again that the disk did not take."""

OFFERED, OFFER_AGAIN = 50, 1.0
"""Alerts offered to a sink at a time, and seconds until those that it has not taken are offered again."""

LAST_WORDS = 5.0
"""Seconds in which sinks may take what is left when the agent ends."""


class Agent:
    """Watches the devices of a configuration until it is stopped or its source ends.

    Parameters
    ----------
    settings : AgentSettings
    say : callable
        Takes a sentence for the log.
    """

    def __init__(self, settings: AgentSettings, say: Say) -> None:
        self.settings, self._say = settings, say
        self._closing = ExitStack()
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # what a device measures is its own affair
        refusal = f"{settings.state}: an agent runs with this state folder already; stop it, or set another state."
        self._closing.enter_context(holding(settings.state / "agent.lock", refusal))
        try:
            self._open()
        except BaseException:
            self._closing.close()
            raise

    def _open(self) -> None:
        settings, say = self.settings, self._say
        self.sinks: list[Sink] = []
        self.store = Store(settings.state / "agent.sqlite", say)
        self._closing.callback(self.store.close)
        self._closing.callback(self._note_last_taken)
        self.watchers = {
            name: Watcher(name, device, self.store, say, settings.maintenance)
            for name, device in settings.devices.items()
        }
        self._reader = Reader(settings.source, settings.devices, say, self._count_refusal)
        self._notifier = Notifier()
        parts = assemble(settings, self.store, say, self.snapshots)
        self.source, self.sinks, self._broker, self._connections = parts
        for connection in self._connections:
            self._closing.callback(connection.close)
        for sink in self.sinks:
            self._closing.callback(sink.close)
        self._closing.callback(self.source.close)
        if settings.prometheus.port:
            self._closing.callback(serve_numbers(settings, self.numbers).close)
        self._listen()
        self.store.drop_other_sinks(sink.name for sink in self.sinks)
        self._stopping = False
        self._taken_from: set[str] = set()
        self._gone: set[int] = set()  # alerts that were taken, but are still in the outbox until the next commit
        self._first_uncommitted = self._retry_at = self._next_tick = self._next_look = self._next_offer = 0.0
        self._has_alerts = self._has_offers = True
        self._said: dict[str, list[float]] = {}
        self._is_disk_full = False

    def _listen(self) -> None:
        """Write every reading to standard output, if that is asked for."""
        self._readings: list[dict[str, Any]] = []
        self._lines = next((sink for sink in self.sinks if isinstance(sink, Lines)), None)
        if self._lines is not None and self.settings.stdout.readings:
            for watcher in self.watchers.values():
                watcher.listener = self._readings.append

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or the end of the source; what was taken is committed."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._notifier.ready(f"watching {len(self.watchers)} device(s)")
            while not self._stopping and not (self.source.is_finished and not self.store.is_dirty):
                self.step(IDLE)
            self._end()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def step(self, timeout: float) -> None:
        """Once around: take what has arrived, commit if it is time, deliver."""
        now = time.monotonic()
        self._notifier.alive()
        if self._is_disk_full:  # nothing is taken before what was taken is committed
            self._wait(min(timeout, max(self._retry_at - now, 0.0)))
        else:
            for message in self.source.poll(0.0 if self.source.is_finished else self._patience(timeout, now)):
                self.take(message)
            if self.source.in_hand and not self._first_uncommitted:  # nothing new, but the broker wants to hear of it
                self._first_uncommitted = now
            if self.source.is_finished:
                self._finish()
            self._learn()
            self._look_around()
        if self._is_commit_due():
            self.commit()
        self.deliver()
        self._tell_readings()

    def _patience(self, timeout: float, now: float) -> float:
        """How long the loop may wait: not beyond the next commit."""
        if self._gone:  # an alert that was taken must be known to be, or a kill repeats it
            return 0.0
        if not self._first_uncommitted:
            return timeout
        return min(timeout, max(self._first_uncommitted + self.settings.commit_every - now, 0.0))

    def _wait(self, timeout: float) -> None:
        """Take nothing for a while, and stay connected: what arrives is neither looked at nor acknowledged."""
        self._notifier.alive()
        until = time.monotonic() + timeout
        while True:
            for connection in self._connections:
                connection.poll(max(until - time.monotonic(), 0.0) / len(self._connections))
            if not self._connections:
                time.sleep(timeout)
            if time.monotonic() >= until:
                return

    def take(self, message: Message) -> None:
        """Take one message to the devices it is about."""
        if not self._first_uncommitted:
            self._first_uncommitted = time.monotonic()
        try:
            for device, moment, values in self._reader.read(message, self.source.header):
                if values:  # some messages say nothing of the channels
                    self._taken_from.add(device)
                    self._keep(self.watchers[device].take(moment, values, message.arrival))
        except Exception as error:
            # A mistake of ours. The broker would send the message again to an agent that ended, for ever.
            text = f"A message cannot be taken, which is a defect of the agent: {error!r}; it is left out."
            self._say_few(type(error).__name__, text)

    def _keep(self, alerts: list[dict[str, Any]]) -> None:
        for alert in alerts:
            self.store.put_alert([sink.name for sink in self.sinks], alert)
            self._has_alerts = True

    def _finish(self) -> None:
        for watcher in self.watchers.values():
            self._keep(watcher.finish())

    def _learn(self) -> None:
        """Let one device learn that has gathered enough: the samples of the others must not wait for all."""
        due = next((name for name in self._taken_from if self.watchers[name].is_learning_due), None)
        self._taken_from.clear()
        if due is not None and self.commit():
            self.watchers[due].learn(meanwhile=lambda: self._wait(READ_ON))

    def _look_around(self) -> None:
        """Notice silence, new models and what is to be learnt, every now and then."""
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK
        for watcher in self.watchers.values():
            self._keep(watcher.tick(now))
            if watcher.is_changed:
                self._first_uncommitted = self._first_uncommitted or now
        self._poll_others()
        if now >= self._next_look:
            self._next_look = now + LOOK_FOR_MODELS
            self._look_for_models()
            for sink in self.sinks:
                if self.store.drop_surplus(sink.name):
                    self._first_uncommitted = self._first_uncommitted or now

    def _look_for_models(self) -> None:
        for watcher in self.watchers.values():
            if watcher.is_model_renewed and self.commit():
                watcher.take_model_over()

    def _poll_others(self) -> None:
        """Look after a broker that only alerts go to."""
        if self._broker is not None and self.settings.mqtt.broker:
            for _ in range(MOST_IN_HAND):  # each look takes one message of the broker
                self._connections[-1].poll(0.0)

    def _is_commit_due(self) -> bool:
        if self._is_disk_full:
            return time.monotonic() >= self._retry_at
        urgent = self._has_alerts or self._gone or self.source.in_hand >= MOST_IN_HAND
        if urgent or self.source.is_finished or self._stopping:
            return True
        waited = time.monotonic() - self._first_uncommitted
        return bool(self._first_uncommitted) and waited >= self.settings.commit_every

    def commit(self) -> bool:
        """Write everything that has changed, then acknowledge; False if the disk does not take it now."""
        if not self._is_disk_full:  # else all of it is gathered already, and nothing was taken since
            self._gather()
        try:
            if self.store.is_dirty:
                self.store.commit()
        except OSError as error:
            self._retry_at = time.monotonic() + DISK_RETRY
            if not self._is_disk_full:
                self._say(f"{error}: nothing is taken and acknowledged until it can be written; free some space.")
            self._is_disk_full = True
            return False
        if self._is_disk_full:
            self._say("The disk takes what is written again.")
        self._is_disk_full, self._first_uncommitted = False, 0.0
        self.source.committed()
        # What was taken makes room for what waits behind it.
        self._has_offers, self._has_alerts = self._has_offers or self._has_alerts or bool(self._gone), False
        self._gone.clear()
        return True

    def _gather(self) -> None:
        for watcher in self.watchers.values():
            watcher.put_state()
        if self._first_uncommitted:
            self.source.put_position()

    def _count_refusal(self, device: str) -> None:
        if device:
            self.watchers[device].refuse()

    def _say_few(self, kind: str, text: str) -> None:
        """Say things of one kind a few times an hour only: trouble with every sample must not fill the log."""
        now = time.monotonic()
        recent = [moment for moment in self._said.get(kind, []) if now - moment < 3600.0]
        if len(recent) < SAID_ALOUD:
            self._say(text)
            recent.append(now)
        self._said[kind] = recent

    def _tell_readings(self) -> None:
        """Write what was read to standard output; a disk that is full there must not stop the rest."""
        if not self._readings or self._lines is None:
            return
        try:
            for reading in self._readings:
                self._lines.reading(reading)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._say_few("readings", f"Standard output takes nothing ({error.strerror}); readings are left out.")
        finally:
            self._readings.clear()

    def deliver(self) -> None:
        """Offer committed alerts to the sinks, and note what they have taken."""
        now, urgent = time.monotonic(), self._has_offers
        if urgent or now >= self._next_offer:
            self._next_offer = now + OFFER_AGAIN if self._offer() else math.inf
            self._has_offers = False
        if taken := self._note_taken():
            self._gone.update(taken)
            self._first_uncommitted = self._first_uncommitted or time.monotonic()
        if self._broker is not None:
            self._broker.tell_states(urgent=urgent)

    def _note_taken(self) -> list[int]:
        """Keys of the alerts that were delivered, which now need not be kept."""
        taken = [key for sink in self.sinks for key in sink.taken()]
        self.store.put_delivered(taken)
        return taken

    def _note_last_taken(self) -> None:
        """Note what was delivered while the sinks were closed, and nothing else: what was to be committed has been."""
        self.store.discard()
        if self._note_taken():
            with suppress(OSError):  # then it is sent once more
                self.store.commit()

    def _offer(self) -> bool:
        """Offer what is in the outbox; False if nothing is."""
        found = False
        for sink in self.sinks:
            waiting = [entry for entry in self.store.waiting(sink.name, OFFERED) if entry[0] not in self._gone]
            found = found or bool(waiting)
            try:
                sink.offer(waiting)
            except BrokenPipeError:
                raise
            except OSError as error:
                self._say_few(
                    sink.name, f"{sink.name} takes nothing ({error.strerror}); what it should is kept for it."
                )
        return found

    def _end(self) -> None:
        """Commit, and give the sinks a moment to take what is left."""
        self._notifier.stopping()
        self.commit()
        deadline = time.monotonic() + LAST_WORDS
        while any(self.store.waiting(sink.name, 1) for sink in self.sinks) and time.monotonic() < deadline:
            self._has_offers = True
            self.deliver()
            for connection in self._connections:
                connection.poll(0.02)
            if not self._connections:
                time.sleep(0.05)
            if not self.commit():
                return

    def close(self) -> None:
        """Let go of everything, the sinks before the connections that they say goodbye over."""
        self._closing.close()

    # -- telling ----------------------------------------------------------------------------------------------------

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """What is to be said of every device now."""
        return {name: watcher.snapshot() for name, watcher in self.watchers.items()}

    def numbers(self) -> dict[str, Mapping[str, float]]:
        """The same as numbers, for Prometheus; called from its thread, which only reads."""
        return {name: _numbers(snapshot) for name, snapshot in self.snapshots().items()}


def _numbers(snapshot: Mapping[str, Any]) -> dict[str, float]:
    found = {name: float(snapshot[name]) for name in NUMBERS if snapshot[name] is not None}
    for state in ("warming", "learning", "stale", "gap", "maintenance"):
        found[state] = float(snapshot["state"] == state)
    found["incident_open"] = float(snapshot["incident"] is not None)
    if snapshot["rate"] is not None:
        found["anomaly_rate"] = snapshot["rate"]
    budget = snapshot["budget"] or {}
    if budget.get("measured_per_week") is not None:
        found |= {"alarms_per_week": budget["measured_per_week"], "alarms_allowed_per_week": budget["allowed_per_week"]}
    return found


NUMBERS = (
    *("score", "threshold", "abnormal", "rows", "carried", "late", "duplicates", "off_clock", "refused"),
    *("incidents", "learnt"),
)


def say(text: str) -> None:
    """One line for the log; a log that takes none must not stop the agent."""
    with suppress(OSError):
        print(f"fedkad-agent: {text}", file=sys.stderr, flush=True)


def watch(settings: AgentSettings) -> None:
    """Run an agent to its end."""
    agent = Agent(settings, say)
    try:
        agent.run()
    except BrokenPipeError:
        # Whoever read our output has left; the last flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        agent.close()
