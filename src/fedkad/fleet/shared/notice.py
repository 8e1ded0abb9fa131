"""The notice: a small signed file that tells every device whether it is called, and which model is current.

    fedkad notice 1
    signature of the document, base64
    certificate of the key that made it, base64
    the document, one line of JSON

The fleet's authority, which devices trust, certifies the key that signs: a new key needs no change on a device. The
notice also says where the server is reached and whom devices trust, so that both can change. Devices
accept no notice that is older than the last one they accepted, so that an old one cannot be replayed, and none that has
expired, so that a new one cannot be withheld for long. To go back to an earlier model, a server writes a newer notice.

Devices run this without numpy or Flower: it is all that one of them needs while it waits.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedkad.fleet.shared.certificates import as_bundle, each_authority, is_cross_signed

FORMAT = b"fedkad notice 1\n"
"""The first line. It is signed together with the document, so that no other signature of the key fits a notice."""

LIFE = 86_400
"""Seconds for which a notice is valid: as long as a newer one may be withheld from a device. A server writes the next
one when half of them have passed."""

REPORT_EVERY = 3600.0
"""Seconds after which a device shows its key again when it polls; more often would tell the server nothing."""

PLACES = 2**32  # where a name can lie in a cohort: a cohort is a range that begins at 0


class NoticeError(ValueError):
    """A notice that is not accepted; the message says why, and what to do."""


@dataclass(frozen=True)
class Invitation:
    """Which devices are called: those whose place, which `salt` shuffles for every training, lies below a bound."""

    salt: str
    below: int

    def includes(self, device: str) -> bool:
        """Return whether a device is called."""
        return place(self.salt, device) < self.below


EVERYBODY = Invitation("", PLACES)
"""Calls all devices, whether a training is open or not: a small fleet stays connected."""


@dataclass(frozen=True)
class NamedModel:
    """The current model: the training that made it, and the file by its digest and its size."""

    run: str
    sha256: str
    size: int
    spread: float  # seconds over which devices spread their downloads


@dataclass(frozen=True)
class NamedAuthority:
    """An authority of the fleet: its certificate as DER, and the signature of the one before it, where there is one."""

    certificate: bytes
    cross_signature: bytes


@dataclass(frozen=True)
class NoticeBody:
    """The content of a notice; a server of an earlier release names neither addresses nor authorities."""

    period: float  # seconds between two looks at the notice
    invitation: Invitation | None
    model: NamedModel | None
    servers: tuple[str, ...] = ()  # where devices reach the server
    authorities: tuple[NamedAuthority, ...] = ()  # whom devices trust


@dataclass(frozen=True)
class FleetNotice:
    """A notice as a device accepts it; `key_since` is when the key that signed it was certified, in seconds."""

    sequence: int
    expires: int
    body: NoticeBody
    key_since: int

    def calls(self, device: str, now: float) -> bool:
        """Return whether a device is called; an expired notice calls none."""
        return now < self.expires and self.includes(device)

    def includes(self, device: str) -> bool:
        """Return whether a device is among those that the notice called when it was written."""
        invitation = self.body.invitation
        return invitation is not None and invitation.includes(device)


def place(salt: str, device: str) -> int:
    """Return where a device lies in the cohorts of one training, evenly spread over all places.

    >>> place("a", "pump-1") == place("a", "pump-1"), place("a", "pump-1") == place("b", "pump-1")
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{salt}\n{device}".encode()).digest()[:4], "big")


def invitation_for(salt: str, devices: Collection[str], count: int) -> Invitation:
    """Return the invitation that calls this many devices, or all of them if there are no more.

    >>> pumps = [f"pump-{k}" for k in range(1000)]
    >>> sum(map(invitation_for("a", pumps, 64).includes, pumps)), invitation_for("a", pumps, 1000).below == PLACES
    (64, True)
    """
    if count >= len(devices):
        return Invitation(salt, PLACES)
    places = sorted(place(salt, device) for device in devices)
    return Invitation(salt, places[count - 1] + 1 if count > 0 else 0)


def sign(body: NoticeBody, sequence: int, now: float, key: bytes, certificate: bytes) -> bytes:
    """Return a notice as a file; the key and its certificate are PEM."""
    fields = {"sequence": sequence, "expires": int(now) + LIFE, **asdict(body)}
    fields["authorities"] = [
        {"certificate": b64encode(each.certificate).decode(), "voucher": b64encode(each.cross_signature).decode()}
        for each in body.authorities
    ]
    document = json.dumps(fields).encode()
    signer = load_pem_private_key(key, None)
    if not isinstance(signer, Ed25519PrivateKey):
        raise NoticeError("The key for notices is not an Ed25519 key; make another with `fedkad fleet renew`.")
    shown = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    lines = (b64encode(signer.sign(FORMAT + document)), b64encode(shown), document)
    return FORMAT + b"\n".join(lines) + b"\n"


def certified_since(certificate: bytes) -> int:
    """Return when a key (its certificate as PEM) was certified, as notices signed with it show it."""
    return _since(x509.load_pem_x509_certificate(certificate))


def _since(certificate: x509.Certificate) -> int:
    return int(certificate.not_valid_before_utc.timestamp())


def verify(content: bytes, authority: bytes) -> FleetNotice:
    """Return the notice in a file, verified with an authority of the fleet (PEM); it may be an old one."""
    return _opened(content, authority)


def unverified(content: bytes) -> FleetNotice:
    """Return the notice in a file unverified, for a device that does not know yet which authority to trust."""
    return _opened(content, None)


def _opened(content: bytes, authority: bytes | None) -> FleetNotice:
    if not content.startswith(FORMAT):
        raise NoticeError("The notice has a format that this release does not know; install the server's release.")
    try:
        signature, shown, document = content.removeprefix(FORMAT).split(b"\n")[:3]
        certificate = x509.load_der_x509_certificate(b64decode(shown, validate=True))
        if authority is not None:
            _certified_key(certificate, authority).verify(b64decode(signature, validate=True), FORMAT + document)
        return _read(json.loads(document), _since(certificate))
    except Exception as error:  # a damaged certificate has an exception for every way to damage it
        why = "its signature is wrong" if isinstance(error, InvalidSignature) else str(error) or type(error).__name__
        raise NoticeError(f"The notice is not one of this fleet ({why}); it is ignored.") from None


def _certified_key(certificate: x509.Certificate, authority: bytes) -> Ed25519PublicKey:
    """Return the key that the authority has certified, and for notices only: a server's certificate signs none."""
    _check_issued(certificate, authority)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    key = certificate.public_key()
    if ExtendedKeyUsageOID.CODE_SIGNING not in usage or not isinstance(key, Ed25519PublicKey):
        raise ValueError("its key is not one for notices")
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise ValueError("the certificate of its key is not valid now; check the clock")
    return key


def _check_issued(certificate: x509.Certificate, bundle: bytes) -> None:
    """Raise what is wrong unless one of the authorities has issued a certificate."""
    *others, last = x509.load_pem_x509_certificates(bundle)
    for each in others:
        with suppress(InvalidSignature, ValueError):
            certificate.verify_directly_issued_by(each)
            return
    certificate.verify_directly_issued_by(last)


def _read(document: dict[str, Any], key_since: int) -> FleetNotice:
    invitation, model = document["invitation"], document["model"]
    body = NoticeBody(
        float(document["period"]),
        None if invitation is None else Invitation(str(invitation["salt"]), int(invitation["below"])),
        None
        if model is None
        else NamedModel(str(model["run"]), str(model["sha256"]), int(model["size"]), float(model["spread"])),
        tuple(map(str, document.get("servers", ()))),
        tuple(map(_read_authority, document.get("authorities", ()))),
    )
    if not 0.0 < body.period <= LIFE:  # a thief of the key must not be able to keep devices from looking again
        raise ValueError(f"its period is not between 0 and {LIFE} s")
    return FleetNotice(int(document["sequence"]), int(document["expires"]), body, key_since)


def _read_authority(entry: dict[str, Any]) -> NamedAuthority:
    return NamedAuthority(*(b64decode(entry[name], validate=True) for name in ("certificate", "voucher")))


def check_new(last: FleetNotice | None, fresh: FleetNotice, now: float) -> None:
    """Refuse a notice that has expired, or that is older than the last one: by its key, then by its number."""
    if fresh.expires <= now:
        raise NoticeError(
            "The notice has expired: the server writes none, it is withheld on the way, or the clock of this device is "
            "wrong; it is ignored."
        )
    if last is not None and fresh.key_since < last.key_since:
        raise NoticeError(
            "The notice is signed with an older key than the last one; it is ignored, and if the server was restored "
            "from a backup, its operator must run `fedkad fleet renew`."
        )
    if last is not None and fresh.key_since == last.key_since and fresh.sequence < last.sequence:
        raise NoticeError(
            f"The notice has number {fresh.sequence}, and number {last.sequence} was here before; it is ignored."
        )


def named_bundle(named: Collection[NamedAuthority], trusted: bytes) -> bytes:
    """Return the `ca.crt` that a notice asks for, if each authority in it is trusted, or cross-signed by one that is.

    The key that signs notices is certified for nothing else: a thief of that key must not be able to have devices trust
    another authority.
    """
    authorities = each_authority(trusted)
    for each in named:
        is_known = each.certificate in authorities
        if not is_known and not is_cross_signed(each.certificate, each.cross_signature, authorities):
            raise NoticeError(
                "The notice names an authority that none of those that this device trusts has signed; it is ignored."
            )
    return as_bundle(each.certificate for each in named) if named else trusted
