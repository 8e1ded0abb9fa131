"""The folder of one device, created on the server and copied to the device; `device.toml` in it has its settings."""

from dataclasses import dataclass
from pathlib import Path

from fedkad import __version__
from fedkad.fleet.shared.files import Below, FleetFileError, write_private
from fedkad.settingerror import toml_text

FILE, KEY = "device.toml", "device.key"
REFUSAL = "refusal.txt"  # why the device could not answer a request, the last time that happened
REMEDY = "copy the folder that `fedkad fleet add` created on the server"


@dataclass(frozen=True)
class DeviceFolder:
    """A device as its folder describes it; `root` is absolute because it is passed to other processes."""

    root: Path
    device: str
    server: str
    data: str = ""

    key = Below(KEY)  # the private key by which the server identifies the device
    ca_certificate = Below("ca.crt")  # the authority that has signed the certificate of the server
    model = Below("model.safetensors")  # the detector, which a delivery replaces
    delivered = Below("delivered.json")  # replaced by deliveries only, whereas an agent replaces the model as well
    notice = Below("notice")  # the last notice that was accepted, so that no older one ever is
    fetched = Below("fetched.safetensors")  # a model that the notice has named, until it is in use
    refusal = Below(REFUSAL)  # why the device could not answer, written by the process that answers requests
    flower = Below("flower")  # Flower's own home on the device
    log = Below("logs/supernode.log")  # the output of the process that talks to the server
    lock = Below("client.lock")  # held while a client runs

    def data_file(self, given: Path | None) -> str:
        """Return the absolute path of the device's data: as given, or else from `device.toml`; empty without."""
        if given is None and not self.data:
            return ""
        path = (given if given is not None else self.root / self.data).expanduser().resolve()
        if not path.exists():
            where = "--data" if given is not None else f"data in {self.root / FILE}"
            raise FleetFileError(f"{path}: there is no such file; correct {where}.")
        return str(path)


def write(folder: Path, device: str, server: str, ca_certificate: bytes, key: bytes | None) -> None:
    """Create the folder of a device; without a key if the device made its own. Only the last file makes it one."""
    fields = {"device": device, "server": server, "data": "", "made_by": f"fedkad {__version__}"}
    comments = {"data": "  # the table of this device, relative to this folder or absolute; or use --data"}
    lines = [f"{name} = {toml_text(value)}{comments.get(name, '')}" for name, value in fields.items()]
    write_key(folder, ca_certificate, key)
    write_private(folder / FILE, ("\n".join(lines) + "\n").encode())


def write_key(folder: Path, ca_certificate: bytes, key: bytes | None) -> None:
    """Write only what changes with a new key: `device.toml` on the device belongs to its owner."""
    write_private(folder / "ca.crt", ca_certificate)
    if key is None:
        (folder / KEY).unlink(missing_ok=True)
    else:
        write_private(folder / KEY, key)
