"""How large what a device sends may be, by the settings of its fleet: what is larger is turned away unread."""

from __future__ import annotations

from fedkad.federation import sketch, wire
from fedkad.fleet.server.settings import FleetSettings

AROUND = 16_384
"""Bytes for all that surrounds the numbers of a reply: names, ticket, sizes, a refusal in words, the frame of the
carrier."""

PER_PEER = 192
"""Bytes that a device sends for each other device of a masked round: a box is 94 bytes, two shares are 66."""


def largest_reply(known: FleetSettings, devices: int) -> int:
    """Bytes of the largest reply in a fleet of so many devices, with a margin.

    With masks, each number is an integer of 32 bits, the first reply is a sketch of 3 r columns, and every device
    encrypts something for each of the others.

    >>> from fedkad.fleet.server.settings import ModelSettings
    >>> largest_reply(FleetSettings(model=ModelSettings(tuple("abcde"))), devices=8) - AROUND  # 228 x 24 in float32
    21888
    """
    dimension, rank = known.model.dimension, known.model.rank
    if known.privacy.secure_aggregation:
        return AROUND + 4 * dimension * sketch.width(dimension, rank) + PER_PEER * devices
    return AROUND + wire.size((dimension, rank), known.training.encoding)
