"""Keys and certificates: what is trusted, for how long, and what is refused."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="the extra `fleet` is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedkad.fleet.device.connection import reach
from fedkad.fleet.device.httpsclient import HttpsClient
from fedkad.fleet.shared import certificates
from fedkad.fleet.shared.certificates import KeyFileError, KeyPair
from tests.fixtures.certificates import names_of


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return certificates.make_authority("fleet.example")


@pytest.fixture(scope="module")
def server(authority: KeyPair) -> KeyPair:
    return certificates.make_server_certificate(authority, "fleet.example")


def verify(authority: KeyPair, server: KeyPair, name: x509.DNSName | x509.IPAddress) -> None:
    store = Store([x509.load_pem_x509_certificate(authority.public)])
    verifier = PolicyBuilder().store(store).build_server_verifier(name)
    verifier.verify(x509.load_pem_x509_certificate(server.public), [])


@pytest.mark.parametrize("name", ["fleet.example", "localhost", "127.0.0.1", "::1"])
def test_the_server_is_trusted_by_every_name_it_has(authority: KeyPair, server: KeyPair, name: str) -> None:
    is_ip = name[0] in ":1"
    verify(authority, server, x509.IPAddress(ipaddress.ip_address(name)) if is_ip else x509.DNSName(name))


def test_another_name_or_another_authority_is_refused(authority: KeyPair, server: KeyPair) -> None:
    with pytest.raises(VerificationError):
        verify(authority, server, x509.DNSName("other.example"))
    with pytest.raises(VerificationError):
        verify(certificates.make_authority("fleet.example"), server, x509.DNSName("fleet.example"))


def test_an_address_is_named_once_and_as_what_it_is(authority: KeyPair) -> None:
    made = certificates.make_server_certificate(authority, "127.0.0.1")
    assert names_of(made.public) == ["127.0.0.1", "localhost", "::1"]
    made = certificates.make_server_certificate(authority, "10.1.2.3")
    assert names_of(made.public) == ["10.1.2.3", "localhost", "127.0.0.1", "::1"]


def test_the_authority_lasts_ten_years_and_the_server_825_days(authority: KeyPair, server: KeyPair) -> None:
    assert 3648 < certificates.days_left(authority.public) <= 3649
    assert 823 < certificates.days_left(server.public) <= 824
    assert certificates.days_left(server.public, datetime.now(UTC) + timedelta(days=900)) < 0


def test_the_server_cannot_sign_others(authority: KeyPair, server: KeyPair) -> None:
    constraints = x509.load_pem_x509_certificate(server.public).extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert constraints.critical
    assert not constraints.value.ca
    ca = x509.load_pem_x509_certificate(authority.public).extensions.get_extension_for_class(x509.BasicConstraints)
    assert (ca.value.ca, ca.value.path_length) == (True, 0)


def test_the_keys_are_on_p384(authority: KeyPair) -> None:
    key = x509.load_pem_x509_certificate(authority.public).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP384R1)


def test_a_device_key_is_read_back_and_known_by_its_public_part() -> None:
    made = certificates.make_device_key()
    assert made.key.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert certificates.public_part(made.key) == made.public
    assert certificates.normal_public_key(made.public) == made.public


def test_a_public_key_of_openssh_is_the_same_key(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" me@device\n"
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert certificates.normal_public_key(line) == pem


@pytest.mark.parametrize("content", [b"", b"hello", b"ssh-rsa AAAA", b"-----BEGIN PUBLIC KEY-----\nAAAA\n"])
def test_anything_but_a_public_key_is_refused(content: bytes) -> None:
    with pytest.raises(KeyFileError, match="is not a"):
        certificates.normal_public_key(content)


def test_other_curves_and_other_forms_are_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(KeyFileError, match="P-384"):
        certificates.normal_public_key(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(KeyFileError, match="OpenSSH"):
        certificates.public_part(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


# -- over a real connection -------------------------------------------------------------------------------------


def listening(tmp_path: Path, server: KeyPair, host: str = "127.0.0.1") -> tuple[int, socket.socket]:
    """A TLS server with this certificate that accepts connections until its socket is closed."""
    (tmp_path / "server.crt").write_bytes(server.public)
    (tmp_path / "server.key").write_bytes(server.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    plain = socket.create_server((host, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = plain.accept()
            except OSError:
                return
            with connection:
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    return plain.getsockname()[1], plain


def reached(server: str, ca_certificate: Path) -> str | None:
    return reach(HttpsClient([server], ca_certificate, "copy it"))


def test_a_device_reaches_its_own_server_and_explains_what_is_wrong_with_others(
    tmp_path: Path, authority: KeyPair, server: KeyPair
) -> None:
    trusted, foreign = tmp_path / "ca.crt", tmp_path / "foreign.crt"
    trusted.write_bytes(authority.public)
    foreign.write_bytes(certificates.make_authority("fleet.example").public)
    port, plain = listening(tmp_path, server)
    with plain:
        assert reached(f"localhost:{port}", trusted) is None
        assert reached(f"127.0.0.1:{port}", trusted) is None
        sentence = reached(f"localhost:{port}", foreign)
        assert sentence is not None
        assert f"cannot be verified with {foreign}" in sentence
        (tmp_path / "junk.crt").write_text("junk")
        assert "not a certificate" in str(reached(f"localhost:{port}", tmp_path / "junk.crt"))
        plain.shutdown(socket.SHUT_RDWR)
    assert "cannot be reached" in str(reached(f"localhost:{port}", trusted))
    assert "cannot be reached" in str(reached("localhost", trusted))
    assert "cannot be reached" in str(reached("no.such.host.invalid:1", trusted))


def test_a_device_says_whether_the_address_the_clock_or_the_authority_is_wrong(
    tmp_path: Path, authority: KeyPair, server: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, foreign = tmp_path / "ca.crt", tmp_path / "foreign.crt"
    trusted.write_bytes(authority.public)
    foreign.write_bytes(certificates.make_authority("fleet.example").public)
    monkeypatch.setattr(certificates, "SERVER_DAYS", 0)
    expired = certificates.make_server_certificate(authority, "127.0.0.1")
    cases = [
        (server, "127.0.0.2", trusted, "has no certificate for this address"),
        (server, "127.1", trusted, "has no certificate for this address"),
        (server, "127.0.0.1", foreign, "copy ca.crt from there again"),
        (expired, "127.0.0.1", trusted, "check the clock of this device, and ask the server's operator to run"),
    ]
    for shown, host, authority_file, remedy in cases:
        port, plain = listening(tmp_path, shown, host)
        with plain:
            assert remedy in str(reach(HttpsClient([f"{host}:{port}"], authority_file, "copy it again")))
            plain.shutdown(socket.SHUT_RDWR)


def test_a_certificate_fits_the_addresses_that_it_names(authority: KeyPair) -> None:
    made = certificates.make_server_certificate(authority, "2001:db8::1").public
    assert certificates.is_valid_for(made, ["2001:0db8:0::1"])
    assert certificates.is_valid_for(made, ["localhost"])
    assert not certificates.is_valid_for(made, ["fleet.example"])


def test_openssh_can_make_the_key_of_a_device(tmp_path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(tmp_path / "device.key")]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    public = certificates.normal_public_key((tmp_path / "device.key.pub").read_bytes())
    assert certificates.public_part((tmp_path / "device.key").read_bytes()) == public
