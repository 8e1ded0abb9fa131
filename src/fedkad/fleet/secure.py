"""A round in which the server learns only the sum: the steps of `masking` carried by the messages of a training.

A round has four exchanges instead of one: devices advertise keys, share secrets, send their masked replies, and reveal
what unmasks the sum of those who got that far. Who did is a participant; who did not has taken no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.federation import sketch
from fedkad.federation.client import Client
from fedkad.federation.participant import Participant
from fedkad.federation.protocol import Kind, ProtocolError, Reply, Request, Terms
from fedkad.federation.training import Training
from fedkad.fleet.masking import (
    MODULUS,
    Context,
    DeviceSecrets,
    MaskedSum,
    MaskingError,
    SharesError,
    advertise,
    default_threshold,
    mask,
    reveal,
    share,
)
from fedkad.fleet.private import write_private

Array = NDArray[np.float64]
Answers = dict[str, Reply]
Ask = Callable[[dict[str, Request]], Answers]
Check = Callable[[int, Reply], object]

BOUND, DEVIATIONS, LEVELS = 4.0, 7.0, 2**20
"""Largest entry of what is summed, differences P + Λ/ρ − Z or sketches of weighted directions, without noise; how many
deviations of noise find room besides; steps of the grid, as long as the sum of all devices has room."""

UNOPENED = "unopened"
"""What a device says instead of a masked reply: the number of the device whose box for it does not open."""


class SecureParticipant(Participant):
    """A device whose replies leave it masked, where the fleet asks for it."""

    def _answer(self, request: Request) -> Reply:
        """Take the step that the server asks for."""
        if request.kind == "advertise":
            message, secrets = advertise(Context.from_message(request.masking), int(request.masking["device"]))
        elif request.kind == "share":
            message = share(secrets := self._secrets(request), request.masking)
        elif request.kind == "reveal":
            message = reveal(secrets := self._secrets(request), request.masking)
        else:
            return self._answer_itself(request)
        self._keep(secrets)
        return Reply(self.device, masking=message)

    def _answer_itself(self, request: Request) -> Reply:
        """The reply that the other steps are about; or whose shares keep the device from it, which is not its fault."""
        try:
            reply = super()._answer(request)
        except SharesError as error:
            return Reply(self.device, masking={UNOPENED: error.device})
        if request.kind == "deliver":
            self._secrets_file.unlink(missing_ok=True)
        return reply

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
            summed = self._released(summed, request, terms.noise / math.sqrt(secrets.context.threshold))
        masked = mask(secrets, request.masking, summed)
        if masked.clipped:
            raise ProtocolError(
                f"{masked.clipped} numbers of the reply of device {self.device!r} are beyond the range of the sum, "
                f"{secrets.context.bound:g}, and cutting them would change it."
            )
        self._keep(secrets)
        return masked.integers.astype("<u4").tobytes()

    @property
    def _secrets_file(self) -> Path:
        return self.kept.path / "masking.json"

    def _secrets(self, request: Request) -> DeviceSecrets:
        if not self._secrets_file.exists():
            raise ProtocolError(f"Device {self.device!r} has no keys for round {request.round}; begin it anew.")
        secrets = DeviceSecrets.from_bytes(self._secrets_file.read_bytes())
        if (secrets.context.run, secrets.context.round) != (request.terms.run, request.round):
            raise ProtocolError(
                f"Device {self.device!r} has keys for round {secrets.context.round} of training "
                f"{secrets.context.run}, and the server asks for round {request.round} of {request.terms.run}."
            )
        return secrets

    def _keep(self, secrets: DeviceSecrets) -> None:
        """Before the answer leaves, so that no step is ever taken twice."""
        write_private(self._secrets_file, secrets.to_bytes())


def probe(terms: Terms) -> Array:
    """The matrix that warm messages are sketched with."""
    return sketch.probe_matrix(*terms.shape, terms.consensus.seed)


def context_of(training: Training, devices: int) -> Context:
    """What the devices of a round agree on: the range of the sum leaves room for the noise, too."""
    terms, threshold = training.terms, default_threshold(devices)
    longest = 1.0 if training.phase == "warm" else terms.clip
    bound = BOUND + DEVIATIONS * terms.noise * longest / math.sqrt(threshold)
    return Context(terms.run, training.round, threshold, bound, min(LEVELS, (MODULUS - 1) // (2 * devices)))


def gather(training: Training, requests: Mapping[str, Request], ask: Ask) -> None:
    """The server's side of a round that is open: all four exchanges, and the sum handed to the training.

    `ask` sends requests and brings the replies that came in time. Too few of them at any step end the round, and what
    the devices did in it counts for nothing. Who sends what makes no sense in a step is refused and left out.
    """
    names = dict(enumerate(sorted(requests), start=1))
    try:
        survivors, total = _masked_sum(training, requests, names, ask)
    except SharesError as error:
        maker = names[error.device]
        training.void(
            f"The shares of device {maker!r} do not join: it made wrong ones, or others gave wrong ones back."
        )
        return
    except MaskingError as error:
        training.void(str(error))
        return
    if training.phase == "admm":
        total = total + len(survivors) * training.shared
    training.take_sum(survivors, total)


def _masked_sum(
    training: Training, requests: Mapping[str, Request], names: Mapping[int, str], ask: Ask
) -> tuple[list[str], Array]:
    def step(kind: Kind, said: Mapping[int, Mapping[str, object]], check: Check) -> dict[int, Reply]:
        asked = {names[n]: _in_step(requests[names[n]], kind, message) for n, message in said.items()}
        replies = ask(asked)
        return {
            n: replies[name]
            for n, name in names.items()
            if name in replies and _is_sound(training, kind, check, n, replies[name])
        }

    total = MaskedSum(context := context_of(training, len(names)))
    opening = {n: {**context.message(), "device": n} for n in names}
    keys = step("advertise", opening, lambda n, reply: total.check_keys(n, reply.masking))
    roster = total.roster({n: reply.masking for n, reply in keys.items()})
    shares = step("share", dict.fromkeys(keys, roster), lambda n, reply: total.check_shares(n, reply.masking))
    boxes = total.forward({n: reply.masking for n, reply in shares.items()})
    senders = {n: names[n] for n in boxes}
    masked = step(training.phase, boxes, lambda n, reply: _check_masked(reply, senders, training))
    training.keep_for_sum()
    verdict = total.settle({n: _integers(reply, training) for n, reply in masked.items()})
    revealed = step("reveal", dict.fromkeys(masked, verdict), lambda n, reply: total.check_revealed(reply.masking))
    summed = total.unmask({n: reply.masking for n, reply in revealed.items()})
    return [names[n] for n in total.survivors], summed


def _in_step(request: Request, kind: Kind, masking: Mapping[str, object]) -> Request:
    """A request in one of the steps; the consensus travels only where the device needs it."""
    if kind in ("warm", "admm"):
        return replace(request, masking=masking)
    return replace(request, kind=kind, masking=masking, shared=b"", accepted_shared=b"")


def _is_sound(training: Training, kind: Kind, check: Check, number: int, reply: Reply) -> bool:
    """Whether a device said what its step asks for; if not, it is refused by name, and the others go on.

    It gets no strike for what somebody else sent it.
    """
    try:
        check(number, reply)
    except SharesError as error:
        training.refuse(reply.device, str(error), strike=False)
        return False
    except MaskingError as error:
        training.refuse(
            reply.device, f"What it sent in the step {kind!r} of secure aggregation makes no sense. {error}"
        )
        return False
    return True


def _check_masked(reply: Reply, senders: Mapping[int, str], training: Training) -> None:
    """Refuse a masked reply of another size, and the word of a device that it cannot mask with the shares it got."""
    blamed = reply.masking.get(UNOPENED)
    if type(blamed) is int and senders.get(blamed, reply.device) != reply.device:
        raise SharesError(blamed, f"It cannot open the shares that device {senders[blamed]!r} made for it.")
    if len(reply.payload) != (size := 4 * math.prod(_shape(training))):
        raise MaskingError(f"The masked reply has {len(reply.payload)} bytes and not {size}; do not use it.")


def _shape(training: Training) -> tuple[int, ...]:
    return training.terms.shape if training.phase == "admm" else probe(training.terms).shape


def _integers(reply: Reply, training: Training) -> NDArray[np.uint32]:
    return np.frombuffer(reply.payload, dtype="<u4").reshape(_shape(training))
