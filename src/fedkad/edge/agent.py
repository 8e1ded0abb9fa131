"""The loop of the agent: messages in, one commit, acknowledgements and alerts out."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from fedkad.edge.assembly import assemble
from fedkad.edge.commands.client import StoreClient
from fedkad.edge.commands.inbox import Inbox
from fedkad.edge.device.pipeline import Device
from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.membership import Membership, member_folders
from fedkad.edge.process import log_to_stderr
from fedkad.edge.reloading import reloaded
from fedkad.edge.settings import AgentSettings, DeviceSettings
from fedkad.edge.sinks.outbox import Outbox
from fedkad.edge.sinks.prometheus import AgentMetrics, MetricsServer
from fedkad.edge.sources import BATCH, RawMessage
from fedkad.edge.sources.decoding import Decoder
from fedkad.edge.sources.payload import quoted
from fedkad.edge.store import Store
from fedkad.edge.store.database import StoreError
from fedkad.locks import holding
from fedkad.repeats import RepeatFilter
from fedkad.systemd import SystemdNotifier

logger = logging.getLogger(__name__)

IDLE = 0.2
"""Seconds that the loop waits for something to arrive."""

SHORT_POLL = 0.05
"""Seconds that the loop polls brokers now and then while it waits for something else."""

TICK = 0.25
MODEL_CHECK = 2.0
DISK_RETRY = 1.0
"""Seconds until a failed commit is tried again."""

FINAL_DELIVERY = 5.0
"""Seconds in which sinks may deliver what is left when the agent stops."""


class Agent:
    """Watches the configured devices until it is stopped or its source ends; `load` reads its settings again."""

    def __init__(self, settings: AgentSettings, load: Callable[[], AgentSettings] | None = None) -> None:
        self.settings, self._load = settings, load
        self._readings: list[dict[str, Any]] = []
        self._heard_from: dict[str, None] = {}  # devices of the last messages that may have to learn, in that order
        self._uncommitted_since = self._retry_at = self._next_tick = self._next_model_check = 0.0
        self._is_stopping = self._is_disk_full = self._is_reload_wanted = False
        self._repeats, self._notifier = RepeatFilter(limit=3, period=3600.0), SystemdNotifier()
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)  # the measurements are private
        with ExitStack() as closing:
            refusal = f"{settings.state}: an agent already runs with this state folder; stop it, or set another state."
            closing.enter_context(holding(settings.state / "agent.lock", refusal))
            self._open(closing)
            self._closing = closing.pop_all()

    def _open(self, closing: ExitStack) -> None:
        """Open everything; it is closed in reverse order, sinks before the connections that they use."""
        self.store = Store(self.settings.state / "agent.sqlite")
        closing.callback(self.store.close)
        settings = self.settings = self.settings.admitting(self.store.states.devices())
        self.devices = {name: self._device(name, device) for name, device in settings.named.items()}
        self._inbox = Inbox(self.store, self.devices)

        def count_refusal(name: str) -> None:
            if name in self.devices:
                self.devices[name].count_refusal()

        self._decoder = Decoder(settings.source, settings.devices, count_refusal)
        self._endpoints = assemble(settings, self.store, self.statuses, self._inbox.receive)
        self.source = self._endpoints.source
        self._outbox = Outbox(self.store, self._endpoints.sinks)
        connections, sinks = self._endpoints.connections, self._endpoints.sinks
        closes = [self._outbox.close, *(each.close for each in connections), *(each.close for each in sinks)]
        for close in (*closes, self.source.close):
            closing.callback(close)
        if settings.prometheus.port:
            closing.callback(MetricsServer(settings.prometheus, self.metrics).close)
        if settings.fleet.enabled:
            closing.callback(Membership(list(member_folders(settings).values())).close)

    def _device(self, name: str, settings: DeviceSettings) -> Device:
        stdout = self.settings.stdout
        on_reading = self._readings.append if stdout.enabled and stdout.readings else None
        return Device(name, settings, self.store, self.settings.maintenance, on_reading)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or the end of the source; SIGHUP lets it read its settings again."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._is_stopping = True

        def want_reload(number: int, frame: FrameType | None) -> None:
            self._is_reload_wanted = True

        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: want_reload}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            self._notifier.ready(f"watching {len(self.devices)} device(s)")
            while not self._is_stopping:
                self.step(IDLE)
                if self.source.is_finished and not self._heard_from and not self.store.is_dirty:
                    break  # nothing is left to learn or to commit
            self._notifier.stopping()
            self.commit()
            deadline = time.monotonic() + FINAL_DELIVERY
            while not self._outbox.is_empty and time.monotonic() < deadline:
                self._outbox.offer_now()
                self._deliver()
                self._endpoints.wait(0.05)
                if not self.commit():
                    break
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def step(self, timeout: float) -> None:
        """One round: take what has arrived, commit if it is time, deliver."""
        now = time.monotonic()
        self._notifier.alive()
        if self._is_reload_wanted and self.commit():
            self._is_reload_wanted = False
            self._reload()
        if self._is_disk_full:  # what was taken must be committed before anything else is taken
            self._wait(min(timeout, max(self._retry_at - now, 0.0)))
        else:
            # Not while another device is due by the same message: what it learns judges those that follow.
            for message in () if self._heard_from else self.source.poll(self._poll_timeout(timeout, now)):
                self.take(message)
                if self._find_due() is not None:
                    break
            if self.source.unacknowledged:  # perhaps only messages that need nothing but an acknowledgement
                self._note_change()
            if self.source.is_finished:
                for device in self.devices.values():
                    self._outbox.put(device.finish())
            self._learn()
            self._tick()
        if self._is_commit_due():
            self.commit()
        self._deliver()
        if self._readings and (stdout := self._endpoints.stdout) is not None:
            try:
                for reading in self._readings:
                    stdout.write_reading(reading)
            except BrokenPipeError:
                raise
            except OSError as error:  # the disk is full there, and only readings are lost
                if self._repeats.allows("readings"):
                    logger.warning("Standard output accepts nothing (%s); readings are dropped.", error.strerror)
            finally:
                self._readings.clear()

    def _poll_timeout(self, timeout: float, now: float) -> float:
        """How long the loop may wait: not beyond the next commit."""
        if self.source.is_finished or self._outbox.has_delivered:  # commit at once: a kill would deliver them again
            return 0.0
        if not self._uncommitted_since:
            return timeout
        return min(timeout, max(self._uncommitted_since + self.settings.commit_every - now, 0.0))

    def _wait(self, timeout: float) -> None:
        """Take nothing for a while but stay connected: messages that arrive are neither read nor acknowledged."""
        self._notifier.alive()
        self._endpoints.wait(timeout)

    def take(self, message: RawMessage) -> None:
        """Take one message to the devices it is about."""
        self._note_change()
        try:
            for sample in self._decoder.decode(message, self.source.header):
                if sample.values and sample.device is not None and self._is_watched(sample.device):
                    self._heard_from[sample.device] = None
                    self._outbox.put(self.devices[sample.device].take(sample, message.arrival))
        except Exception as error:
            # A bug. If the agent ended, the broker would send the message again, forever.
            if self._repeats.allows(type(error).__name__):
                logger.error("A message cannot be taken because of a bug in the agent: %r; it is skipped.", error)

    def _is_watched(self, name: str) -> bool:
        """Whether a device is watched; one that is not configured is, from now on, if every one is and it may be.

        With its first commit, it is known after a restart.
        """
        if name in self.devices:
            return True
        reason = kind = self.settings.why_not(name)  # one kind must not keep another out of the log
        if not reason:
            try:
                settings = self.settings.admitting([name])
                self.devices[name] = self._device(name, settings.devices[name])
                self.settings = settings
                self._decoder.add(name, settings.devices[name])
                self._endpoints.add(name, settings.devices[name].sampling.channels)
                logger.info("%s publishes and is watched from now on, one of %d.", name, len(self.devices))
            except (ValueError, OSError) as error:
                reason, kind = str(error), "admission"
        if reason and self._repeats.allows(kind):
            logger.warning("%s publishes, but is not watched: %s", quoted(name), reason.rstrip(".") + ".")
        return not reason

    def _note_change(self) -> None:
        self._uncommitted_since = self._uncommitted_since or time.monotonic()

    def _find_due(self) -> Device | None:
        """The first device that was heard and has to learn, or settle; those before it have not."""
        while self._heard_from:
            device = self.devices[next(iter(self._heard_from))]
            if device.is_learning_due or device.parts.is_level_due:
                return device
            del self._heard_from[device.name]
        return None

    def _learn(self) -> None:
        """Let one device learn, or settle; what else has to be done does not wait for several."""
        due = self._find_due()
        if due is None or not self.commit():
            return
        del self._heard_from[due.name]  # whatever comes of it, it is not due again before its next sample
        if due.parts.is_level_due:
            self._outbox.put(due.accept_level(while_waiting=lambda: self._wait(SHORT_POLL)))
        else:
            due.learn(while_waiting=lambda: self._wait(SHORT_POLL))

    def _tick(self) -> None:
        """Notice silence and new models, and poll a broker that only alerts go to."""
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK
        hears = self.settings.source.kind != "mqtt" or self._endpoints.connections[0].is_connected
        for device in self.devices.values():
            self._outbox.put(device.tick(now, hears=hears))
            if device.is_changed:
                self._note_change()
        if self._endpoints.poll_commands():
            self._note_change()
        for command in self._inbox.waiting():
            if not self.commit():
                self._inbox.look_again()
                continue
            # What it changes is committed together with its reply.
            self._outbox.put(self._inbox.carry_out(command, while_waiting=lambda: self._wait(SHORT_POLL)))
            self._note_change()
            self.commit()
        if now >= self._next_model_check:
            self._next_model_check = now + MODEL_CHECK
            for device in self.devices.values():
                if device.parts.model.is_renewed() and self.commit():
                    device.adopt_model()
            if self._outbox.drop_surplus():
                self._note_change()

    def _is_commit_due(self) -> bool:
        if self._is_disk_full:
            return time.monotonic() >= self._retry_at
        if self._outbox.has_new or self._outbox.has_delivered or self._inbox.has_changed:
            return True
        if self.source.unacknowledged >= BATCH or self.source.is_finished or self._is_stopping:
            return True
        since = self._uncommitted_since
        return bool(since) and time.monotonic() - since >= self.settings.commit_every

    def commit(self) -> bool:
        """Write everything that has changed, then acknowledge; False if the disk is full."""
        if not self._is_disk_full:  # otherwise everything is in the store already, and nothing was taken since
            for device in self.devices.values():
                device.save()
            if self._uncommitted_since:
                for source in self._endpoints.sources:
                    source.put_position()
        try:
            if self.store.is_dirty:
                self.store.commit()
        except OSError as error:
            self._retry_at = time.monotonic() + DISK_RETRY
            if not self._is_disk_full:
                logger.warning("%s: no messages are accepted until the disk is writable again; free some space.", error)
            self._is_disk_full = True
            return False
        if self._is_disk_full:
            logger.info("The disk can be written again.")
        self._is_disk_full, self._uncommitted_since = False, 0.0
        for source in self._endpoints.sources:
            source.acknowledge()
        self._outbox.committed()
        self._inbox.committed()
        return True

    def _reload(self) -> None:
        """Use what has changed in the settings, as far as that needs no restart; everything is committed."""
        if self._load is None:
            return
        try:
            change = reloaded(self.settings, self._load().admitting(self.devices))
        except (ValueError, OSError) as error:
            logger.warning("The settings cannot be read again, and stay as they were: %s", error)
            return
        before, self.settings = self.settings, change.settings
        for name, device in self.devices.items():
            settings = self.settings.devices[name]
            if settings != before.devices[name] or self.settings.maintenance != before.maintenance:
                device.configure(settings, self.settings.maintenance)
        if (broker := self._endpoints.broker) is not None:
            broker.configure(self.settings.mqtt)
        logger.log(logging.WARNING if change.refused else logging.INFO, "The settings are read again; %s.", change)

    # -- what goes out ------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        is_urgent = self._outbox.is_urgent
        if self._outbox.deliver():
            self._note_change()
        if (broker := self._endpoints.broker) is not None:
            broker.publish_states(now=is_urgent)
            if self._inbox.publish_replies(broker.reply):
                self._note_change()

    def close(self) -> None:
        """Close everything."""
        self._closing.close()

    def statuses(self) -> dict[str, DeviceStatus]:
        """The status of every device."""
        return {name: device.status() for name, device in list(self.devices.items())}

    def metrics(self) -> AgentMetrics:
        """The numbers for Prometheus; called from its thread, and only reads."""
        waiting: Mapping[str, int] = {}
        with suppress(StoreError, OSError):  # then it is not known
            undelivered = StoreClient(self.settings.state).undelivered()
            waiting = {name: undelivered.get(name, 0) for name in self._outbox.sinks}
        connected = {connection.section: connection.is_connected for connection in self._endpoints.connections}
        devices = {name: status.metrics() for name, status in self.statuses().items()}
        return AgentMetrics(devices, connected, waiting, self._is_disk_full)


def watch(settings: AgentSettings, load: Callable[[], AgentSettings]) -> None:
    """Run an agent to its end; `load` reads its settings again."""
    log_to_stderr()
    agent = Agent(settings, load)
    try:
        agent.run()
    except BrokenPipeError:
        # The reader of our output has gone; the last flush at exit must not fail because of it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        agent.close()
