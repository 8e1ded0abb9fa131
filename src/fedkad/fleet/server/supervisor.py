"""Keeps the devices that Flower knows in line with the registry, and sees to the trainings, the notice and reports."""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedkad.federation.training_files import read_request
from fedkad.fleet.flower.control import Control, ControlError, Node, RefusedError
from fedkad.fleet.server.guards import SILENT
from fedkad.fleet.server.lastseen import LastSeenTracker, as_of_now
from fedkad.fleet.server.noticeboard import NOTICE, NoticeBoard
from fedkad.fleet.server.registry import ActiveDevices, Registry
from fedkad.fleet.server.reporting import Reporter
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.server.trainings import TrainingRules, Trainings
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.logs import timed
from fedkad.fleet.shared.notice import EVERYBODY, LIFE, Invitation, NoticeError, invitation_for
from fedkad.fleet.shared.processes import LogFile
from fedkad.repeats import RepeatFilter
from fedkad.settingkinds import parse_duration

logger = logging.getLogger(__name__)

CALLED_WITHIN, CONNECTED_WITHIN = 2.0, 60.0
"""Periods of the notice in which a device that is on has seen a call, and seconds in which it has connected then."""


class Supervisor:
    """Keeps the devices that Flower knows in line with the registry, and sees to the trainings."""

    def __init__(self, folder: ServerFolder, control: Control, app: Path) -> None:
        self.folder, self.control = folder, control
        settings = folder.settings
        rules = TrainingRules(
            parse_duration(settings.training.every),
            settings.min_devices,
            settings.notice.devices_per_training,
            CALLED_WITHIN * settings.notice.seconds + CONNECTED_WITHIN,
        )
        self.trainings = Trainings(folder.training, AppRuns(folder, control, app), rules)
        self.board, self.reporter, self.last_seen = NoticeBoard(folder), Reporter(folder), LastSeenTracker(folder)
        self.is_ready = self.is_unanswered = False
        self.devices = ActiveDevices(folder.registry)
        self.matched: Registry = {}  # the devices that Flower was brought in line with
        self._failures, self._unshown, self._aging = RepeatFilter(), RepeatFilter(), RepeatFilter()
        self.refused_keys: set[str] = set()
        self.began = time.monotonic()

    def attend(self) -> bool:
        """Bring Flower's devices up to date and take the next step of a training; False if that failed."""
        is_done = self._is_attended()
        if not self._is_starting:
            self._warn_of_notice()
        return is_done

    def _is_attended(self) -> bool:
        self.is_unanswered = False
        try:
            self._attend()
        except OSError as error:
            self._failures.log(
                logger,
                f"The server cannot do its work ({error}); make room or repair it, the server then continues.",
            )
        except (ControlError, FleetFileError) as error:
            self.is_unanswered = type(error) is ControlError
            if not self._is_starting:
                kinds = {RefusedError: "Flower refuses a request", ControlError: "Flower does not answer"}
                kind, log = kinds.get(type(error)), f"{self.folder.logs}/superlink.log"
                self._failures.log(logger, f"{kind} ({error}); see {log}" if kind else str(error))
        else:
            self._failures.clear()
            return True
        return False

    @property
    def _is_starting(self) -> bool:
        """Whether Flower is starting, and may fail."""
        return not self.is_ready and time.monotonic() - self.began <= SILENT

    def _warn_of_notice(self) -> None:
        """Say once that the notice grows old, because a server that cannot do its work does not renew it."""
        with suppress(OSError):  # said already
            if not self.board.is_overdue:
                self._aging.clear()
                return
            self._aging.log(
                logger,
                f"{self.folder.public / NOTICE} is older than half its life of {LIFE // 3600} hours and cannot be "
                "renewed; mend what the server has said before, or devices will ignore it.",
            )

    def _attend(self) -> None:
        devices, settings = self.devices.read(), self.folder.settings.notice
        on_demand = settings.is_on_demand(len(devices))
        if on_demand and not self.is_ready:
            self._resume_call(devices)
        call, invitation = self.trainings.call, None if on_demand else EVERYBODY
        if on_demand and call is not None:
            invitation = invitation_for(call.token, devices, call.called)
        online: set[str] = set()
        nodes: Mapping[str, Node] | None = None
        if not on_demand or not self.is_ready or devices is not self.matched or self.trainings.is_open:
            nodes = self.control.nodes()
            self._match(devices, nodes, invitation)
            online = {key for key, node in nodes.items() if node.state == "online"}
        if not self.is_ready:
            self.control.stop_all()  # runs of an earlier server, whose apps died with it; Flower notices only later
            self.is_ready = True
            logger.info("devices reach this server at %s", self.folder.settings.place.reached_at)
        try:
            self.board.show(settings.seconds, invitation, len(devices))  # only now that Flower knows whom it calls
            self._unshown.clear()
        except (FleetFileError, NoticeError) as error:  # with a damaged key the last notice stays, and all else goes on
            self._unshown.log(logger, str(error))
        self.matched = devices
        request = read_request(self.folder.training)
        self.trainings.step({name: each.public_key in online for name, each in devices.items()}, on_demand=on_demand)
        self.reporter.training_ended(request)
        self.last_seen.take(devices)
        self.reporter.look(devices, nodes, as_of_now(self.last_seen.last, settings.seconds) if on_demand else None)

    def _resume_call(self, devices: Registry) -> None:
        """Call whom an earlier server called, instead of sending them away first."""
        last = self.board.last()
        if last is not None and (invitation := last.body.invitation) is not None:
            self.trainings.resume(invitation.salt, sum(map(invitation.includes, devices)), len(devices))

    def _match(self, devices: Registry, nodes: Mapping[str, Node], invitation: Invitation | None) -> None:
        """Register the devices that are called and that Flower does not know; unregister those that may not take part.

        A device stays registered after its training: Flower does not take the same key twice.
        """
        allowed = {device.public_key for device in devices.values()}
        for key, node in nodes.items():
            if key not in allowed:
                self.control.unregister(node)
                logger.info("%s: may no longer take part with this key", node.name)
        settled = nodes.keys() | self.refused_keys
        for device in devices.values():
            if invitation is not None and invitation.includes(device.name) and device.public_key not in settled:
                try:
                    self.control.register(device.name, device.public_key)
                    logger.info("%s: may take part", device.name)
                except RefusedError as error:  # which must not keep the others out
                    self.refused_keys.add(device.public_key)
                    remedy = "give it another with `fedkad fleet renew`"
                    logger.warning("%s: Flower refuses its key (%s); %s", device.name, error, remedy)


class AppRuns:
    """Starts and stops runs of the app, and keeps their output."""

    def __init__(self, folder: ServerFolder, control: Control, app: Path) -> None:
        self.folder, self.control, self.app = folder, control, app

    def submit(self, job: str) -> int:
        """Start a run, and stop any other: a run may have started although Flower's answer was lost."""
        self.control.stop_all()
        return self.control.submit(self.app, {"folder": str(self.folder.root), "job": job})

    def stop(self) -> None:
        """Stop the run that is under way."""
        self.control.stop_all()

    def has_ended(self, run: int) -> bool:
        """Return whether a run is over; if so its output is kept in a file, since Flower shows it nowhere."""
        if not self.control.has_ended(run):
            return False
        log = LogFile(self.folder.logs / "app.log")
        try:
            log.bound()
            with suppress(ControlError):  # Flower no longer knows the run, or does not answer
                log.append(timed(self.control.log(run), time.time()))
        except OSError as error:  # the run is over even if the disk is full
            logger.warning("%s: the output of run %d cannot be kept (%s); make room.", log.path, run, error.strerror)
        return True
