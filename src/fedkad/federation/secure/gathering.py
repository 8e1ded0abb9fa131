"""The server's side of a round in which it learns only the sum.

A round has four exchanges instead of one: devices advertise keys, share secrets, send their masked replies, and reveal
what unmasks the sum of those that got that far. These are the participants; the others have taken no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.coordinator import Coordinator
from fedkad.federation.protocol import Kind, Reply, Request
from fedkad.federation.secure.grid import MODULUS, Integers
from fedkad.federation.secure.messages import MaskingError, SharesError
from fedkad.federation.secure.packing import UNOPENED, probe
from fedkad.federation.secure.server import MaskedSum
from fedkad.federation.secure.session import MaskingContext, default_threshold

Ask = Callable[[dict[str, Request]], dict[str, Reply]]
Check = Callable[[int, Reply], object]

BOUND, DEVIATIONS, LEVELS = 4.0, 7.0, 2**20
"""Largest entry of what is summed, differences P + Λ/ρ − Z or sketches of weighted directions, without noise; how many
deviations of noise the range leaves room for; steps of the grid, if the sum of all devices leaves room for them."""


def gather(coordinator: Coordinator, requests: Mapping[str, Request], ask: Ask) -> None:
    """Go through all four exchanges of an open round, and hand the sum to the coordinator.

    `ask` sends requests and returns the replies that came in time. Too few of them at any step end the round, and what
    the devices did in it counts for nothing. A device that sends something invalid in a step is refused and left out.
    """
    names = dict(enumerate(sorted(requests), start=1))
    try:
        survivors, total = _masked_sum(coordinator, requests, names, ask)
    except SharesError as error:
        maker = names[error.device]
        coordinator.void(
            f"The shares of device {maker!r} do not join: it made wrong ones, or others returned wrong ones."
        )
        return
    except MaskingError as error:
        coordinator.void(str(error))
        return
    if coordinator.phase == "admm":
        total = total + len(survivors) * coordinator.shared
    coordinator.take_sum(survivors, total)


def _masked_sum(
    coordinator: Coordinator, requests: Mapping[str, Request], names: Mapping[int, str], ask: Ask
) -> tuple[dict[str, Reply], NDArray[np.float64]]:
    """The masked replies of the survivors, and the sum of their matrices."""

    def step(kind: Kind, messages: Mapping[int, Mapping[str, object]], check: Check) -> dict[int, Reply]:
        asked = {names[n]: _in_step(requests[names[n]], kind, message) for n, message in messages.items()}
        replies = ask(asked)
        return {
            n: replies[name]
            for n, name in names.items()
            if name in replies and _is_valid(coordinator, kind, check, n, replies[name])
        }

    total = MaskedSum(context := masking_context(coordinator, len(names)))
    opening = {n: {**context.message(), "device": n} for n in names}
    keys = step("advertise", opening, lambda n, reply: total.check_keys(n, reply.masking))
    roster = total.roster({n: reply.masking for n, reply in keys.items()})
    shares = step("share", dict.fromkeys(keys, roster), lambda n, reply: total.check_shares(n, reply.masking))
    boxes = total.forward({n: reply.masking for n, reply in shares.items()})
    senders = {n: names[n] for n in boxes}
    masked = step(coordinator.phase, boxes, lambda n, reply: _check_masked(reply, senders, coordinator))
    verdict = total.settle({n: _integers(reply, coordinator) for n, reply in masked.items()})
    revealed = step("reveal", dict.fromkeys(masked, verdict), lambda n, reply: total.check_revealed(reply.masking))
    summed = total.unmask({n: reply.masking for n, reply in revealed.items()})
    return {names[n]: masked[n] for n in total.survivors}, summed


def masking_context(coordinator: Coordinator, devices: int) -> MaskingContext:
    """What the devices of a round agree on; the range of the sum leaves room for the noise, too."""
    terms, threshold = coordinator.terms, default_threshold(devices)
    longest = 1.0 if coordinator.phase == "warm" else terms.clip
    bound = BOUND + DEVIATIONS * terms.noise * longest / math.sqrt(threshold)
    return MaskingContext(terms.run, coordinator.round, threshold, bound, min(LEVELS, (MODULUS - 1) // (2 * devices)))


def _in_step(request: Request, kind: Kind, masking: Mapping[str, object]) -> Request:
    """A request in one of the steps; the consensus travels only where the device needs it."""
    if kind in ("warm", "admm"):
        return replace(request, masking=masking)
    return replace(request, kind=kind, masking=masking, shared=b"", accepted_shared=b"")


def _is_valid(coordinator: Coordinator, kind: Kind, check: Check, number: int, reply: Reply) -> bool:
    """Whether a device said what its step asks for; if not, it is refused by name, and the others continue.

    It gets no strike for what another device sent it.
    """
    try:
        check(number, reply)
    except SharesError as error:
        coordinator.refuse(reply.device, str(error), strike=False)
        return False
    except MaskingError as error:
        coordinator.refuse(reply.device, f"What it sent in the step {kind!r} of secure aggregation is invalid. {error}")
        return False
    return True


def _check_masked(reply: Reply, senders: Mapping[int, str], coordinator: Coordinator) -> None:
    """Refuse a masked reply of another size, and a device that says it cannot mask with the shares it got."""
    blamed = reply.masking.get(UNOPENED)
    if type(blamed) is int and senders.get(blamed, reply.device) != reply.device:
        raise SharesError(blamed, f"It cannot open the shares that device {senders[blamed]!r} made for it.")
    if len(reply.payload) != (size := 4 * math.prod(_shape(coordinator))):
        raise MaskingError(f"The masked reply has {len(reply.payload)} bytes and not {size}; do not use it.")


def _shape(coordinator: Coordinator) -> tuple[int, ...]:
    return coordinator.terms.shape if coordinator.phase == "admm" else probe(coordinator.terms).shape


def _integers(reply: Reply, coordinator: Coordinator) -> Integers:
    return np.frombuffer(reply.payload, dtype="<u4").reshape(_shape(coordinator))
