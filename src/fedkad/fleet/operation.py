"""The running server: Flower's processes and the proxy, kept alive, and a Flower that knows just the devices it may."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedkad.fleet import flower, proxy, registry, settings
from fedkad.fleet.certificates import days_left
from fedkad.fleet.control import Control, ControlError, Node, RefusedError
from fedkad.fleet.enrolment import prepare
from fedkad.fleet.errors import FleetFileError
from fedkad.fleet.processes import Kept, Log, Say, kept_running, until_stopped
from fedkad.fleet.registry import Device, Registry
from fedkad.fleet.serverfolder import ServerFolder
from fedkad.fleet.settings import Place
from fedkad.fleet.trainings import Trainings
from fedkad.locks import holding

APP = Path(__file__).parent / "app"
TICK = 0.5
ROUND = 3.0
"""Seconds between two looks at Flower; a change of the registry is looked at with the next tick."""

RETRY = 1.0
"""Seconds to the next look when Flower did not answer."""

WARN_DAYS, DAY = 30.0, 86_400.0

FREED_WITHIN = 10.0
"""Seconds in which the processes of a server that was killed let go of its ports."""


def serve(folder: ServerFolder, say: Say, app: Path = APP) -> None:
    """Run the server of a fleet until SIGINT or SIGTERM."""
    refusal = f"{folder.root}: a server runs in this folder already; stop it first."
    with holding(folder.lock, refusal), until_stopped():
        os.environ.update(flower.environment(folder.flower))
        prepare(folder)
        place = folder.settings.place
        check_ports(place)
        with (
            kept_running(_processes(folder, say)) as processes,
            Control(place.control_port, folder.ca_certificate) as control,
        ):
            _operate(Office(folder, control, app, say), processes)
    say("stopped")


def check_ports(place: Place) -> None:
    """Refuse ports that cannot be listened on, in words, before nginx and Flower try it again and again."""
    for name, host, port in (("port", "", place.port), ("control_port", "127.0.0.1", place.control_port)):
        deadline = time.monotonic() + FREED_WITHIN
        while (error := _why_taken(host, port)) is not None:
            if time.monotonic() > deadline:
                raise FleetFileError(
                    f"The server cannot listen on port {port} ({error.strerror}); stop what does, "
                    f"or change {name} in fleet.toml."
                )
            time.sleep(0.2)


def _why_taken(host: str, port: int) -> OSError | None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        return error
    return None


def _processes(folder: ServerFolder, say: Say) -> list[Kept]:
    commands = {
        "superlink": flower.superlink(folder),
        "superexec": flower.superexec(folder),
        "proxy": proxy.command(folder.root),
    }
    environment = flower.environment(folder.flower)
    return [
        Kept(name, command, Log(folder.logs / f"{name}.log"), environment, say) for name, command in commands.items()
    ]


def _operate(office: Office, processes: Sequence[Kept]) -> None:
    """Keep everything going; the proxy comes last, so that no device is refused before Flower has heard of it."""
    *flower_processes, door = processes
    seen, next_round, next_day = 0, 0.0, 0.0
    while True:
        if time.monotonic() >= next_day:
            next_day = time.monotonic() + DAY
            _tell_expiry(office.folder, office.say)
        for process in (*flower_processes, door) if office.is_ready else flower_processes:
            process.tend()
        changed = _time_of(office.folder.registry)
        if changed != seen or time.monotonic() >= next_round:
            seen, next_round = changed, time.monotonic() + (ROUND if office.attend() else RETRY)
        time.sleep(TICK)


def _time_of(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


class Office:
    """What the server does with Flower's control interface: the devices it knows, and the runs."""

    def __init__(self, folder: ServerFolder, control: Control, app: Path, say: Say) -> None:
        self.folder, self.control, self.app, self.say = folder, control, app, say
        every = settings.seconds(folder.settings.training.every)
        self.trainings = Trainings(folder.training, self, say, every=every, least=folder.settings.least)
        self.is_ready = False
        self.complaint = ""
        self.refused: set[str] = set()

    def attend(self) -> bool:
        """Bring Flower's devices up to date and see to the trainings; False while Flower cannot be asked."""
        try:
            self._attend()
        except RefusedError as error:
            self._complain(f"Flower refuses ({error})")
            return False
        except ControlError as error:
            self._complain(f"Flower does not answer ({error})")
            return False
        except FleetFileError as error:
            self._complain(str(error))
            return False
        except OSError as error:
            self._complain(
                f"The server cannot do its work ({error}); make room or mend it, it goes on by itself.", True
            )
            return False
        self.complaint = ""
        return True

    def submit(self, job: str) -> int:
        """Start a run of the app; one that was started while its answer was lost must not train beside it."""
        self.control.stop_all()
        return self.control.submit(self.app, {"folder": str(self.folder.root), "job": job})

    def has_ended(self, run: int) -> bool:
        """Tell whether a run is over; then what it said is in a file, for Flower shows it nowhere."""
        ended = self.control.has_ended(run)
        if ended:
            self._keep_log(run)
        return ended

    def _attend(self) -> None:
        devices = registry.active(registry.read(self.folder.registry))
        nodes = self._match(devices)
        if not self.is_ready:
            self._begin()
        self.trainings.step(online(devices, nodes))

    def _begin(self) -> None:
        """End the runs of an earlier server, whose apps died with it: Flower would wait a minute to notice."""
        self.control.stop_all()
        self.is_ready = True
        self.say(f"devices reach this server at {self.folder.settings.place.reached_at}")

    def _match(self, devices: Registry) -> list[Node]:
        """Register the devices that Flower does not know, and unregister those that may not take part."""
        nodes = self.control.nodes()
        allowed = {device.public_key for device in devices.values()}
        known = {node.public_key for node in nodes}
        for node in nodes:
            if node.public_key not in allowed:
                self.control.unregister(node)
                self.say(f"{node.name}: may no longer take part with this key")
        for device in devices.values():
            if device.public_key not in known:
                self._register(device)
        return nodes

    def _register(self, device: Device) -> None:
        """Let a device in; one that Flower does not take must not keep the others out."""
        if device.public_key in self.refused:
            return
        try:
            self.control.register(device.name, device.public_key)
            self.say(f"{device.name}: may take part")
        except RefusedError as error:
            self.refused.add(device.public_key)
            self.say(f"{device.name}: Flower refuses its key ({error}); give it another with `fedkad fleet renew`")

    def _keep_log(self, run: int) -> None:
        """Keep what a run said; without room for that, its end must be noticed all the same."""
        log = Log(self.folder.logs / "app.log")
        try:
            log.bound()
            with suppress(ControlError):  # Flower knows the run no more, or cannot say
                log.append(self.control.log(run))
        except OSError as error:
            self.say(f"{log.path}: what run {run} said cannot be kept ({error.strerror}); make room for the next.")

    def _complain(self, text: str, at_once: bool = False) -> None:
        """Say what is wrong once; not at all while Flower is only just starting, unless it is about something else."""
        if (self.is_ready or at_once) and text != self.complaint:
            self.say(text)
        self.complaint = text


def online(devices: Registry, nodes: list[Node]) -> Mapping[str, bool]:
    """Of every device, whether it is there."""
    present = {node.public_key for node in nodes if node.state == "online"}
    return {name: device.public_key in present for name, device in devices.items()}


def _tell_expiry(folder: ServerFolder, say: Say) -> None:
    anew = "make a new fleet with `fedkad fleet init`, and move the devices there"
    remedies = {
        "server": (folder.server_certificate, f"run `fedkad fleet renew {folder.root}` and start again"),
        "authority of the fleet": (folder.ca_certificate, anew),
    }
    for whose, (path, remedy) in remedies.items():
        left = days_left(path.read_bytes())
        if left < WARN_DAYS:
            when = f"ends in {left:.0f} days" if left > 0 else "has ended"
            say(f"warning: the certificate of the {whose} {when}; {remedy}.")
