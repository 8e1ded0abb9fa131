"""The model that a device is judged by: in memory, without its statistics, with the window that it scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import set_aside
from fedkad.detect.features import VALUE
from fedkad.detect.model import Model
from fedkad.detect.modelfile import DamagedFileError, ModelFileError, load_model
from fedkad.detect.stream import Stream
from fedkad.edge.device.grid import GridRow, without
from fedkad.edge.device.modelfolder import ModelFolder, check_model, check_tolerance, outgrown_note, period_note
from fedkad.edge.health.faults import Beyond
from fedkad.edge.settings import DeviceSettings, SettingsError
from fedkad.edge.store import Store

Array = NDArray[np.float64]
Limits = tuple[Array, Array]

logger = logging.getLogger(__name__)

NO_LIMITS: Limits = (np.array(-math.inf), np.array(math.inf))


class DeviceModel:
    """The model in the folder of a device, which a fleet client may replace at any time.

    Attributes
    ----------
    current : Model, optional
        The model in use, with the configured threshold; None while the device has none.
    stream : Stream, optional
        Its scores from the last `restart` on.
    """

    def __init__(self, device: str, settings: DeviceSettings, store: Store) -> None:
        self.device, self.settings, self._store = device, settings, store
        self.folder = ModelFolder(device, settings)
        self._read: Model | None = None  # as the file has it, without what the settings make of it
        self.current: Model | None = None
        self.stream: Stream | None = None
        self._hidden: dict[int, list[int]] = {}  # channels by the number of a row
        self._normal = self._possible = NO_LIMITS
        self._version: tuple[int, int] | None = None
        if not self.folder.is_given_another:
            self.reload()
        if self.folder.install_given():
            self.reload()

    def configure(self, settings: DeviceSettings) -> None:
        """Use another threshold or budget and other settings for learning; everything must be committed just before.

        They hold for the model that is in use, whatever has become of its file.
        """
        self.settings = settings
        self.folder.configure(settings)
        if self._read is None:
            return
        try:
            check_tolerance(self._read, self.folder.model, settings)
        except SettingsError as error:
            logger.warning("%s The device continues without a tolerance.", error)
        self._use(self._read)
        self.restart()

    @property
    def has_file(self) -> bool:
        """Whether there is a file in the folder, without which the model in use can judge, but not learn."""
        return self.folder.version() is not None

    def is_renewed(self) -> bool:
        """Whether another model was put in place; that the one in use was taken away is logged once."""
        version = self.folder.version()
        if version is None and self._version is not None:
            self._version = None
            logger.warning("%s: %s is gone; %s.", self.device, self.folder.model, self._continues())
        return version is not None and version != self._version

    def reload(self) -> bool:
        """Load the model from the disk; True if it is used.

        A damaged file is renamed, and so is one that learned the device's earlier channels; any other is kept.
        """
        version = self.folder.version()
        if version is None:
            return False
        self._version, path = version, self.folder.model
        try:
            model, _ = load_model(path, memory=False)
            if self.current is None and (note := outgrown_note(model, path, self.settings)):
                self._rename(version, note, "outgrown")
                return False
            check_model(model, path, self.settings)
        except DamagedFileError as error:
            self._rename(version, str(error), "damaged")
            return False
        except (ModelFileError, SettingsError) as error:
            # An intact model for something else: it belongs to someone, and must not be replaced.
            if self.current is None:
                raise
            logger.warning("%s The device continues with the model it has.", error)
            return False
        if note := period_note(model, self.settings):
            logger.warning("%s: %s", self.device, note)
        self.folder.anew.unlink(missing_ok=True)  # there is a first model again
        self._use(model)
        return True

    def _use(self, model: Model) -> None:
        """Judge by this model from now on, with the threshold and the tolerance that are configured."""
        self._read = model
        self.current = _with_tolerance(self._with_configured_threshold(model), self.settings)

    def _rename(self, version: tuple[int, int], why: str, mark: str) -> None:
        """Put a file that is of no use out of the way, unless another one has just taken its place."""
        if self.folder.version() == version:
            aside = set_aside(self.folder.model, mark)
            self._version = None
            logger.warning("%s: %s It was renamed to %s; %s.", self.device, why, aside.name, self._continues())

    def _continues(self) -> str:
        """What a device does whose model is no longer in its folder."""
        if self.current is None:
            return "the device continues without it"
        return "the device continues with the one that it has read before, until it learns or the agent is restarted"

    def _with_configured_threshold(self, model: Model) -> Model:
        alarm, period = self.settings.alarm, self.settings.sampling.period
        rule = alarm.budget or alarm.threshold
        if isinstance(rule, float | int):
            return model.with_threshold(rule)
        return model.with_rule(model.settings.rule(rule, period)) if rule else model

    def restart(self, *, empty: bool = False) -> None:
        """Score with the current model from now on, with the window of the committed rows unless `empty`."""
        assert self.current is not None
        stream = self.stream = Stream(self.current)
        self._normal, self._possible = _limits(self.current)
        channels = len(self.settings.sampling.channels)
        for number, values in [] if empty else self._store.rows.last(self.device, stream.memory, channels):
            stream.update(without(values, self._hidden.get(number, [])), bridge=False)

    @property
    def bridges(self) -> bool:
        """Whether rows that lack channels are judged by the others."""
        return self.current is not None and self.current.scoring.bridges

    def impossible(self, values: Array) -> list[Beyond]:
        """The channels whose value is impossible in the light of all that was learned; usually none."""
        least, greatest = self._possible
        wrong = (values < least) | (values > greatest)
        if self.stream is None or not np.count_nonzero(wrong):  # much quicker than `any`
            return []
        low, high = self._normal
        return [Beyond(k, float(low[k]), float(high[k])) for k in np.flatnonzero(wrong).tolist()]

    def hide(self, number: int, row: GridRow, channels: list[int]) -> GridRow:
        """The row of that number without the values of faulty channels; a restart hides them again."""
        self._hidden = {known: hidden for known, hidden in self._hidden.items() if known > number - self.memory}
        self._hidden[number] = channels
        return row._replace(values=without(row.values, channels), complete=False)

    def hidden(self) -> list[tuple[int, list[int]]]:
        """What is hidden of recent rows, to be committed."""
        return list(self._hidden.items())

    def restore_hidden(self, hidden: Sequence[tuple[int, list[int]]]) -> None:
        """Continue with what was committed."""
        self._hidden = dict(hidden)

    @property
    def memory(self) -> int:
        """Rows that the window is restored from."""
        return 0 if self.stream is None else self.stream.memory

    def forget(self) -> None:
        """Score nothing until there is another model."""
        self._read = self.current = self.stream = self._version = None


def _limits(model: Model) -> tuple[Limits, Limits]:
    """The least and the greatest normal, and possible, values of each channel, if the scoring knows any."""
    scoring, scaling = model.scoring, model.setup.scaling
    if scoring.bounds is None:
        return NO_LIMITS, NO_LIMITS
    normal = (scoring.bounds.low[VALUE], scoring.bounds.high[VALUE])
    (low, high), (least, greatest) = ((scaling.restore(a), scaling.restore(b)) for a, b in (normal, scoring.possible))
    moves = low < high  # one that has never moved may begin to: that is an incident, and no fault of its sensor
    return (low, high), (np.where(moves, least, -math.inf), np.where(moves, greatest, math.inf))


def _with_tolerance(model: Model, settings: DeviceSettings) -> Model:
    """The model with the configured tolerance; its threshold stays that of scores without one."""
    if not settings.alarm.tolerance or model.scoring.bounds is None:
        return model
    tolerance = np.array([settings.alarm.tolerance.get(name, 0.0) for name in settings.sampling.channels])
    return replace(model, scoring=model.scoring.with_tolerance(tolerance / model.setup.scaling.scale))
