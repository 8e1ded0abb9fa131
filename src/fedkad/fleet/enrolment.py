"""What an operator does to a fleet: create it, add and revoke devices, renew keys and certificates."""

from __future__ import annotations

import ipaddress
import re
import secrets
import shutil
from pathlib import Path

from fedkad.fleet import certificates, devicefolder, flower, noticeboard, registry, settings
from fedkad.fleet.certificates import KeyFileError, KeyPair
from fedkad.fleet.files import FleetFileError, private, write_private
from fedkad.fleet.flower import proxy
from fedkad.fleet.limits import largest_reply
from fedkad.fleet.settings import FleetSettings, ServerFolder

HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")


def check_address(text: str) -> None:
    """Refuse an address that is neither a host name nor an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if len(text) > 253 or not HOST.fullmatch(text):
            raise ValueError(
                f"{text!r} is neither a host name nor an IP address; give it without a port and without https://."
            ) from None


def make_fleet(path: Path, chosen: FleetSettings) -> ServerFolder:
    """Create the folder of a server, with its own certificate authority and no devices."""
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
        settings.save(folder.root, chosen)  # last of what cannot be recreated: only now is it a fleet
        prepare(folder)
    return folder


def prepare(folder: ServerFolder) -> None:
    """Write what follows from `fleet.toml`, again at each start of the server because the file may have changed."""
    for needed in (folder.training, folder.logs):
        needed.mkdir(mode=0o700, exist_ok=True)
    noticeboard.open_to_all(folder.public)
    if not folder.notice_key.exists() or not folder.notice_certificate.exists():  # of a fleet of an earlier release
        _write_notice_key(folder, KeyPair(folder.ca_key.read_bytes(), folder.ca_certificate.read_bytes()))
    flower.write_configuration(folder)
    admit_at_the_door(folder)


def admit_at_the_door(folder: ServerFolder) -> bool:
    """Have the proxy know the registered devices and the size of their replies; False if it does already.

    The settings are read anew, because a training uses them as they are by then.
    """
    devices = registry.active(registry.read(folder.registry))
    largest = largest_reply(settings.load(folder.root), len(devices))
    keys = {device.name: device.public_key for device in devices.values()}
    return proxy.write_configuration(folder.root, folder.settings.place, largest, keys)


def add_device(folder: ServerFolder, name: str, public_key: Path | None) -> Path:
    """Register a device; returns the folder to copy to it."""
    with registry.changing(folder.registry) as devices:
        private_key, known_by = _device_key(public_key)
        registry.add(devices, name, known_by)
        place, server = folder.devices / name, folder.settings.place.reached_at
        devicefolder.write(place, name, server, folder.ca_certificate.read_bytes(), private_key)
        return place


def renew_device(folder: ServerFolder, name: str, public_key: Path | None) -> Path | None:
    """Give a device a new key; returns the file to copy to it, or None if the key was made on the device."""
    with registry.changing(folder.registry) as devices:
        private_key, known_by = _device_key(public_key)
        registry.renew(devices, name, known_by)
        place = folder.devices / name
        devicefolder.write_key(place, folder.ca_certificate.read_bytes(), private_key)
        return place / devicefolder.KEY if private_key else None


def revoke_device(folder: ServerFolder, name: str) -> None:
    """Exclude a device, and delete its key here."""
    with registry.changing(folder.registry) as devices:
        registry.revoke(devices, name)
        shutil.rmtree(folder.devices / name, ignore_errors=True)


def renew_server(folder: ServerFolder) -> None:
    """Give the server new keys and certificates; devices trust the authority and need no change.

    Once a device has seen a notice of the new key, it refuses those of the old one.
    """
    authority = KeyPair(folder.ca_key.read_bytes(), folder.ca_certificate.read_bytes())
    _write_server_certificate(folder, authority, folder.settings.place.address)
    _write_notice_key(folder, authority)


def _write_server_certificate(folder: ServerFolder, authority: KeyPair, host: str) -> None:
    made = certificates.make_server_certificate(authority, host)
    write_private(folder.server_key, made.key)
    write_private(folder.server_certificate, made.public)


def _write_notice_key(folder: ServerFolder, authority: KeyPair) -> None:
    made = certificates.make_notice_certificate(authority)
    folder.notice_certificate.unlink(missing_ok=True)  # a kill in between leaves no pair that does not fit
    write_private(folder.notice_key, made.key)
    write_private(folder.notice_certificate, made.public)


def _device_key(public_key: Path | None) -> tuple[bytes | None, str]:
    """A new private key and its public key, or only the public key if the private one was made on the device."""
    if public_key is None:
        made = certificates.make_device_key()
        return made.key, made.public.decode()
    try:
        return None, certificates.normal_public_key(public_key.read_bytes()).decode()
    except KeyFileError as error:
        raise FleetFileError(
            f"{public_key}: the file {error}; create one with ssh-keygen -t ecdsa -b 384 -N '' -f device.key."
        ) from None
