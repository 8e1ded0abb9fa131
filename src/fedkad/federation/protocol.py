"""What server and device say to each other, whatever carries it: flat headers and payloads of bytes.

A training is a run of rounds. The server sends a `Request`; the device answers with a `Reply`, or with a `Refusal` that
says in one sentence why it cannot. Every message carries the same `Terms`, and whoever receives one checks them against
its own: two sides that differ in version, lifting or sizes never mix their numbers.

A reply counts from the moment the server has accepted it and not before: the device keeps what it computed as pending,
and the next request says which of its rounds was accepted, with the consensus made of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import takewhile
from operator import eq
from typing import Any, Literal

from fedkad import __version__
from fedkad.federation.settings import ENCODINGS, LOSSES, STARTS, Consensus, Encoding
from fedkad.koopman.lifting import Lifting

PROTOCOL = 1
"""Raised when a message changes its meaning."""

Kind = Literal["hello", "warm", "admm", "deliver", "advertise", "share", "reveal"]
KINDS: tuple[Kind, ...] = ("hello", "warm", "admm", "deliver", "advertise", "share", "reveal")
Value = int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]
Header = Mapping[str, Any]


class ProtocolError(ValueError):
    """A message that is refused; the sentence names both sides where they differ."""


@dataclass(frozen=True)
class Terms:
    """What both sides must agree on before their numbers mean the same.

    Attributes
    ----------
    run : str
        The training; a device that meets a new one begins anew.
    channels : tuple of str
        Names of the channels in their order.
    window, observables, horizon, seed : int
        Of the lifting and of the detectors.
    lifting : str
        Digest of the lifting's numbers: the proof that the same seed gave the same ones.
    dimension : int
        D, rows of every matrix; the columns are `consensus.rank`.
    encoding : str
        Of the numbers on the wire.
    consensus : Consensus
    noise, clip : float
        Noise multiplier of differential privacy, none with 0; and the bound to which P + Λ/ρ − Z is clipped then.
    secure : bool
        Whether replies go up masked, so that the server learns only their sum.
    robust : bool
        Whether the server takes their geometric median instead of the mean.
    """

    run: str
    channels: tuple[str, ...]
    window: int
    observables: int
    horizon: int
    seed: int
    lifting: str
    dimension: int
    encoding: Encoding
    consensus: Consensus
    noise: float = 0.0
    clip: float = 0.1
    secure: bool = False
    robust: bool = False

    @classmethod
    def of(cls, run: str, lifting: Lifting, channels: tuple[str, ...], **rest: Any) -> Terms:
        """Terms with a given lifting."""
        return cls(
            run=run,
            channels=channels,
            window=lifting.window,
            observables=lifting.observables,
            seed=lifting.seed,
            lifting=lifting.digest,
            dimension=lifting.dimension,
            **rest,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of every matrix."""
        return self.dimension, self.consensus.rank

    @property
    def private(self) -> bool:
        """Whether nothing but the masked or noisy matrix may leave a device."""
        return self.secure or self.noise > 0.0

    def header(self) -> dict[str, Value]:
        """The terms as flat values; no step size is one below zero."""
        consensus = asdict(self.consensus)
        if consensus["step_size"] is None:
            consensus["step_size"] = -1.0
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "consensus"}
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            **own,
            "channels": list(self.channels),
            **{f"consensus.{name}": value for name, value in consensus.items()},
        }

    @classmethod
    def read(cls, header: Header) -> Terms:
        """The terms in a header; one of another protocol is refused before anything else in it is looked at."""
        check_protocol(header)
        try:
            consensus = {
                entry.name: entry_value(header, f"consensus.{entry.name}", CONSENSUS[entry.name])
                for entry in fields(Consensus)
            }
            if consensus["step_size"] < 0.0:
                consensus["step_size"] = None
            own = {name: entry_value(header, name, kind) for name, kind in OWN.items()}
            own["channels"] = tuple(own["channels"])
            return cls(**own, consensus=Consensus(**consensus))
        except KeyError as error:
            raise ProtocolError(f"The message has no {error}; it is not of FedKAD's protocol {PROTOCOL}.") from None


OWN: dict[str, type | tuple[str, ...]] = {
    "run": str,
    "channels": list,
    "window": int,
    "observables": int,
    "horizon": int,
    "seed": int,
    "lifting": str,
    "dimension": int,
    "encoding": ENCODINGS,
    "noise": float,
    "clip": float,
    "secure": bool,
    "robust": bool,
}
CONSENSUS: dict[str, type | tuple[str, ...]] = {
    "rank": int,
    "penalty": float,
    "local_steps": int,
    "step_size": float,
    "start": STARTS,
    "loss": LOSSES,
    "ridge": float,
    "ridge_is_absolute": bool,
    "grassmann": bool,
    "seed": int,
}


def entry_value(header: Header, name: str, kind: type | tuple[str, ...]) -> Any:
    """One value of a header, checked to be of its kind or one of the allowed words."""
    value = header[name]
    if isinstance(kind, tuple):
        if value not in kind:
            raise ProtocolError(f"{name} = {value!r} is none of {', '.join(kind)}.")
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ProtocolError(f"{name} = {value!r} must be of type {kind.__name__}.")
    return value


def check_protocol(header: Header) -> None:
    """Refuse a message of another protocol."""
    theirs = header.get("protocol")
    if theirs != PROTOCOL:
        raise ProtocolError(
            f"The message is of protocol {theirs} (fedkad {header.get('version', 'of unknown version')}) and this side "
            f"speaks protocol {PROTOCOL} (fedkad {__version__}); install the same release on server and devices."
        )


NAMES = {
    "run": "training",
    "channels": "channels",
    "window": "window",
    "observables": "number of observables",
    "horizon": "horizon",
    "seed": "seed of the lifting",
    "lifting": "digest of the lifting",
    "dimension": "lifted dimension",
    "encoding": "encoding",
    "consensus": "settings of the consensus",
    "noise": "noise",
    "clip": "clipping bound",
    "secure": "secure aggregation",
    "robust": "robust aggregation",
}
IDENTITY = ("run", "seed", "lifting", "dimension", "encoding")
"""Terms that a reply repeats, with the rank: enough to know that its numbers are meant for this sum."""


def check_terms(ours: Terms, theirs: Terms, us: str, them: str) -> None:
    """Refuse terms that differ from our own, naming the first difference and both sides."""
    for name, words in NAMES.items():
        compare(words, getattr(ours, name), getattr(theirs, name), us, them)


def compare(words: str, ours: Any, theirs: Any, us: str, them: str) -> None:
    """Refuse a value that is not our own; of two lists, what both begin with is left out.

    >>> try:
    ...     compare("channels", ("flow", "level"), ("flow", "speed"), "device 'p'", "the server")
    ... except ProtocolError as error:
    ...     print(error)
    The channels of the server is ..., speed and that of device 'p' ..., level.
    """
    if ours == theirs:
        return
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        alike = sum(takewhile(bool, map(eq, ours, theirs)))
        ours, theirs = (("...",) * bool(alike) + value[alike:] for value in (ours, theirs))
    raise ProtocolError(f"The {words} of {them} is {_short(theirs)} and that of {us} {_short(ours)}.")


def _short(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Request:
    """What the server asks of one device.

    Attributes
    ----------
    kind : {"hello", "warm", "admm", "deliver", "advertise", "share", "reveal"}
        Its name; its weighted directions; a local round; or to take over the final subspace. The others are the
        steps of secure aggregation before and after the reply itself.
    round : int
        The round asked for.
    ticket : str
        Drawn for this request and known to its receiver alone; the reply must show it.
    shared : bytes
        The consensus Z, encoded; empty in a warm round.
    accepted : int
        The last round of this device that the server accepted, −1 for none.
    accepted_ticket : str
        The ticket of the request that was answered then.
    accepted_shared : bytes
        The consensus made of that round; empty where it is `shared` itself.
    least_threshold : float
        On delivery: the fleet's usual threshold, for a device with too few rows of its own.
    masking : mapping
        What secure aggregation says in this step.
    """

    terms: Terms
    kind: Kind
    round: int
    ticket: str
    shared: bytes = b""
    accepted: int = -1
    accepted_ticket: str = ""
    accepted_shared: bytes = b""
    least_threshold: float = 0.0
    masking: Mapping[str, Any] = field(default_factory=dict)

    def header(self) -> dict[str, Value]:
        """The request as flat values."""
        own = {name: getattr(self, name) for name in REQUEST}
        return {**self.terms.header(), **own, **prefixed("masking", self.masking)}

    @classmethod
    def read(cls, header: Header) -> Request:
        """The request in a header."""
        terms = Terms.read(header)
        try:
            own = {name: entry_value(header, name, kind) for name, kind in REQUEST.items()}
            return cls(terms, **own, masking=unprefixed("masking", header))
        except KeyError as error:
            raise ProtocolError(f"The request has no {error}.") from None


REQUEST: dict[str, Any] = {
    "kind": KINDS,
    "round": int,
    "ticket": str,
    "shared": bytes,
    "accepted": int,
    "accepted_ticket": str,
    "accepted_shared": bytes,
    "least_threshold": float,
}


@dataclass(frozen=True)
class Reply:
    """What a device answers.

    `payload` is P + Λ/ρ, or in a warm round the weighted leading directions. `diagnostics` are the few numbers named in
    `DIAGNOSTICS`; where replies are masked or noisy, only the seconds.
    """

    device: str
    payload: bytes = b""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    masking: Mapping[str, Any] = field(default_factory=dict)

    def header(self, request: Request) -> dict[str, Value]:
        """The reply to a request as flat values."""
        terms = request.terms
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            **{name: getattr(terms, name) for name in IDENTITY},
            "rank": terms.consensus.rank,
            "kind": request.kind,
            "round": request.round,
            "ticket": request.ticket,
            "device": self.device,
            "payload": self.payload,
            **prefixed("diagnostics", self.diagnostics),
            **prefixed("masking", self.masking),
        }

    @classmethod
    def read(cls, header: Header, request: Request, device: str) -> Reply:
        """The reply in a header, checked to be of that device and to answer that request."""
        check_protocol(header)
        if "refusal" in header:
            raise ProtocolError(f"It refused: {header['refusal']}")
        terms = request.terms
        expected = {
            **{name: (NAMES[name], getattr(terms, name)) for name in IDENTITY},
            "rank": ("rank", terms.consensus.rank),
            "kind": ("kind", request.kind),
            "round": ("round", request.round),
            "device": ("name", device),
        }
        try:
            for name, (words, ours) in expected.items():
                compare(words, ours, header[name], "the request", "the reply")
            if header["ticket"] != request.ticket:
                raise ProtocolError("The reply does not show the ticket of the request; somebody else sent it.")
            payload = entry_value(header, "payload", bytes)
            found = [name for name in DIAGNOSTICS if f"diagnostics.{name}" in header]
            diagnostics = {name: entry_value(header, f"diagnostics.{name}", float) for name in found}
            if not all(map(math.isfinite, diagnostics.values())):
                raise ProtocolError("The reply has diagnostics that are not finite numbers.")
        except KeyError as error:
            raise ProtocolError(f"The reply has no {error}.") from None
        return cls(device, payload, diagnostics, unprefixed("masking", header))


DIAGNOSTICS = ("seconds", "objective", "change", "threshold")
"""Seconds of computation; f_i after the local round; ‖ΔP_i‖; and, on delivery, the threshold that was set."""


def prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values under names that say where they belong."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def unprefixed(prefix: str, header: Header) -> dict[str, Any]:
    """The values that `prefixed` put into a header."""
    return {name[len(prefix) + 1 :]: value for name, value in header.items() if name.startswith(f"{prefix}.")}


def refusal(reason: str) -> dict[str, Value]:
    """The header of a device that cannot answer, and why."""
    return {"protocol": PROTOCOL, "version": __version__, "refusal": reason}
