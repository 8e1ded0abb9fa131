"""Keeps the proxy in line with the settings, the devices and the tokens, and gives it and Flower a new certificate."""

import logging

from fedkad.fleet.flower import proxy
from fedkad.fleet.server.enrolment import admit_newcomers, configure_proxy
from fedkad.fleet.server.settings import FILE, ServerFolder
from fedkad.fleet.shared import keyfiles
from fedkad.fleet.shared.files import FileIdentity, FleetFileError, identity
from fedkad.fleet.shared.keyfiles import FOR_PROCESSES
from fedkad.fleet.shared.processes import SupervisedProcess
from fedkad.repeats import RepeatFilter
from fedkad.settingerror import SettingsError

logger = logging.getLogger(__name__)


class ProxySupervisor:
    """Tells the running proxy which devices were added or revoked, and what they may send by now.

    It also has the proxy and Flower take up a new certificate; a training survives that restart of Flower.
    """

    def __init__(self, folder: ServerFolder, process: SupervisedProcess, superlink: SupervisedProcess) -> None:
        self.folder, self.process, self.superlink = folder, process, superlink
        self.certificate = identity(folder.server_certificate)
        self.made_of: tuple[FileIdentity | None, ...] = ()
        self.is_stale = False
        self._failures, self._unreceived = RepeatFilter(), RepeatFilter()
        self.damages: list[str] = []  # of the files of its processes, as of the last step
        self.named: list[str] = []

    def receive(self) -> None:
        """Add the devices that have shown a token."""
        try:
            admit_newcomers(self.folder)
            self._unreceived.clear()
        except (OSError, FleetFileError) as error:
            self._unreceived.log(logger, str(error))

    def attend(self) -> None:
        """Write the files of the proxy if something has changed, and have it read them."""
        self._attend_to_keys()
        made_of = tuple(map(identity, (self.folder.registry, self.folder.tokens, self.folder.root / FILE)))
        try:
            if made_of != self.made_of:
                self.is_stale = configure_proxy(self.folder) or self.is_stale
                self.made_of = made_of
            self._failures.clear()
        except (OSError, FleetFileError, SettingsError) as error:  # it goes on with what it knows
            self._failures.log(logger, str(error))
        if self.is_stale and (self.process.child is None or proxy.reload(self.folder.root, self.process.child)):
            self.is_stale = False

    def _attend_to_keys(self) -> None:
        """Take up a new certificate, if its key fits: the processes go on with what they have read at their start."""
        last, self.damages = self.damages, [str(error) for error in keyfiles.damages(self.folder, *FOR_PROCESSES)]
        lasting = [damage for damage in self.damages if damage in last]  # not of a renewal that is under way
        for damage in lasting:
            if damage not in self.named:
                logger.warning("%s", damage)
        self.named = lasting
        if self.damages:
            return
        before, self.certificate = self.certificate, identity(self.folder.server_certificate)
        if self.certificate != before:
            logger.info("the server has a new certificate")
            self.is_stale = True
            if self.superlink.child is not None:
                self.superlink.child.end()
