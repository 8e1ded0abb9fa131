"""What registered devices cost a server by being on its list: memory, and seconds after each change of the list.

The server reads `devices.json` and writes the keys for nginx; the real nginx reads them, and reads them again while it
serves. Each number of devices has new processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedkad.fleet.flower import proxy
from fedkad.fleet.server import enrolment, registry
from fedkad.fleet.server.registry import RegisteredDevice, Registry
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Place, ServerFolder
from fedkad.fleet.shared import certificates
from fedkad.fleet.shared.processes import ChildProcess, LogFile
from measurements.loopback import free_port, megabytes, wait
from measurements.measure import heading, peak_memory

NUMBERS = (10_000, 100_000, 1_000_000)
PATIENCE = 600.0


def made_up(number: int) -> Registry:
    """Devices with keys that differ, which are no points of a curve: nobody here looks."""
    head, second, *rest = certificates.make_device_key().public.decode().splitlines(keepends=True)
    devices = Registry()
    for k in range(number):
        name, key = f"device-{k}", "".join((head, f"{k:08d}", second[8:], *rest))
        devices[name] = RegisteredDevice(name, key, "2026-01-01T00:00:00+00:00")
    return devices


def prepare(root: Path, number: int) -> None:
    """Make a fleet with so many devices."""
    place = Place("127.0.0.1", free_port(), free_port(), bind="127.0.0.1")
    folder = enrolment.make_fleet(root, FleetSettings(place, ModelSettings(("a", "b"))))
    registry.write(folder.registry, made_up(number))


def measure(root: Path) -> dict[str, float]:
    """Seconds and memory of what a server does when the list has changed."""
    folder = ServerFolder.existing(root)
    began = time.monotonic()
    devices = registry.ActiveDevices(folder.registry)
    devices.read()
    enrolment.configure_proxy(folder)
    found = {"seconds": time.monotonic() - began, "server": peak_memory()}
    began = time.monotonic()
    nginx = ChildProcess(proxy.command(root), LogFile(folder.logs / "proxy.log"), proxy.environment(()))
    try:
        wait(lambda: proxy.reload(root, nginx), PATIENCE, "nginx")
        found["start"], most = time.monotonic() - began, 0.0
        while time.monotonic() - began < 4.0 * found["start"] + 5.0:  # while the old worker and the new one are there
            most = max(most, megabytes(nginx.process.pid))
            time.sleep(0.1)
        return {**found, "nginx": megabytes(nginx.process.pid), "most": most}
    finally:
        nginx.end()


def main() -> None:
    """Print a row for each number of devices."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(Path(sys.argv[1]))))
        return
    heading("A list of devices: what a server does when it has changed")
    print("  devices     fedkad server, at most   seconds   nginx   at most while it reads it again   seconds to start")
    for number in NUMBERS:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve() / "fleet"
            prepare(root, number)
            command = [sys.executable, "-m", "measurements.registered", str(root)]
            row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"  {number:9,d} {row['server']:20.0f} MB {row['seconds']:9.1f} {row['nginx']:5.0f} MB"
            f" {row['most']:28.0f} MB {row['start']:18.1f}"
        )


if __name__ == "__main__":
    main()
