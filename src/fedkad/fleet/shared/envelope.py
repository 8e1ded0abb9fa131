"""How a header is packed into a Flower message, in both directions."""

from flwr.app import ConfigRecord, Message, RecordDict

from fedkad.federation.protocol import Header

RECORD = "fedkad"
"""The only record of a message: header and payload together, so that a message has few objects to fetch."""


def packed(header: Header) -> RecordDict:
    """Return the content of a message with this header."""
    return RecordDict({RECORD: ConfigRecord(dict(header))})


def unpacked(message: Message) -> Header:
    """Return the header in a message; an empty one, which is never valid, if the message is not one of ours."""
    return dict(message.content[RECORD]) if message.has_content() and RECORD in message.content else {}
