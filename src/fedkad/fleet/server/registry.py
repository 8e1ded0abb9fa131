"""`devices.json`: which devices may take part, and with which key. The source of truth of a fleet.

The file is a document with a list of devices, and below it a line for each device that was added or changed since, so
that adding one to a hundred thousand writes one line. Once more entries are replaced than in use, it is rewritten.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedkad.fleet.shared.files import FileIdentity, FleetFileError, identity, write_private
from fedkad.locks import waiting_for

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
MOST_ENTRIES = 2  # in a file, for each device


class DeviceError(ValueError):
    """A device cannot be added, revoked or renewed."""


@dataclass(frozen=True)
class RegisteredDevice:
    """A device: its name, its public key as PEM, and when it was added and revoked."""

    name: str
    public_key: str
    added: str
    revoked: str | None = None


Registry = dict[str, RegisteredDevice]


class StoredRegistry(NamedTuple):
    """The devices of a file, how many bytes of it are whole entries, and how many entries, replaced ones included."""

    devices: Registry
    size: int
    entries: int


def read(path: Path) -> Registry:
    """Return all devices by name."""
    return _load(path).devices


def _load(path: Path) -> StoredRegistry:
    try:
        text = path.read_text(encoding="utf-8")
        document, end = json.JSONDecoder().raw_decode(text)
        lines = text[end:].splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()  # its writer was killed, or is at it
        entries = [*document["devices"], *(json.loads(line) for line in lines if line.strip())]
        devices = {entry["name"]: _device(entry) for entry in entries}
    except FileNotFoundError:
        raise FleetFileError(f"{path}: there is no such file; create the folder with `fedkad fleet init`.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise FleetFileError(f"{path}: this is not a list of devices ({error}); restore it from a backup.") from None
    return StoredRegistry(devices, len(text[:end].encode()) + len("".join(lines).encode()), len(entries))


def _device(entry: dict[str, Any]) -> RegisteredDevice:
    device = RegisteredDevice(**entry)
    if not all(isinstance(value, str) for value in (device.name, device.public_key, device.added)):
        raise ValueError("name, public_key and added of a device are texts")
    return device


def write(path: Path, devices: Registry) -> None:
    """Write all devices."""
    document = {"devices": [asdict(device) for device in devices.values()]}
    write_private(path, (json.dumps(document, indent=2) + "\n").encode())


def _append(path: Path, size: int, devices: Iterable[RegisteredDevice]) -> None:
    """Add entries behind the first `size` bytes; a reader finds those that are whole."""
    with path.open("r+b") as file:
        file.truncate(size)
        file.seek(size - 1)
        is_new_line = file.read() == b"\n"
        lines = "".join(json.dumps(asdict(device)) + "\n" for device in devices)
        file.write((lines if is_new_line else f"\n{lines}").encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def changing(path: Path) -> Iterator[Registry]:
    """The devices, to be changed in place; what has changed is written if the block succeeds, and locked until then."""
    with waiting_for(path.with_name(f".{path.name}.lock")):
        stored = _load(path)
        devices = dict(stored.devices)
        yield devices
        changed = [device for name, device in devices.items() if stored.devices.get(name) != device]
        if stored.entries + len(changed) > MOST_ENTRIES * len(devices):
            write(path, devices)
        elif changed:
            _append(path, stored.size, changed)


def add(devices: Registry, name: str, public_key: str) -> None:
    """Add a new device."""
    check_new(devices, name)
    _refuse_shared_key(devices, name, public_key)
    devices[name] = RegisteredDevice(name, public_key, _now())


def check_new(devices: Registry, name: str) -> None:
    """Refuse a name that is taken, or that is not safe as a file name and as a command-line argument."""
    if not NAME.fullmatch(name):
        raise DeviceError(
            f"{name!r} cannot be the name of a device; use at most 64 letters, digits, '.', '_' and '-', "
            "and do not begin with '.' or '-'."
        )
    device = devices.get(name)
    if device is not None and device.revoked:
        raise DeviceError(f"{name} was revoked; give it a new key with `fedkad fleet renew FOLDER {name}`.")
    if device is not None:
        raise DeviceError(f"{name} is already registered; choose another name, or see `fedkad fleet renew`.")


def revoke(devices: Registry, name: str) -> None:
    """Exclude a device; its name stays taken."""
    device = _known(devices, name)
    if device.revoked:
        raise DeviceError(f"{name} was already revoked at {device.revoked}.")
    devices[name] = replace(device, revoked=_now())


def renew(devices: Registry, name: str, public_key: str) -> None:
    """Give a device a new key; a revoked one takes part again."""
    device = _known(devices, name)
    _refuse_shared_key(devices, name, public_key)
    devices[name] = replace(device, public_key=public_key, revoked=None)


def active(devices: Registry) -> Registry:
    """Return the devices that may take part."""
    return {name: device for name, device in devices.items() if not device.revoked}


class ActiveDevices:
    """The devices that may take part, read again only if the file has changed: a server looks every few seconds."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path, Registry()
        self._seen: FileIdentity | None = None

    def read(self) -> Registry:
        """Return all of them; the same object as before if nothing has changed."""
        seen = identity(self.path)
        if seen is None or seen != self._seen:
            self.found, self._seen = active(read(self.path)), seen
        return self.found


def _known(devices: Registry, name: str) -> RegisteredDevice:
    if name not in devices:
        raise DeviceError(f"There is no device {name}; `fedkad fleet list FOLDER` lists them all.")
    return devices[name]


def _refuse_shared_key(devices: Registry, name: str, public_key: str) -> None:
    """Refuse a key that a device has, or had when it was revoked: Flower identifies devices by their keys."""
    other = next((device.name for device in devices.values() if device.public_key == public_key), None)
    if other is not None:
        whose = "the one it has" if other == name else f"that of {other}"
        raise DeviceError(f"The key given for {name} is {whose}; create another.")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
