"""Flower's programs as a fleet runs them: where they are, with which arguments and in which environment."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
from pathlib import Path

from fedkad.fleet.devicefolder import DeviceFolder
from fedkad.fleet.extra import MissingExtraError
from fedkad.fleet.private import write_private
from fedkad.fleet.serverfolder import ServerFolder
from fedkad.tomltext import toml_text

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No process looks up any host but ours, and none installs anything."""

NODE_FILE = "node.toml"


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process.

    They start one another by name, so that the folder with the programs must be on PATH even where the virtual
    environment is not active; and what they say to one another on this machine must pass by any proxy.
    """
    direct = ",".join(filter(None, (os.environ.get("no_proxy"), "localhost,127.0.0.1,::1")))
    path = os.pathsep.join((*_program_folders(), os.environ.get("PATH", os.defpath)))
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path, "no_proxy": direct, "NO_PROXY": direct}


def superlink(folder: ServerFolder) -> list[str]:
    """The process that holds the state of the fleet; it listens on its own machine only."""
    return [
        _program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(folder.settings.place.control_port)),
        *("--ssl-ca-certfile", str(folder.ca_certificate)),
        *("--ssl-certfile", str(folder.server_certificate), "--ssl-keyfile", str(folder.server_key)),
        "--enable-supernode-auth",
        *("--database", str(folder.flower / "state.db")),
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder.secret)),
    ]


def superexec(folder: ServerFolder) -> list[str]:
    """The process that starts server apps; apart from the SuperLink, so that a run outlives it."""
    return [
        _program("flower-superexec"),
        *("--runtime-api-address", f"127.0.0.1:{folder.settings.place.control_port}"),
        *("--root-certificates", str(folder.ca_certificate)),
        *("--superexec-auth-secret-file", str(folder.secret), "--parent-pid", str(os.getpid())),
    ]


def supernode(folder: DeviceFolder, data: str) -> list[str]:
    """The process that a device takes part with: Flower's, made to end when its connection does.

    With -P, for what lies in the folder where a client is started is no module of ours. What the app must know goes
    into a file, for the arguments of Flower have no way to write a path with both kinds of quotes.
    """
    node = {"folder": str(folder.root), "device": folder.device, "data": data}
    lines = [f"{key} = {toml_text(value)}\n" for key, value in node.items()]
    write_private(folder.flower / NODE_FILE, "".join(lines).encode())
    return [
        *(sys.executable, "-Pm", "fedkad.fleet.supernode"),
        *("--superlink", folder.server, "--root-certificates", str(folder.ca_certificate)),
        *("--auth-supernode-private-key", str(folder.key)),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", str(folder.flower / NODE_FILE)),
    ]


def write_connection(folder: ServerFolder) -> None:
    """Flower's own settings, so that `FLWR_HOME=FOLDER/flower flwr ls` works for those who know it."""
    address = f"127.0.0.1:{folder.settings.place.control_port}"
    lines = [
        '[superlink]\ndefault = "fedkad"\n\n[superlink.fedkad]\n',
        f"address = {toml_text(address)}\nroot-certificates = {toml_text(str(folder.ca_certificate))}\n",
    ]
    write_private(folder.flower / "config.toml", "".join(lines).encode())


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program_folders() -> tuple[str, ...]:
    return tuple(dict.fromkeys((str(Path(sys.executable).parent), sysconfig.get_path("scripts"))))


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((*_program_folders(), os.environ.get("PATH", os.defpath))))
    if found is None:
        raise MissingExtraError(f"The program {name} is missing; install it with pip install 'fedkad[fleet]'.")
    return found
