"""Getting a file from the server over TLS, without numpy or Flower, or one sentence that says why not."""

import http.client
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.keyfiles import read_certificates

PATIENCE = 10.0
LARGEST = 64_000_000  # bytes of an answer: no model is larger
OK, NOT_MODIFIED, UNAUTHORIZED, NOT_FOUND = 200, 304, 401, 404
NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_IP = 9, 10, 62, 64  # why OpenSSL does not accept a certificate
OTHER_ADDRESS = (
    "the server has no certificate for this address: correct `server` in device.toml, or ask the server's operator "
    "to set address in fleet.toml and to run `fedkad fleet renew`"
)
DISTRUST = {
    NOT_YET_VALID: "set the clock of this device",
    EXPIRED: "check the clock of this device, and ask the server's operator to run `fedkad fleet renew`",
    OTHER_HOST: OTHER_ADDRESS,
    OTHER_IP: OTHER_ADDRESS,
}
OTHER_AUTHORITY = "check that `server` in device.toml is the server of this fleet, and copy ca.crt from there again"
"""What to do about it."""


class UnreachableError(Exception):
    """The server cannot be reached, in one sentence."""


class Fetched(NamedTuple):
    """An answer of the server: its status, the tag of its content, and the content."""

    status: int
    tag: str
    content: bytes


class HttpsClient:
    """Fetches files from one server, each over a connection of its own that resumes the TLS session of the last one.

    A device that looks every minute would cost the server memory all the time if it stayed connected, and a signature
    each time if it began again. Of several addresses of the server, `server` is the one in use: the first that answers,
    until it no longer does. Without a certificate any server is believed, which is only for a file that proves itself.
    """

    def __init__(self, servers: Sequence[str], ca_certificate: Path | None, remedy: str) -> None:
        self.servers, self.ca_certificate, self.remedy = tuple(servers), ca_certificate, remedy
        self.server = servers[0]
        self._trust: ssl.SSLContext | None = None
        self._session: ssl.SSLSession | None = None

    def use(self, servers: Sequence[str]) -> None:
        """Reach the server at other addresses; if these are new, the first comes first again."""
        if self.servers != tuple(servers):
            self.servers, self.server, self._session = tuple(servers), servers[0], None

    def reload_trust(self) -> None:
        """Read the certificates of the authorities again, which have changed."""
        self._trust = self._session = None

    def get(self, path: str, headers: Mapping[str, str]) -> Fetched:
        """Return the answer to a request; raises `UnreachableError`."""
        try:
            return self._get(path, headers)
        except (http.client.HTTPException, OSError) as error:
            raise UnreachableError(_away(self.server, error)) from error

    def _get(self, path: str, headers: Mapping[str, str]) -> Fetched:
        with self.connect() as line:
            shown = {"Host": self.server, "Connection": "close", **headers}
            lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in shown.items())]
            line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            answer = http.client.HTTPResponse(line)
            answer.begin()
            content = answer.read(LARGEST)
            self._session = line.session  # with TLS 1.3 it comes with the answer
            return Fetched(answer.status, answer.getheader("ETag", ""), content)

    def connect(self) -> ssl.SSLSocket:
        """Return a connection to the server, whose certificate is verified; raises `UnreachableError`."""
        troubles = []
        for server in dict.fromkeys((self.server, *self.servers)):
            try:
                line = self._connect(server)
            except UnreachableError as error:
                troubles.append(error)
            else:
                self.server = server
                return line
        raise UnreachableError(" ".join(dict.fromkeys(map(str, troubles)))) from troubles[0]

    def _connect(self, server: str) -> ssl.SSLSocket:
        host, _, port = server.rpartition(":")
        host = host.strip("[]")
        if self._trust is None:
            self._trust = self._trusting()
        try:
            plain = socket.create_connection((host, int(port)), timeout=PATIENCE)
        except (OSError, ValueError) as error:
            raise UnreachableError(_away(server, error)) from error
        try:
            session = self._session if server == self.server else None
            return self._trust.wrap_socket(plain, server_hostname=host, session=session)
        except ssl.SSLCertVerificationError as error:
            remedy = DISTRUST.get(error.verify_code, OTHER_AUTHORITY)
            raise UnreachableError(
                f"The certificate of {server} cannot be verified with {self.ca_certificate} "
                f"({error.verify_message}); {remedy}."
            ) from error
        except OSError as error:
            self._session = None
            raise UnreachableError(_away(server, error)) from error

    def _trusting(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca_certificate is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        try:
            context.load_verify_locations(cadata=read_certificates(self.ca_certificate, self.remedy).decode())
        except FleetFileError as error:
            raise UnreachableError(str(error)) from None
        return context


def _away(server: str, error: Exception) -> str:
    return f"The server {server} cannot be reached ({error}); check the network and `server` in device.toml."
