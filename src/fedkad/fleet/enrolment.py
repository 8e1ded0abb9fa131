"""What an operator does to a fleet: make it, add devices, take them out, renew keys and certificates."""

from __future__ import annotations

import ipaddress
import re
import secrets
import shutil
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.fleet import certificates, devicefolder, flower, proxy, registry, settings
from fedkad.fleet.certificates import KeyFileError, Pair
from fedkad.fleet.errors import FleetFileError
from fedkad.fleet.private import private, write_private
from fedkad.fleet.serverfolder import ServerFolder
from fedkad.fleet.settings import FleetSettings

HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")


def check_address(text: str) -> None:
    """Refuse what is neither the name of a host nor an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if len(text) > 253 or not HOST.fullmatch(text):
            raise ValueError(
                f"{text!r} is no name of a host and no IP address; give it without a port and without https://."
            ) from None


def make_fleet(path: Path, chosen: FleetSettings) -> ServerFolder:
    """Make the folder of a server, with an authority and a certificate of its own and no device."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FleetFileError(f"{path}: this exists and is not an empty folder; choose another name for the fleet.")
    check_address(chosen.place.address)
    settings.check(chosen)
    folder = ServerFolder(path.resolve())
    with private():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        authority = certificates.make_authority(chosen.place.address)
        write_private(folder.ca_key, authority.key)
        write_private(folder.ca_certificate, authority.public)
        _write_server_certificate(folder, authority, chosen.place.address)
        write_private(folder.secret, secrets.token_bytes(48))
        registry.write(folder.registry, {})
        settings.save(folder.root, chosen)  # last of what cannot be made again: only now is it a fleet
        prepare(folder)
    return folder


def prepare(folder: ServerFolder) -> None:
    """Write what follows from `fleet.toml`; done again at each start of the server, for the file may have changed."""
    for needed in (folder.root / "proxy", folder.training, folder.logs):
        needed.mkdir(mode=0o700, exist_ok=True)
    flower.write_connection(folder)
    write_atomically(folder.root / proxy.FILE, proxy.configuration(folder.settings.place).encode())


def add_device(folder: ServerFolder, name: str, public_key: Path | None) -> Path:
    """Register a device; the folder that is to be copied to it."""
    with registry.changing(folder.registry) as devices:
        registry.check_name(name)
        key = _device_key(public_key)
        registry.add(devices, name, key.public.decode())
        place = folder.devices / name
        server = folder.settings.place.reached_at
        devicefolder.write(place, name, server, folder.ca_certificate.read_bytes(), key.key or None)
        return place


def renew_device(folder: ServerFolder, name: str, public_key: Path | None) -> Path | None:
    """Give a device a new key; the file that is to be copied to it, None where the key stays on the device."""
    with registry.changing(folder.registry) as devices:
        key = _device_key(public_key)
        registry.renew(devices, name, key.public.decode())
        place = folder.devices / name
        devicefolder.write_key(place, folder.ca_certificate.read_bytes(), key.key or None)
        return place / devicefolder.KEY if key.key else None


def revoke_device(folder: ServerFolder, name: str) -> None:
    """Let a device take part no more, and forget its key here."""
    with registry.changing(folder.registry) as devices:
        registry.revoke(devices, name)
        shutil.rmtree(folder.devices / name, ignore_errors=True)


def renew_server(folder: ServerFolder) -> None:
    """Give the server a new key and certificate; devices trust the authority and need nothing."""
    authority = Pair(folder.ca_key.read_bytes(), folder.ca_certificate.read_bytes())
    _write_server_certificate(folder, authority, folder.settings.place.address)


def _write_server_certificate(folder: ServerFolder, authority: Pair, host: str) -> None:
    made = certificates.make_server_certificate(authority, host)
    write_private(folder.server_key, made.key)
    write_private(folder.server_certificate, made.public)


def _device_key(public_key: Path | None) -> Pair:
    """A new key, or only the public part of one that stays on its device."""
    if public_key is None:
        return certificates.make_device_key()
    try:
        return Pair(b"", certificates.normal_public_key(public_key.read_bytes()))
    except KeyFileError as error:
        raise FleetFileError(
            f"{public_key}: the file {error}; make one with ssh-keygen -t ecdsa -b 384 -N '' -f device.key."
        ) from None
