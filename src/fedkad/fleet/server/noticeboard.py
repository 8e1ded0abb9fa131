"""What a server shows to all of its devices: the notice, and the model that it names, as files that nginx serves.

public/notice          the notice; only its signature makes it worth anything
public/join            the reply to a device that has a token but is not admitted yet
public/models/SHA256   the current model, and the one before for those who have just read the last notice
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.federation.delivery import current_delivery, write_delivery
from fedkad.federation.training_files import RESULT
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared.certificates import KeyPair, each_authority
from fedkad.fleet.shared.files import FileIdentity, FleetFileError, identity
from fedkad.fleet.shared.keyfiles import notice_pair, trusted
from fedkad.fleet.shared.notice import (
    LIFE,
    FleetNotice,
    Invitation,
    NamedAuthority,
    NamedModel,
    NoticeBody,
    NoticeError,
    certified_since,
    sign,
    verify,
)

logger = logging.getLogger(__name__)

NOTICE, MODELS, JOIN = "notice", "models", "join"
READABLE_FILE, READABLE_FOLDER = 0o644, 0o755
PACE = 10e6  # bytes a second at which all devices together fetch a new model, by waiting before they do


def open_to_all(public: Path) -> None:
    """Create the folders that nginx serves as nobody, whatever the umask: all else in a server's folder is private."""
    for folder in (public, public / MODELS):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(READABLE_FOLDER)
    if not (public / JOIN).exists():
        _write_public(public / JOIN, b"noted\n", int(time.time()))


class NoticeBoard:
    """Writes a new notice whenever there is something new to say, or half the life of the last one has passed."""

    def __init__(self, folder: ServerFolder, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = folder, clock
        self.made_of: FileIdentity | None = None  # which result the current model file was made of
        self.made: tuple[str, str, int] | None = None  # run, digest and size of that file

    def last(self) -> FleetNotice | None:
        """Return the notice that is shown now; None if there is none, or none that devices would accept."""
        try:
            return verify((self.folder.public / NOTICE).read_bytes(), self.folder.ca_certificate.read_bytes())
        except (FileNotFoundError, NoticeError):
            return None

    @property
    def is_overdue(self) -> bool:
        """Whether the notice should have been renewed by now: devices ignore it when its life is over."""
        last = self.last()
        return last is not None and self._is_due(last)

    def _is_due(self, notice: FleetNotice) -> bool:
        """Return whether half of its life is over, or a clock that was ahead made it valid too long."""
        return not LIFE / 2 <= notice.expires - self.clock() <= LIFE

    def show(self, period: float, invitation: Invitation | None, devices: int) -> None:
        """Tell the devices, so many of them, what is true now."""
        last, body, now = self.last(), self._body(period, invitation, devices), self.clock()
        signer = notice_pair(self.folder)
        shown = None if last is None else (last.body, last.key_since)
        if last is None or shown != (body, certified_since(signer.public)) or self._is_due(last):
            self._write(last, body, now, signer)

    def _body(self, period: float, invitation: Invitation | None, devices: int) -> NoticeBody:
        folder = self.folder
        *_, newest = authorities = each_authority(trusted(folder))
        signature = folder.next_cross_signature.read_bytes() if len(authorities) > 1 else b""
        named = tuple(NamedAuthority(each, signature if each == newest else b"") for each in authorities)
        return NoticeBody(period, invitation, self._current_model(devices), folder.settings.place.servers, named)

    def _write(self, last: FleetNotice | None, body: NoticeBody, now: float, signer: KeyPair) -> None:
        """Write the next notice.

        Its number is at least the clock's, so that a server that was restored from a backup does not fall behind what
        devices have seen. It is also the time of the file, of which nginx makes the ETag: no two notices share one.
        """
        number = max(int(now), 0 if last is None else last.sequence + 1)
        content = sign(body, number, now, *signer)
        self._check(content)
        _write_public(self.folder.public / NOTICE, content, number)
        called = "none" if body.invitation is None else f"places below {body.invitation.below}"
        logger.info("notice %d: calls %s, current model %s", number, called, body.model and body.model.run)

    def _check(self, content: bytes) -> None:
        """Refuse to show what no device would accept, such as a notice whose certificate has expired."""
        try:
            verify(content, trusted(self.folder))
        except NoticeError:
            raise FleetFileError(
                f"{self.folder.notice_certificate}: devices do not accept a notice with this certificate now; "
                f"check the clock of this machine, or make another with `fedkad fleet renew {self.folder.root}`."
            ) from None

    def _current_model(self, devices: int) -> NamedModel | None:
        """Return the current model, as a file whose name is its digest; it is made again if the result has changed."""
        result = identity(self.folder.training / RESULT)
        if result != self.made_of:
            self.made, self.made_of = self._publish(), result
        if self.made is None:
            return None
        run, digest, size = self.made
        return NamedModel(run, digest, size, float(round(devices * size / PACE)))

    def _publish(self) -> tuple[str, str, int] | None:
        request = current_delivery(self.folder.training)
        if request is None:
            return None
        draft = self.folder.training / "delivery.safetensors"
        write_delivery(draft, request)
        content = draft.read_bytes()
        draft.unlink()
        digest = hashlib.sha256(content).hexdigest()
        models = self.folder.public / MODELS
        _write_public(models / digest, content, int(self.clock()))
        for old in sorted(models.iterdir(), key=lambda path: path.stat().st_mtime)[:-2]:
            if old.name != digest:
                old.unlink()
        return request.terms.run, digest, len(content)


def _write_public(path: Path, content: bytes, moment: int) -> None:
    """Write a file that all users may read, with this time."""
    draft = path.with_name(f".{path.name}.new")
    write_atomically(draft, content)
    draft.chmod(READABLE_FILE)
    os.utime(draft, (moment, moment))
    os.replace(draft, path)
