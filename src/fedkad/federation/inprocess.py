"""A federation inside one process: the embedded default, and the reference for every other engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.series import Series, as_series, check_channels
from fedkad.federation import wire
from fedkad.federation.client import Client
from fedkad.federation.history import Round, fleet_diagnostics
from fedkad.federation.server import Sampler, Server
from fedkad.federation.settings import ENCODINGS, PRESETS, SAMPLINGS, STARTS, Encoding, Preset, Sampling, Start
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.koopman.stiefel import retract_polar
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]


@dataclass
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
    scaling: Scaling | None = field(default=None, repr=False)
    parameters: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def schedule(self) -> list[tuple[str, ...]]:
        """The participants of every round; pass it as `schedule=` to replay the run."""
        return [record.participants for record in self.history]

    def admit(self, name: str, series: Any) -> KoopmanDetector:
        """A new device: the shared subspace, its own operator and calibration, from as few as 100 samples.

        Until it has a thousand scores of its own to set it by, its threshold is at least the median of the fleet's.
        """
        if name in self.detectors:
            raise ValueError(f"There is a device {name!r} in the fleet already; choose another name.")
        detector = KoopmanDetector(**self.parameters)
        with naming(name):
            known = as_series(series)
            _check_like(next(iter(self.detectors.values())), known)
            detector.prepare(known, self.scaling).adopt(self.subspace, self._usual_threshold())
        self.detectors[name] = detector
        return detector

    def _usual_threshold(self) -> float:
        """The median threshold of the devices that set one unadvised; scores of the paper's kind are not comparable."""
        unadvised = [d for d in self.detectors.values() if not d.few_rows_ and d.least_threshold_ == 0.0]
        own = [detector.threshold_ for detector in unadvised]
        comparable = self.parameters["scoring"] == "calibrated" and bool(own)
        return float(np.median(own)) if comparable else 0.0


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
    preset: Literal["paper"] | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
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
        Share of the fleet that takes part in a round; a quarter by default, and in a small fleet one device.
    penalty, local_steps, step_size
        ρ, C and η of the consensus; the step follows the local curvature unless it is given.
    start : {"warm", "common", "random"}
        "warm" (the default): in its first round a device sends the directions it predicts along.
    sampling : {"cover", "uniform"}
        "cover" (the default): everybody is asked before anybody twice.
    schedule : sequence of sequences of names
        Participants of every round, to replay a recorded run; overrides rounds, participation and sampling.
    scaling : {"device", "global"}
        z-scores of each device alone, or one scaling for the fleet from the merged moments of all.
    encoding : {"float32", "float16", "int8", "float64"}
        Numbers on the wire; "int8" sends differences in 8 bits with error feedback, and Z in float16.
    preset : {"paper"}
        The paper's method and settings; what is given besides still counts.
    seed : int
        Seed of everything random.
    progress : callable
        Called with (what, done, of) as the work goes on.
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
    chosen = _preset(preset)
    rounds = chosen.rounds if rounds is None else rounds
    step_size = chosen.consensus.step_size if step_size is None else step_size
    start, sampling = start or chosen.consensus.start, sampling or chosen.sampling
    _check_fleet(fleet)
    parameters = {"seed": seed, "scoring": chosen.scoring, **detector_parameters}
    model = KoopmanDetector(**parameters)
    model.check_parameters()
    participation = max(0.25, 1.0 / len(fleet)) if participation is None else participation
    _check_numbers(rounds=rounds, participation=participation, penalty=penalty, local_steps=local_steps)
    _check_numbers(step_size=1.0 if step_size is None else step_size)
    _check_choice("start", start, STARTS)
    _check_choice("sampling", sampling, SAMPLINGS)
    _check_choice("scaling", scaling, ("device", "global"))
    _check_choice("encoding", encoding, ENCODINGS)
    plan = _plan(list(fleet), rounds, participation, sampling, seed) if schedule is None else list(schedule)
    _check_schedule(plan, fleet)
    consensus = replace(
        chosen.consensus,
        rank=model.rank,
        penalty=penalty,
        local_steps=local_steps,
        step_size=step_size,
        start=start,
        seed=seed,
        ridge=model.ridge if preset == "paper" else chosen.consensus.ridge,
    )
    report = progress or (lambda what, done, of: None)
    detectors, pooled = _prepare(fleet, parameters, scaling, report)
    clients = {name: Client(name, detector.kept()[0], consensus) for name, detector in detectors.items()}
    exchange = Exchange(clients, Server(next(iter(detectors.values())).lifting_.dimension, consensus), encoding)
    history: list[Round] = []
    for participants in plan:
        history.append(exchange.round(participants))
        report("rounds", len(history), len(plan))
    subspace, delivered = exchange.deliver()
    _adopt(detectors, subspace, report)
    return Federation(detectors, subspace, history, delivered, pooled, parameters)


class Exchange:
    """Server and clients side by side, with everything between them encoded as it would travel."""

    def __init__(self, clients: Mapping[str, Client], server: Server, encoding: Encoding) -> None:
        self.clients, self.server, self.encoding = clients, server, encoding
        self._holders: set[str] = set()  # who holds the current Z
        if server.consensus.start == "random":
            for client in clients.values():
                client.begin(server.shared)

    def round(self, participants: Sequence[str]) -> Round:
        """One exchange: Z down, replies up, and the new Z down to those whose duals need it."""
        began = time.perf_counter()
        before, names = self.server.shared, tuple(participants)
        taking_part = [self.clients[name] for name in names]
        if self.server.begin_round(names):
            moves, down, nothing = [], 0, np.zeros_like(before)
            up = self._collect(
                {client.name: client.send(client.warm_message(), nothing, self.encoding) for client in taking_part},
                nothing,
            )
            self._holders.clear()
        else:
            shared, down = self._send(names)
            up = self._collect(
                {client.name: client.send(client.local_round(shared), shared, self.encoding) for client in taking_part},
                shared,
            )
            self._holders.clear()
            shared, again = self._send(names)
            moves, down = [client.commit(shared) for client in taking_part], down + again
        seconds = time.perf_counter() - began  # what follows nobody needs but the reader of the history
        fleet = fleet_diagnostics(self.clients.values(), self.server.shared)
        return Round(
            phase="admm" if moves else "warm",
            participants=names,
            objective=fleet.objective,
            lagrangian=fleet.lagrangian,
            consensus_residual=fleet.consensus_residual,
            subspace_change=float(np.linalg.norm(self.server.shared - before)),
            local_changes={move.name: move.change for move in moves},
            refit_perturbation=sum(move.refit_perturbation for move in moves),
            bytes_up=up,
            bytes_down=down,
            seconds=seconds,
        )

    def deliver(self) -> tuple[Array, int]:
        """The orthonormal factor of the final Z as every device receives it, and the bytes that took."""
        shared, sent = self._send(list(self.clients))
        subspace = retract_polar(shared)
        subspace.flags.writeable = False  # all detectors share it
        return subspace, sent

    def _send(self, names: Sequence[str]) -> tuple[Array, int]:
        """Z as it arrives, rounded by the encoding, and the bytes to those of `names` who do not hold it yet."""
        payload = wire.encode(self.server.shared, encoding := wire.downward(self.encoding))
        missing = set(names) - self._holders
        self._holders |= missing
        return wire.decode(payload, self._shape, encoding), len(payload) * len(missing)

    def _collect(self, payloads: Mapping[str, bytes], shared: Array) -> int:
        """Hand the replies to the server as they arrive, and close its round; the bytes that went up."""
        for name, payload in payloads.items():
            self.server.receive(
                name, wire.decode(payload, self._shape, self.encoding) + wire.reference(shared, self.encoding)
            )
        self.server.close_round()
        return sum(map(len, payloads.values()))

    @property
    def _shape(self) -> tuple[int, int]:
        rows, columns = self.server.shared.shape
        return rows, columns


def _prepare(
    fleet: Mapping[str, Any], parameters: dict[str, Any], scaling: str, report: Callable[[str, int, int], None]
) -> tuple[dict[str, KoopmanDetector], Scaling | None]:
    """A detector for every device with everything but the subspace, and the fleet's scaling if it has one."""
    pooled = _pool_scaling(fleet, parameters) if scaling == "global" else None
    detectors: dict[str, KoopmanDetector] = {}
    for done, (name, series) in enumerate(fleet.items()):
        with naming(name):
            known = as_series(series)
            if detectors:
                _check_like(next(iter(detectors.values())), known)
            detectors[name] = KoopmanDetector(**parameters).prepare(known, pooled)
        report("statistics", done + 1, len(fleet))
    return detectors, pooled


def _adopt(detectors: Mapping[str, KoopmanDetector], subspace: Array, report: Callable[[str, int, int], None]) -> None:
    """Give every detector the subspace; what there is to say about short series is said once for the fleet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        for done, detector in enumerate(detectors.values()):
            detector.adopt(subspace)
            report("detectors", done + 1, len(detectors))
    few = [name for name, detector in detectors.items() if detector.few_rows_]
    if few:
        named = ", ".join(few[:5]) + (", …" if len(few) > 5 else "")
        warnings.warn(
            f"{len(few)} of {len(detectors)} devices ({named}) have too few rows to hold some out: their thresholds "
            "are quantiles of cross-fitted scores instead of fitted tails, and false alarms are more likely.",
            FewRowsWarning,
            stacklevel=3,
        )


def _pool_scaling(fleet: Mapping[str, Any], parameters: dict[str, Any]) -> Scaling:
    moments: list[ChannelMoments] = []
    for name, series in fleet.items():
        with naming(name):
            moments.append(KoopmanDetector(**parameters).training_moments(series))
            check_channels(len(moments[-1].mean), None, len(moments[0].mean), None, than="those of the fleet")
    return Scaling.from_moments(reduce(ChannelMoments.merge, moments))


def _check_like(detector: KoopmanDetector, series: Series) -> None:
    """Refuse a device whose channels are not those of the fleet, in that order."""
    names = getattr(detector, "feature_names_in_", None)
    channels = detector.n_features_in_
    check_channels(series.values.shape[1], series.names, channels, names, than="those of the fleet")


@contextmanager
def naming(device: str) -> Iterator[None]:
    """Say in every `ValueError` which device it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Device {device!r}: {error}") from None


def _preset(name: str | None) -> Preset:
    if name not in (None, "paper"):
        raise ValueError(f"preset={name!r} must be 'paper' or None.")
    return PRESETS[name or "default"]


def _plan(names: list[str], rounds: int, participation: float, sampling: Sampling, seed: int) -> list[list[str]]:
    if participation > 1.0:
        raise ValueError(f"participation={participation} must be a share of the fleet, at most 1.")
    if participation * len(names) < 1.0 - 1e-9:
        raise ValueError(
            f"participation={participation} of {len(names)} device(s) is less than one device a round; "
            f"pass participation={1.0 / len(names):.2g} or more, or more devices."
        )
    sampler = Sampler(names, participation, sampling, seed)
    return [sampler.next() for _ in range(rounds)]


def _check_fleet(fleet: Mapping[str, Any]) -> None:
    if not isinstance(fleet, Mapping):
        raise ValueError("The fleet must map the name of each device to its series, as in {'pump-1': series}.")
    if not fleet:
        raise ValueError("The fleet is empty; pass at least one device.")
    for name in fleet:
        if not isinstance(name, str):
            raise ValueError(f"The device name {name!r} is no text; name devices by strings.")


def _check_numbers(**numbers: float) -> None:
    for name, value in numbers.items():
        if not isinstance(value, Real) or not 0.0 < value < float("inf"):
            raise SettingError(name, value, "a number above 0")
        if name in ("rounds", "local_steps") and not isinstance(value, Integral):
            raise SettingError(name, value, "a whole number")


def _check_choice(name: str, chosen: str, allowed: Sequence[str]) -> None:
    if chosen not in allowed:
        raise SettingError(name, chosen, f"one of {', '.join(map(repr, allowed))}")


def _check_schedule(schedule: Sequence[Sequence[str]], fleet: Mapping[str, Any]) -> None:
    if not schedule:
        raise ValueError("The schedule has no round; name the participants of at least one.")
    for k, participants in enumerate(schedule):
        unknown = [name for name in participants if name not in fleet]
        twice = [name for name in participants if list(participants).count(name) > 1]
        if not participants:
            raise ValueError(f"Round {k} of the schedule names nobody; name devices of the fleet.")
        if unknown:
            raise ValueError(f"Round {k} of the schedule names {unknown[0]!r}, which is not in the fleet.")
        if twice:
            raise ValueError(f"Round {k} of the schedule names {twice[0]!r} twice; a device takes part once a round.")
