"""The model of a device: complete on the disk, and without its statistics in memory, where it only detects."""

from __future__ import annotations

import hashlib
import logging
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.modelfile import DamagedFileError, ModelFileError
from fedkad.detect.series import Series
from fedkad.edge.settings import DeviceSettings, SettingsError
from fedkad.edge.store import set_aside
from fedkad.federation.devicestate import DeviceState

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

PERIOD_TOLERANCE = 0.01
"""The share by which the period of a model may differ from that of the grid."""


class DeviceModel:
    """The model in the folder of a device, which a fleet client may replace at any time.

    Attributes
    ----------
    detector : KoopmanDetector, optional
        None while the device has no model.
    """

    def __init__(self, device: str, settings: DeviceSettings) -> None:
        self._device, self._settings = device, settings
        self._folder = DeviceState(settings.learning.folder)
        self.detector: KoopmanDetector | None = None
        self._version: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        """Load the model in the folder, or the configured one if there is none or the configured one has changed."""
        given = Path(self._settings.learning.model) if self._settings.learning.model else None
        known, digest = self._known_digest(), _digest(given)
        if known is None or digest in ("", known):
            self.reload()
        if given is None:
            return
        if self._folder.version() is None or (known is not None and digest not in ("", known)):
            self._put_in_place(given, digest)
            self.reload()
        elif known is None and digest == _digest(self._folder.model):
            write_atomically(self._mark, digest.encode())  # the agent was killed before it did this
        elif known is None:
            logger.warning(
                "%s: %s, model in [learning], is not used because the device has %s; remove that file to use it.",
                *(self._device, given, self._folder.model),
            )

    def _put_in_place(self, given: Path, digest: str) -> None:
        if not digest:
            raise SettingsError(f"{given}: no such file; model in [learning] must name a model.")
        check_channels(KoopmanDetector.load(given, statistics=False), given, self._settings)
        with self._folder.locked():
            if self._folder.version() is not None:
                logger.info("%s: %s has changed and replaces the model in use.", self._device, given)
            write_atomically(self._folder.model, given.read_bytes())
            write_atomically(self._mark, digest.encode())

    @property
    def _mark(self) -> Path:
        """The file with the digest of the configured model that was put in place."""
        return self._folder.path / "given"

    def _known_digest(self) -> str | None:
        return self._mark.read_text().strip() if self._mark.is_file() else None

    @property
    def version(self) -> str:
        """A string that changes with the model."""
        return "none" if self._version is None else f"{self._version[0]}-{self._version[1]}"

    @property
    def learnt_through(self) -> str:
        """The last row that the model has learned from, as it says itself."""
        return self.detector.learnt_through_ if self.detector else ""

    def is_renewed(self) -> bool:
        """Whether another model was put in place."""
        version = self._folder.version()
        return version is not None and version != self._version

    def reload(self) -> bool:
        """Load the model from the disk; True if it is used. A damaged file is renamed, one of other channels kept."""
        version = self._folder.version()
        if version is None:
            return False
        self._version, path = version, self._folder.model
        try:
            detector = KoopmanDetector.load(path, statistics=False)
            check_channels(detector, path, self._settings)
        except DamagedFileError as error:
            if self._folder.version() == version:
                aside = set_aside(path)
                logger.warning(
                    "%s: %s It was renamed to %s, and the device continues without it.",
                    *(self._device, error, aside.name),
                )
            return False
        except (ModelFileError, SettingsError) as error:
            # An intact model for something else: it belongs to someone, and must not be replaced.
            if self.detector is None:
                raise
            logger.warning("%s The device continues with the model it has.", error)
            return False
        if note := period_note(detector, self._settings):
            logger.warning("%s: %s", self._device, note)
        self._use(detector)
        return True

    def _use(self, detector: KoopmanDetector) -> None:
        """Keep what detection needs, with the configured threshold."""
        detector.statistics_ = detector.held_out_ = None
        alarm, period = self._settings.alarm, self._settings.sampling.period
        if alarm.budget:
            detector.rejudge(alarm.budget, period)
        elif isinstance(alarm.threshold, float | int):
            detector.threshold_ = float(alarm.threshold)
        elif alarm.threshold:
            detector.rejudge(alarm.threshold, period)
        self.detector = detector

    def fit(self, rows: Array, through: str) -> None:
        """Fit the first model; raises `ValueError` if there are too few rows."""
        settings = self._settings
        parameters = {"sample_period": settings.sampling.period, **settings.detector}
        detector = KoopmanDetector(**parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRowsWarning)
            detector.fit(Series(rows, settings.sampling.channels))
        detector.learnt_through_ = through
        with self._folder.locked(wait=False):
            if self._folder.version() is not None:
                raise ValueError(f"{self._folder.model} was put in place in the meantime")
            detector.save(self._folder.model)

    def learn(self, rows: Array, through: str) -> None:
        """Add rows to the model; raises `ValueError` if that is impossible, `OSError` if the disk is full.

        If the file is gone, a new model is fitted to the rows.
        """
        if self._folder.version() is None:
            self.fit(rows, through)
            return
        with self._folder.locked(wait=False):
            path = self._folder.model
            detector = KoopmanDetector.load(path, statistics=False)
            check_channels(detector, path, self._settings)  # it may have been put there by mistake
            detector.learn(rows, self._settings.learning.forgetting, known=path)
            detector.learnt_through_ = through
            detector.save(self._folder.model)


def _digest(path: Path | None) -> str:
    """The digest of a file; empty if there is none."""
    if path is None or not path.is_file():
        return ""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def check_channels(detector: KoopmanDetector, path: Path, settings: DeviceSettings) -> None:
    """Refuse a model whose channels are not the configured ones in the same order."""
    channels = settings.sampling.channels
    named = hasattr(detector, "feature_names_in_")
    if detector.n_features_in_ != len(channels) or (named and detector.channel_names_ != channels):
        own = path.parent == Path(settings.learning.folder)
        otherwise = "remove the file so that the device learns again" if own else "name another model"
        raise SettingsError(
            f"{path}: the model has the channels {', '.join(detector.channel_names_)}, but channels in [sampling] "
            f"are {', '.join(channels)}; use the names and the order of the model, or {otherwise}."
        )


def period_note(detector: KoopmanDetector, settings: DeviceSettings) -> str:
    """What is wrong if the model was fitted to another period than the configured one; else empty."""
    fitted, period = detector.parameters_.sample_period, settings.sampling.period
    if fitted is None or abs(fitted - period) <= PERIOD_TOLERANCE * period:
        return ""
    return (
        f"the model was fitted to samples {fitted:g} s apart, but period in [sampling] is {period:g} s; "
        "its scores mean little unless they agree."
    )
