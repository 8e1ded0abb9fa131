"""What an operator does to a fleet: create it, add and revoke devices, renew keys and certificates."""

import hashlib
import json
import logging
import os
import secrets
import shutil
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedkad.federation import sketch, wire
from fedkad.fleet import flower
from fedkad.fleet.flower import proxy
from fedkad.fleet.server import noticeboard, registry, settings, tokens
from fedkad.fleet.server.registry import DeviceError, Registry
from fedkad.fleet.server.settings import FleetSettings, Place, ServerFolder
from fedkad.fleet.server.tokens import UnusedToken, UnusedTokens
from fedkad.fleet.shared import certificates, devicefolder, keyfiles
from fedkad.fleet.shared.certificates import KeyFileError, KeyPair
from fedkad.fleet.shared.files import FleetFileError, private, write_private
from fedkad.fleet.shared.tokens import OneTimeToken

logger = logging.getLogger(__name__)

AROUND = 16_384  # bytes around the numbers of a reply: names, ticket, sizes, a refusal, the frame of the carrier
PER_PEER = 192  # bytes sent for each other device of a masked round: a box is 94 bytes, two shares are 66


def check_address(text: str) -> None:
    """Refuse an address that is neither a host name nor an IP address."""
    if not settings.is_address(text):
        raise ValueError(
            f"{text!r} is neither a host name nor an IP address; give it without a port and without https://."
        )


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
        _write_server_certificate(folder, authority, chosen.place)
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
        _write_notice_key(folder, keyfiles.authority(folder))
    if not folder.secret.exists():  # only two processes know it, which read it when they start
        write_private(folder.secret, secrets.token_bytes(48))
        logger.info("%s was missing; a new one was made", folder.secret)
    if (reason := _outdated(folder)) is not None:
        _write_server_certificate(folder, keyfiles.authority(folder), folder.settings.place)
        logger.info("the server has a new certificate, because %s", reason)
    for damage in keyfiles.damages(folder):
        raise damage
    flower.write_configuration(folder)
    configure_proxy(folder)


def _outdated(folder: ServerFolder) -> str | None:
    """Return why the server needs another certificate; None if it does not."""
    if not folder.server_certificate.exists():
        return "it had none"  # the writing of one was interrupted
    is_valid = certificates.is_valid_for(keyfiles.server_pair(folder).public, folder.settings.place.addresses)
    return None if is_valid else "its addresses have changed"


def configure_proxy(folder: ServerFolder) -> bool:
    """Have the proxy know the registered devices and the size of their replies; False if it does already.

    The settings are read again, because a training uses them as they are by then.
    """
    devices = registry.active(registry.read(folder.registry))
    largest = largest_reply(settings.load(folder.root), len(devices))
    keys = {device.name: device.public_key for device in devices.values()}
    unused = {token.device: token.secret for token in tokens.read(folder.tokens).values()}
    return proxy.write_configuration(folder.root, folder.settings.place, largest, keys, unused)


def largest_reply(settings: FleetSettings, devices: int) -> int:
    """Return the bytes of the largest reply in a fleet of so many devices, with a margin: more is turned away unread.

    With masks, each number is an integer of 32 bits, the first reply is a sketch of 3 r columns, and every device
    encrypts something for each of the others.

    >>> from fedkad.fleet.server.settings import ModelSettings
    >>> largest_reply(FleetSettings(model=ModelSettings(tuple("abcde"))), devices=8) - AROUND  # 228 x 24 in float32
    21888
    """
    dimension, rank = settings.model.dimension, settings.model.rank
    if settings.privacy.secure_aggregation:
        return AROUND + 4 * dimension * sketch.width(dimension, rank) + PER_PEER * devices
    return AROUND + wire.size((dimension, rank), settings.training.encoding)


def make_tokens(folder: ServerFolder, names: Sequence[str], life: float) -> list[OneTimeToken]:
    """Make a token for each of these devices, valid once and for so many seconds."""
    secrets_of = tokens.issue(folder.tokens, registry.read(folder.registry), names, life)
    present = certificates.each_authority(keyfiles.trusted(folder))[0]
    server, fingerprint = folder.settings.place.reached_at, hashlib.sha256(present).hexdigest()
    return [OneTimeToken(name, secret, server, fingerprint) for name, secret in secrets_of.items()]


def admit_newcomers(folder: ServerFolder) -> None:
    """Add the devices that have shown a token since the last time, each with its own key.

    What is written while the book is emptied is lost; a device shows its token until it is admitted.
    """
    book = folder.root / proxy.JOIN_LOG
    if not book.exists() or not book.stat().st_size:
        return
    lines = book.read_text(errors="replace").splitlines()
    os.truncate(book, 0)
    with tokens.changing(folder.tokens) as unused, registry.changing(folder.registry) as devices:
        by_secret = {token.secret: token for token in unused.values()}
        for line in lines:
            with suppress(ValueError):
                _admit_newcomer(json.loads(line), by_secret, unused, devices)


def _admit_newcomer(
    shown: Mapping[str, str], by_secret: Mapping[str, UnusedToken], unused: UnusedTokens, devices: Registry
) -> None:
    """Add one device, if its token is not used yet; a second line of the same device changes nothing."""
    token = by_secret.get(shown["token"])
    if token is None or token.device not in unused:
        return
    try:
        registry.add(devices, token.device, certificates.normal_public_key(b64decode(shown["key"])).decode())
    except (KeyFileError, DeviceError) as error:
        logger.warning("%s: shows its token at %s, but cannot be added: %s", token.device, shown["from"], error)
    else:
        del unused[token.device]
        logger.info("%s: joined with its token, from %s", token.device, shown["from"])


def add_device(folder: ServerFolder, name: str, public_key: Path | None) -> Path:
    """Register a device; returns the folder to copy to it."""
    with registry.changing(folder.registry) as devices:
        private_key, known_by = _device_key(public_key)
        registry.add(devices, name, known_by)
        place, server = folder.devices / name, folder.settings.place.reached_at
        devicefolder.write(place, name, server, keyfiles.trusted(folder), private_key)
        return place


def renew_device(folder: ServerFolder, name: str, public_key: Path | None) -> Path | None:
    """Give a device a new key; returns the file to copy to it, or None if the key was made on the device."""
    with registry.changing(folder.registry) as devices:
        private_key, known_by = _device_key(public_key)
        registry.renew(devices, name, known_by)
        place = folder.devices / name
        devicefolder.write_key(place, keyfiles.trusted(folder), private_key)
        return place / devicefolder.KEY if private_key else None


def revoke_device(folder: ServerFolder, name: str) -> None:
    """Exclude a device, and delete its key here; of one that has not joined yet, withdraw the token."""
    with tokens.changing(folder.tokens) as unused:
        if unused.pop(name, None) is not None:
            return
    with registry.changing(folder.registry) as devices:
        registry.revoke(devices, name)
        shutil.rmtree(folder.devices / name, ignore_errors=True)


def renew_server(folder: ServerFolder) -> None:
    """Give the server new keys and certificates; devices trust the authority and need no change.

    Once a device has seen a notice of the new key, it refuses those of the old one.
    """
    authority = keyfiles.authority(folder)
    _write_server_certificate(folder, authority, folder.settings.place)
    _write_notice_key(folder, authority)


def begin_authority(folder: ServerFolder) -> None:
    """Make the next authority, which devices learn to trust by the notice while the present one goes on certifying."""
    authority, next_pair = keyfiles.authority(folder), certificates.make_authority(folder.settings.place.address)
    present, *others = certificates.each_authority(authority.public)
    if others:
        raise FleetFileError(f"{folder.next_certificate}: devices are learning to trust this one; finish that first.")
    (successor,) = certificates.each_authority(next_pair.public)
    write_private(folder.next_key, next_pair.key)
    write_private(folder.next_certificate, next_pair.public)
    write_private(folder.next_cross_signature, certificates.cross_sign(authority.key, successor))
    write_private(folder.ca_certificate, certificates.as_bundle([present, successor]))  # only now it is announced


def finish_authority(folder: ServerFolder) -> None:
    """Let the next authority take the place of the present one, which devices then no longer trust.

    The server must not be running. What a kill interrupts can be done again: the next one is removed last.
    """
    announced = certificates.each_authority(keyfiles.trusted(folder))[-1]
    next_pair = keyfiles.next_authority(folder) if folder.next_certificate.exists() else None
    if next_pair is None or certificates.as_bundle([announced]) != next_pair.public:
        raise FleetFileError(f"{folder.root}: there is no next authority; make one with `fedkad fleet renew` first.")
    write_private(folder.ca_key, next_pair.key)
    write_private(folder.ca_certificate, next_pair.public)
    renew_server(folder)
    for done in (folder.next_cross_signature, folder.next_key, folder.next_certificate):
        done.unlink(missing_ok=True)


def _write_server_certificate(folder: ServerFolder, authority: KeyPair, place: Place) -> None:
    pair = certificates.make_server_certificate(authority, *place.addresses)
    _write_pair(folder.server_key, folder.server_certificate, pair)


def _write_notice_key(folder: ServerFolder, authority: KeyPair) -> None:
    pair = certificates.make_notice_certificate(authority)
    _write_pair(folder.notice_key, folder.notice_certificate, pair)


def _write_pair(key: Path, certificate: Path, pair: KeyPair) -> None:
    certificate.unlink(missing_ok=True)  # a kill in between leaves no pair that does not fit
    write_private(key, pair.key)
    write_private(certificate, pair.public)


def _device_key(public_key: Path | None) -> tuple[bytes | None, str]:
    """Return a new private key and its public key, or only the public key if the private one was made on the device."""
    if public_key is None:
        pair = certificates.make_device_key()
        return pair.key, pair.public.decode()
    try:
        return None, certificates.normal_public_key(public_key.read_bytes()).decode()
    except KeyFileError as error:
        raise FleetFileError(
            f"{public_key}: the file {error}; create one with ssh-keygen -t ecdsa -b 384 -N '' -f device.key."
        ) from None
