"""How a reply is packed before it leaves a device: encoded, with noise if the fleet asks for it, or masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.federation import privacy, wire
from fedkad.federation.protocol import ProtocolError, Request

if TYPE_CHECKING:
    from fedkad.federation.secure.device import DeviceSecrets

Array = NDArray[np.float64]


class Draft(NamedTuple):
    """A reply before it is packed: the matrix, what it is stated in relation to, and what rounding left unsent."""

    device: str
    request: Request
    message: Array
    reference: Array
    unsent: Array | float = 0.0


class Packed(NamedTuple):
    """A packed reply: its payload, what is unsent now, and what secure aggregation says and remembers."""

    payload: bytes
    unsent: Array | float
    masking: dict[str, Any]
    secrets: DeviceSecrets | None


class UnsentError(ProtocolError):
    """A noisy reply that was drawn and cannot be sent; saying so tells something about it, so it counts as sent."""


def pack(draft: Draft, secrets: DeviceSecrets | None) -> Packed:
    """Pack a reply as the terms of the training ask for it."""
    if draft.request.terms.secure:
        from fedkad.federation.secure.packing import pack_masked

        return pack_masked(draft, secrets)
    return Packed(*pack_plain(draft), {}, secrets)


def pack_plain(draft: Draft) -> tuple[bytes, Array | float]:
    """The reply encoded, with noise if the terms ask for it; in 8 bits with error feedback."""
    _, request, message, reference, unsent = draft
    terms = request.terms
    if terms.noise > 0.0:
        message = reference + released(message - reference, request, terms.noise)
    message = message - wire.reference(reference, terms.encoding)
    if request.kind == "admm" and terms.encoding == "int8":
        return wire.encode_with_feedback(message, unsent)
    return wire.encode(message, terms.encoding), unsent


def released(message: Array, request: Request, noise: float) -> Array:
    """A message clipped to a known norm, with Gaussian noise of `noise` times that norm.

    A warm message is never longer than 1, whatever the data; for the replies the fleet agrees on a bound.
    """
    bound = 1.0 if request.kind == "warm" else request.terms.clip
    return privacy.add_noise(privacy.clip(message, bound), noise * bound, np.random.default_rng())
