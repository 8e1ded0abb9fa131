"""The shipped units of a fleet under a real systemd: a server, a device, trainings, what is killed, and what hangs.

Needs root and Debian's own Python, nginx and iproute2; see `measurements.booted`. Takes a quarter of an hour, because
the watchdogs of both units wait for three minutes.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

from measurements.booted import Trial, describe, is_active, send_and_wait, shown, stop, until

PORT, CONTROL = 18443, 18000
FLEET, DEVICE = "/var/lib/fedkad-server/fleet", "/var/lib/fedkad/fleet/pump"
SERVER, CLIENT = "fedkad-server", "fedkad-client@pump"
MODEL = Path(DEVICE, "model.safetensors")
RUN = "/opt/fedkad/bin/fedkad"
WATCHDOG = 400.0  # seconds in which a watchdog of three minutes has noticed, ended what does not end, and waited

INSTALL = f"""
useradd --system fedkad
useradd --system fedkad-server
sed -i s/8443/{PORT}/ /etc/systemd/system/fedkad-server.socket
install -d -m 0700 -o fedkad-server /var/lib/fedkad-server
install -d -m 0700 -o fedkad /var/lib/fedkad /var/lib/fedkad/fleet
as="runuser -u fedkad-server --"
$as {RUN} fleet init {FLEET} --address localhost --port {PORT} --control-port {CONTROL} --channels a,b,c \\
    --window 8 --rank 6 --observables 32 --rounds 3 --min-devices 1
$as {RUN} fleet add {FLEET} pump
mv {FLEET}/devices/pump {DEVICE}
cp table.csv {DEVICE}/
sed -i 's/^data = ""/data = "table.csv"/' {DEVICE}/device.toml
chown -R fedkad {DEVICE}
"""


def table() -> str:
    """The rows of the device."""
    import math
    import random

    draw = random.Random(0)
    rows = ([math.sin(t / period) + draw.gauss(0.0, 0.1) for period in (5.0, 8.0, 11.0)] for t in range(1500))
    return "a,b,c\n" + "".join(",".join(f"{value:.6f}" for value in row) + "\n" for row in rows)


def is_open(port: int) -> bool:
    """Whether somebody listens at a port, for whoever asks on this machine."""
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def as_server(*words: str, inside: bool = False) -> str:
    """Run a command as the server's user, in its network or outside of it; what it printed."""
    enter = ["nsenter", "--net", "--target", shown(SERVER, "MainPID")] if inside else []
    command = [*enter, "runuser", "-u", "fedkad-server", "--", RUN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def as_status(*, inside: bool) -> str:
    """What `fedkad fleet status` says."""
    return as_server("fleet", "status", FLEET, inside=inside)


def wait_online(what: str) -> None:
    """Wait until the server sees the device."""
    until(what, lambda: "online" in as_status(inside=True))


def train() -> None:
    """Have a training, and wait until the device has its model."""
    before = MODEL.stat().st_mtime_ns if MODEL.exists() else 0
    until("a training was requested", lambda: "begins a training" in as_server("fleet", "train", FLEET))
    until("the device has its model", lambda: MODEL.exists() and MODEL.stat().st_mtime_ns != before)


def probe() -> None:
    """The story, told by systemd and by the fleet."""
    until("the server is active", lambda: is_active(SERVER))
    until("the device is active", lambda: is_active(CLIENT))
    until("devices reach the server's port", lambda: is_open(PORT))
    wait_online("the device is online, as the server's user sees in its network")
    until("nobody reaches the control port from outside, root included", lambda: not is_open(CONTROL))
    until("so the state of devices is unknown there", lambda: "Flower does not answer" in as_status(inside=False))
    train()
    for unit in (SERVER, CLIENT):
        describe(unit)
    send_and_wait(SERVER, signal.SIGKILL, "the server was killed, and systemd started it again")
    wait_online("the device is online again")
    for unit, who in ((SERVER, "the server"), (CLIENT, "the device")):
        send_and_wait(unit, signal.SIGSTOP, f"{who} hung, and systemd's watchdog started it again", WATCHDOG)
        wait_online("the device is online again")
        train()
    for unit in (CLIENT, SERVER):
        stop(unit)


def main() -> None:
    """Boot, and print what was found."""
    Trial(
        module="fleet_units",
        extra="fleet",
        units=("fedkad-server.socket", "fedkad-server.service", "fedkad-client@.service"),
        started=(f"{SERVER}.service", f"{CLIENT}.service"),
        install=INSTALL,
        files={"table.csv": table()},
        seconds=1500,
    ).run(probe)


if __name__ == "__main__":
    main()
