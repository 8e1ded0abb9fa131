"""How a header travels in a message of Flower's, either way."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from fedkad.federation.protocol import Header

RECORD = "fedkad"
"""The one record of every message: header and payload together, so that a message is few objects to fetch."""


def packed(header: Header) -> RecordDict:
    """The content of a message with this header."""
    return RecordDict({RECORD: ConfigRecord(dict(header))})


def unpacked(message: Message) -> Header:
    """The header in a message; an empty one, which nobody may send, where there is none of ours."""
    return dict(message.content[RECORD]) if message.has_content() and RECORD in message.content else {}
