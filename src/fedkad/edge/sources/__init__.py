"""Where samples come from: lines on standard input, a file that grows, or the messages of a broker."""

from __future__ import annotations

from typing import NamedTuple, Protocol

MOST_IN_HAND = 16
"""Messages that are taken before a commit; brokers send about 20 without hearing of any."""


class Message(NamedTuple):
    """One message or line as it arrived.

    Attributes
    ----------
    payload : bytes
    arrival : float
        Epoch seconds.
    device, channel : str, optional
        What the topic says.
    """

    payload: bytes
    arrival: float
    device: str | None = None
    channel: str | None = None


class Source(Protocol):
    """What the agent asks of a source.

    Messages are handed out by `poll`, what they changed is committed together with `put_position`, and then `committed`
    is called: only then may the source tell anybody that they have arrived.
    """

    name: str

    @property
    def header(self) -> bytes | None:
        """The line that names the columns, where lines have one."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing will come any more."""

    @property
    def in_hand(self) -> int:
        """Messages handed out and not committed; a source may send no more until some are."""

    def poll(self, timeout: float) -> list[Message]:
        """What has arrived; waits up to `timeout` seconds for something."""

    def put_position(self) -> None:
        """Put into the store where the source stands after what was handed out."""

    def committed(self) -> None:
        """What was handed out is on the disk."""

    def close(self) -> None:
        """Let go."""
