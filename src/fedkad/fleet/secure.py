"""A round in which the server learns only the sum: the steps of `masking` carried by the messages of a training.

A round has four exchanges instead of one: devices advertise keys, share secrets, send their masked replies, and reveal
what unmasks the sum of those who got that far. Who did is a participant; who did not has taken no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad.federation import sketch
from fedkad.federation.client import Client
from fedkad.federation.participant import Participant, check_lifting, released
from fedkad.federation.protocol import Kind, ProtocolError, Reply, Request, Terms
from fedkad.federation.training import Training
from fedkad.fleet.masking import (
    Context,
    DeviceSecrets,
    MaskedSum,
    MaskingError,
    advertise,
    default_threshold,
    mask,
    reveal,
    share,
)

Array = NDArray[np.float64]
Answers = dict[str, Reply]
Ask = Callable[[dict[str, Request]], Answers]

FEWEST = 3
"""Devices in a round: with two, each would know the other's reply from the sum."""

BOUND = 4.0
"""Largest entry of what is summed: differences P + Λ/ρ − Z, or sketches of weighted directions."""


class SecureParticipant(Participant):
    """A device whose replies leave it masked."""

    def answer(self, request: Request) -> Reply:
        """Take the step that the server asks for."""
        if not request.terms.secure or request.kind in ("hello", "deliver"):
            return super().answer(request)
        check_lifting(request.terms)
        if request.kind == "advertise":
            number = int(request.masking["device"])
            message, secrets = advertise(Context.from_message(request.masking), number)
        elif request.kind == "share":
            secrets = self._secrets(request)
            message = share(secrets, request.masking)
        elif request.kind == "reveal":
            secrets = self._secrets(request)
            message = reveal(secrets, request.masking)
        else:
            return super().answer(request)
        self._keep(secrets)
        return Reply(self.device, masking=message)

    def _pack(self, client: Client, message: Array, reference: Array, request: Request) -> bytes:
        """The masked integers of the reply. With noise, so much that the sum of a threshold of devices has enough."""
        terms = request.terms
        if not terms.secure:
            return super()._pack(client, message, reference, request)
        secrets = self._secrets(request)
        summed = message - reference
        if request.kind == "warm":
            summed = sketch.sketch(message, probe(terms))
        if terms.noise > 0.0:
            summed = released(summed, request, terms.noise / math.sqrt(secrets.context.threshold))
        masked = mask(secrets, request.masking, summed)
        self._keep(secrets)
        return masked.integers.astype("<u4").tobytes()

    def _secrets(self, request: Request) -> DeviceSecrets:
        path = self.kept.path / "masking.json"
        if not path.exists():
            raise ProtocolError(f"Device {self.device!r} has no keys for round {request.round}; begin it anew.")
        secrets = DeviceSecrets.from_bytes(path.read_bytes())
        if (secrets.context.run, secrets.context.round) != (request.terms.run, request.round):
            raise ProtocolError(
                f"Device {self.device!r} has keys for round {secrets.context.round} of training "
                f"{secrets.context.run}, and the server asks for round {request.round} of {request.terms.run}."
            )
        return secrets

    def _keep(self, secrets: DeviceSecrets) -> None:
        """Before the answer leaves, so that no step is ever taken twice."""
        write_atomically(self.kept.path / "masking.json", secrets.to_bytes())
        (self.kept.path / "masking.json").chmod(0o600)


def probe(terms: Terms) -> Array:
    """The matrix that warm messages are sketched with."""
    return sketch.probe_matrix(*terms.shape, terms.consensus.seed)


def gather(training: Training, requests: Mapping[str, Request], ask: Ask) -> None:
    """The server's side of a round that is open: all four exchanges, and the sum handed to the training.

    `ask` sends requests and brings the replies that came in time. Too few of them at any step end the round, and what
    the devices did in it counts for nothing.
    """
    try:
        survivors, total = _masked_sum(training, requests, ask)
    except MaskingError as error:
        training.void(str(error))
        return
    if training.phase == "admm":
        total = total + len(survivors) * training.shared
    training.take_sum(survivors, total)


def _masked_sum(training: Training, requests: Mapping[str, Request], ask: Ask) -> tuple[Answers, Array]:
    numbers = {name: number for number, name in enumerate(sorted(requests), start=1)}
    names = {number: name for name, number in numbers.items()}

    def step(kind: Kind, said: Mapping[int, Mapping[str, object]]) -> dict[int, Reply]:
        asked = {names[n]: _in_step(requests[names[n]], kind, message) for n, message in said.items()}
        return {numbers[name]: reply for name, reply in ask(asked).items()}

    run, threshold = training.terms.run, default_threshold(len(numbers))
    total = MaskedSum(context := Context(run, training.round, threshold, BOUND))
    keys = step("advertise", {n: {**context.message(), "device": n} for n in names})
    roster = total.roster({n: reply.masking for n, reply in keys.items()})
    shares = step("share", dict.fromkeys(keys, roster))
    boxes = total.forward({n: reply.masking for n, reply in shares.items()})
    masked = {n: reply for n, reply in step(training.phase, boxes).items() if _is_whole(reply, training)}
    verdict = total.settle({n: _integers(reply, training) for n, reply in masked.items()})
    revealed = step("reveal", dict.fromkeys(masked, verdict))
    summed = total.unmask({n: reply.masking for n, reply in revealed.items()})
    return {names[n]: masked[n] for n in total.survivors}, summed


def _in_step(request: Request, kind: Kind, masking: Mapping[str, object]) -> Request:
    """A request in one of the steps; the consensus travels only where the device needs it."""
    if kind in ("warm", "admm"):
        return replace(request, masking=masking)
    return replace(request, kind=kind, masking=masking, shared=b"", accepted_shared=b"")


def _shape(training: Training) -> tuple[int, ...]:
    return training.terms.shape if training.phase == "admm" else probe(training.terms).shape


def _is_whole(reply: Reply, training: Training) -> bool:
    return len(reply.payload) == 4 * math.prod(_shape(training))


def _integers(reply: Reply, training: Training) -> NDArray[np.uint32]:
    return np.frombuffer(reply.payload, dtype="<u4").reshape(_shape(training))
