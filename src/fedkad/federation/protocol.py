"""What server and device say to each other, whatever carries it: flat headers and payloads of bytes.

A training is a series of rounds. The server sends a `Request`; the device answers with a `Reply`, or with a `refusal`
that says in one sentence why it cannot. Every request carries the `Terms` of the training, and every reply repeats
those that identify it: two sides that differ in version, lifting or sizes never mix their numbers.

A reply counts only once the server has accepted it: the device keeps what it computed as pending, and the next request
says which of its rounds was accepted, with the consensus made of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from itertools import takewhile
from operator import eq
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from fedkad import __version__
from fedkad.detect.threshold import USUAL_SHAPE
from fedkad.federation.settings import Consensus, Encoding
from fedkad.koopman.lifting import Lifting

PROTOCOL = 1
"""Raised when a message changes its meaning."""

Kind = Literal["hello", "warm", "admm", "judge", "deliver", "advertise", "share", "reveal"]
Phase = Literal["warm", "admm"]
Value = int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]
Header = Mapping[str, Any]

STAMP: dict[str, Value] = {"protocol": PROTOCOL, "version": __version__}
"""What every header begins with."""


class ProtocolError(ValueError):
    """A message that is refused; the sentence names both sides where they differ."""


class UnsentError(ProtocolError):
    """A noisy reply that was drawn and cannot be sent; saying so tells something about it, so it counts as sent."""


# -- headers ------------------------------------------------------------------------------------------------------


@cache
def flat_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are one value each in a header, with their types."""
    hints = get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if not is_dataclass(hint) and get_origin(hint) is not Mapping}


def flat_values(entries: Any) -> dict[str, Value]:
    """Flatten a dataclass: a tuple becomes a list, and None a number below zero."""
    kind: Any = type(entries)
    values = {name: getattr(entries, name) for name in flat_fields(kind)}
    return {k: list(v) if isinstance(v, tuple) else -1.0 if v is None else v for k, v in values.items()}


def read_fields(kind: type, header: Header, prefix: str = "") -> dict[str, Any]:
    """Read what `flat_values` made of a dataclass, each value checked against the type of its field."""
    return {name: entry_value(header, prefix + name, hint) for name, hint in flat_fields(kind).items()}


def entry_value(header: Header, name: str, hint: Any) -> Any:
    """Return one value of a header, checked to be there and of its type, or one of the allowed words."""
    if name not in header:
        raise ProtocolError(f"The message has no {name!r}; it does not follow protocol {PROTOCOL}.")
    value = header[name]
    if hint is Any:
        return value
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ProtocolError(f"{name} = {value!r} must be one of {', '.join(get_args(hint))}.")
        return value
    wanted: Any = list if get_origin(hint) is tuple else float if hint == float | None else hint
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise ProtocolError(f"{name} = {value!r} must be of type {wanted.__name__}.")
    if hint == float | None:
        return None if value < 0.0 else value
    return tuple(value) if wanted is list else value


def prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Put a prefix before all names."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def unprefixed(prefix: str, header: Header) -> dict[str, Any]:
    """Return the values whose names have the prefix, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in header.items() if name.startswith(f"{prefix}.")}


def check_protocol(header: Header) -> None:
    """Refuse a message of another protocol."""
    theirs, release = header.get("protocol"), header.get("version", "of unknown version")
    if theirs != PROTOCOL:
        older = __version__ if isinstance(theirs, int) and theirs > PROTOCOL else release
        raise ProtocolError(
            f"The message uses protocol {theirs} (fedkad {release}) and this side speaks protocol {PROTOCOL} "
            f"(fedkad {__version__}); upgrade the side that has fedkad {older}."
        )


# -- terms --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms:
    """What both sides must agree on before their numbers mean the same."""

    run: str  # the training; a device that meets a new one starts afresh
    channels: tuple[str, ...]  # their names, in their order
    window: int  # this and the next three: of the lifting and of the detectors
    observables: int
    horizon: int
    seed: int
    lifting: str  # digest of the lifting's numbers: the proof that the same seed gave the same ones
    dimension: int  # D, rows of every matrix; the columns are `consensus.rank`
    encoding: Encoding  # of the numbers on the wire
    consensus: Consensus
    noise: float = 0.0  # noise multiplier of differential privacy, 0 for none
    clip: float = 0.1  # the bound to which P + Λ/ρ − Z is clipped where there is noise
    secure: bool = False  # replies go up masked, so that the server learns only their sum
    robust: bool = False  # the server takes the median instead of the mean, and leaves out who pulls alone

    @classmethod
    def of(cls, run: str, lifting: Lifting, channels: tuple[str, ...], **rest: Any) -> Self:
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
        """Return the terms as flat values."""
        return {**STAMP, **flat_values(self), **prefixed("consensus", flat_values(self.consensus))}

    @classmethod
    def read(cls, header: Header) -> Self:
        """Read the terms in a header; another protocol is refused before anything else is read."""
        check_protocol(header)
        consensus = Consensus(**read_fields(Consensus, header, "consensus."))
        return cls(**read_fields(cls, header), consensus=consensus)


WORDS = {
    "run": "training",
    "observables": "number of observables",
    "seed": "seed of the lifting",
    "lifting": "digest of the lifting",
    "dimension": "lifted dimension",
    "consensus": "settings of the consensus",
    "clip": "clipping bound",
    "secure": "secure aggregation",
    "robust": "robust aggregation",
    "device": "name",
}
"""What messages call those entries whose own names do not explain themselves."""

IDENTITY = ("run", "seed", "lifting", "dimension", "encoding")
"""Terms that a reply repeats, with the rank: enough to know that its numbers are meant for this sum."""


def check_terms(ours: Terms, theirs: Terms, us: str, them: str) -> None:
    """Refuse terms that differ from our own, naming the first difference and both sides."""
    for name, value in vars(ours).items():
        compare(WORDS.get(name, name), value, getattr(theirs, name), us, them)


def compare(words: str, ours: Any, theirs: Any, us: str, them: str) -> None:
    """Refuse a value that differs from our own; two lists are shown from where they part.

    >>> try:
    ...     compare("channels", ("flow", "level"), ("flow", "speed"), "device 'p'", "the server")
    ... except ProtocolError as error:
    ...     print(error)
    The channels differ: the server has ..., speed; device 'p' has ..., level.
    """
    if ours == theirs:
        return
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        alike = sum(takewhile(bool, map(eq, ours, theirs)))
        ours, theirs = (("...",) * bool(alike) + value[alike:] for value in (ours, theirs))
    verb = "differ" if words.endswith("s") else "differs"
    raise ProtocolError(f"The {words} {verb}: {them} has {_short(theirs)}; {us} has {_short(ours)}.")


def _short(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- messages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What the server asks of one device.

    Its name ("hello"); its weighted directions ("warm"); a local round ("admm"); to compare the final subspace with the
    current one ("judge"); or to adopt it ("deliver"). The other kinds are the steps of secure aggregation before and
    after the reply itself.
    """

    terms: Terms
    kind: Kind
    round: int
    ticket: str  # drawn for this request and known to its receiver alone; the reply must show it
    shared: bytes = b""  # the consensus Z, encoded; empty in a warm round
    accepted: int = -1  # the last round of this device that the server accepted, −1 for none
    accepted_ticket: str = ""  # of the request that was answered then
    accepted_shared: bytes = b""  # the consensus made of that round; empty where it is `shared` itself; to judge: the
    # current subspace
    least_threshold: float = 0.0  # on delivery: the fleet's usual threshold, for a device with too few rows of its own
    usual_shape: float = USUAL_SHAPE  # on delivery, for the same device: of the tails of the fleet's scores
    masking: Mapping[str, Any] = field(default_factory=dict)  # what secure aggregation says in this step

    @property
    def bound(self) -> float:
        """The norm to which a reply is clipped before noise; a warm message is never longer than 1."""
        return 1.0 if self.kind == "warm" else self.terms.clip

    def header(self) -> dict[str, Value]:
        """Return the request as flat values."""
        return {**self.terms.header(), **flat_values(self), **prefixed("masking", self.masking)}

    @classmethod
    def read(cls, header: Header) -> Self:
        """Read the request in a header."""
        header = {"usual_shape": USUAL_SHAPE, **header}  # the first servers do not send it
        return cls(Terms.read(header), **read_fields(cls, header), masking=unprefixed("masking", header))


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

    def timed(self, seconds: float) -> Self:
        """Add the seconds that the reply took to compute."""
        return replace(self, diagnostics={"seconds": seconds, **self.diagnostics})

    def header(self, request: Request) -> dict[str, Value]:
        """Return the reply to a request as flat values."""
        return {
            **STAMP,
            **_identity(request, self.device),
            "ticket": request.ticket,
            "payload": self.payload,
            **prefixed("diagnostics", self.diagnostics),
            **prefixed("masking", self.masking),
        }

    @classmethod
    def read(cls, header: Header, request: Request, device: str) -> Self:
        """Read the reply in a header, checked to come from that device and to answer that request."""
        check_protocol(header)
        if "refusal" in header:
            raise ProtocolError(f"It refused: {header['refusal']}")
        for name, ours in _identity(request, device).items():
            compare(WORDS.get(name, name), ours, entry_value(header, name, Any), "the request", "the reply")
        if entry_value(header, "ticket", Any) != request.ticket:
            raise ProtocolError("The reply does not show the ticket of the request; another sender made it.")
        payload = entry_value(header, "payload", bytes)
        names = [name for name in DIAGNOSTICS if f"diagnostics.{name}" in header]
        diagnostics = {name: entry_value(header, f"diagnostics.{name}", float) for name in names}
        if not all(map(math.isfinite, diagnostics.values())):
            raise ProtocolError("The reply has diagnostics that are not finite numbers.")
        return cls(device, payload, diagnostics, unprefixed("masking", header))


Answer = Reply | Header | str
"""What comes back: a reply in this process, its header from elsewhere, or why the network has none."""


def _identity(request: Request, device: str) -> dict[str, Value]:
    """Identify a request and the sender of the reply to it."""
    terms = request.terms
    own = {name: getattr(terms, name) for name in IDENTITY}
    return {**own, "rank": terms.consensus.rank, "kind": request.kind, "round": request.round, "device": device}


DIAGNOSTICS = ("seconds", "objective", "change", "threshold", "shape", "loss", "current_loss")
"""Seconds of computation; f_i after the local round; ‖ΔP_i‖; and, on delivery, the threshold that was set and the shape
of the tail that it rests on; and, as a judge, the losses in the new subspace and in the current one."""


def refusal(reason: str) -> dict[str, Value]:
    """Make the header of a device that cannot answer, and says why."""
    return {**STAMP, "refusal": reason}
