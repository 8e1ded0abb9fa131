"""The server's side of a round, or of the gate before a delivery, in which it learns only the sum.

A sum has four exchanges instead of one: devices advertise keys, share secrets, send their masked replies, and reveal
what unmasks the sum of those that got that far. These are the participants; the others have taken no part.
"""

import math
from collections.abc import Callable, Mapping, Sized
from dataclasses import replace
from typing import Protocol

import numpy as np

from fedkad.federation.gate import OPINION
from fedkad.federation.protocol import Kind, Reply, Request
from fedkad.federation.secure.arithmetic import MODULUS, SECRET, SHARE, Array, Integers, join_shares, restore
from fedkad.federation.secure.device import UNOPENED, probe
from fedkad.federation.secure.session import (
    BOX,
    MaskingContext,
    MaskingError,
    Message,
    Received,
    Session,
    SharesError,
    agree,
    blobs,
    default_threshold,
    entry,
    integers,
    public_key,
)

Ask = Callable[[dict[str, Request]], dict[str, Reply]]


class Refuse(Protocol):
    """Leaves out a device, by default with a strike."""

    def __call__(self, name: str, reason: str, *, strike: bool = True) -> None:
        """Count its answer for nothing."""


BOUND, DEVIATIONS, LEVELS = 4.0, 7.0, 2**20
"""Largest entry of what is summed, differences P + Λ/ρ − Z or sketches of weighted directions, without noise; how many
deviations of noise the range leaves room for; steps of the grid, if the sum of all devices leaves room for them."""


class MaskedSum:
    """One sum: it takes what devices answer to each step, says what to send them next, and at last is the sum.

    An answer that is refused leaves no trace: its device is left out, and the others continue. A device is whatever
    integer the transport knows it by.
    """

    def __init__(self, context: MaskingContext, shape: tuple[int, ...]) -> None:
        self.context, self.shape = context, shape
        self.survivors: list[int] = []  # the devices whose matrices are in the sum
        self._dropped: list[int] = []
        self._session = Session(context)
        self._owners: dict[bytes, int] = {}  # of public keys
        self._keys: dict[int, tuple[bytes, bytes]] = {}
        self._boxes: dict[int, dict[int, bytes]] = {}  # by sender, then by receiver
        self._commitments: dict[int, bytes] = {}
        self._masked: dict[int, Integers] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}  # shares by who reveals them, then by whose secret it is

    def take_keys(self, device: int, message: Received) -> None:
        """Take the public keys that a device advertised; refuse any that the others could not answer.

        No device has seen the keys of others in this step: a key that comes twice is of two devices in league.
        """
        keys = entry(message, "sharing_key", bytes), entry(message, "mask_key", bytes)
        for key in keys:
            agree(bytes(SECRET), key)  # private keys are multiples of 8: a point of low order fails with all or none
        if keys[0] == keys[1] or any(self._owners.setdefault(key, device) != device for key in keys):
            raise MaskingError("A public key was sent before, and fresh ones never are; do not use it.")
        self._keys[device] = keys

    def roster(self) -> Message:
        """After `advertise`: return the public keys of all who answered, to be sent to each of them."""
        devices = sorted(self._keys)
        keys = (tuple(self._keys[device][k] for device in devices) for k in (0, 1))
        self._session = Session(self.context, tuple(devices), *keys)
        self._session.check()
        return self._session.roster()

    def take_shares(self, device: int, message: Received) -> None:
        """Take the boxes that a device made for each of the others, which only the receivers can open."""
        devices = self._session.devices
        others = [peer for peer in devices if peer != device]
        if device not in devices or integers(message, "devices") != others:
            raise MaskingError("The boxes are not for each of the others in the roster; do not use them.")
        commitment = entry(message, "commitment", bytes)
        if len(commitment) != SECRET:
            raise MaskingError(f"'commitment' in a message of the round must be {SECRET} bytes; do not use it.")
        self._boxes[device] = dict(zip(others, blobs(message, "boxes", len(others), BOX), strict=True))
        self._commitments[device] = commitment

    def forward(self) -> dict[int, Message]:
        """After `share`: return for each device that shared the boxes that the others made for it."""
        self._enough(self._boxes, "shared their secrets")
        forwarded: dict[int, Message] = {}
        for receiver in sorted(self._boxes):
            senders = [sender for sender in sorted(self._boxes) if sender != receiver]
            forwarded[receiver] = {"senders": senders, "boxes": [self._boxes[sender][receiver] for sender in senders]}
        return forwarded

    def take_masked(self, device: int, payload: bytes) -> None:
        """Take a masked matrix, as bytes."""
        if device not in self._boxes:
            raise MaskingError(f"Device {device} sent a masked matrix without shares; leave it out.")
        if len(payload) != (size := 4 * math.prod(self.shape)):
            raise MaskingError(f"The masked reply has {len(payload)} bytes and not {size}; do not use it.")
        self._masked[device] = np.frombuffer(payload, dtype="<u4").reshape(self.shape)

    def close(self) -> Message:
        """After `mask`: return which devices survived and which dropped, to be sent to the survivors."""
        self._enough(self._masked, "sent a masked matrix")
        self.survivors = sorted(self._masked)
        self._dropped = sorted(self._boxes.keys() - self._masked.keys())
        return {"survivors": list(self.survivors), "dropped": list(self._dropped)}

    def take_revealed(self, device: int, message: Received) -> None:
        """Take the shares that a survivor was asked for; whether they are the right ones shows when they are joined."""
        asked = self.survivors, self._dropped
        if device not in self.survivors or (integers(message, "survivors"), integers(message, "dropped")) != asked:
            raise MaskingError("The shares are of other devices than those asked about; the shares are discarded.")
        seeds = blobs(message, "seed_shares", len(self.survivors), SHARE)
        keys = blobs(message, "key_shares", len(self._dropped), SHARE)
        self._revealed[device] = dict(zip([*self.survivors, *self._dropped], [*seeds, *keys], strict=True))

    def unmask(self) -> Array:
        """After `reveal`: return the sum of the survivors' matrices, Σ x_i · bound / levels.

        From Σ y_i are taken PRG(b_i) of each survivor i, and the pair masks that it added with each dropped device.
        """
        self._enough(self._revealed, "revealed their shares")
        session = self._session
        total: Integers = np.sum(list(self._masked.values()), axis=0, dtype=np.uint32)
        for device in self.survivors:
            seed = self._joined(device)
            self._verify(session.commitment(device, seed) == self._commitments[device], device)
            total -= session.self_mask(device, seed, self.shape)
        for device in self._dropped:
            key = self._joined(device)
            self._verify(public_key(key) == session.mask_key(device), device)
            for survivor in self.survivors:
                total += session.pair_mask(device, key, survivor, self.shape)  # the negative of the survivor's
        return restore(total, self.context.bound, self.context.levels)

    def _joined(self, device: int) -> bytes:
        """Restore the secret of a device from the shares of as many others as it takes."""
        helpers = sorted(self._revealed)[: self.context.threshold]
        return join_shares({self._session.position(helper): self._revealed[helper][device] for helper in helpers})

    def _enough(self, answers: Sized, what: str) -> None:
        if len(answers) < self.context.threshold:
            raise MaskingError(
                f"Only {len(answers)} devices {what} in round {self.context.round}, fewer than the threshold of "
                f"{self.context.threshold}; begin a new round."
            )

    @staticmethod
    def _verify(fits: bool, device: int) -> None:
        if not fits:
            raise SharesError(device, f"The shares of device {device} do not join to its secret; begin a new round.")


def gather(requests: Mapping[str, Request], ask: Ask, refuse: Refuse) -> tuple[dict[str, Reply], Array]:
    """Go through all four exchanges; return the masked replies of the survivors, and the sum of their matrices.

    A device that sends something invalid in a step is refused and left out. Too few devices at any step raise a
    `MaskingError`, and what the devices did counts for nothing.

    `requests` are those of the step that carries the replies. `ask` sends the requests of one step and returns the
    replies that came in time; `refuse` is called with a device and the reason for which its answer does not count.
    """
    names = dict(enumerate(sorted(requests), start=1))
    first = next(iter(requests.values()))
    shapes = {"warm": probe(first.terms).shape, "admm": first.terms.shape, "judge": OPINION}
    context = masking_context(first, len(names))
    total = MaskedSum(context, shapes[first.kind])

    def step(kind: Kind, messages: Mapping[int, Received], take: Callable[[int, Reply], None]) -> dict[str, Reply]:
        replies = ask({names[n]: _in_step(requests[names[n]], kind, message) for n, message in messages.items()})
        for n in messages:
            if names[n] in replies:
                _take_or_refuse(n, replies[names[n]], kind, take, refuse)
        return replies

    def take_masked(n: int, reply: Reply) -> None:
        blamed = reply.masking.get(UNOPENED)
        if type(blamed) is int and blamed in boxes and blamed != n:
            raise SharesError(blamed, f"It cannot open the shares that device {names[blamed]!r} made for it.")
        total.take_masked(n, reply.payload)

    opening = {n: {**context.message(), "device": n} for n in names}
    step("advertise", opening, lambda n, reply: total.take_keys(n, reply.masking))
    roster = total.roster()
    rosters = dict.fromkeys(integers(roster, "devices"), roster)
    step("share", rosters, lambda n, reply: total.take_shares(n, reply.masking))
    boxes = total.forward()
    masked = step(first.kind, boxes, take_masked)
    verdict = total.close()
    step("reveal", dict.fromkeys(total.survivors, verdict), lambda n, reply: total.take_revealed(n, reply.masking))
    try:
        return {names[n]: masked[names[n]] for n in total.survivors}, total.unmask()
    except SharesError as error:
        maker = names[error.device]
        reason = f"The shares of device {maker!r} do not join: it made wrong ones, or others returned wrong ones."
        raise MaskingError(reason) from None


def _take_or_refuse(n: int, reply: Reply, kind: Kind, take: Callable[[int, Reply], None], refuse: Refuse) -> None:
    try:
        take(n, reply)
    except SharesError as error:  # no strike for what another device sent it
        refuse(reply.device, str(error), strike=False)
    except MaskingError as error:
        refuse(reply.device, f"What it sent in the step {kind!r} of secure aggregation is invalid. {error}")


def masking_context(request: Request, devices: int) -> MaskingContext:
    """Choose what the devices of a round agree on; the range of the sum leaves room for the noise, too."""
    terms, threshold = request.terms, default_threshold(devices)
    bound = BOUND + DEVIATIONS * terms.noise * request.bound / math.sqrt(threshold)
    return MaskingContext(terms.run, request.round, threshold, bound, min(LEVELS, (MODULUS - 1) // (2 * devices)))


def _in_step(request: Request, kind: Kind, masking: Received) -> Request:
    """Make the request of one of the steps; the consensus travels only where the device needs it."""
    if kind in ("warm", "admm", "judge"):
        return replace(request, masking=masking)
    return replace(request, kind=kind, masking=masking, shared=b"", accepted_shared=b"")
