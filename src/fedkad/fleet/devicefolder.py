"""The folder of one device: made on the server, copied to the device, and its state there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkad import __version__
from fedkad.fleet.devicesettings import DeviceFile
from fedkad.fleet.errors import FleetFileError
from fedkad.fleet.private import write_private
from fedkad.settingsfile import read_file
from fedkad.tomltext import toml_text

FILE, KEY = "device.toml", "device.key"
REMEDY = "copy the folder that `fedkad fleet add` made on the server"
REFUSAL = "refusal.txt"
"""Why the device could not answer the last time that it could not."""


@dataclass(frozen=True)
class DeviceFolder:
    """A device as its folder describes it; `root` is absolute, since other processes are told it."""

    root: Path
    device: str
    server: str
    data: str = ""

    @property
    def key(self) -> Path:
        """The private key that the server knows the device by."""
        return self.root / KEY

    @property
    def ca_certificate(self) -> Path:
        """What the certificate of the server is checked against."""
        return self.root / "ca.crt"

    @property
    def model(self) -> Path:
        """The detector that a delivery renews."""
        return self.root / "model.safetensors"

    @property
    def delivered(self) -> Path:
        """Replaced by each delivery, and by nothing else: the detector is also renewed by an agent."""
        return self.root / "delivered.json"

    @property
    def refusal(self) -> Path:
        """Why the device could not answer, written by the process that answers."""
        return self.root / REFUSAL

    @property
    def flower(self) -> Path:
        """Flower's own home on the device."""
        return self.root / "flower"

    @property
    def log(self) -> Path:
        """What the process that talks to the server says."""
        return self.root / "logs" / "supernode.log"

    @property
    def lock(self) -> Path:
        """Held while a client runs."""
        return self.root / "client.lock"

    def data_file(self, given: Path | None) -> str:
        """The absolute path of the device's data: from the command line, or else from `device.toml`; empty without."""
        if given is None and not self.data:
            return ""
        path = (given if given is not None else self.root / self.data).expanduser().resolve()
        if not path.exists():
            where = "--data" if given is not None else f"data in {self.root / FILE}"
            raise FleetFileError(f"{path}: there is no such file; correct {where}.")
        return str(path)


def write(folder: Path, device: str, server: str, ca_certificate: bytes, key: bytes | None) -> None:
    """Make the folder of a device; without a key where the device keeps its own."""
    fields = {"device": device, "server": server, "data": "", "made_by": f"fedkad {__version__}"}
    comments = {"data": "  # the table of this device, relative to this folder or absolute; or use --data"}
    lines = [f"{name} = {toml_text(value)}{comments.get(name, '')}" for name, value in fields.items()]
    write_private(folder / FILE, ("\n".join(lines) + "\n").encode())
    write_key(folder, ca_certificate, key)


def write_key(folder: Path, ca_certificate: bytes, key: bytes | None) -> None:
    """Write what changes with a new key and nothing else: on the device, `device.toml` is its owner's."""
    write_private(folder / "ca.crt", ca_certificate)
    if key is None:
        (folder / KEY).unlink(missing_ok=True)
    else:
        write_private(folder / KEY, key)


def load(folder: Path) -> DeviceFolder:
    """Read the folder of a device; raises `FleetFileError` or `SettingsError` if something is missing or wrong."""
    path = folder / FILE
    known = read_file(DeviceFile, path, REMEDY)
    for name in ("device", "server"):
        if not getattr(known, name):
            raise FleetFileError(f"{path}: {name} is missing; {REMEDY}.")
    found = DeviceFolder(folder.resolve(), known.device, known.server, known.data)
    for needed in (found.key, found.ca_certificate):
        if not needed.is_file():
            raise FleetFileError(f"{needed}: there is no such file; {REMEDY}.")
    return found
