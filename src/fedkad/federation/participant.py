"""A device's side of a training as a function: from what it knows and a request to what it knows then and a reply.

A request is answered in three steps. First the pending round is committed: if the request says that it was accepted,
the dual moves on with the consensus of that round; otherwise what was computed is dropped. Then the reply is computed,
and then packed: encoded, with noise if the fleet asks for it, or masked. Nothing here reads or writes a disk; `durable`
keeps a participant in a folder, and `local` in a mapping.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.learning import adopt
from fedkad.detect.model import Memory, Model
from fedkad.detect.threshold import USUAL_SHAPE
from fedkad.federation import privacy, wire
from fedkad.federation.client import Client, LocalState
from fedkad.federation.gate import OPINION, Judgement, held_out_losses
from fedkad.federation.protocol import Kind, ProtocolError, Reply, Request, Terms
from fedkad.federation.settings import Encoding
from fedkad.koopman.stiefel import retract_polar

if TYPE_CHECKING:
    from fedkad.federation.secure.device import DeviceSecrets

Array = NDArray[np.float64]

LEARNING: tuple[Kind, ...] = ("warm", "admm", "judge", "deliver")
"""Requests that need the statistics of the device."""


@dataclass(frozen=True)
class OwnTerms:
    """What the owner of a device demands of every training, whatever its server asks for."""

    secure_aggregation: bool = False  # replies leave the device masked or not at all
    noise: float = 0.0  # the least noise multiplier of differential privacy
    most_releases: int | None = None  # how many replies may ever leave the device, with noise or without

    @property
    def private(self) -> bool:
        """Whether nothing but matrices may leave the device, masked, noisy or counted."""
        return self.secure_aggregation or self.noise > 0.0 or self.most_releases is not None

    def allow_opinion(self, terms: Terms) -> bool:
        """Return whether the device may tell how much it loses, which would be a further release."""
        is_counted = terms.noise > 0.0 or self.noise > 0.0 or self.most_releases is not None
        return not is_counted and (terms.secure or not self.secure_aggregation)

    def require(self, device: str, terms: Terms, releases: int) -> None:
        """Refuse a training that asks for less, or a reply too many."""
        mine = f"device {device!r} takes part only with"
        if self.secure_aggregation and not terms.secure:
            raise ProtocolError(f"The server asks for replies without masks, and {mine} secure aggregation.")
        if not terms.noise >= self.noise:  # nor for what is no number
            raise ProtocolError(f"The server asks for noise {terms.noise:g}, and {mine} at least {self.noise:g}.")
        if self.most_releases is not None and releases >= self.most_releases:
            raise ProtocolError(
                f"Device {device!r} has sent {releases} replies, all that most_releases in its device.toml allows."
            )


@dataclass(frozen=True)
class Progress:
    """How far a device has come in one training.

    `state` is that of the round `committed`. `computed` is what the device made of the round `pending`, asked for with
    `ticket`; it becomes the state once the server says that it accepted that round. −1 stands for no round.
    """

    committed: int = -1
    pending: int = -1
    ticket: str = ""
    state: LocalState | None = None
    computed: LocalState | None = None


@dataclass(frozen=True)
class Participant:
    """What a device knows when a request comes."""

    name: str
    memory: Memory | None = None  # what it keeps of its data; None where the request does not need it
    client: Client | None = None  # the steps of the consensus on the statistics in this memory
    model: Model | None = None  # the one in use; a delivery replaces it
    progress: Progress = field(default_factory=Progress)
    secrets: DeviceSecrets | None = None  # of secure aggregation, in the middle of a round
    releases: int = 0  # how many replies have left the device
    own_terms: OwnTerms = field(default_factory=OwnTerms)


class Packed(NamedTuple):
    """A packed reply: its payload, what rounding leaves unsent, and what secure aggregation says and remembers."""

    payload: bytes
    unsent: Array | float
    masking: dict[str, Any]
    secrets: DeviceSecrets | None


def answer(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """Return what the device knows after a request, and its reply.

    A `ProtocolError` says what is wrong with the request; other errors are the device's.
    """
    if request.kind == "deliver":
        return _adopt(participant, request)
    if request.kind == "judge":
        return _judge(participant, request)
    if request.kind in ("warm", "admm"):
        return _take_part(participant, request)
    from fedkad.federation.secure.device import take_step  # needs an extra

    message, secrets = take_step(participant.name, participant.secrets, request)
    return replace(participant, secrets=secrets), Reply(participant.name, masking=message)


def commit_round(participant: Participant, request: Request) -> Participant:
    """Commit the pending round if the request says that it was accepted."""
    progress, client = participant.progress, participant.client
    last = progress.committed
    if request.round < progress.pending or request.round <= last or request.accepted < last:
        raise ProtocolError(
            f"The server asks for round {request.round}, having accepted round {request.accepted}, and device "
            f"{participant.name!r} has computed round {progress.pending} and committed round {last} of this training."
        )
    if request.accepted <= last:
        return participant
    if progress.computed is None or (progress.pending, progress.ticket) != (request.accepted, request.accepted_ticket):
        raise ProtocolError(
            f"The server accepted round {request.accepted} of device {participant.name!r}, but its folder has "
            "no record of that round; it was replaced or damaged, and the device takes part again in the next training."
        )
    assert client is not None
    state = client.commit(progress.computed, _decoded(request.accepted_shared or request.shared, request))
    return replace(participant, progress=Progress(request.accepted, state=state))


def _take_part(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """Answer in a warm round or a round of the ADMM."""
    participant.own_terms.require(participant.name, request.terms, participant.releases)
    committed = commit_round(participant, request)
    client, progress = committed.client, committed.progress
    assert client is not None
    diagnostics: dict[str, float] = {}
    if request.kind == "warm":
        packed = pack(committed, request, client.warm_message(), np.zeros(request.terms.shape))
    else:
        shared = _decoded(request.shared, request)
        # Before its first accepted round a device begins at the Z of the day.
        state = client.begin(shared) if progress.committed < 0 or progress.state is None else progress.state
        computed = client.local_round(state, shared)
        packed = pack(committed, request, client.reply(computed), shared, computed.unsent)
        computed = computed._replace(unsent=packed.unsent)
        progress = Progress(progress.committed, request.round, request.ticket, state, computed)
        diagnostics["objective"] = client.objective(computed.subspace, reduced=computed.reduced)
        diagnostics["change"] = float(np.linalg.norm(computed.subspace - state.subspace))
    releases = participant.releases + 1
    if packed.masking:  # why no masked reply can be made; the round leaves no trace but its count
        return replace(participant, releases=releases), Reply(participant.name, masking=packed.masking)
    after = replace(committed, progress=progress, secrets=packed.secrets, releases=releases)
    return after, Reply(participant.name, packed.payload, {} if request.terms.private else diagnostics)


def pack(
    participant: Participant, request: Request, message: Array, reference: Array, unsent: Array | float = 0.0
) -> Packed:
    """Pack a reply, stated in relation to a reference, as the terms of the training ask for it."""
    terms = request.terms
    if terms.secure:
        from fedkad.federation.secure.device import pack_masked  # needs an extra

        payload, masking, secrets = pack_masked(participant.name, participant.secrets, request, message, reference)
        return Packed(payload, unsent, masking, secrets)
    if terms.noise > 0.0:
        message = reference + privacy.release(message - reference, request.bound, terms.noise)
    message = message - wire.reference(reference, terms.encoding)
    if request.kind == "admm" and terms.encoding == "int8":
        payload, unsent = wire.encode_with_feedback(message, unsent)
    else:
        payload = wire.encode(message, terms.encoding)
    return Packed(payload, unsent, {}, participant.secrets)


def _judge(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """Compare how well the device predicts its own rows in the new subspace and in the current one."""
    terms = request.terms
    if not participant.own_terms.allow_opinion(terms):
        raise ProtocolError(
            f"Device {participant.name!r} does not judge: the noise of this training or the terms of its owner forbid "
            "it to tell a loss."
        )
    assert participant.memory is not None
    encoding = wire.downward(terms.encoding)
    payloads = (request.shared, request.accepted_shared)
    subspaces = [final_subspace(payload, terms.shape, encoding) for payload in payloads]
    judged = Judgement(*held_out_losses(participant.memory, subspaces))
    if not terms.secure:
        return participant, Reply(participant.name, diagnostics={"loss": judged.new, "current_loss": judged.current})
    packed = pack(participant, request, np.full(OPINION, judged.clipped), np.zeros(OPINION))
    return replace(participant, secrets=packed.secrets), Reply(participant.name, packed.payload, masking=packed.masking)


def _adopt(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """Adopt the final subspace; a threshold set by hand stays, and a training that is over leaves nothing behind."""
    assert participant.memory is not None
    subspace = final_subspace(request.shared, request.terms.shape, wire.downward(request.terms.encoding))
    least, shape, used = request.least_threshold, request.usual_shape, participant.model
    if used is not None and used.needs_advice:  # the advice of before, while a new training has no newer one yet
        least, shape = max(least, used.least_threshold), used.usual_shape if shape == USUAL_SHAPE else shape
    model = adopt(participant.memory, subspace, least_threshold=least, usual_shape=shape, previous=used)
    is_secret = request.terms.private or participant.own_terms.private
    advice = {"threshold": own_threshold(model), "shape": own_shape(model)}
    diagnostics = {name: value for name, value in advice.items() if value is not None and not is_secret}
    after = replace(participant, model=model, progress=Progress(), secrets=None)
    return after, Reply(participant.name, diagnostics=diagnostics)


def own_threshold(model: Model) -> float | None:
    """Return the threshold of a device if it may advise others, None otherwise.

    The device must have found it itself, on enough rows, unadvised, and not set by hand; and its scores must be
    comparable between devices, which those of the paper's kind are not.
    """
    foreign = model.few_rows or model.least_threshold > 0.0 or model.by_hand
    return model.threshold if model.settings.scoring.is_comparable and not foreign else None


def own_shape(model: Model) -> float | None:
    """Return the shape of the tail of a device's scores by its own peaks, if the device may advise others."""
    rule = None if own_threshold(model) is None else model.found
    return None if rule is None else rule.own_shape


@lru_cache(maxsize=1)
def final_subspace(payload: bytes, shape: tuple[int, int], encoding: Encoding) -> Array:
    """Decode the orthonormal factor of the final Z; read-only, since all models of one process share it."""
    subspace = retract_polar(wire.decode(payload, shape, encoding))
    subspace.flags.writeable = False
    return subspace


def _decoded(payload: bytes, request: Request) -> Array:
    return wire.decode(payload, request.terms.shape, wire.downward(request.terms.encoding))
