"""Shipped units under a systemd of its own, for the measurements that try them: what is outside of it, and inside.

Needs root and Debian's own Python. The systemd runs in namespaces over a throw-away layer of this machine's file
system, in which FedKAD is installed at /opt/fedkad as the units say; nothing outside is touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROBE = "/opt/probe"
FOUND = f"{PROBE}/found.txt"
REPOSITORY = Path(__file__).parents[1]
HERE = "inside"

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
{python} -m pip --python /opt/fedkad/bin/python install --quiet '{repository}[{extra}]'
cd {repository}/examples/systemd
cp {units} {probe}/probe.service {probe}/try.target /etc/systemd/system/
cd {probe}
"""
BOOT = "env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=try.target"
SPACES = ("--pid", "--fork", "--kill-child=KILL", "--mount", "--uts", "--ipc", "--cgroup")
TARGET = "[Unit]\nRequires=basic.target {started} probe.service\n"
SERVICE = """[Unit]
After={started}
[Service]
WorkingDirectory={probe}
ExecStart=/opt/fedkad/bin/python -m measurements.{module} {here}
StandardOutput=file:{found}
StandardError=file:{found}
"""


@dataclass(frozen=True)
class Trial:
    """A module whose `probe` runs inside, the units that it tries, and how they are installed.

    `install` is a script that runs in the folder with `files`, after FedKAD with its `extra` and the units are there.
    """

    module: str
    extra: str
    units: Sequence[str]
    started: Sequence[str]
    install: str
    files: Mapping[str, str]
    seconds: float

    def run(self, probe: Callable[[], None]) -> None:
        """Outside: boot, and print what was found inside. Inside: find it."""
        if HERE in sys.argv:
            probe()
            os.kill(1, signal.SIGRTMIN + 3)  # halt
            return
        version = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = self._boot(Path(folder))
        print(f"{version.split(' (')[0]}, {', '.join(f'examples/systemd/{unit}' for unit in self.units)}")
        print(found, end="")

    def _boot(self, folder: Path) -> str:
        """Install, boot, and bring back what was found inside."""
        for name in ("upper", "work", "root", f"upper{PROBE}/measurements"):
            (folder / name).mkdir(parents=True)
        inside = folder / "upper" / PROBE[1:]
        for name, text in self._texts().items():
            (inside / name).write_text(text)
        layer = LAYER.format(folder=folder)
        _unshare(["--mount"], f"{layer}exec chroot root bash {PROBE}/install.sh", 400)
        with suppress(subprocess.TimeoutExpired):
            _unshare(SPACES, f"{layer}mount -t proc proc root/proc\nexec chroot root {BOOT}", self.seconds)
        return (folder / "upper" / FOUND[1:]).read_text()

    def _texts(self) -> dict[str, str]:
        """The files of the probe by their names."""
        facts = {"probe": PROBE, "found": FOUND, "here": HERE, "module": self.module, "started": " ".join(self.started)}
        facts |= {"python": sys.executable, "repository": str(REPOSITORY), "extra": self.extra}
        modules = ("__init__", "booted", self.module)
        return {
            **{f"measurements/{name}.py": (Path(__file__).parent / f"{name}.py").read_text() for name in modules},
            "probe.service": SERVICE.format(**facts),
            "try.target": TARGET.format(**facts),
            "install.sh": INSTALL.format(**facts, units=" ".join(self.units)) + self.install,
            **self.files,
        }


def _unshare(spaces: Sequence[str], script: str, seconds: float) -> None:
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


def send_and_wait(unit: str, number: signal.Signals, what: str, seconds: float = 200.0) -> None:
    """Send a signal to the main process of a unit, and wait until systemd has started another."""
    before = shown(unit, "MainPID")
    os.kill(int(before), number)
    until(what, lambda: shown(unit, "MainPID") not in ("0", before) and is_active(unit), seconds)


def is_active(unit: str) -> bool:
    """Whether a unit has said that it is ready."""
    return shown(unit, "ActiveState") == "active"


def describe(unit: str) -> None:
    """Print what the main process of a unit is allowed, and the memory of all its processes."""
    facts = Path(f"/proc/{shown(unit, 'MainPID')}/status").read_text().splitlines()
    wanted = ("Uid:", "CapBnd:", "NoNewPrivs:", "Seccomp:")
    words = "; ".join(" ".join(line.split()[:2]) for line in facts if line.startswith(wanted))
    used, most = (int(shown(unit, name)) / 1e6 for name in ("MemoryCurrent", "MemoryMax"))
    print(f"    {unit}: {words}; memory {used:.0f} of {most:.0f} MB", flush=True)


def stop(unit: str) -> None:
    """Stop a unit, and say whether it ended in good order."""
    subprocess.run(["systemctl", "stop", unit], capture_output=True, check=True)
    until(f"{unit} stopped in good order", lambda: shown(unit, "Result") == "success")
