"""The model of a device: complete on the disk; in memory without its statistics, with the window that it scores."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import flush_folder, set_aside, write_atomically
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.expectation import lowest_threshold
from fedkad.detect.learning import fit, learn
from fedkad.detect.model import Memory, Model
from fedkad.detect.modelfile import DamagedFileError, ModelFileError, StoredMemory, load_model, save_model
from fedkad.detect.series import Series
from fedkad.detect.stream import Stream
from fedkad.edge.device.grid import GridRow, without
from fedkad.edge.health.faults import Beyond
from fedkad.edge.settings import INFERRED, DeviceSettings, SettingsError
from fedkad.edge.store import Store
from fedkad.federation.devicestate import DeviceState

Array = NDArray[np.float64]
Limits = tuple[Array, Array]

logger = logging.getLogger(__name__)

PERIOD_TOLERANCE = 0.01
"""The share by which the period of a model may differ from that of the grid."""

THRESHOLD_INTERVAL = 60.0
"""Seconds between two commits of an adapting threshold, whose state is large and changes slowly."""

NEAR = 0.1
"""How many ranges of a channel a value may lie outside of its bounds to be learned without being asked."""

NO_LIMITS: Limits = (np.array(-math.inf), np.array(math.inf))


class DeviceModel:
    """The model in the folder of a device, which a fleet client may replace at any time.

    Attributes
    ----------
    current : Model, optional
        The model in use, with the configured threshold; None while the device has none.
    stream : Stream, optional
        Its scores from the last `restart` on.
    lowest : float
        Where a threshold that follows its alarms ends.
    """

    def __init__(self, device: str, settings: DeviceSettings, store: Store) -> None:
        self.device, self.settings, self._store = device, settings, store
        self._folder = DeviceState(settings.learning.folder)
        self._mark = self._folder.path / "given"  # the digest of the configured model that was put in place
        self._previous, self._undone, self._anew = (
            self._folder.path / name for name in ("previous.safetensors", "undone", "anew")
        )
        self._read: Model | None = None  # as the file has it, without what the settings make of it
        self.current: Model | None = None
        self.lowest = 0.0
        self.stream: Stream | None = None
        self._threshold_put = 0.0
        self._hidden: dict[int, list[int]] = {}  # channels by the number of a row
        self._normal = self._possible = NO_LIMITS
        self._version: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        """Load the model in the folder, or the configured one if there is none or the configured one has changed."""
        given = Path(self.settings.learning.model) if self.settings.learning.model else None
        known = self._mark.read_text().strip() if self._mark.is_file() else None
        digest = _digest(given)
        if known is None or digest in ("", known):
            self.reload()
        if given is None or (self._anew.exists() and self._folder.version() is None):
            return
        if self._folder.version() is None or (known is not None and digest not in ("", known)):
            self._put_in_place(given, digest)
            self.reload()
        elif known is None and digest == _digest(self._folder.model):
            write_atomically(self._mark, digest.encode())  # the agent was killed before it did this
        elif known is None:
            logger.warning(
                "%s: %s, model in [learning], is not used because the device has %s; remove that file to use it.",
                *(self.device, given, self._folder.model),
            )

    def _put_in_place(self, given: Path, digest: str) -> None:
        if not digest:
            raise SettingsError(f"{given}: no such file; model in [learning] must name a model.")
        check_channels(load_model(given, memory=False)[0], given, self.settings)
        with self._folder.locked():
            if self._folder.version() is not None:
                logger.info("%s: %s has changed and replaces the model in use.", self.device, given)
            write_atomically(self._folder.model, given.read_bytes())
            write_atomically(self._mark, digest.encode())

    @property
    def learnt_through(self) -> str:
        """The last row that the model has learned from, as it says itself."""
        return self.current.learnt_through.partition("+")[0] if self.current else ""

    @property
    def mark(self) -> str:
        """The mark of the last `confirm`, if the model has learned nothing else since."""
        return self.current.learnt_through.partition("+")[2] if self.current else ""

    def configure(self, settings: DeviceSettings) -> None:
        """Use another threshold or budget and other settings for learning; everything must be committed just before.

        They hold for the model that is in use, whatever has become of its file.
        """
        self.settings = settings
        if self._read is None:
            return
        try:
            check_tolerance(self._read, self._folder.model, settings)
        except SettingsError as error:
            logger.warning("%s The device continues without a tolerance.", error)
        self._use(self._read)
        self.restart()

    @property
    def has_file(self) -> bool:
        """Whether there is a file in the folder, without which the model in use can judge, but not learn."""
        return self._folder.version() is not None

    def is_renewed(self) -> bool:
        """Whether another model was put in place; that the one in use was taken away is logged once."""
        version = self._folder.version()
        if version is None and self._version is not None:
            self._version = None
            logger.warning("%s: %s is gone; %s.", self.device, self._folder.model, self._continues())
        return version is not None and version != self._version

    def reload(self) -> bool:
        """Load the model from the disk; True if it is used.

        A damaged file is renamed, and so is one that learned the device's earlier channels; any other is kept.
        """
        version = self._folder.version()
        if version is None:
            return False
        self._version, path = version, self._folder.model
        try:
            model, _ = load_model(path, memory=False)
            if self.current is None and (note := outgrown_note(model, path, self.settings)):
                self._rename(version, note, "outgrown")
                return False
            check_channels(model, path, self.settings)
            check_tolerance(model, path, self.settings)
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
        self._anew.unlink(missing_ok=True)  # there is a first model again
        self._use(model)
        return True

    def _use(self, model: Model) -> None:
        """Judge by this model from now on, with the threshold and the tolerance that are configured."""
        self._read = model
        self.current = _with_tolerance(self._with_configured_threshold(model), self.settings)
        self.lowest = self._find_lowest(self.current)

    def _rename(self, version: tuple[int, int], why: str, mark: str) -> None:
        """Put a file that is of no use out of the way, unless another one has just taken its place."""
        if self._folder.version() == version:
            aside = set_aside(self._folder.model, mark)
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
        return model.judged_by(model.settings.rule(rule, period)) if rule else model

    def _find_lowest(self, model: Model) -> float:
        """The lower end of what the fit of the threshold leaves open, or the threshold itself if that is unknown."""
        if not self.settings.alarm.budget or model.rule is None:
            return model.threshold
        rule = model.rule
        found = lowest_threshold(model.normal_scores, rule.rate, rule.apart, shape=rule.shape)
        return model.threshold if np.isnan(found) else min(max(found, rule.least), model.threshold)

    def restart(self, *, empty: bool = False) -> None:
        """Score with the current model from now on, with the window of the committed rows unless `empty`."""
        assert self.current is not None
        stream = self.stream = Stream(self.current)
        self._normal, self._possible = _limits(self.current)
        channels = len(self.settings.sampling.channels)
        for number, values in [] if empty else self._store.rows.last(self.device, stream.memory, channels):
            stream.update(without(values, self._hidden.get(number, [])), adapt=False, bridge=False)
        try:
            kept = self._store.states.judge(self.device)
            if kept and kept["model"] == self._named_version():
                stream.judge.restore(kept["judge"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("%s: the stored threshold cannot be read (%r); it starts again.", self.device, error)

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
        if not channels:
            return row
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

    def put_threshold(self) -> None:
        """Put the state of an adapting threshold into the store, now and then."""
        now = time.monotonic()
        if self.stream is None or now - self._threshold_put < THRESHOLD_INTERVAL:
            return
        self._threshold_put = now
        if state := self.stream.judge.state():
            self._store.states.put_judge(self.device, {"model": self._named_version(), "judge": state})

    def _named_version(self) -> str:
        return "none" if self._version is None else f"{self._version[0]}-{self._version[1]}"

    def fit(self, rows: Array, through: str) -> None:
        """Fit the first model; raises `ValueError` if there are too few rows."""
        sampling = self.settings.sampling
        parameters = {"sample_period": sampling.period, **self.settings.detector}
        model, memory = fit(KoopmanDetector(**parameters).settings, Series(rows, sampling.channels))
        with self._folder.locked(wait=False):
            if self._folder.version() is not None:
                raise ValueError(f"{self._folder.model} was put in place in the meantime")
            save_model(self._folder.model, replace(model, learnt_through=through), memory)

    def refit(self, rows: Array, through: str) -> None:
        """Fit a model anew, with what somebody called normal in the one that it replaces; errors are as in `learn`."""

        def refitted(known: Model, path: Path) -> tuple[Model, Memory]:
            ranges = StoredMemory(path).ranges
            model, memory = fit(known.settings, Series(rows, self.settings.sampling.channels))
            for stretch in ranges.confirmed_stretches if ranges is not None else ():
                if len(stretch) > known.settings.lead:
                    scaled = model.setup.scale(known.setup.scaling.restore(stretch))
                    model, memory = learn(model, memory, scaled, confirmed=True)
            return model, memory

        self._change(refitted, rows, through)

    def learn(self, rows: Array, through: str, *, cautiously: bool = True) -> None:
        """Add rows to the model; raises `ValueError` if that is impossible, `OSError` if the disk is full.

        `cautiously`, without those that are far from where the device has been.
        """

        def learned(known: Model, path: Path) -> tuple[Model, Memory]:
            scaled = known.setup.scale(rows)
            scaled = _near(known, scaled) if cautiously else scaled
            return learn(known, StoredMemory(path), scaled, self.settings.learning.forgetting)

        self._change(learned, rows, through)

    def _change(self, change: Callable[[Model, Path], tuple[Model, Memory]], rows: Array, through: str) -> None:
        """Replace the model by what becomes of it; if the file is gone, fit a new one to the rows."""
        if self._folder.version() is None:
            self.fit(rows, through)
            return
        with self._folder.locked(wait=False):
            path = self._folder.model
            known, _ = load_model(path, memory=False)
            check_channels(known, path, self.settings)  # it may have been put there by mistake
            model, memory = change(known, path)
            save_model(path, replace(model, learnt_through=through), memory)

    # -- what an operator tells -----------------------------------------------------------------------------------
    # Each of these may be killed anywhere and is then repeated with the same mark: it acts once. All wait for the lock,
    # because a process of an agent that was killed may still be about to write the same: run them in a fork.

    def confirm(self, rows: Array, mark: str) -> None:
        """Add rows that somebody called normal to the model, and keep the model of before; errors are as in `learn`."""
        with self._folder.locked():
            path = self._folder.model
            known, _ = load_model(path, memory=False)
            through, _, done = known.learnt_through.partition("+")
            if done == mark:
                return
            check_channels(known, path, self.settings)
            learnt, memory = learn(known, StoredMemory(path), known.setup.scale(rows), confirmed=True)
            write_atomically(self._previous, path.read_bytes())
            save_model(path, replace(learnt, learnt_through=f"{through}+{mark}"), memory)

    def go_back(self, mark: str) -> None:
        """Put the model of before the last `confirm` back; raises `ValueError` if there is none."""
        with self._folder.locked():
            if not self._previous.exists():
                if self._undone.exists() and self._undone.read_text() == mark:  # then it was killed after this
                    return
                raise ValueError("there is no earlier model; only the last normal can be taken back, once.")
            if not _has_channels(load_model(self._previous, memory=False)[0], self.settings):
                raise ValueError("the earlier model has learned other channels than those of now.")
            write_atomically(self._undone, mark.encode())
            write_atomically(self._folder.model, self._previous.read_bytes())
            self._previous.unlink()
            flush_folder(self._folder.path)

    def put_aside(self, mark: str) -> None:
        """Rename the model, so that a first one is fitted, whatever model is configured."""
        with self._folder.locked():
            write_atomically(self._anew, mark.encode())
            self._previous.unlink(missing_ok=True)
            if self._folder.version() is not None:
                aside = set_aside(self._folder.model, "old")
                logger.info("%s: its model was renamed to %s.", self.device, aside.name)
            flush_folder(self._folder.path)

    def forget(self) -> None:
        """Score nothing until there is another model."""
        self._read = self.current = self.stream = self._version = None


def _near(model: Model, scaled: Array) -> Array:
    """Scaled rows without those that are far from where the device has been: nobody has called that normal.

    A fault that was missed would otherwise widen the bounds, and hide the next one of its kind.
    """
    bounds = model.scoring.bounds
    if bounds is None:
        return scaled
    room = NEAR * bounds.unit
    with np.errstate(invalid="ignore"):
        is_far = ((scaled < bounds.low[0] - room) | (scaled > bounds.high[0] + room)) & ~bounds.switch
    return np.where(is_far.any(axis=1, keepdims=True), np.nan, scaled)


def _limits(model: Model) -> tuple[Limits, Limits]:
    """The least and the greatest normal, and possible, values of each channel, if the scoring knows any."""
    scoring, scaling = model.scoring, model.setup.scaling
    if scoring.bounds is None:
        return NO_LIMITS, NO_LIMITS
    normal = (scoring.bounds.low[0], scoring.bounds.high[0])
    (low, high), (least, greatest) = ((scaling.restore(a), scaling.restore(b)) for a, b in (normal, scoring.possible))
    moves = low < high  # one that has never moved may begin to: that is an incident, and no fault of its sensor
    return (low, high), (np.where(moves, least, -math.inf), np.where(moves, greatest, math.inf))


def _digest(path: Path | None) -> str:
    """The digest of a file; empty if there is none."""
    if path is None or not path.is_file():
        return ""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


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


def _with_tolerance(model: Model, settings: DeviceSettings) -> Model:
    """The model with the configured tolerance; its threshold stays that of scores without one."""
    if not settings.alarm.tolerance or model.scoring.bounds is None:
        return model
    tolerance = np.array([settings.alarm.tolerance.get(name, 0.0) for name in settings.sampling.channels])
    return replace(model, scoring=model.scoring.with_tolerance(tolerance / model.setup.scaling.scale))


def _has_channels(model: Model, settings: DeviceSettings) -> bool:
    channels, setup = settings.sampling.channels, model.setup
    return setup.channels == len(channels) and (setup.names is None or setup.names == channels)


def outgrown_note(model: Model, path: Path, settings: DeviceSettings) -> str:
    """What is said of a model that the agent made for channels that the device no longer has; empty for any other.

    Only a model that has learned here is the agent's own to put aside; one that was given or delivered is not.
    """
    if not model.learnt_through or _has_channels(model, settings):
        return ""
    return (
        f"{path}: the model has learned the channels {', '.join(model.setup.channel_names)}, but channels in "
        f"[sampling] are now {', '.join(settings.sampling.channels)}."
    )


def period_note(model: Model, settings: DeviceSettings) -> str:
    """What is wrong if the model was fitted to another period than the configured one; else empty."""
    fitted, period = model.settings.sample_period, settings.sampling.period
    if fitted is None or period == INFERRED or abs(fitted - period) <= PERIOD_TOLERANCE * period:
        return ""
    return (
        f"the model was fitted to samples {fitted:g} s apart, but period in [sampling] is {period:g} s; "
        "its scores mean little unless they agree."
    )
