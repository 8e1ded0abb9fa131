"""Keys and certificates of a fleet: its own authority, the server's certificate, the devices' keys."""

import ipaddress
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
CROSS_SIGNED = b"fedkad authority 1\n"
"""Signed together with the certificate of a next authority, so that no other signature of the key fits it."""

SERVER_DAYS = 825  # the longest validity that common TLS clients accept for a server; of the key for notices as well
HEAD_START = timedelta(days=1)  # certificates are valid from yesterday, for slow clocks
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
UNUSED = dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
    False,
)
"""What none of the keys may be used for."""

SigningKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class KeyFileError(ValueError):
    """A file is not a usable key; the message is a predicate that follows the file's name."""


class KeyPair(NamedTuple):
    """A private key and its public key or certificate, both as PEM."""

    key: bytes
    public: bytes


def make_authority(name: str) -> KeyPair:
    """Make the key and self-signed certificate of a fleet's own authority."""
    key = _new_key()
    subject = _name(f"FedKAD fleet at {name}")
    usage = x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **UNUSED)
    extensions = {x509.BasicConstraints(ca=True, path_length=0): True, usage: True}
    return _certified(key, subject, key, subject, AUTHORITY_DAYS, extensions)


def make_server_certificate(authority: KeyPair, address: str, *others: str) -> KeyPair:
    """Make the key and certificate of the server at these addresses; valid for localhost as well."""
    names = x509.SubjectAlternativeName(map(_general_name, dict.fromkeys((address, *others, *LOCAL_NAMES))))
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return _issued(authority, _new_key(), address, {names: False, purpose: False})


def is_valid_for(certificate: bytes, addresses: Iterable[str]) -> bool:
    """Return whether the certificate of a server covers all of these addresses."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return all(_general_name(address) in names for address in addresses)


def make_notice_certificate(authority: KeyPair) -> KeyPair:
    """Make the key and certificate that sign notices, and nothing else."""
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
    return _issued(authority, ed25519.Ed25519PrivateKey.generate(), "FedKAD notices", {purpose: True})


def check_pair(pair: KeyPair) -> None:
    """Raise a `KeyFileError` unless the key is that of the certificate, the first one if there are several."""
    shown = x509.load_pem_x509_certificate(pair.public).public_key()
    try:
        key = load_pem_private_key(pair.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError("is not a private key as PEM without a passphrase") from None
    if key.public_key() != shown:
        raise KeyFileError("is not the key of the certificate beside it")


def _issued(
    authority: KeyPair, key: SigningKey, subject: str, extensions: Mapping[x509.ExtensionType, bool]
) -> KeyPair:
    """Return a key and the certificate that the authority gives it."""
    ca_key, ca = load_pem_private_key(authority.key, None), x509.load_pem_x509_certificate(authority.public)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise KeyFileError("is not a key on an elliptic curve")
    usual: dict[x509.ExtensionType, bool] = {
        x509.BasicConstraints(ca=False, path_length=None): True,
        x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **UNUSED): True,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()): False,
    }
    return _certified(key, _name(subject), ca_key, ca.subject, SERVER_DAYS, {**usual, **extensions})


def each_authority(bundle: bytes) -> list[bytes]:
    """Return the certificates in a `ca.crt`, as DER; the first is of the authority that certifies now."""
    return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(bundle)]


def as_bundle(authorities: Iterable[bytes]) -> bytes:
    """Return a `ca.crt` with these certificates, given as DER."""
    return b"".join(x509.load_der_x509_certificate(each).public_bytes(Encoding.PEM) for each in authorities)


def cross_sign(key: bytes, successor: bytes) -> bytes:
    """Sign the certificate (DER) of the next authority with the key (PEM) of this one, so that devices trust it."""
    signer = load_pem_private_key(key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise KeyFileError("is not a key on an elliptic curve")
    return signer.sign(CROSS_SIGNED + successor, ec.ECDSA(hashes.SHA384()))


def is_cross_signed(successor: bytes, signature: bytes, trusted: Iterable[bytes]) -> bool:
    """Return whether one of the trusted authorities (DER) has signed the certificate of another (DER)."""
    for each in trusted:
        key = x509.load_der_x509_certificate(each).public_key()
        with suppress(InvalidSignature):
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, CROSS_SIGNED + successor, ec.ECDSA(hashes.SHA384()))
                return True
    return False


def end_of(certificate: bytes) -> datetime:
    """Return when a certificate expires."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Days until a certificate expires; negative if it has."""
    return (end_of(certificate) - (now or datetime.now(UTC))) / timedelta(days=1)


def make_device_key() -> KeyPair:
    """Make a device's key: private in OpenSSH's format, the only one that Flower reads, public as PEM."""
    key = _new_key()
    return KeyPair(
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _public_pem(key.public_key())
    )


def public_part(private_key: bytes) -> bytes:
    """Return the public key, as PEM, of a device's private key."""
    try:
        key = load_ssh_private_key(private_key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError("is not a private key in OpenSSH's format without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeyFileError("is not a key on an elliptic curve")
    return _public_pem(key.public_key())


def normal_public_key(content: bytes) -> bytes:
    """Return a public key, given as PEM or in OpenSSH's format, as the PEM by which Flower identifies it."""
    load = load_pem_public_key if content.lstrip().startswith(b"-----BEGIN") else load_ssh_public_key
    try:
        key = load(content.strip())
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError("is not a public key, neither PEM nor OpenSSH") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise KeyFileError("is not an ECDSA key on the curve P-384")
    return _public_pem(key)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _certified(
    key: SigningKey,
    subject: x509.Name,
    ca_key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    days: int,
    extensions: Mapping[x509.ExtensionType, bool],
) -> KeyPair:
    """Return a key and its certificate; `extensions` says for each whether it is critical."""
    public, start = key.public_key(), datetime.now(UTC) - HEAD_START
    end, serial = start + timedelta(days=days), x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, public, serial, start, end)
    for extension, critical in {x509.SubjectKeyIdentifier.from_public_key(public): False, **extensions}.items():
        builder = builder.add_extension(extension, critical)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(pem, builder.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
