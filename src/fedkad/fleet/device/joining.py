"""How a device joins its fleet by a token: it makes its key, finds out whom to trust, and shows the token."""

import hashlib
import time
from pathlib import Path

from fedkad.fleet.device.httpsclient import HttpsClient
from fedkad.fleet.device.noticeclient import PATH as NOTICE
from fedkad.fleet.shared import devicefolder
from fedkad.fleet.shared.certificates import as_bundle, make_device_key
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.keyfiles import key_header
from fedkad.fleet.shared.notice import check_new, unverified, verify
from fedkad.fleet.shared.tokens import OneTimeToken, TokenError

PATH, HEADER = "/join", "fedkad-token"
ADMITTED, REFUSED = 204, 401
PAUSE, LONGEST = 2.0, 180.0  # seconds between two requests, and until the device gives up
KNOWN_WITHIN = 10.0  # seconds after which the server knows a token that was made just now


def join(token: OneTimeToken, folder: Path) -> None:
    """Create the folder of a device and have its server admit it; what was interrupted can be done again."""
    if folder.exists() and not folder.is_dir():
        raise FleetFileError(f"{folder}: this is a file; choose another folder with --folder.")
    device = devicefolder.DeviceFolder(folder.resolve(), token.device, token.server)
    if (folder / devicefolder.FILE).exists():
        from fedkad.fleet.device.settings import load_device  # numpy, which a device needs only here

        if load_device(folder).device != token.device:
            raise FleetFileError(f"{folder}: this is the folder of another device; choose another with --folder.")
    else:
        authority = find_authority(token)
        devicefolder.write(folder, token.device, token.server, authority, make_device_key().key)
    _be_admitted(token, device)


def find_authority(token: OneTimeToken) -> bytes:
    """Return the authority that the token names, as the notice shows it; no other server is believed."""
    content = HttpsClient([token.server], None, "").get(NOTICE, {}).content
    for each in unverified(content).body.authorities:
        if hashlib.sha256(each.certificate).hexdigest() == token.fingerprint:
            authority = as_bundle([each.certificate])
            check_new(None, verify(content, authority), time.time())
            return authority
    raise TokenError(
        f"What answers at {token.server} is not the server of this token; check the network, or the token."
    )


def _be_admitted(token: OneTimeToken, folder: devicefolder.DeviceFolder) -> None:
    """Show the token until the server has admitted the key; it looks every few seconds."""
    files = HttpsClient([token.server], folder.ca_certificate, devicefolder.REMEDY)
    shown = {HEADER: token.secret, **key_header(folder)}
    began = time.monotonic()
    while True:
        answer = files.get(PATH, shown)
        if answer.status == ADMITTED:
            return
        if answer.status == REFUSED and time.monotonic() - began > KNOWN_WITHIN:
            raise TokenError(
                "The server does not accept this token: it was used, replaced or has expired; ask for another."
            )
        if time.monotonic() - began > LONGEST:
            raise TokenError(
                f"The server {token.server} did not admit {token.device} (it answers {answer.status}); try again."
            )
        time.sleep(PAUSE)
