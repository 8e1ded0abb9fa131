"""A federation inside one process: the embedded default, and the reference for every other carrier."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.learning import prepare, training_moments
from fedkad.detect.model import DetectorSettings, Memory, Model, Setup
from fedkad.detect.series import Series, as_series, check_channels, sampling_period
from fedkad.federation.client import Client
from fedkad.federation.federation_file import SharedPart, load_shared, model_file, require_file_names, write_shared
from fedkad.federation.history import Round
from fedkad.federation.local import LocalTraining, Report
from fedkad.federation.participant import own_shape, own_threshold
from fedkad.federation.server import Sampler, usual_shape, usual_threshold
from fedkad.federation.settings import ENCODINGS, PRESETS, SAMPLINGS, STARTS, Encoding, Sampling, Start
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]


@dataclass(repr=False)
class Federation:
    """A trained fleet: a detector for every device, the shared subspace, and how it came about.

    Attributes
    ----------
    detectors : dict
        By device name; each has the shared subspace, its own operator, scaling and threshold.
    subspace : (D, r)
        The orthonormal factor of the consensus Z.
    history : list of Round
    delivery_bytes : int
        Payload of the final Z to those devices that did not hold it.
    """

    detectors: dict[str, KoopmanDetector]
    subspace: Array
    history: list[Round]
    delivery_bytes: int
    scaling: Scaling | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        names = list(self.detectors)
        shown = ", ".join(names if len(names) <= 6 else [*names[:3], "…", names[-1]])
        size = " x ".join(map(str, self.subspace.shape))
        return f"Federation({len(names)} devices: {shown}; {len(self.history)} rounds; subspace {size})"

    @property
    def schedule(self) -> list[tuple[str, ...]]:
        """The participants of every round; pass it as `schedule=` to replay the run."""
        return [record.participants for record in self.history]

    @single_threaded()
    def admit(self, name: str, series: Any) -> KoopmanDetector:
        """Add a device: the shared subspace, its own operator and calibration, from as few as 100 samples.

        Until it has a thousand scores of its own to set it by, its threshold is at least the median of the fleet's, and
        the tail of its scores is expected to have the shape of the fleet's.
        """
        if name in self.detectors:
            raise ValueError(f"There is a device {name!r} in the fleet already; choose another name.")
        detector = KoopmanDetector(**self.parameters)
        models = [other.model_ for other in self.detectors.values()]
        usual = usual_threshold(map(own_threshold, models)), usual_shape(map(own_shape, models))
        with naming(name):
            own = as_series(series)
            _check_like(models[0].setup, own)
            detector.prepare(own, self.scaling).adopt(self.subspace, *usual)
        self.detectors[name] = detector
        return detector

    def save(self, folder: str | Path, *, statistics: bool = True) -> None:
        """Write the whole federation to a folder: the model of each device, and what they share.

        Without `statistics` the models are small and hold no training data, but cannot learn more.
        """
        folder = Path(folder)
        require_file_names(list(self.detectors))
        folder.mkdir(parents=True, exist_ok=True)
        for name, detector in self.detectors.items():
            detector.save(model_file(folder, name), statistics=statistics)
        self.save_shared(folder)

    def save_shared(self, folder: Path) -> None:
        """Write only what the devices share, after one was admitted and its model was saved."""
        rest = self.subspace, self.history, self.delivery_bytes, self.scaling, self.parameters
        write_shared(folder, SharedPart(tuple(self.detectors), *rest))

    @classmethod
    def load(cls, folder: str | Path, *, statistics: bool = True) -> Self:
        """Read a federation that `save` or ``fedkad federate`` wrote."""
        folder = Path(folder)
        shared = load_shared(folder)
        files = {name: model_file(folder, name) for name in shared.devices}
        detectors = {name: KoopmanDetector.load(file, statistics=statistics) for name, file in files.items()}
        return cls(detectors, *shared[1:])


@single_threaded()
def federate(
    fleet: Mapping[str, Any],
    *,
    rounds: int | None = None,
    participation: float | None = None,
    penalty: float = 1.0,
    local_steps: int = 5,
    step_size: float | None = None,
    start: Start | None = None,
    sampling: Sampling | None = None,
    schedule: Sequence[Sequence[str]] | None = None,
    scaling: Literal["device", "global"] = "device",
    encoding: Encoding = "float32",
    robust: bool = False,
    preset: Literal["paper"] | None = None,
    seed: int = 0,
    progress: Report | None = None,
    skip: Callable[[str, str], None] | None = None,
    **detector_parameters: Any,
) -> Federation:
    """Train one detector for every device of a fleet on a subspace that they find together.

    Parameters
    ----------
    fleet : mapping
        Training data by device name, each as `KoopmanDetector.fit` takes it.
    rounds : int
        Exchanges with the server, the warm ones counted; 8 by default, 30 in the paper.
    participation : float
        Share of the fleet that takes part in a round; a quarter by default, and at least one device.
    penalty, local_steps, step_size
        ρ, C and η of the consensus; the step follows the local curvature unless it is given.
    start : {"warm", "common", "random"}
        "warm" (the default): in its first round a device sends the directions it predicts along.
    sampling : {"cover", "uniform"}
        "cover" (the default): every device is asked once before any is asked again.
    schedule : sequence of sequences of names
        Participants of every round, to replay a recorded run; overrides rounds, participation and sampling.
    scaling : {"device", "global"}
        z-scores of each device alone, or one scaling for the fleet from the merged moments of all.
    encoding : {"float32", "float16", "int8", "float64"}
        Numbers on the wire; "int8" sends differences in 8 bits with error feedback, and Z in float16.
    robust : bool
        Take the geometric median of the replies of a round instead of their mean, and leave devices that pull alone out
        of the warm directions, as a fleet over a network does.
    preset : {"paper"}
        The paper's method and settings; explicit arguments still override them.
    seed : int
        Seed of everything random.
    progress : callable
        Called with (what, done, of) as the work proceeds.
    skip : callable
        Called with the name of a device that cannot be trained and the reason, and the fleet goes on without it;
        without `skip` such a device is an error.
    **detector_parameters
        Parameters of every `KoopmanDetector`.

    Examples
    --------
    >>> t = np.arange(1500.0)[:, None]
    >>> fleet = {f"pump-{k}": np.sin(t / [[7 + k, 11.0]]) for k in range(4)}
    >>> federation = federate(fleet, rank=6)
    >>> federation.subspace.shape, len(federation.history), federation.history[0].phase
    ((168, 6), 8, 'warm')
    >>> detector = federation.admit("pump-9", np.sin(t[:700] / [[9.0, 11.0]]))
    """
    _check_choices(preset=(preset, (None, "paper")))
    chosen = PRESETS[preset or "default"]
    rounds = chosen.rounds if rounds is None else rounds
    step_size = chosen.consensus.step_size if step_size is None else step_size
    start, sampling = start or chosen.consensus.start, sampling or chosen.sampling
    _check_fleet(fleet)
    parameters = {"seed": seed, "scoring": chosen.scoring, "sample_period": _period(fleet), **detector_parameters}
    settings = KoopmanDetector(**parameters).settings
    settings.check()
    share = max(0.25, 1.0 / len(fleet)) if participation is None else participation
    _check_numbers(rounds=rounds, participation=share, penalty=penalty, local_steps=local_steps)
    _check_numbers(step_size=1.0 if step_size is None else step_size)
    _check_choices(start=(start, STARTS), sampling=(sampling, SAMPLINGS), scaling=(scaling, ("device", "global")))
    _check_choices(encoding=(encoding, ENCODINGS))
    if schedule is None:
        _check_participation(share, len(fleet))
    else:
        _check_schedule(schedule, fleet)
    rules: dict[str, Any] = {"penalty": penalty, "local_steps": local_steps, "step_size": step_size, "start": start}
    ridge = settings.ridge if preset == "paper" else chosen.consensus.ridge
    consensus = replace(chosen.consensus, rank=settings.rank, seed=seed, ridge=ridge, **rules)
    report = progress or (lambda what, done, of: None)
    pooled = _pool_scaling(fleet, settings, skip is not None) if scaling == "global" else None
    memories = _prepare(fleet, settings, pooled, report, skip)
    if schedule is None:
        sampler = Sampler(list(memories), max(share, 1.0 / len(memories)), sampling, seed)
        schedule = [sampler.next() for _ in range(rounds)]
    else:  # without devices that were skipped
        rest = ([name for name in participants if name in memories] for participants in schedule)
        schedule = [participants for participants in rest if participants]
    clients = {name: Client(name, memory.statistics, consensus) for name, memory in memories.items()}
    training = LocalTraining(clients, encoding, schedule, memories, progress, robust=robust)
    history: list[Round] = []
    for record in training.rounds():
        history.append(record)
        report("rounds", len(history), len(schedule))
    models = training.deliver()
    _warn_of_few_rows(models)
    detectors = {name: KoopmanDetector.of(model, memories[name]) for name, model in models.items()}
    return Federation(detectors, training.subspace, history, training.delivery_bytes, pooled, parameters)


def _period(fleet: Mapping[str, Any]) -> float | None:
    """Return the usual sampling period of frames with times; None if no device has such."""
    periods = []
    for name, series in fleet.items():
        with naming(name):
            period = sampling_period(series)
        periods += [] if period is None else [period]
    return float(np.median(periods)) if periods else None


def _prepare(
    fleet: Mapping[str, Any],
    settings: DetectorSettings,
    pooled: Scaling | None,
    report: Report,
    skip: Callable[[str, str], None] | None,
) -> dict[str, Memory]:
    """Prepare every device; those whose data cannot be used are skipped, unless all are."""
    memories: dict[str, Memory] = {}
    bad: dict[str, ValueError] = {}
    for done, (name, series) in enumerate(fleet.items()):
        try:
            with naming(name):
                own = as_series(series)
                if memories:
                    _check_like(next(iter(memories.values())).setup, own)
                memories[name] = prepare(settings, own, pooled)
        except ValueError as error:
            if skip is None:
                raise
            bad[name] = error
        report("statistics", done + 1, len(fleet))
    if not memories:
        raise next(iter(bad.values()))
    if skip is not None:
        for name, reason in bad.items():
            skip(name, str(reason))
    return memories


def _warn_of_few_rows(models: Mapping[str, Model]) -> None:
    """Warn once for the whole fleet."""
    few = [name for name, model in models.items() if model.few_rows]
    if few:
        named = ", ".join(few[:5]) + (", …" if len(few) > 5 else "")
        warnings.warn(
            f"{len(few)} of {len(models)} devices ({named}) have few rows: their thresholds rest on few "
            "cross-fitted scores, and false alarms are more likely.",
            FewRowsWarning,
            stacklevel=4,  # the caller of `federate`, past its decorator
        )


def _pool_scaling(fleet: Mapping[str, Any], settings: DetectorSettings, skips: bool) -> Scaling:
    """Pool one scaling for the whole fleet; with `skips`, bad devices are left out, and reported when prepared."""
    moments: list[ChannelMoments] = []
    bad: list[ValueError] = []
    for name, series in fleet.items():
        try:
            with naming(name):
                own = training_moments(settings, as_series(series))
                check_channels(len(own.mean), None, len((moments or [own])[0].mean), None, than="those of the fleet")
        except ValueError as error:
            if not skips:
                raise
            bad.append(error)
        else:
            moments.append(own)
    if not moments:
        raise bad[0]
    return Scaling.from_moments(reduce(ChannelMoments.merge, moments))


def _check_like(setup: Setup, series: Series) -> None:
    """Refuse a device whose channels are not those of the fleet, in that order."""
    check_channels(series.values.shape[1], series.names, setup.channels, setup.names, than="those of the fleet")


@contextmanager
def naming(device: str) -> Iterator[None]:
    """Say in every `ValueError` which device it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Device {device!r}: {error}") from None


def _check_participation(participation: float, devices: int) -> None:
    if participation > 1.0:
        raise SettingError("participation", participation, "a share of the fleet, at most 1")
    if participation * devices < 1.0 - 1e-9:
        raise ValueError(
            f"participation={participation} of {devices} device(s) is less than one device per round; "
            f"pass participation={1.0 / devices:.2g} or more, or more devices."
        )


def _check_fleet(fleet: Mapping[str, Any]) -> None:
    if not isinstance(fleet, Mapping):
        raise ValueError("The fleet must map the name of each device to its series, as in {'pump-1': series}.")
    if not fleet:
        raise ValueError("The fleet is empty; pass at least one device.")
    for name in fleet:
        if not isinstance(name, str):
            raise ValueError(f"The device name {name!r} must be a string.")


def _check_numbers(**numbers: float) -> None:
    for name, value in numbers.items():
        if not isinstance(value, Real) or not 0.0 < value < float("inf"):
            raise SettingError(name, value, "a positive number")
        if name in ("rounds", "local_steps") and not isinstance(value, Integral):
            raise SettingError(name, value, "an integer")


def _check_choices(**choices: tuple[str | None, Sequence[str | None]]) -> None:
    for name, (chosen, allowed) in choices.items():
        if chosen not in allowed:
            raise SettingError(name, chosen, f"one of {', '.join(map(repr, allowed))}")


def _check_schedule(schedule: Sequence[Sequence[str]], fleet: Mapping[str, Any]) -> None:
    if not schedule:
        raise ValueError("The schedule has no round; name the participants of at least one.")
    for k, participants in enumerate(schedule):
        unknown = [name for name in participants if name not in fleet]
        twice = [name for name in participants if list(participants).count(name) > 1]
        if not participants:
            raise ValueError(f"Round {k} of the schedule has no participants; name devices of the fleet.")
        if unknown:
            raise ValueError(f"Round {k} of the schedule names {unknown[0]!r}, which is not in the fleet.")
        if twice:
            raise ValueError(f"Round {k} of the schedule names {twice[0]!r} twice; a device takes part once per round.")
