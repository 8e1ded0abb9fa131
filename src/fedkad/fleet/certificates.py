"""Keys and certificates of a fleet: its own authority, the certificate of the server, the keys of the devices."""

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
"""The longest that common TLS clients accept of a server."""

HEAD_START = timedelta(days=1)
"""Certificates are valid from yesterday, for devices whose clock is behind."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class KeyFileError(ValueError):
    """Something that should be a key and is not; the message is a predicate to put a file's name in front of."""


class Pair(NamedTuple):
    """A private key and what is public about it, both in PEM."""

    key: bytes
    public: bytes


def make_authority(name: str) -> Pair:
    """A key and a self-signed certificate for a fleet's own authority."""
    key = _new_key()
    subject = _name(f"FedKAD fleet at {name}"[:64])
    builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA384())
    return Pair(_pem(key), certificate.public_bytes(Encoding.PEM))


def make_server_certificate(authority: Pair, address: str) -> Pair:
    """A key and a certificate for the server at an address, which is also itself on its own machine."""
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
    return Pair(_pem(key), builder.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM))


def names_of(certificate: bytes) -> list[str]:
    """The addresses that a certificate is valid for."""
    found = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Days until a certificate ends; negative when it has."""
    end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return (end - (now or datetime.now(UTC))) / timedelta(days=1)


def make_device_key() -> Pair:
    """A device's key: the private part as OpenSSH writes it, for Flower reads no other form; the public part as PEM."""
    key = _new_key()
    return Pair(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _public_pem(key.public_key()))


def public_part(private_key: bytes) -> bytes:
    """The public key, as PEM, of a device's private key."""
    try:
        key = load_ssh_private_key(private_key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError("is not a private key as OpenSSH writes it, without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeyFileError("is not a key on an elliptic curve")
    return _public_pem(key.public_key())


def normal_public_key(content: bytes) -> bytes:
    """A public key, given as PEM or as a line of OpenSSH, as the PEM by which Flower knows it."""
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
