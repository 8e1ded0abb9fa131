"""A participant's side of secure aggregation: its steps before and after the reply, and the masked reply itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedkad.federation import sketch
from fedkad.federation.packing import Draft, Packed, UnsentError, released
from fedkad.federation.protocol import ProtocolError, Request, Terms
from fedkad.federation.secure.device import DeviceSecrets, advertise, mask, reveal, share
from fedkad.federation.secure.messages import Message, Received, SharesError
from fedkad.federation.secure.session import MaskingContext

UNOPENED = "unopened"
"""What a device says instead of a masked reply: the number of the device whose box for it does not open."""

Step = Callable[[DeviceSecrets, Received], tuple[Message, DeviceSecrets]]
STEPS: dict[str, Step] = {"share": share, "reveal": reveal}


def take_step(device: str, request: Request, secrets: DeviceSecrets | None) -> tuple[Message, DeviceSecrets]:
    """Take a step that carries no reply, with the secrets that it leaves."""
    if request.kind == "advertise":
        return advertise(MaskingContext.from_message(request.masking), int(request.masking["device"]))
    return STEPS[request.kind](_of_round(device, request, secrets), request.masking)


def pack_masked(draft: Draft, secrets: DeviceSecrets | None) -> Packed:
    """The masked integers of a reply; or whose shares prevent it, which is not this device's fault.

    With noise, each device adds as much as makes the sum of a threshold of devices noisy enough.
    """
    device, request, message, reference, unsent = draft
    terms, known = request.terms, _of_round(device, request, secrets)
    summed = sketch.sketch(message, probe(terms)) if request.kind == "warm" else message - reference
    if terms.noise > 0.0:
        summed = released(summed, request, terms.noise / math.sqrt(known.context.threshold))
    try:
        masked, after = mask(known, request.masking, summed)
    except SharesError as error:
        return Packed(b"", unsent, {UNOPENED: error.device}, secrets)
    if masked.clipped:
        raise UnsentError(
            f"{masked.clipped} numbers of the reply of device {device!r} are beyond the range of the sum, "
            f"{known.context.bound:g}, and cutting them would change it."
        )
    return Packed(masked.integers.astype("<u4").tobytes(), unsent, {}, after)


def probe(terms: Terms) -> NDArray[np.float64]:
    """The matrix that warm messages are sketched with."""
    return sketch.probe_matrix(*terms.shape, terms.consensus.seed)


def _of_round(device: str, request: Request, secrets: DeviceSecrets | None) -> DeviceSecrets:
    """The secrets, checked to be of the round asked for."""
    if secrets is None:
        raise ProtocolError(f"Device {device!r} has no keys for round {request.round}; start it again.")
    if (secrets.context.run, secrets.context.round) != (request.terms.run, request.round):
        raise ProtocolError(
            f"Device {device!r} has keys for round {secrets.context.round} of training "
            f"{secrets.context.run}, and the server asks for round {request.round} of {request.terms.run}."
        )
    return secrets
