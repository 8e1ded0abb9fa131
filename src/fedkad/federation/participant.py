"""A device's side of a training as a function: from what it knows and a request to what it knows then and a reply.

A request is answered in three steps. First the pending round is settled: if the request says that it was accepted, the
dual moves on with the consensus of that round; otherwise what was computed is dropped. Then the reply is computed, and
then packed. Nothing here reads or writes a disk; `durable` keeps a participant in a folder, and `memory` in a mapping.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.learning import adopt
from fedkad.detect.model import Memory, Model
from fedkad.federation import wire
from fedkad.federation.advice import kept_advice, own_threshold
from fedkad.federation.client import Client, LocalState
from fedkad.federation.packing import Draft, pack
from fedkad.federation.protocol import Kind, ProtocolError, Reply, Request
from fedkad.federation.settings import Encoding
from fedkad.koopman.stiefel import retract_polar

if TYPE_CHECKING:
    from fedkad.federation.secure.device import DeviceSecrets

Array = NDArray[np.float64]

LEARNING: tuple[Kind, ...] = ("warm", "admm", "deliver")
"""Requests that need the statistics of the device."""


class ReleaseError(ValueError):
    """A device has sent as many noisy replies as it may."""


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
    """What a device knows when a request comes.

    Attributes
    ----------
    name : str
    memory : Memory, optional
        What it keeps of its data; None where the request does not need it.
    client : Client, optional
        The steps of the consensus on the statistics in this memory.
    model : Model, optional
        The model in use; a delivery replaces it.
    progress : Progress
    secrets : DeviceSecrets, optional
        Those of secure aggregation, in the middle of a round.
    releases, most_releases : int
        How often something with noise has left the device, and how often it may.
    """

    name: str
    memory: Memory | None = None
    client: Client | None = None
    model: Model | None = None
    progress: Progress = field(default_factory=Progress)
    secrets: DeviceSecrets | None = None
    releases: int = 0
    most_releases: int | None = None


def answer(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """Do what the server asks; a `ProtocolError` says what is wrong with the request, other errors are the device's."""
    if request.kind == "deliver":
        return _adopt(participant, request)
    if request.kind in ("warm", "admm"):
        return _take_part(participant, request)
    from fedkad.federation.secure.packing import take_step

    message, secrets = take_step(participant.name, request, participant.secrets)
    return replace(participant, secrets=secrets), Reply(participant.name, masking=message)


def settle(participant: Participant, request: Request) -> Participant:
    """Commit the pending round if the request says that it was accepted."""
    known, client = participant.progress, participant.client
    if request.round < known.pending or request.round <= known.committed or request.accepted < known.committed:
        raise ProtocolError(
            f"The server asks for round {request.round}, having accepted round {request.accepted}, and device "
            f"{participant.name!r} has computed round {known.pending} and committed round {known.committed} of this "
            "training."
        )
    if request.accepted <= known.committed:
        return participant
    if known.computed is None or (known.pending, known.ticket) != (request.accepted, request.accepted_ticket):
        raise ProtocolError(
            f"The server accepted round {request.accepted} of device {participant.name!r}, whose folder does not "
            "know of it; it was replaced or damaged, and the device takes part again in the next training."
        )
    assert client is not None
    shared = _decoded(request.accepted_shared or request.shared, request)
    state = client.commit(known.computed, shared)
    return replace(participant, progress=Progress(request.accepted, state=state))


def _take_part(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """The reply to a warm round or to a round of the ADMM."""
    settled = settle(participant, request)
    client, progress = settled.client, settled.progress
    assert client is not None
    diagnostics: dict[str, float] = {}
    if request.kind == "warm":
        draft = Draft(settled.name, request, client.warm_message(), np.zeros(request.terms.shape))
    else:
        shared = _decoded(request.shared, request)
        # Before its first accepted round a device begins at the Z of the day.
        state = client.begin(shared) if progress.committed < 0 or progress.state is None else progress.state
        computed = client.local_round(state, shared)
        draft = Draft(settled.name, request, client.reply(computed), shared, computed.unsent)
        diagnostics["objective"] = client.objective(computed.subspace, reduced=computed.reduced)
        diagnostics["change"] = float(np.linalg.norm(computed.subspace - state.subspace))
    if request.terms.noise > 0.0:
        settled = _count_release(settled)
    packed = pack(draft, settled.secrets)
    if packed.masking:  # why no masked reply can be made; the round leaves no trace
        return replace(participant, releases=settled.releases), Reply(settled.name, masking=packed.masking)
    settled = replace(settled, secrets=packed.secrets)
    if request.kind == "admm":
        computed = computed._replace(unsent=packed.unsent)
        progress = Progress(progress.committed, request.round, request.ticket, state, computed)
        settled = replace(settled, progress=progress)
    return settled, Reply(settled.name, packed.payload, {} if request.terms.private else diagnostics)


def _adopt(participant: Participant, request: Request) -> tuple[Participant, Reply]:
    """Adopt the final subspace; a threshold set by hand stays, and a training that is over leaves nothing behind."""
    assert participant.memory is not None
    subspace = final_subspace(request.shared, request.terms.shape, wire.downward(request.terms.encoding))
    least = max(request.least_threshold, kept_advice(participant.model))
    model = adopt(participant.memory, subspace, least_threshold=least, previous=participant.model)
    own = own_threshold(model)
    told = {} if request.terms.private or own is None else {"threshold": own}
    after = replace(participant, model=model, progress=Progress(), secrets=None)
    return after, Reply(participant.name, diagnostics=told)


@lru_cache(maxsize=1)
def final_subspace(payload: bytes, shape: tuple[int, int], encoding: Encoding) -> Array:
    """The orthonormal factor of the final Z; read-only, since all models of one process share it."""
    subspace = retract_polar(wire.decode(payload, shape, encoding))
    subspace.flags.writeable = False
    return subspace


def _count_release(participant: Participant) -> Participant:
    count, most = participant.releases, participant.most_releases
    if most is not None and count >= most:
        raise ReleaseError(f"The device has sent {count} noisy replies, all that most_releases in device.toml allows.")
    return replace(participant, releases=count + 1)


def _decoded(payload: bytes, request: Request) -> Array:
    return wire.decode(payload, request.terms.shape, wire.downward(request.terms.encoding))
