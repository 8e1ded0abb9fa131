"""The folder of a device with its model, complete on the disk, which a fleet client may replace at any time.

What changes the model reads it under its lock, and runs in a forked process because of the memory that it takes.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import flush_folder, set_aside, write_atomically
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.features import VALUE
from fedkad.detect.learning import fit, learn
from fedkad.detect.model import Memory, Model
from fedkad.detect.modelfile import StoredMemory, load_model, save_model
from fedkad.detect.series import Series
from fedkad.edge.settings import INFERRED, DeviceSettings, SettingsError
from fedkad.federation.devicestate import DeviceState

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

PERIOD_TOLERANCE = 0.01
"""The share by which the period of a model may differ from that of the grid."""

NEAR = 0.1
"""How many ranges of a channel a value may lie outside of its bounds to be learned without being asked."""


class ModelFolder(DeviceState):
    """The files of a device's model: what the settings name, what is learned, and what an operator takes back."""

    def __init__(self, device: str, settings: DeviceSettings) -> None:
        super().__init__(settings.learning.folder)
        self.device, self._settings = device, settings
        self._previous, self._undone, self.anew, self._mark = (
            self.path / name for name in ("previous.safetensors", "undone", "anew", "given")
        )
        self._given = Path(settings.learning.model) if settings.learning.model else None
        self._digest = _digest(self._given)
        self._installed = self._mark.read_text().strip() if self._mark.is_file() else None  # of the last given model

    def configure(self, settings: DeviceSettings) -> None:
        """Use other settings for learning from now on."""
        self._settings = settings

    # -- the configured model -----------------------------------------------------------------------------------------

    @property
    def is_given_another(self) -> bool:
        """Whether the configured model has changed since it was put in place."""
        return self._installed is not None and self._digest not in ("", self._installed)

    def install_given(self) -> bool:
        """Put the configured model in place if there is none, or it has changed; returns whether that was done."""
        given = self._given
        if given is None or (self.anew.exists() and self.version() is None):
            return False
        if self.version() is None or self.is_given_another:
            if not self._digest:
                raise SettingsError(f"{given}: no such file; model in [learning] must name a model.")
            check_channels(load_model(given, memory=False)[0], given, self._settings)
            with self.locked():
                if self.version() is not None:
                    logger.info("%s: %s has changed and replaces the model in use.", self.device, given)
                write_atomically(self.model, given.read_bytes())
                write_atomically(self._mark, self._digest.encode())
            return True
        if self._installed is None and self._digest == _digest(self.model):
            write_atomically(self._mark, self._digest.encode())  # the agent was killed before it did this
        elif self._installed is None:
            logger.warning(
                "%s: %s, model in [learning], is not used because the device has %s; remove that file to use it.",
                *(self.device, given, self.model),
            )
        return False

    # -- learning -----------------------------------------------------------------------------------------------------

    def fit(self, rows: Array, through: str) -> None:
        """Fit the first model; raises `ValueError` if there are too few rows."""
        sampling = self._settings.sampling
        parameters = {"sample_period": sampling.period, **self._settings.detector}
        model, memory = fit(KoopmanDetector(**parameters).settings, Series(rows, sampling.channels))
        with self.locked(wait=False):
            if self.version() is not None:
                raise ValueError(f"{self.model} was put in place in the meantime")
            save_model(self.model, replace(model, learnt_through=through), memory)

    def learn(self, rows: Array, through: str, *, is_young: bool = False, cautiously: bool = True) -> None:
        """Add rows to the model, or fit one that `is_young` anew to them; if the file is gone, fit the first one.

        `cautiously`, without those that are far from where the device has been. Raises `ValueError` if that is
        impossible, `OSError` if the disk is full.
        """
        if self.version() is None:
            self.fit(rows, through)
            return
        with self.locked(wait=False):
            known, _ = load_model(self.model, memory=False)
            check_channels(known, self.model, self._settings)  # it may have been put there by mistake
            if is_young:
                model, memory = self._fit_anew(known, rows)
            else:
                scaled = known.setup.scale(rows)
                scaled = _near(known, scaled) if cautiously else scaled
                model, memory = learn(known, StoredMemory(self.model), scaled, self._settings.learning.forgetting)
            save_model(self.model, replace(model, learnt_through=through, confirmation=""), memory)

    def _fit_anew(self, known: Model, rows: Array) -> tuple[Model, Memory]:
        """Fit a model anew, with what an operator has confirmed to the one that it replaces."""
        ranges = StoredMemory(self.model).ranges
        model, memory = fit(known.settings, Series(rows, self._settings.sampling.channels))
        for stretch in ranges.confirmed_stretches if ranges is not None else ():
            if len(stretch) > known.settings.lead:
                scaled = model.setup.scale(known.setup.scaling.restore(stretch))
                model, memory = learn(model, memory, scaled, confirmed=True)
        return model, memory

    # -- what an operator tells ---------------------------------------------------------------------------------------
    # Each of these may be killed anywhere and is then repeated with the same mark: it acts once. All wait for the lock,
    # because a process of an agent that was killed may still be about to write the same.

    def confirm(self, rows: Array, mark: str) -> None:
        """Add confirmed rows to the model, and keep the model of before; errors are as in `learn`."""
        with self.locked():
            known, _ = load_model(self.model, memory=False)
            if known.confirmation == mark:
                return
            check_channels(known, self.model, self._settings)
            model, memory = learn(known, StoredMemory(self.model), known.setup.scale(rows), confirmed=True)
            write_atomically(self._previous, self.model.read_bytes())
            save_model(self.model, replace(model, confirmation=mark), memory)

    def go_back(self, mark: str) -> None:
        """Put the model of before the last `confirm` back; raises `ValueError` if there is none."""
        with self.locked():
            if not self._previous.exists():
                if self._undone.exists() and self._undone.read_text() == mark:  # then it was killed after this
                    return
                raise ValueError("there is no earlier model; only the last normal can be taken back, once.")
            if not _has_channels(load_model(self._previous, memory=False)[0], self._settings):
                raise ValueError("the earlier model has learned other channels than those of now.")
            write_atomically(self._undone, mark.encode())
            write_atomically(self.model, self._previous.read_bytes())
            self._previous.unlink()
            flush_folder(self.path)

    def put_aside(self, mark: str) -> None:
        """Rename the model, so that a first one is fitted, whatever model is configured."""
        with self.locked():
            write_atomically(self.anew, mark.encode())
            self._previous.unlink(missing_ok=True)
            if self.version() is not None:
                aside = set_aside(self.model, "old")
                logger.info("%s: its model was renamed to %s.", self.device, aside.name)
            flush_folder(self.path)


def _near(model: Model, scaled: Array) -> Array:
    """Scaled rows with gaps where they are far from where the device has been: nobody has called that normal.

    A fault that was missed would otherwise widen the bounds, and hide the next one of its kind.
    """
    bounds = model.scoring.bounds
    if bounds is None:
        return scaled
    room = NEAR * bounds.unit
    with np.errstate(invalid="ignore"):
        is_far = ((scaled < bounds.low[VALUE] - room) | (scaled > bounds.high[VALUE] + room)) & ~bounds.switch
    return np.where(is_far.any(axis=1, keepdims=True), np.nan, scaled)


def _digest(path: Path | None) -> str:
    """The digest of a file; empty if there is none."""
    if path is None or not path.is_file():
        return ""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


# -- whether a model suits the settings -------------------------------------------------------------------------------


def check_model(model: Model, path: Path, settings: DeviceSettings) -> None:
    """Refuse a model that the device cannot begin with; the start and --check ask the same."""
    check_channels(model, path, settings)
    check_tolerance(model, path, settings)


def check_channels(model: Model, path: Path, settings: DeviceSettings) -> None:
    """Refuse a model whose channels are not the configured ones in the same order."""
    channels, setup = settings.sampling.channels, model.setup
    if not _has_channels(model, settings):
        own = path.parent == Path(settings.learning.folder)
        otherwise = "remove the file so that the device learns again" if own else "name another model"
        raise SettingsError(
            f"{path}: the model has the channels {', '.join(setup.channel_names)}, but channels in [sampling] "
            f"are {', '.join(channels)}; use the names and the order of the model, or {otherwise}."
        )


def check_tolerance(model: Model, path: Path, settings: DeviceSettings) -> None:
    """Refuse a model that knows no tolerance, where there is one."""
    if settings.alarm.tolerance and model.scoring.bounds is None:
        raise SettingsError(
            f"{path}: the model has no witnesses, which tolerance in [alarm] needs; remove that, or fit another model."
        )


def _has_channels(model: Model, settings: DeviceSettings) -> bool:
    channels, setup = settings.sampling.channels, model.setup
    return setup.channels == len(channels) and (setup.names is None or setup.names == channels)


def outgrown_note(model: Model, path: Path, settings: DeviceSettings) -> str:
    """Describe a model that the agent made for channels that the device no longer has; empty for any other.

    Only a model that has learned here is the agent's own to put aside; one that was given or delivered is not.
    """
    if not model.learnt_through or _has_channels(model, settings):
        return ""
    return (
        f"{path}: the model has learned the channels {', '.join(model.setup.channel_names)}, but channels in "
        f"[sampling] are now {', '.join(settings.sampling.channels)}."
    )


def period_note(model: Model, settings: DeviceSettings) -> str:
    """Say that the model was fitted to another period than the configured one; empty if it was not."""
    fitted, period = model.settings.sample_period, settings.sampling.period
    if fitted is None or period == INFERRED or abs(fitted - period) <= PERIOD_TOLERANCE * period:
        return ""
    return (
        f"the model was fitted to samples {fitted:g} s apart, but period in [sampling] is {period:g} s; "
        "its scores mean little unless they agree."
    )
