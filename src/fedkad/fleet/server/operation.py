"""The running server: its processes, kept alive, and a Flower that admits exactly the registered devices."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedkad.fleet import flower
from fedkad.fleet.flower import proxy
from fedkad.fleet.flower.control import Control, ControlError, Node, RefusedError, open_control
from fedkad.fleet.server.enrolment import admit_at_the_door, admit_newcomers, prepare
from fedkad.fleet.server.guards import SILENT, LinkGuard, RunGuard
from fedkad.fleet.server.lastseen import Attendance, recently
from fedkad.fleet.server.noticeboard import NOTICE, NoticeBoard
from fedkad.fleet.server.overview import Looks
from fedkad.fleet.server.registry import ActiveDevices, Registry
from fedkad.fleet.server.reporting import Reporter
from fedkad.fleet.server.settings import FILE, Place, ServerFolder
from fedkad.fleet.server.trainings import Trainings, read_request
from fedkad.fleet.shared import keyfiles
from fedkad.fleet.shared.certificates import days_left, is_valid_for
from fedkad.fleet.shared.files import FileIdentity, FleetFileError, identity
from fedkad.fleet.shared.keyfiles import FOR_PROCESSES, read_certificates
from fedkad.fleet.shared.logline import kept_in
from fedkad.fleet.shared.notice import EVERYBODY, LIFE, Invitation, NoticeError, invite
from fedkad.fleet.shared.processes import (
    LARGEST_LOG,
    LogFile,
    SupervisedProcess,
    ending_all,
    passed_sockets,
    until_stopped,
)
from fedkad.fleet.shared.timedlog import timed
from fedkad.locks import holding
from fedkad.settingerror import SettingsError
from fedkad.settingkinds import parse_duration
from fedkad.systemd import SystemdNotifier

logger = logging.getLogger(__name__)

APP = Path(__file__).parents[1] / "app"
TICK = 0.5
LOOK = 3.0  # seconds between two calls of Flower's control interface
RETRY = 1.0  # seconds until the next call if Flower did not answer
WARN_DAYS, DAY = 30.0, 86_400.0
CALLED_WITHIN, CONNECTED_WITHIN = 2.0, 60.0
"""Periods of the notice in which a device that is on has seen a call, and seconds in which it has connected then."""

EVERYWHERE = ("0.0.0.0", "::")
FREED_WITHIN = 10.0  # seconds in which the processes of a server that was killed release its ports


def serve(folder: ServerFolder, app: Path = APP) -> None:
    """Run the server of a fleet until SIGINT or SIGTERM."""
    refusal = f"{folder.root}: a server is already running in this folder; stop it first."
    with holding(folder.lock, refusal), kept_in(folder.logs / "server.log", LARGEST_LOG), until_stopped():
        os.environ.update(flower.environment(folder.flower))
        prepare(folder)
        place = folder.settings.place
        sockets = passed_sockets()
        if sockets:
            check_passed(sockets, place)
        else:
            check_port("port", place.bind, place.port)
        check_port("control_port", "127.0.0.1", place.control_port)
        *others, front = flower.server_commands(folder).items()
        processes = [_supervised(folder, *each, {**flower.quiet(each[0]), **os.environ}) for each in others]
        processes.append(_supervised(folder, *front, proxy.environment(sockets), sockets))
        with ending_all(processes), open_control(place.control_port, folder.ca_certificate) as control:
            superlink, superexec, nginx = processes
            door, link = Door(folder, nginx, superlink), LinkGuard(folder.database, superlink)
            _operate(Supervisor(folder, control, app), processes, door, link, RunGuard(folder.training, superexec))
    logger.info("stopped")


def _supervised(
    folder: ServerFolder, name: str, command: list[str], environment: Mapping[str, str], sockets: Sequence[int] = ()
) -> SupervisedProcess:
    return SupervisedProcess(name, command, LogFile(folder.logs / f"{name}.log"), environment, sockets)


def check_port(key: str, host: str, port: int) -> None:
    """Refuse a port that cannot be had, before nginx and Flower fail on it again and again."""
    deadline, family = time.monotonic() + FREED_WITHIN, socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        try:
            socket.create_server((host, port), family=family).close()
            return
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise FleetFileError(
                    f"This machine has no address {host}; correct bind in [place] of fleet.toml."
                ) from None
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                taken = error.errno == errno.EADDRINUSE
                remedy = f"stop the program that does, or change {key}" if taken else f"change bind or {key}"
                why = os.strerror(error.errno or 0)
                raise FleetFileError(
                    f"The server cannot listen on port {port} ({why}); {remedy} in fleet.toml."
                ) from None
        time.sleep(0.2)


def check_passed(sockets: Sequence[int], place: Place) -> None:
    """Refuse a socket of systemd's that is not where this server listens: nginx would drop it without a word."""
    hosts = set(map(ipaddress.ip_address, [place.bind] if place.bind else EVERYWHERE))
    for number in sockets:
        with socket.socket(fileno=os.dup(number)) as passed:
            family, name = passed.family, passed.getsockname()
        is_of_network = family in (socket.AF_INET, socket.AF_INET6)
        if not is_of_network or name[1] != place.port or ipaddress.ip_address(name[0]) not in hosts:
            where = f"{name[0]}, port {name[1]}" if is_of_network else name
            raise FleetFileError(
                f"The socket that systemd passes on is at {where}, where this server does not listen; write "
                f"ListenStream={proxy.listening(place)[0]} into its unit, or correct bind and port in fleet.toml."
            )


def _operate(
    supervisor: Supervisor, processes: list[SupervisedProcess], door: Door, link: LinkGuard, rounds: RunGuard
) -> None:
    """Keep everything running; the proxy starts last, so that Flower knows every device before one can connect."""
    link.mend()
    systemd = SystemdNotifier()
    systemd.ready(f"serves {supervisor.folder.root}")
    known, seen, next_look, next_day = supervisor.folder.registry, 0, 0.0, 0.0
    while True:
        systemd.alive()
        if time.monotonic() >= next_day:
            next_day = time.monotonic() + DAY
            warn_of_certificates(supervisor.folder)
        for process in processes if supervisor.is_ready else processes[:-1]:
            process.tend()
        changed = known.stat().st_mtime_ns if known.exists() else 0
        if changed != seen or time.monotonic() >= next_look:
            door.receive()
            door.attend()  # first: a device that Flower sends away asks there whether it was revoked
            is_well = supervisor.attend()
            seen, next_look = changed, time.monotonic() + (LOOK if is_well else RETRY)
            link.attend(is_well=is_well, is_silent=supervisor.is_unanswered)
            rounds.attend(supervisor.trainings.run if is_well else None)
        time.sleep(TICK)


class Door:
    """The proxy: it learns while it runs which devices were added or revoked, and what they may send by now.

    It also takes up a new certificate, and has Flower do the same, whose restart a training survives.
    """

    def __init__(self, folder: ServerFolder, process: SupervisedProcess, superlink: SupervisedProcess) -> None:
        self.folder, self.process, self.superlink = folder, process, superlink
        self.certificate = identity(folder.server_certificate)
        self.made_of: tuple[FileIdentity | None, ...] = ()
        self.is_stale = False
        self.failures, self.unreceived = LastFailure(), LastFailure()
        self.damages: list[str] = []  # of the files of its processes, as of the last look
        self.named: list[str] = []

    def receive(self) -> None:
        """Add the devices that have shown a token."""
        try:
            admit_newcomers(self.folder)
            self.unreceived.clear()
        except (OSError, FleetFileError) as error:
            self.unreceived.report(str(error))

    def attend(self) -> None:
        """Write the files of the proxy if something has changed, and have it read them."""
        self._attend_to_keys()
        made_of = tuple(map(identity, (self.folder.registry, self.folder.tokens, self.folder.root / FILE)))
        try:
            if made_of != self.made_of:
                self.is_stale = admit_at_the_door(self.folder) or self.is_stale
                self.made_of = made_of
            self.failures.clear()
        except (OSError, FleetFileError, SettingsError) as error:  # it goes on with what it knows
            self.failures.report(str(error))
        if self.is_stale and (self.process.child is None or proxy.reload(self.folder.root, self.process.child)):
            self.is_stale = False

    def _attend_to_keys(self) -> None:
        """Take up a new certificate, if its key fits: the processes go on with what they have read at their start."""
        last, self.damages = self.damages, [str(error) for error in keyfiles.damages(self.folder, *FOR_PROCESSES)]
        lasting = [damage for damage in self.damages if damage in last]  # not of a renewal that is under way
        for damage in lasting:
            if damage not in self.named:
                logger.warning("%s", damage)
        self.named = lasting
        if self.damages:
            return
        before, self.certificate = self.certificate, identity(self.folder.server_certificate)
        if self.certificate != before:
            logger.info("the server has a new certificate")
            self.is_stale = True
            if self.superlink.child is not None:
                self.superlink.child.end()


class LastFailure:
    """Logs what fails again and again once."""

    def __init__(self) -> None:
        self.said = ""

    def report(self, failure: str) -> None:
        """Log a failure unless it was the last one logged."""
        if failure != self.said:
            logger.warning("%s", failure)
        self.said = failure

    def clear(self) -> None:
        """Log the next one, whatever it is: this time nothing has failed."""
        self.said = ""


class Supervisor:
    """Keeps the devices that Flower knows in line with the registry, and sees to the trainings."""

    def __init__(self, folder: ServerFolder, control: Control, app: Path) -> None:
        self.folder, self.control = folder, control
        known = folder.settings
        self.trainings = Trainings(
            folder.training,
            AppRuns(folder, control, app),
            every=parse_duration(known.training.every),
            least=known.least,
            invite=known.notice.invite,
            patience=CALLED_WITHIN * known.notice.seconds + CONNECTED_WITHIN,
        )
        self.board, self.reporter, self.attendance = NoticeBoard(folder), Reporter(folder), Attendance(folder)
        self.is_ready = self.is_unanswered = False
        self.devices = ActiveDevices(folder.registry)
        self.known: Registry = {}
        self.failures, self.unshown, self.aging = LastFailure(), LastFailure(), LastFailure()
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
            self.failures.report(
                f"The server cannot do its work ({error}); make room or repair it, the server then continues."
            )
        except (ControlError, FleetFileError) as error:
            self.is_unanswered = type(error) is ControlError
            if not self._is_starting:
                whats = {RefusedError: "Flower refuses a request", ControlError: "Flower does not answer"}
                what = whats.get(type(error))
                self.failures.report(f"{what} ({error}); see {self.folder.logs}/superlink.log" if what else str(error))
        else:
            self.failures.clear()
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
                self.aging.clear()
                return
            self.aging.report(
                f"{self.folder.public / NOTICE} is older than half its life of {LIFE // 3600} hours and cannot be "
                "renewed; mend what the server has said before, or devices will ignore it."
            )

    def _attend(self) -> None:
        devices, known = self.devices.read(), self.folder.settings.notice
        by_call = known.is_by_call(len(devices))
        if by_call and not self.is_ready:
            self._resume_call(devices)
        invitation = self._invitation(devices) if by_call else EVERYBODY
        online: set[str] = set()
        nodes: Mapping[str, Node] | None = None
        if not by_call or not self.is_ready or devices is not self.known or self.trainings.is_open:
            nodes = self.control.nodes()
            self._match(devices, nodes, invitation)
            online = {key for key, node in nodes.items() if node.state == "online"}
        if not self.is_ready:
            self.control.stop_all()  # runs of an earlier server, whose apps died with it; Flower notices only later
            self.is_ready = True
            logger.info("devices reach this server at %s", self.folder.settings.place.reached_at)
        self._show_notice(known.seconds, invitation, len(devices))  # only now that Flower knows whom it calls
        self.known = devices
        request = read_request(self.folder.training)
        self.trainings.step({name: each.public_key in online for name, each in devices.items()}, by_call=by_call)
        self.reporter.training_ended(request)
        self.attendance.take(devices)
        recent = time.time() - recently(known.seconds)
        self.reporter.look(devices, nodes, Looks(self.attendance.last, recent) if by_call else None)

    def _show_notice(self, period: float, invitation: Invitation | None, devices: int) -> None:
        """Show what is true now; with a damaged key the last notice stays, and all else goes on."""
        try:
            self.board.show(period, invitation, devices)
            self.unshown.clear()
        except (FleetFileError, NoticeError) as error:
            self.unshown.report(str(error))

    def _resume_call(self, devices: Registry) -> None:
        """Call whom an earlier server called, instead of sending them away first."""
        last = self.board.last()
        if last is not None and (invitation := last.tidings.invitation) is not None:
            self.trainings.resume(invitation.salt, sum(map(invitation.includes, devices)), len(devices))

    def _invitation(self, devices: Registry) -> Invitation | None:
        """Whom the training that is open calls, where devices connect only when they are called."""
        call = self.trainings.call
        return None if call is None else invite(call.token, devices, call.called)

    def _match(self, devices: Registry, nodes: Mapping[str, Node], invitation: Invitation | None) -> None:
        """Register the devices that are called and that Flower does not know; unregister those that may not take part.

        A device stays registered after its training: Flower does not take the same key twice.
        """
        allowed = {device.public_key for device in devices.values()}
        for key, node in nodes.items():
            if key not in allowed:
                self.control.unregister(node)
                logger.info("%s: may no longer take part with this key", node.name)
        known = nodes.keys() | self.refused_keys
        for device in devices.values():
            if invitation is not None and invitation.includes(device.name) and device.public_key not in known:
                try:
                    self.control.register(device.name, device.public_key)
                    logger.info("%s: may take part", device.name)
                except RefusedError as error:  # which must not keep the others out
                    self.refused_keys.add(device.public_key)
                    remedy = "give it another with `fedkad fleet renew`"
                    logger.warning("%s: Flower refuses its key (%s); %s", device.name, error, remedy)


class AppRuns:
    """Runs of the Flower app in a server's folder."""

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
        """Whether a run is over; if so its output is kept in a file, since Flower shows it nowhere."""
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


def warn_of_certificates(folder: ServerFolder) -> None:
    """Warn of certificates that expire soon, and of one that is not for the address of this server.

    One that is damaged is named by those who use it.
    """
    address = folder.settings.place.address
    with suppress(FleetFileError):
        if not is_valid_for(read_certificates(folder.server_certificate), [address]):
            logger.warning(
                "%s is not for %s, which is address in fleet.toml: devices that use this address refuse the server; "
                "run `fedkad fleet renew %s`.",
                *(folder.server_certificate, address, folder.root),
            )
    remedies = {
        "server": (folder.server_certificate, f"run `fedkad fleet renew {folder.root}`"),
        "notices": (folder.notice_certificate, f"run `fedkad fleet renew {folder.root}`"),
        "fleet's authority": (folder.ca_certificate, f"run `fedkad fleet renew {folder.root} --authority begin`"),
    }
    for owner, (path, remedy) in remedies.items():
        with suppress(FleetFileError):
            left = days_left(read_certificates(path))
            if left < WARN_DAYS:
                when = f"expires in {left:.0f} days" if left > 0 else "has expired"
                logger.warning("the certificate of the %s %s; %s.", owner, when, remedy)
