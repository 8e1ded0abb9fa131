"""The steps of a device, in their order: `advertise`, `share`, `mask`, `reveal`.

Each takes the device's secrets and what the server sent, and returns its answer with the secrets for the next step.
Write the new secrets to disk *before* the answer is sent: an older state would let a step be taken twice, which can
open the matrix. A participant of a training takes them by `take_step` and `pack_masked`.
"""

import base64
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fedkad.federation import privacy, sketch
from fedkad.federation.protocol import ProtocolError, Request, Terms, UnsentError
from fedkad.federation.secure.arithmetic import SECRET, SHARE, Array, Quantised, quantise, split_secret
from fedkad.federation.secure.session import (
    MaskingContext,
    MaskingError,
    Message,
    Received,
    Session,
    SharesError,
    blobs,
    integers,
    new_key,
    public_key,
)

UNOPENED = "unopened"
"""What a device says instead of a masked reply: the number of the device whose box for it does not open."""


@dataclass(frozen=True)
class DeviceSecrets:
    """What a device must remember between its steps, and no one else may see.

    Every step moves `stage` on and forgets what no later step needs.
    """

    context: MaskingContext
    device: int
    stage: str = "advertised"  # then "shared", "masked", "revealed"
    sharing_key: bytes = field(default=b"", repr=False)
    mask_key: bytes = field(default=b"", repr=False)
    seed: bytes = field(default=b"", repr=False)
    session: Session | None = None  # known from `share` on
    shares: Mapping[int, bytes] = field(default_factory=dict, repr=False)  # of a device's seed, then of its key
    answer: Message = field(default_factory=dict, repr=False)

    def to_bytes(self) -> bytes:
        """Return the secrets as JSON; bytes in it are base64."""
        document = {
            **vars(self),
            "context": self.context.message(),
            "roster": self.session.roster() if self.session else None,
            "shares": [list(self.shares), list(self.shares.values())],
        }
        del document["session"]
        return json.dumps(document, default=lambda blob: {"base64": base64.b64encode(blob).decode()}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Read the secrets that `to_bytes` wrote."""
        try:
            document = json.loads(stored, object_hook=_unpacked)
            context, roster = MaskingContext.from_message(document.pop("context")), document.pop("roster")
            document["shares"] = dict(zip(*document["shares"], strict=True))
            return cls(context, **document, session=Session.with_roster(context, roster) if roster else None)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MaskingError("The stored secrets of a round are damaged; leave this round.") from None

    def require(self, stage: str, step: str) -> None:
        """Refuse a step out of turn, a repeated one above all."""
        if self.stage != stage:
            raise MaskingError(
                f"Device {self.device} cannot {step} in round {self.context.round}: its stage is {self.stage!r} and "
                f"not {stage!r}; take part in a new round."
            )


def _unpacked(entry: dict[str, Any]) -> Any:
    return base64.b64decode(entry["base64"], validate=True) if set(entry) == {"base64"} else entry


def advertise(context: MaskingContext, device: int) -> tuple[Message, DeviceSecrets]:
    """Step 0: draw two fresh key pairs, one to encrypt shares and one to agree on masks."""
    secrets = DeviceSecrets(context, device, sharing_key=new_key(), mask_key=new_key())
    public: Message = {name: public_key(getattr(secrets, name)) for name in ("sharing_key", "mask_key")}
    return public, secrets


def share(secrets: DeviceSecrets, roster: Received) -> tuple[Message, DeviceSecrets]:
    """Step 1: draw the seed b_i, and share it and the mask key among all devices of the roster."""
    secrets.require("advertised", "share")
    session = Session.with_roster(secrets.context, roster)
    session.check()
    devices, me = session.devices, secrets.device
    if me not in devices:
        raise MaskingError(f"Device {me} is not in the roster that it was sent; leave this round.")
    sent = public_key(secrets.sharing_key), public_key(secrets.mask_key)
    if (session.sharing_key(me), session.mask_key(me)) != sent:
        raise MaskingError(f"The roster has other keys for device {me} than it sent; leave this round.")
    seed = os.urandom(SECRET)
    seeds, keys = (split_secret(secret, secrets.context.threshold, len(devices)) for secret in (seed, secrets.mask_key))
    contents = dict(zip(devices, map(bytes.__add__, seeds, keys), strict=True))
    own = contents.pop(me)
    boxes = [session.box(secrets.sharing_key, me, peer, content) for peer, content in contents.items()]
    shared = replace(secrets, stage="shared", session=session, seed=seed, shares={me: own})
    return {"devices": list(contents), "boxes": boxes, "commitment": session.commitment(me, seed)}, shared


def mask(secrets: DeviceSecrets, forwarded: Received, matrix: Array) -> tuple[Quantised, DeviceSecrets]:
    """Step 2: put the matrix on the grid, under the device's own mask and those with all peers that shared.

    y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij) modulo 2³². Keys and seed are forgotten: what is left
    to do needs only the shares received from others.
    """
    secrets.require("shared", "mask")
    session, me, context = secrets.session, secrets.device, secrets.context
    assert session is not None
    peers = integers(forwarded, "senders")
    boxes = blobs(forwarded, "boxes", len(peers))
    if len(set(peers)) < len(peers) or not set(peers) <= set(session.devices) - {me}:
        raise MaskingError(f"Device {me} was sent shares of a device twice or of a stranger; leave this round.")
    if len(peers) + 1 < context.threshold:
        raise MaskingError(
            f"Device {me} has shares of {len(peers)} peers and with its own fewer than the threshold of "
            f"{context.threshold}; leave this round."
        )
    received = {
        peer: session.open(secrets.sharing_key, peer, me, boxed) for peer, boxed in zip(peers, boxes, strict=True)
    }
    if not np.isfinite(matrix).all():
        raise MaskingError("The matrix to mask has entries that are not finite; leave this device out.")
    values, clipped = quantise(matrix, context.bound, context.levels)
    values += session.self_mask(me, secrets.seed, values.shape)
    for peer in peers:
        values += session.pair_mask(me, secrets.mask_key, peer, values.shape)
    shares = {**secrets.shares, **received}
    masked = replace(secrets, stage="masked", shares=shares, seed=b"", mask_key=b"", sharing_key=b"")
    return Quantised(values, clipped), masked


def reveal(secrets: DeviceSecrets, verdict: Received) -> tuple[Message, DeviceSecrets]:
    """Step 3: reveal the shares of the survivors' seeds and of the mask keys of those that dropped.

    It is answered once: all other shares are forgotten with the answer, which is given again to the same question.
    """
    survivors, dropped = (sorted(integers(verdict, name)) for name in ("survivors", "dropped"))
    if secrets.stage == "revealed" and (survivors, dropped) == (secrets.answer["survivors"], secrets.answer["dropped"]):
        return dict(secrets.answer), secrets
    secrets.require("masked", "reveal")
    _check_verdict(secrets, survivors, dropped)
    answer: Message = {
        "survivors": survivors,
        "seed_shares": [secrets.shares[device][:SHARE] for device in survivors],
        "dropped": dropped,
        "key_shares": [secrets.shares[device][SHARE:] for device in dropped],
    }
    return dict(answer), replace(secrets, stage="revealed", shares={}, answer=answer)


def _check_verdict(secrets: DeviceSecrets, survivors: Sequence[int], dropped: Sequence[int]) -> None:
    """Each device that shared must be named once, this one as a survivor, and survivors must reach the threshold."""
    me, threshold = secrets.device, secrets.context.threshold
    if set(survivors) & set(dropped):
        raise MaskingError(f"Device {me} was asked for both secrets of one device; leave this round.")
    if sorted([*survivors, *dropped]) != sorted(secrets.shares):
        raise MaskingError(
            f"Device {me} was asked about other devices than those that sent it shares; leave this round."
        )
    if me not in survivors:
        raise MaskingError(f"Device {me} was told that it dropped out, and does not answer; take part in a new round.")
    if len(survivors) < threshold:
        raise MaskingError(
            f"Device {me} was asked to open a sum of {len(survivors)} devices, fewer than the threshold of "
            f"{threshold}; leave this round."
        )


def take_step(device: str, secrets: DeviceSecrets | None, request: Request) -> tuple[Message, DeviceSecrets]:
    """Take a step that carries no reply; return what to answer, and the secrets for the next step."""
    if request.kind == "advertise":
        return advertise(MaskingContext.from_message(request.masking), int(request.masking["device"]))
    step = {"share": share, "reveal": reveal}[request.kind]
    return step(_of_round(device, secrets, request), request.masking)


def pack_masked(
    device: str, secrets: DeviceSecrets | None, request: Request, message: Array, reference: Array
) -> tuple[bytes, Message, DeviceSecrets]:
    """Mask a reply; or say whose shares prevent it, which is not this device's fault.

    With noise, each device adds as much as makes the sum of a threshold of devices noisy enough.
    """
    terms, secrets = request.terms, _of_round(device, secrets, request)
    summed = sketch.sketch(message, probe(terms)) if request.kind == "warm" else message - reference
    if terms.noise > 0.0:
        summed = privacy.release(summed, request.bound, terms.noise / math.sqrt(secrets.context.threshold))
    try:
        masked, after = mask(secrets, request.masking, summed)
    except SharesError as error:
        return b"", {UNOPENED: error.device}, secrets
    if masked.clipped:
        raise UnsentError(
            f"{masked.clipped} numbers of the reply of device {device!r} are beyond the range of the sum, "
            f"{secrets.context.bound:g}, and cutting them would change it."
        )
    return masked.integers.astype("<u4").tobytes(), {}, after


def probe(terms: Terms) -> Array:
    """Draw the matrix that warm messages are sketched with."""
    return sketch.probe_matrix(*terms.shape, terms.consensus.seed)


def _of_round(device: str, secrets: DeviceSecrets | None, request: Request) -> DeviceSecrets:
    """Return the secrets, checked to be of the round that the request asks for."""
    if secrets is None:
        raise ProtocolError(f"Device {device!r} has no keys for round {request.round}; start it again.")
    if (secrets.context.run, secrets.context.round) != (request.terms.run, request.round):
        raise ProtocolError(
            f"Device {device!r} has keys for round {secrets.context.round} of training "
            f"{secrets.context.run}, and the server asks for round {request.round} of {request.terms.run}."
        )
    return secrets
