"""Keys and certificates of a fleet: its own authority, the server's certificate, the devices' keys."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
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
SERVER_DAYS = 825
"""The longest validity that common TLS clients accept for a server."""

HEAD_START = timedelta(days=1)
"""Certificates are valid from yesterday, for devices whose clock is slow."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class KeyFileError(ValueError):
    """A file is not a usable key; the message is a predicate that follows the file's name."""


class KeyPair(NamedTuple):
    """A private key and its public key or certificate, both as PEM."""

    key: bytes
    public: bytes


def make_authority(name: str) -> KeyPair:
    """The key and self-signed certificate of a fleet's own authority."""
    key = _new_key()
    subject = _name(f"FedKAD fleet at {name}"[:64])
    builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA384())
    return KeyPair(_pem(key), certificate.public_bytes(Encoding.PEM))


def make_server_certificate(authority: KeyPair, address: str) -> KeyPair:
    """The key and certificate of the server at an address; valid for localhost as well."""
    ca_key, ca = load_pem_private_key(authority.key, None), x509.load_pem_x509_certificate(authority.public)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise KeyFileError("is not a key on an elliptic curve")
    key = _new_key()
    builder = _builder(_name(address[:64]), ca.subject, key.public_key(), SERVER_DAYS)
    names = [_general_name(name) for name in dict.fromkeys((address, *LOCAL_NAMES))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    return KeyPair(_pem(key), builder.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM))


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Days until a certificate expires; negative if it has."""
    end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return (end - (now or datetime.now(UTC))) / timedelta(days=1)


def make_device_key() -> KeyPair:
    """A device's key: the private part in OpenSSH's format, the only one that Flower reads, the public part as PEM."""
    key = _new_key()
    return KeyPair(
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _public_pem(key.public_key())
    )


def public_part(private_key: bytes) -> bytes:
    """The public key, as PEM, of a device's private key."""
    try:
        key = load_ssh_private_key(private_key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError("is not a private key in OpenSSH's format without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeyFileError("is not a key on an elliptic curve")
    return _public_pem(key.public_key())


def normal_public_key(content: bytes) -> bytes:
    """A public key, given as PEM or in OpenSSH's format, as the PEM by which Flower identifies it."""
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


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - HEAD_START)
        .not_valid_after(now - HEAD_START + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
