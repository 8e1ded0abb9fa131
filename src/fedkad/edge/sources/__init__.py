"""Where samples come from: lines on standard input, a growing file, or messages from a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

BATCH = 16
"""Messages that are taken before a commit; brokers send about 20 without an acknowledgement."""


class RawMessage(NamedTuple):
    """One message or line as it arrived; device and channel are what its topic names."""

    payload: bytes
    arrival: float  # seconds since 1970
    device: str | None = None
    channel: str | None = None


class SampleSource(Protocol):
    """What the agent expects of a source.

    Messages are handed out by `poll`, their effects are committed together with `put_position`, and then `acknowledge`
    is called: only then may the source confirm to the sender that they have arrived. The agent may stop in the middle
    of what `poll` returns and commit: what it has not asked for is not handed out, and comes with the next `poll`.
    """

    @property
    def header(self) -> bytes | None:
        """The line with the names of the columns, if lines have one."""

    @property
    def is_finished(self) -> bool:
        """Whether the input has ended."""

    @property
    def unacknowledged(self) -> int:
        """Messages handed out and not acknowledged; a sender may send no more until some are."""

    def poll(self, timeout: float) -> Iterator[RawMessage]:
        """The messages that have arrived, each handed out when asked for; waits up to `timeout` seconds for one."""

    def put_position(self) -> None:
        """Put the position after the last message handed out into the store."""

    def acknowledge(self) -> None:
        """Called once everything handed out is committed."""

    def close(self) -> None:
        """Release files and connections."""
