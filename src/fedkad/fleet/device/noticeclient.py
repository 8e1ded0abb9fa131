"""The client of a fleet's notice: a device polls it now and then, and keeps the last one that it accepted."""

import random
import time
from collections.abc import Callable
from contextlib import suppress

from fedkad.fleet.device.httpsclient import (
    NOT_FOUND,
    NOT_MODIFIED,
    OK,
    UNAUTHORIZED,
    Fetched,
    HttpsClient,
    UnreachableError,
)
from fedkad.fleet.shared.certificates import each_authority
from fedkad.fleet.shared.devicefolder import REMEDY, DeviceFolder
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.fleet.shared.keyfiles import key_header
from fedkad.fleet.shared.notice import (
    REPORT_EVERY,
    FleetNotice,
    NamedModel,
    NoticeError,
    check_new,
    named_bundle,
    verify,
)

PATH = "/notice"
NO_MODEL = "0" * 64
UNKNOWN_THERE = (403, 404)  # what a server of an earlier release answers, which writes no notices
FIRST_PERIOD = 60.0  # seconds between two looks until a notice says how many
JITTER = 0.25  # share by which a wait is made longer or shorter, so that devices do not look all at once


class NoticeClient:
    """The notice as one device knows it."""

    def __init__(
        self,
        folder: DeviceFolder,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.clock, self.timer = folder, clock, timer
        self.last: FleetNotice | None = None
        with suppress(FileNotFoundError, NoticeError):  # there is none yet, or its file is damaged
            self.last = verify(folder.notice.read_bytes(), folder.ca_certificate.read_bytes())
        self.files = HttpsClient(self._servers, folder.ca_certificate, REMEDY)
        # A new device polls at once, others within a period, so that a site whose power comes back spreads its polls.
        first_wait = 0.0 if self.last is None else random.uniform(0.0, self.last.body.period)
        self.tag, self.next_look = "", timer() + first_wait
        self.next_report = timer()  # when to show the key again
        self.has_notices = True
        self.has_looked = False  # whether the server has answered since this process began

    @property
    def _servers(self) -> tuple[str, ...]:
        """Where to look: at the address in `device.toml`, then at those in the last notice, however old that is.

        The owner of a device may have it take a way of its own, such as a tunnel.
        """
        others = () if self.last is None else self.last.body.servers
        return tuple(dict.fromkeys((self.folder.server, *others)))

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return self.timer() >= self.next_look

    def look(self) -> None:
        """Look at the notice; raises `UnreachableError` or, for a notice that is not accepted, `NoticeError`."""
        period = FIRST_PERIOD if self.last is None else self.last.body.period
        self.next_look = self.timer() + period * random.uniform(1.0 - JITTER, 1.0 + JITTER)
        shown: dict[str, str] = {}
        if self.timer() >= self.next_report:
            with suppress(FleetFileError):  # polling goes on, and others report a damaged key
                shown = key_header(self.folder)
        answer = self.files.get(PATH, {**shown, **({"If-None-Match": self.tag} if self.tag else {})})
        if answer.status not in (OK, NOT_MODIFIED, *UNKNOWN_THERE):
            raise UnreachableError(
                f"The server {self.folder.server} answers {answer.status} when asked for its notice."
            )
        self.has_looked, self.has_notices = True, answer.status not in UNKNOWN_THERE
        if shown:
            self.next_report = self.timer() + REPORT_EVERY
        if answer.status == OK:
            self._accept(answer.content)
            self.tag = answer.tag
        elif answer.status == NOT_MODIFIED:
            self._check_kept()

    def _check_kept(self) -> None:
        """Refuse the last notice once it has expired, and have all of it sent from then on."""
        try:
            if self.last is not None:
                check_new(None, self.last, self.clock())
        except NoticeError:
            self.tag = ""
            raise

    def _accept(self, content: bytes) -> None:
        trusted = self.folder.ca_certificate.read_bytes()
        fresh = verify(content, trusted)
        check_new(self.last, fresh, self.clock())
        bundle = named_bundle(fresh.body.authorities, trusted)
        if fresh != self.last:
            write_private(self.folder.notice, content)  # before anything is done about it
        self.last = fresh
        if each_authority(bundle) != each_authority(trusted):
            write_private(self.folder.ca_certificate, bundle)
            self.files.reload_trust()
        self.files.use(self._servers)

    def fetch_model(self, sha256: str) -> Fetched:
        """Return what the server answers when asked for a model, which only a device that it knows may have."""
        return self.files.get(f"/models/{sha256}", key_header(self.folder))

    def is_registered(self) -> bool | None:
        """Return whether the server knows the key, by asking for a missing model; None if it does not say."""
        try:
            return {NOT_FOUND: True, UNAUTHORIZED: False}.get(self.fetch_model(NO_MODEL).status)
        except (UnreachableError, FleetFileError):
            return None

    @property
    def is_called(self) -> bool:
        """Whether the device should be connected: it is called, or has not heard of notices yet."""
        if self.last is None or not self.has_notices:
            return True
        return self.last.calls(self.folder.device, self.clock())

    @property
    def may_stay(self) -> bool:
        """Whether a device that is connected stays so: a notice that has expired calls none, and sends none away.

        A server that could not renew its notice would lose its devices otherwise, although it is there.
        """
        return self.is_called or (self.last is not None and self.last.includes(self.folder.device))

    @property
    def model(self) -> NamedModel | None:
        """The current model of the fleet, as far as the device knows."""
        if self.last is None or self.last.expires <= self.clock():
            return None
        return self.last.body.model
