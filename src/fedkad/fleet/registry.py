"""`devices.json`: which devices may take part, and with which key. The source of truth of a fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fedkad.fleet.errors import FleetFileError
from fedkad.fleet.private import write_private
from fedkad.locks import waiting_for

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class DeviceError(ValueError):
    """A device that cannot be added, revoked or renewed; the message says why and what to do."""


@dataclass(frozen=True)
class Device:
    """One device: its name, its public key in PEM, and when it came and went."""

    name: str
    public_key: str
    added: str
    revoked: str | None = None


Registry = dict[str, Device]


def read(path: Path) -> Registry:
    """All devices by name."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["devices"]
        return {entry["name"]: Device(**entry) for entry in entries}
    except FileNotFoundError:
        raise FleetFileError(f"{path}: there is no such file; make the folder with `fedkad fleet init`.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise FleetFileError(f"{path}: this is no list of devices ({error}); restore it from a backup.") from None


def write(path: Path, devices: Registry) -> None:
    """Write all devices."""
    document = {"devices": [asdict(device) for device in devices.values()]}
    write_private(path, (json.dumps(document, indent=2) + "\n").encode())


@contextmanager
def changing(path: Path) -> Iterator[Registry]:
    """The devices, to be changed in place: written when all went well, and nobody else writes meanwhile."""
    with waiting_for(path.with_name(f".{path.name}.lock")):
        devices = read(path)
        yield devices
        write(path, devices)


def check_name(name: str) -> None:
    """Refuse a name that could not be a file, an argument and a word."""
    if not NAME.fullmatch(name):
        raise DeviceError(
            f"{name!r} cannot be the name of a device; use letters, digits, '.', '_' and '-', at most 64 of them, "
            "with no '.' or '-' at the start."
        )


def add(devices: Registry, name: str, public_key: str) -> None:
    """Enter a new device."""
    check_name(name)
    known = devices.get(name)
    if known is not None and known.revoked:
        raise DeviceError(f"{name} was revoked; give it a new key with `fedkad fleet renew FOLDER {name}`.")
    if known is not None:
        raise DeviceError(f"{name} is registered already; choose another name, or see `fedkad fleet renew`.")
    _refuse_shared_key(devices, name, public_key)
    devices[name] = Device(name, public_key, _now())


def revoke(devices: Registry, name: str) -> None:
    """Let a device take part no more; its name stays taken."""
    device = _known(devices, name)
    if device.revoked:
        raise DeviceError(f"{name} was revoked at {device.revoked} already.")
    devices[name] = replace(device, revoked=_now())


def renew(devices: Registry, name: str, public_key: str) -> None:
    """Give a device a new key; a revoked one takes part again."""
    device = _known(devices, name)
    _refuse_shared_key(devices, name, public_key)
    devices[name] = replace(device, public_key=public_key, revoked=None)


def active(devices: Registry) -> Registry:
    """The devices that may take part."""
    return {name: device for name, device in devices.items() if not device.revoked}


def _known(devices: Registry, name: str) -> Device:
    if name not in devices:
        raise DeviceError(f"There is no device {name}; `fedkad fleet list FOLDER` shows all.")
    return devices[name]


def _refuse_shared_key(devices: Registry, name: str, public_key: str) -> None:
    """Refuse a key that a device has, or had when it was revoked: Flower knows devices by their key."""
    other = next((device.name for device in devices.values() if device.public_key == public_key), None)
    if other is not None:
        whose = "its own" if other == name else f"that of {other}"
        raise DeviceError(f"The key given for {name} is {whose} already; make another.")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
