"""The detector of a device: whole on the disk, and without its statistics in memory, where it only detects."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
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
Say = Callable[[str], None]


class DeviceModel:
    """The model in a device's folder, which a fleet client may renew at any time.

    Attributes
    ----------
    detector : KoopmanDetector, optional
        For detection; None while the device has no model.
    """

    def __init__(self, device: str, settings: DeviceSettings, say: Say) -> None:
        self._device, self._settings, self._say = device, settings, say
        self._folder = DeviceState(settings.learning.folder)
        self.detector: KoopmanDetector | None = None
        self._version: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        """Load what there is, or the model that the configuration names: at first, and when that is another one."""
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
            write_atomically(self._mark, digest.encode())  # an agent was killed before it could
        elif known is None:
            self._say(
                f"{self._device}: {given}, model in [learning], is not used, as the device has {self._folder.model}; "
                "remove that to begin with it."
            )

    def _put_in_place(self, given: Path, digest: str) -> None:
        if not digest:
            raise SettingsError(f"{given}: there is no such file; model in [learning] must name a model.")
        check_channels(KoopmanDetector.load(given, statistics=False), given, self._settings)
        with self._folder.locked():
            if self._folder.version() is not None:
                self._say(
                    f"{self._device}: {given} is another model than before, and takes the place of the one in use."
                )
            write_atomically(self._folder.model, given.read_bytes())
            write_atomically(self._mark, digest.encode())

    @property
    def _mark(self) -> Path:
        """What the model was that the configuration named when it was put in place."""
        return self._folder.path / "given"

    def _known_digest(self) -> str | None:
        return self._mark.read_text().strip() if self._mark.is_file() else None

    @property
    def version(self) -> str:
        """What changes when the model does."""
        return "none" if self._version is None else f"{self._version[0]}-{self._version[1]}"

    @property
    def learnt_through(self) -> str:
        """Where the model on the disk says that learning has come to."""
        return self.detector.learnt_through_ if self.detector else ""

    def is_renewed(self) -> bool:
        """Whether somebody has put another model in place."""
        version = self._folder.version()
        return version is not None and version != self._version

    def reload(self) -> bool:
        """Take the model on the disk over; one that is damaged is set aside, one of other channels is left alone."""
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
                self._say(f"{self._device}: {error} It is now {aside.name}, and the device goes on without it.")
            return False
        except (ModelFileError, SettingsError) as error:
            # Sound, but not for us: it is somebody's, and nothing may be put in its place.
            if self.detector is None:
                raise
            self._say(f"{error} The device goes on with the model it has.")
            return False
        self._tell_period(detector)
        self._use(detector)
        return True

    def _tell_period(self, detector: KoopmanDetector) -> None:
        theirs, ours = detector.parameters_.sample_period, self._settings.sampling.period
        if theirs is not None and abs(theirs - ours) > 0.01 * ours:
            self._say(
                f"{self._device}: the model is of samples {theirs:g} s apart, and period in [sampling] is {ours:g} s; "
                "its scores mean little."
            )

    def _use(self, detector: KoopmanDetector) -> None:
        """Keep what detection needs, with the threshold that the configuration asks for."""
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
        """Make the device's first model; raises `ValueError` where the rows do not suffice."""
        settings = self._settings
        parameters = {"sample_period": settings.sampling.period, **settings.detector}
        detector = KoopmanDetector(**parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRowsWarning)
            detector.fit(Series(rows, settings.sampling.channels))
        detector.learnt_through_ = through
        with self._folder.locked(wait=False):
            if self._folder.version() is not None:
                raise ValueError(f"{self._folder.model} was put in place meanwhile")
            detector.save(self._folder.model)

    def learn(self, rows: Array, through: str) -> None:
        """Add rows to what the device knows; raises `ValueError` where they cannot be, `OSError` on a full disk.

        Where the file is gone, so is what was known, and the rows make a new model.
        """
        if self._folder.version() is None:
            self.fit(rows, through)
            return
        with self._folder.locked(wait=False):
            path = self._folder.model
            detector = KoopmanDetector.load(path, statistics=False)
            check_channels(detector, path, self._settings)  # whoever put it there meant another device
            detector.learn(rows, self._settings.learning.forgetting, known=path)
            detector.learnt_through_ = through
            detector.save(self._folder.model)


def _digest(path: Path | None) -> str:
    """What tells a file from others; empty if there is none."""
    if path is None or not path.is_file():
        return ""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def check_channels(detector: KoopmanDetector, path: Path, settings: DeviceSettings) -> None:
    """Refuse a model of other channels than the configuration has, or in another order."""
    channels = settings.sampling.channels
    named = hasattr(detector, "feature_names_in_")
    if detector.n_features_in_ != len(channels) or (named and detector.channel_names_ != channels):
        own = path.parent == Path(settings.learning.folder)
        otherwise = "remove the file, for the device to learn anew" if own else "name another model"
        raise SettingsError(
            f"{path}: the model is of the channels {', '.join(detector.channel_names_)}, and channels in [sampling] "
            f"are {', '.join(channels)}; name them as the model does and in its order, or {otherwise}."
        )
