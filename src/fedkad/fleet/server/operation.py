"""The running server: its processes, kept alive, and a Flower that admits exactly the registered devices."""

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
from fedkad.fleet.flower.control import open_control
from fedkad.fleet.server.enrolment import prepare
from fedkad.fleet.server.guards import LinkGuard, RunGuard
from fedkad.fleet.server.proxysupervisor import ProxySupervisor
from fedkad.fleet.server.settings import Place, ServerFolder
from fedkad.fleet.server.supervisor import Supervisor
from fedkad.fleet.shared.certificates import days_left, is_valid_for
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.keyfiles import read_certificates
from fedkad.fleet.shared.logs import kept_in
from fedkad.fleet.shared.processes import (
    LARGEST_LOG,
    LogFile,
    SupervisedProcess,
    ending_all,
    passed_sockets,
    until_stopped,
)
from fedkad.locks import holding
from fedkad.systemd import SystemdNotifier

logger = logging.getLogger(__name__)

APP = Path(__file__).parents[1] / "app"
TICK = 0.5
LOOK = 3.0  # seconds between two calls of Flower's control interface
RETRY = 1.0  # seconds until the next call if Flower did not answer
WARN_DAYS, DAY = 30.0, 86_400.0

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
            guard, link = ProxySupervisor(folder, nginx, superlink), LinkGuard(folder.database, superlink)
            _operate(Supervisor(folder, control, app), processes, guard, link, RunGuard(folder.training, superexec))
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
    supervisor: Supervisor,
    processes: list[SupervisedProcess],
    front: ProxySupervisor,
    link: LinkGuard,
    rounds: RunGuard,
) -> None:
    """Keep everything running; the proxy starts last, so that Flower knows every device before one can connect."""
    link.mend()
    systemd = SystemdNotifier()
    systemd.ready(f"serves {supervisor.folder.root}")
    registry, seen, next_look, next_day = supervisor.folder.registry, 0, 0.0, 0.0
    while True:
        systemd.alive()
        if time.monotonic() >= next_day:
            next_day = time.monotonic() + DAY
            warn_of_certificates(supervisor.folder)
        for process in processes if supervisor.is_ready else processes[:-1]:
            process.tend()
        changed = registry.stat().st_mtime_ns if registry.exists() else 0
        if changed != seen or time.monotonic() >= next_look:
            front.receive()
            front.attend()  # first: a device that Flower sends away asks there whether it was revoked
            is_well = supervisor.attend()
            seen, next_look = changed, time.monotonic() + (LOOK if is_well else RETRY)
            link.attend(is_well=is_well, is_silent=supervisor.is_unanswered)
            rounds.attend(supervisor.trainings.run if is_well else None)
        time.sleep(TICK)


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
