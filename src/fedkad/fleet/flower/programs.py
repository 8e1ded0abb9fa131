"""Flower's programs as a fleet runs them: their commands, their environment and their configuration files."""

import os
import shutil
import socket
import sys
import sysconfig
from pathlib import Path

from fedkad.fleet.flower import proxy
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared.devicefolder import DeviceFolder
from fedkad.fleet.shared.extra import MissingRequirementError
from fedkad.fleet.shared.files import write_private
from fedkad.settingerror import toml_text

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Keeps Flower from contacting any host but ours and from installing packages."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of every Flower process.

    The processes start one another by name, so the folder with the programs must be on PATH even if the virtual
    environment is not active. They also talk to one another on this machine, which must bypass any HTTP proxy.
    """
    direct = ",".join(filter(None, (os.environ.get("no_proxy"), "localhost,127.0.0.1,::1")))
    return {
        **os.environ,
        **OFFLINE,
        "FLWR_HOME": str(home),
        "PATH": _search_path(),
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


def quiet(name: str) -> dict[str, str]:
    """What keeps the SuperLink from logging every request of this machine, two lines every three seconds, unless asked.

    The SuperExec passes its environment on to the app, whose log tells the rounds.
    """
    return {"FLWR_LOG_LEVEL": "WARNING"} if name == "superlink" else {}


def server_commands(folder: ServerFolder) -> dict[str, list[str]]:
    """Return the commands of a server's processes by name, in the order in which they start.

    The SuperLink holds the state of the fleet and listens on its own machine only. The SuperExec starts server apps; it
    is separate so that a run outlives the SuperLink.
    """
    address, trusted = f"127.0.0.1:{folder.settings.place.control_port}", str(folder.ca_certificate)
    superlink = [
        _program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(folder.settings.place.control_port)),
        *("--ssl-ca-certfile", trusted),
        *("--ssl-certfile", str(folder.server_certificate), "--ssl-keyfile", str(folder.server_key)),
        "--enable-supernode-auth",
        *("--database", str(folder.database)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder.secret)),
    ]
    superexec = [
        _program("flower-superexec"),
        *("--runtime-api-address", address, "--root-certificates", trusted),
        *("--superexec-auth-secret-file", str(folder.secret), "--parent-pid", str(os.getpid())),
    ]
    return {"superlink": superlink, "superexec": superexec, "proxy": proxy.command(folder.root)}


def device_command(folder: DeviceFolder, data: str) -> list[str]:
    """Return the command of a device's process, Flower's SuperNode made to end when its connection does.

    `-P` keeps modules in the working directory from shadowing ours. The app's settings go into a file because
    Flower's arguments cannot hold a path that contains both kinds of quotes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    settings = folder.flower / "node.toml"
    node = {"folder": str(folder.root), "device": folder.device, "data": data}
    write_private(settings, "".join(f"{key} = {toml_text(value)}\n" for key, value in node.items()).encode())
    return [
        *(sys.executable, "-Pm", "fedkad.fleet.flower.supernode"),
        *("--superlink", folder.server, "--root-certificates", str(folder.ca_certificate)),
        *("--auth-supernode-private-key", str(folder.key)),
        *("--isolation", "process", "--host", "127.0.0.1", "--port", str(free_port)),
        *("--node-config", str(settings)),
    ]


def write_configuration(folder: ServerFolder) -> None:
    """Write Flower's own configuration, so that `FLWR_HOME=FOLDER/flower flwr ls` works."""
    address, trusted = f"127.0.0.1:{folder.settings.place.control_port}", str(folder.ca_certificate)
    text = '[superlink]\ndefault = "fedkad"\n\n[superlink.fedkad]\n'
    text += f"address = {toml_text(address)}\nroot-certificates = {toml_text(trusted)}\n"
    write_private(folder.flower / "config.toml", text.encode())


def _search_path() -> str:
    folders = dict.fromkeys((str(Path(sys.executable).parent), sysconfig.get_path("scripts")))
    return os.pathsep.join((*folders, os.environ.get("PATH", os.defpath)))


def _program(name: str) -> str:
    path = shutil.which(name, path=_search_path())
    if path is None:
        raise MissingRequirementError(f"The program {name} is missing; install it with pip install 'fedkad[fleet]'.")
    return path
