"""The shipped unit under a real systemd: started, watched, hardened, killed, hung, stopped.

Needs root, Debian's own Python and Mosquitto. A systemd of its own runs in namespaces over a throw-away layer of this
machine's file system, in which the agent is installed at /opt/fedkad as the unit says; nothing outside is touched.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

PROBE = "/opt/probe"
FOUND = f"{PROBE}/found.txt"
PATIENCE = 300

LAYER = """set -e
cd {folder}
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
mount --bind /dev root/dev
mount --rbind /sys root/sys
mount -t tmpfs tmpfs root/tmp
mount -t tmpfs tmpfs root/run
"""
INSTALL = """set -e
/usr/bin/python3 -m venv --without-pip /opt/fedkad
{python} -m pip --python /opt/fedkad/bin/python install --quiet '{repository}[edge]'
useradd --system fedkad
mkdir -p /etc/fedkad
cp {repository}/examples/systemd/fedkad-agent.service {probe}/probe.service {probe}/try.target /etc/systemd/system/
cp {probe}/agent.toml /etc/fedkad/
"""
BOOT = "env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=try.target"
TARGET = "[Unit]\nRequires=basic.target mosquitto.service fedkad-agent.service probe.service\n"
SERVICE = f"""[Unit]
After=fedkad-agent.service mosquitto.service
[Service]
ExecStart=/opt/fedkad/bin/python {PROBE}/probe.py inside
StandardOutput=file:{FOUND}
StandardError=file:{FOUND}
"""
CONFIG = """state = "/var/lib/fedkad"
devices = ["pump"]
commit_every = 0.2
[source]
kind = "mqtt"
broker = "mqtt://127.0.0.1:1883"
topics = ["plant/{device}"]
[sampling]
channels = ["flow", "pressure", "current"]
period = 1
[learning]
first = 400
every = 300
[detector]
window = 6
rank = 5
observables = 16
[mqtt]
[prometheus]
port = 9464
"""


# -- outside ---------------------------------------------------------------------------------------------------------


def run_all(folder: Path) -> str:
    """Install, boot, and bring back what was found inside."""
    repository = Path(__file__).parents[1]
    for name in ("upper", "work", "root", f"upper{PROBE}"):
        (folder / name).mkdir(parents=True)
    inside = folder / "upper" / PROBE[1:]
    (inside / "probe.py").write_text(Path(__file__).read_text())
    (inside / "probe.service").write_text(SERVICE)
    (inside / "try.target").write_text(TARGET)
    (inside / "agent.toml").write_text(CONFIG)
    (inside / "install.sh").write_text(INSTALL.format(python=sys.executable, repository=repository, probe=PROBE))
    layer = LAYER.format(folder=folder)
    unshare(["--mount"], f"{layer}exec chroot root bash {PROBE}/install.sh", 300)
    spaces = ["--pid", "--fork", "--kill-child=KILL", "--mount", "--uts", "--ipc", "--cgroup"]
    with suppress(subprocess.TimeoutExpired):
        unshare(spaces, f"{layer}mount -t proc proc root/proc\nexec chroot root {BOOT}", PATIENCE)
    return (folder / "upper" / FOUND[1:]).read_text()


def unshare(spaces: list[str], script: str, seconds: float) -> None:
    """Run a script in namespaces of its own, and end all in them after some time."""
    subprocess.run(
        ["unshare", *spaces, "bash", "-c", script],
        check=False,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )


# -- inside ----------------------------------------------------------------------------------------------------------


def shown(*names: str) -> dict[str, str]:
    """What systemd says of the agent."""
    command = ["systemctl", "show", "fedkad-agent", *(f"--property={name}" for name in names)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def number(name: str) -> float:
    """One of the agent's numbers; NaN where it does not answer."""
    try:
        page = urlopen("http://127.0.0.1:9464/metrics", timeout=5).read().decode()
    except OSError:
        return float("nan")
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"fedkad_{name}{{")), -1.0)


def until(what: str, is_so: Callable[[], bool], seconds: float = 100.0) -> None:
    """Wait for something, and say whether it came true."""
    deadline = time.monotonic() + seconds
    while not (so := is_so()) and time.monotonic() < deadline:
        time.sleep(0.3)
    print(f"{'yes' if so else 'NO':4}{what}", flush=True)


def process() -> int:
    """The agent's process; 0 for none."""
    return int(shown("MainPID")["MainPID"])


def is_anew(before: int) -> bool:
    """Whether the agent runs again in another process."""
    return process() not in (0, before) and shown("ActiveState")["ActiveState"] == "active"


def publish(first: int, end: int) -> None:
    """Samples of these seconds, with a fault after 1500 of them."""
    import numpy as np
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    times = np.arange(2000)[:, None]
    rows = np.sin(times / np.array([5.0, 8.0, 11.0])) + 0.05 * np.random.default_rng(0).normal(size=(2000, 3))
    rows[1500:1510, 0] += 4.0
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", 1883)
    client.loop_start()
    for k in range(first, end):
        values = dict(zip(("flow", "pressure", "current"), map(float, rows[k]), strict=True))
        client.publish(
            "plant/pump", json.dumps({"ts": 1000 * (1_772_366_400 + k), "values": values}), 1
        ).wait_for_publish()
    client.disconnect()
    client.loop_stop()


def probe() -> None:
    """The story, told by systemd and by the agent's own numbers."""
    until("started, and said that it is ready", lambda: shown("ActiveState")["ActiveState"] == "active")
    facts = Path(f"/proc/{process()}/status").read_text().splitlines()
    wanted = ("Uid:", "CapBnd:", "NoNewPrivs:", "Seccomp:")
    print("    " + "; ".join(" ".join(line.split()[:2]) for line in facts if line.startswith(wanted)))
    publish(0, 500)
    until("learnt a first model from 400 rows, under the filter of calls", lambda: number("learnt_total") >= 1)
    publish(500, 1000)
    until("learnt on", lambda: number("learnt_total") >= 2)
    before = process()
    os.kill(before, signal.SIGKILL)
    until("killed, and started again", lambda: is_anew(before))
    publish(1000, 1495)
    until("goes on where it was", lambda: number("rows_total") == 1495)
    incidents = number("incidents_total")
    publish(1495, 1600)
    until("all 1,600 samples are counted, each once", lambda: number("rows_total") == 1600)
    until("the fault began an incident", lambda: number("incidents_total") == incidents + 1)
    before = process()
    os.kill(before, signal.SIGSTOP)
    until("hung, and started again by the watchdog", lambda: is_anew(before), 150.0)
    used, most = (int(shown(name)[name]) / 1e6 for name in ("MemoryCurrent", "MemoryMax"))
    print(f"    memory of the service: {used:.1f} of {most:.0f} MB")
    subprocess.run(["systemctl", "stop", "fedkad-agent"], check=True)
    ended = {"Result": "success", "ExecMainStatus": "0"}
    until("stopped in good order", lambda: shown(*ended) == ended)
    os.kill(1, signal.SIGRTMIN + 3)  # halt


def main() -> None:
    """Boot, and print what was found."""
    if "inside" in sys.argv:
        probe()
        return
    version = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = run_all(Path(folder))
    print(f"{version.split(' (')[0]}, examples/systemd/fedkad-agent.service")
    print(found, end="")


if __name__ == "__main__":
    main()
