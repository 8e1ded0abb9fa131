"""The requests that the server waits for: which answers count, which are refused, and when to stop waiting."""

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from fedkad.federation.protocol import Answer, Reply, Request
from fedkad.federation.training_state import TrainingState


class AcceptedReply(NamedTuple):
    """What is kept here of a reply until its round is closed; its numbers are the `Server`'s."""

    size: int
    diagnostics: Mapping[str, float]


class OpenRequests:
    """The requests that were sent last, with the answers to them.

    `sent` counts the bytes of Z in all requests since it was set to 0.
    """

    def __init__(self, state: TrainingState, deadline: float, least: int) -> None:
        self.sent = 0
        self.accepted: dict[str, AcceptedReply] = {}
        self._state, self._deadline, self._least = state, deadline, least
        self._requests: Mapping[str, Request] = {}
        self._failed: set[str] = set()
        self._quorum, self._began = 1.0, time.monotonic()

    def expect(self, requests: dict[str, Request], quorum: float = 1.0) -> dict[str, Request]:
        """Wait for the answers to these requests, and to no others, from now on."""
        self.sent += sum(len(request.accepted_shared) + len(request.shared) for request in requests.values())
        self._requests, self._quorum, self._began = requests, quorum, time.monotonic()
        self.accepted, self._failed = {}, set()
        return requests

    def hear(self, name: str, answer: Answer) -> Reply | None:
        """Return the reply in an answer to an open request; anything else is refused and counted, and gives None."""
        request = self._requests.get(name)
        if isinstance(answer, str):
            self.refuse(name, answer, strike=False)
            return None
        if request is None:
            self.refuse_late(name)
            return None
        if name in self.accepted:
            self._state.ledger.refuse(name, self._state.round, "It has answered already.", strike=False)
            return None
        try:
            reply = answer if isinstance(answer, Reply) else Reply.read(answer, request, name)
        except ValueError as error:
            self.refuse(name, str(error), strike=request.kind != "judge")
            return None
        self.accepted[name] = AcceptedReply(len(reply.payload), reply.diagnostics)
        return reply

    def refuse(self, name: str, reason: str, *, strike: bool = True) -> None:
        """Do not count the answer of a device, nor wait for another one."""
        self.accepted.pop(name, None)
        self._failed.add(name)
        self._state.ledger.refuse(name, self._state.round, reason, strike=strike)

    def refuse_late(self, name: str) -> None:
        """Refuse an answer to an earlier request, without a strike; the open one stays open."""
        reason = "The answer came too late; its round was closed."
        self._state.ledger.refuse(name, self._state.round, reason, strike=False)

    def void(self, reason: str) -> None:
        """Give all open requests up: what was answered counts for nothing."""
        self._state.ledger.refuse("", self._state.round, reason, strike=False)
        self.expect({})

    @property
    def silent(self) -> list[str]:
        """The devices of which no answer counts."""
        return sorted(set(self._requests).difference(self.accepted))

    def ticket(self, name: str) -> str:
        """Return the ticket of the open request to a device."""
        return self._requests[name].ticket

    def is_over(self) -> bool:
        """Return whether all answers are there, or the quorum, or the time is up."""
        quorum = max(math.ceil(self._quorum * len(self._requests) - 1e-9), self._least)
        outstanding = set(self._requests).difference(self.accepted, self._failed)
        is_late = time.monotonic() - self._began >= self._deadline
        return len(self.accepted) >= quorum or not outstanding or is_late
