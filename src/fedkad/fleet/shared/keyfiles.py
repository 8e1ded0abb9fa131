"""Keys and certificates as files: they are read here, and one that cannot be used is named, with a remedy."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad.fleet.shared import certificates
from fedkad.fleet.shared.certificates import KeyFileError, KeyPair
from fedkad.fleet.shared.devicefolder import REMEDY, DeviceFolder
from fedkad.fleet.shared.files import FleetFileError

if TYPE_CHECKING:  # a device that waits to be called has no use for the settings of a server
    from fedkad.fleet.server.settings import ServerFolder

RESTORE = "restore it from a backup"
RESTORE_AUTHORITY = "restore it from a backup, or copy it from a device, which has the same file"
Reader = Callable[["ServerFolder"], object]


def server_pair(folder: ServerFolder) -> KeyPair:
    """Return what the server shows to devices, and the key to it."""
    return _pair(folder.server_key, folder.server_certificate, _renew(folder))


def notice_pair(folder: ServerFolder) -> KeyPair:
    """Return what signs notices."""
    return _pair(folder.notice_key, folder.notice_certificate, _renew(folder))


def authority(folder: ServerFolder) -> KeyPair:
    """Return the authority that certifies now, with all that devices trust."""
    trusted(folder)  # a damaged certificate has a remedy of its own
    return _pair(folder.ca_key, folder.ca_certificate, RESTORE)


def next_authority(folder: ServerFolder) -> KeyPair:
    """Return the authority that devices learn to trust."""
    return _pair(folder.next_key, folder.next_certificate, RESTORE)


def trusted(folder: ServerFolder) -> bytes:
    """Return the certificates of the authorities that devices trust."""
    return read_certificates(folder.ca_certificate, RESTORE_AUTHORITY)


def secret(folder: ServerFolder) -> bytes:
    """Return what the process that starts server apps shows to Flower."""
    remedy = "start the server again, which then makes another"
    if not (content := _content(folder.secret, remedy)):
        raise FleetFileError(f"{folder.secret}: this file is empty; remove it and {remedy}.")
    return content


FOR_PROCESSES: tuple[Reader, ...] = (server_pair, secret)
"""What nginx and Flower read for themselves whenever they start."""


def damages(folder: ServerFolder, *readers: Reader) -> Iterator[FleetFileError]:
    """Yield what is wrong with these files, or with all that a running server needs (not the authority's key)."""
    for read in readers or (*FOR_PROCESSES, notice_pair, trusted):
        try:
            read(folder)
        except FleetFileError as error:
            yield error


def key_header(folder: DeviceFolder) -> dict[str, str]:
    """Return the HTTP header with the device's public key, as Flower sends it."""
    try:
        public = certificates.public_part(_content(folder.key, REMEDY))
    except KeyFileError as error:
        raise FleetFileError(f"{folder.key}: the file {error}; {REMEDY}.") from None
    return {"flwr-public-key": b64encode(public).decode()}


def read_certificates(path: Path, remedy: str = RESTORE) -> bytes:
    """Return a file of certificates, as it is."""
    content = _content(path, remedy)
    try:
        certificates.each_authority(content)
    except ValueError:
        raise FleetFileError(f"{path}: this is not a certificate; {remedy}.") from None
    return content


def _pair(key: Path, certificate: Path, remedy: str) -> KeyPair:
    pair = KeyPair(_content(key, remedy), read_certificates(certificate, remedy))
    try:
        certificates.check_pair(pair)
    except KeyFileError as error:
        raise FleetFileError(f"{key}: the file {error}; {remedy}.") from None
    return pair


def _content(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FleetFileError(f"{path}: there is no such file; {remedy}.") from None
    except OSError as error:
        raise FleetFileError(f"{path}: this cannot be read ({error.strerror}); {remedy}.") from None


def _renew(folder: ServerFolder) -> str:
    return f"make another with `fedkad fleet renew {folder.root}`"
