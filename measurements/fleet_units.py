"""The shipped units of a fleet under a real systemd: a server, a device, a training, and who reaches the control port.

Needs root and Debian's own Python, nginx and iproute2. As in `measurements.systemd`, a systemd of its own runs in
namespaces over a throw-away layer of this machine's file system; nothing outside is touched.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PROBE = "/opt/probe"
FOUND = f"{PROBE}/found.txt"
PATIENCE = 420
PORT, CONTROL = 18443, 18000
FLEET, DEVICE = "/var/lib/fedkad-server/fleet", "/var/lib/fedkad/fleet/pump"
UNITS = ("fedkad-server.socket", "fedkad-server.service", "fedkad-client@.service")
RUN = "/opt/fedkad/bin/fedkad"

INSTALL = """set -e
/usr/bin/python3 -m venv --without-pip /opt/fedkad
{python} -m pip --python /opt/fedkad/bin/python install --quiet '{repository}[fleet]'
useradd --system fedkad
useradd --system fedkad-server
cd {repository}/examples/systemd
cp {units} {probe}/probe.service {probe}/try.target /etc/systemd/system/
sed -i s/8443/{port}/ /etc/systemd/system/fedkad-server.socket
install -d -m 0700 -o fedkad-server /var/lib/fedkad-server
install -d -m 0700 -o fedkad /var/lib/fedkad /var/lib/fedkad/fleet
cd /
as="runuser -u fedkad-server --"
$as {run} fleet init {fleet} --address localhost --port {port} --control-port {control} --channels a,b,c \\
    --window 8 --rank 6 --observables 32 --rounds 3 --least 1
$as {run} fleet add {fleet} pump
mv {fleet}/devices/pump {device}
cp {probe}/table.csv {device}/
sed -i 's/^data = ""/data = "table.csv"/' {device}/device.toml
chown -R fedkad {device}
"""
BOOT = "env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=try.target"
TARGET = "[Unit]\nRequires=basic.target fedkad-server.service fedkad-client@pump.service probe.service\n"
SERVICE = f"""[Unit]
After=fedkad-server.service
[Service]
ExecStart=/opt/fedkad/bin/python {PROBE}/probe.py inside
StandardOutput=file:{FOUND}
StandardError=file:{FOUND}
"""


# -- outside ---------------------------------------------------------------------------------------------------------


def run_all(folder: Path) -> str:
    """Install, boot, and bring back what was found inside."""
    import numpy as np

    from measurements.systemd import LAYER, unshare

    repository = Path(__file__).parents[1]
    for name in ("upper", "work", "root", f"upper{PROBE}"):
        (folder / name).mkdir(parents=True)
    inside = folder / "upper" / PROBE[1:]
    values = np.sin(np.arange(1500.0)[:, None] / np.array([5.0, 8.0, 11.0]))
    values += 0.1 * np.random.default_rng(0).normal(size=values.shape)
    np.savetxt(inside / "table.csv", values, delimiter=",", header="a,b,c", comments="")
    facts = {"python": sys.executable, "repository": repository, "probe": PROBE, "units": " ".join(UNITS), "run": RUN}
    facts |= {"port": PORT, "control": CONTROL, "fleet": FLEET, "device": DEVICE}
    texts = {"probe.py": Path(__file__).read_text(), "probe.service": SERVICE, "try.target": TARGET}
    for name, text in {**texts, "install.sh": INSTALL.format(**facts)}.items():
        (inside / name).write_text(text)
    layer = LAYER.format(folder=folder)
    unshare(["--mount"], f"{layer}exec chroot root bash {PROBE}/install.sh", 400)
    spaces = ["--pid", "--fork", "--kill-child=KILL", "--mount", "--uts", "--ipc", "--cgroup"]
    with suppress(subprocess.TimeoutExpired):
        unshare(spaces, f"{layer}mount -t proc proc root/proc\nexec chroot root {BOOT}", PATIENCE)
    return (folder / "upper" / FOUND[1:]).read_text()


# -- inside ----------------------------------------------------------------------------------------------------------


def shown(unit: str, name: str) -> str:
    """What systemd says of a unit."""
    command = ["systemctl", "show", "--value", f"--property={name}", unit]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def until(what: str, is_so: Callable[[], bool], seconds: float = 200.0) -> None:
    """Wait for something, and say whether it came true."""
    deadline = time.monotonic() + seconds
    while not (so := is_so()) and time.monotonic() < deadline:
        time.sleep(0.5)
    print(f"{'yes' if so else 'NO':4}{what}", flush=True)


def is_open(port: int) -> bool:
    """Whether somebody listens at a port, for whoever asks on this machine."""
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def as_server(*words: str, inside: bool = False) -> str:
    """Run a command as the server's user, in its network or outside of it; what it printed."""
    enter = ["nsenter", "--net", "--target", shown("fedkad-server", "MainPID")] if inside else []
    command = [*enter, "runuser", "-u", "fedkad-server", "--", RUN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def describe(unit: str) -> None:
    """Print what the processes of a unit are allowed."""
    facts = Path(f"/proc/{shown(unit, 'MainPID')}/status").read_text().splitlines()
    wanted = ("Uid:", "CapBnd:", "NoNewPrivs:", "Seccomp:")
    words = "; ".join(" ".join(line.split()[:2]) for line in facts if line.startswith(wanted))
    used, most = (int(shown(unit, name)) / 1e6 for name in ("MemoryCurrent", "MemoryMax"))
    print(f"    {unit}: {words}; memory {used:.0f} of {most:.0f} MB", flush=True)


def probe() -> None:
    """The story, told by systemd and by the fleet."""
    until("the server is active", lambda: shown("fedkad-server", "ActiveState") == "active")
    until("the device is active", lambda: shown("fedkad-client@pump", "ActiveState") == "active")
    until("devices reach the server's port", lambda: is_open(PORT))
    until("the device is online, as the server's user sees in its network", lambda: "online" in as_status(inside=True))
    until("nobody reaches the control port from outside, root included", lambda: not is_open(CONTROL))
    until("so the state of devices is unknown there", lambda: "Flower does not answer" in as_status(inside=False))
    until("a training was requested", lambda: "begins a training" in as_server("fleet", "train", FLEET))
    until("the device has its model", lambda: Path(DEVICE, "model.safetensors").exists())
    describe("fedkad-server")
    describe("fedkad-client@pump")
    before = shown("fedkad-server", "MainPID")
    os.kill(int(before), signal.SIGKILL)
    until("killed, and started again", lambda: shown("fedkad-server", "MainPID") not in ("0", before))
    until("the device is online again", lambda: "online" in as_status(inside=True))
    for unit in ("fedkad-client@pump", "fedkad-server"):
        subprocess.run(["systemctl", "stop", unit], check=True)
        until(f"{unit} stopped in good order", lambda unit=unit: shown(unit, "Result") == "success")  # type: ignore[misc]
    os.kill(1, signal.SIGRTMIN + 3)  # halt


def as_status(*, inside: bool) -> str:
    """What `fedkad fleet status` says."""
    return as_server("fleet", "status", FLEET, inside=inside)


def main() -> None:
    """Boot, and print what was found."""
    if "inside" in sys.argv:
        probe()
        return
    version = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = run_all(Path(folder))
    print(f"{version.split(' (')[0]}, {', '.join(f'examples/systemd/{unit}' for unit in UNITS)}")
    print(found, end="")


if __name__ == "__main__":
    main()
