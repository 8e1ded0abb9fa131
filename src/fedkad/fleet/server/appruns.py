"""Runs of the Flower app in a server's folder."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from fedkad.fleet.flower.control import Control, ControlError
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared.processes import LogFile
from fedkad.fleet.shared.timedlog import timed

logger = logging.getLogger(__name__)


class AppRuns:
    """Starts and stops runs of the app, and keeps their output."""

    def __init__(self, folder: ServerFolder, control: Control, app: Path) -> None:
        self.folder, self.control, self.app = folder, control, app

    def submit(self, job: str) -> int:
        """Start a run, and stop any other: a run may have started although Flower's answer was lost."""
        self.control.stop_all()
        return self.control.submit(self.app, {"folder": str(self.folder.root), "job": job})

    def stop(self) -> None:
        """Stop the run that is under way."""
        self.control.stop_all()

    def has_ended(self, run: int) -> bool:
        """Return whether a run is over; if so its output is kept in a file, since Flower shows it nowhere."""
        if not self.control.has_ended(run):
            return False
        log = LogFile(self.folder.logs / "app.log")
        try:
            log.bound()
            with suppress(ControlError):  # Flower no longer knows the run, or does not answer
                log.append(timed(self.control.log(run), time.time()))
        except OSError as error:  # the run is over even if the disk is full
            logger.warning("%s: the output of run %d cannot be kept (%s); make room.", log.path, run, error.strerror)
        return True
