"""A training as the server sees it, whatever carries its messages: which devices to ask, what to accept, when to close.

The engine does three things in a loop: it has `choose` name the devices to ask, sends each of them its request, and
hands every answer to `take`. `close` ends the round. With a folder, all of a training is in one file between two
rounds, so that a killed server continues from the last closed round. What was accepted in an open round is forgotten
with it: no device has been told, and each drops what it holds as pending. `training_files` names the files.
"""

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.federation import wire
from fedkad.federation.delivery import ResultDelivery
from fedkad.federation.history import Round
from fedkad.federation.open_requests import AcceptedReply, OpenRequests
from fedkad.federation.protocol import Answer, Phase, ProtocolError, Reply, Request, Terms
from fedkad.federation.settings import Sampling
from fedkad.federation.training_files import UNDER_WAY, write_status, write_waits
from fedkad.federation.training_state import TrainingState

Array = NDArray[np.float64]

logger = logging.getLogger(__name__)

MOST_NAMED = 8
"""Devices that a sentence names."""

WARM_NORM = 1.0 + 1e-2
"""A warm message is as long as the root of a share of energy, up to rounding."""

ADMM_NORM = 2.0
"""A reply P + Λ/ρ may be this many times as long as an orthonormal P, whose norm is √r. With default settings honest
replies have at most 1.002 (`python -m measurements.liars`); a smaller penalty and more local steps make them longer."""

NOISE_NORM = 1.5
"""Gaussian noise of deviation σ in D × r numbers may be this many times σ √(D r) long, which it hardly exceeds."""


@dataclass(frozen=True)
class TrainingPlan:
    """How a training proceeds."""

    rounds: int = 8  # closed ones, the warm ones counted
    participation: float = 0.25  # share of the reachable devices that a round asks
    quorum: float = 1.0  # share of those asked whose replies close a round at once; not with masks, which wait for all
    deadline: float = 120.0  # seconds after which a round, or an exchange of masks, is closed with what has arrived
    poll: float = 0.5  # seconds between two looks for answers
    patience: float = 600.0  # seconds without a closed round after which a training gives up; it can be resumed
    sampling: Sampling = "cover"
    least: int = 1  # devices that a round asks and accepts at least: a sum or a median of two is worth nothing
    asked: int = 1  # devices that a round asks at least, if as many are there
    schedule: Sequence[Sequence[str]] = ()  # the participants of every round, if they are fixed beforehand


class Coordinator:
    """The rounds of one training; with a folder, resumable from there."""

    def __init__(self, terms: Terms, plan: TrainingPlan, folder: Path | None = None) -> None:
        self.plan, self.folder = plan, folder
        self.state = TrainingState(terms, plan.participation, plan.sampling)
        self.requests = OpenRequests(self.state, plan.deadline, plan.least)
        self.delivery = ResultDelivery(self.state, self.requests, folder)
        self.shared = self.state.server.shared  # Z as the devices of the open round hold it
        self.phase: Phase = "warm"
        self.waits: str | None = None  # what for, if rounds cannot be held
        self._tried: set[str] = set()
        self._opened = time.monotonic()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def restore(self, file: str = UNDER_WAY) -> None:
        """Continue from a file of the folder, which must be of these terms."""
        assert self.folder is not None
        self.state.restore(self.folder / file)

    @property
    def finished(self) -> bool:
        """Whether all rounds are closed; a training that is done has no others, whatever is planned now."""
        return self.state.done or self.state.round >= self.plan.rounds

    def choose(self, online: Collection[str]) -> list[str]:
        """Choose the devices to ask, of those that are online; none while they are too few.

        During a warm start, a round asks only devices that were neither heard nor asked before or, once there are
        none, only devices that were heard. So the kind of the round is the same, whichever of them answer; and a
        device that never answers does not hold up the others.
        """
        if self.plan.schedule:
            return list(self.plan.schedule[self.state.round])
        server, least = self.state.server, self.plan.least
        usable = [name for name in online if not self.state.ledger.is_out(name)]
        groups = [usable]
        if server.warm:
            fresh = [name for name in usable if name not in server.heard and name not in self._tried]
            groups = [fresh, [name for name in usable if name in server.heard], usable]
        group = next((group for group in groups if len(group) >= least), None)
        if group is None:
            out = [name for name in online if name not in usable]
            why = f", and left out because their answers could not be used: {_named(out)}" if out else ""
            self._wait_for(f"devices; {len(online)} online, {least} needed{why}")
            return []
        fewest = max(least, min(self.plan.asked, len(group)))
        left = len(group) - max(fewest, math.ceil(self.plan.participation * len(usable) - 1e-9))
        if server.warm and server.heard.isdisjoint(group) and 0 < left < least:
            fewest = len(group)  # those left over would be too few for a warm round of their own
        chosen = self.state.sampler.next(group, of=len(usable), least=fewest)
        self._tried.update(chosen if server.warm else ())
        return chosen

    def open(self, names: Sequence[str]) -> dict[str, Request]:
        """Begin a round: the request for each device."""
        state, terms = self.state, self.state.terms
        self.phase = "warm" if state.server.begin_round(names) else "admm"
        self._opened, self.requests.sent = time.monotonic(), 0
        self.shared = wire.decode(state.encoded, terms.shape, wire.downward(terms.encoding))
        requests = {name: state.request(name, self.phase) for name in names}
        # With secure aggregation, each step towards a sum is asked by itself.
        return requests if terms.secure else self.requests.expect(requests, self.plan.quorum)

    def take(self, name: str, answer: Answer) -> bool:
        """Accept an answer into the round, or refuse and count it; what this process computed itself is not checked."""
        reply = self.requests.hear(name, answer)
        if reply is None:
            return False
        terms = self.state.terms
        try:
            matrix = wire.decode(reply.payload, terms.shape, terms.encoding)
            if self.phase == "admm":
                matrix = matrix + wire.reference(self.shared, terms.encoding)
            if not isinstance(answer, Reply):
                check_matrix(matrix, self.phase, terms)
        except ValueError as error:
            self.requests.refuse(name, str(error))
            return False
        self.state.server.receive(name, matrix)
        return True

    def take_sum(self, replies: Mapping[str, Reply], total: Array) -> None:
        """Accept the sum of what these replies hide."""
        if self.phase == "admm":
            total = total + len(replies) * self.shared  # masked replies are differences from Z
        self.state.server.receive_sum(replies, total)
        self.requests.accepted = {
            name: AcceptedReply(len(reply.payload), reply.diagnostics) for name, reply in replies.items()
        }

    def close(self) -> bool:
        """End the round; False if too few answered, and then nothing has happened."""
        accepted = self.requests.accepted
        is_held = len(accepted) >= max(self.plan.least, 1)
        if is_held:
            self._close_held()
            self._wait_for(None)
        else:
            silent = self.requests.silent
            names = f", none from {_named(silent)}" if silent else ""
            self._wait_for(f"usable answers; {len(accepted)} came, {self.plan.least} needed{names}")
        self.requests.expect({})
        if self.folder is not None:
            write_status(self.folder, self.state.status(self.plan.rounds))
        return is_held

    def _close_held(self) -> None:
        """Make the new Z of what was accepted, and note who took part in it."""
        state = self.state
        before, shared = state.server.shared, state.server.close_round()
        for name in self.requests.accepted if self.phase == "admm" else ():
            state.ledger.accepted[name] = state.round
            state.ledger.tickets[name] = self.requests.ticket(name)
        record = self._record(float(np.linalg.norm(shared - before)))
        state.append(record, wire.encode(shared, wire.downward(state.terms.encoding)))
        if self.folder is not None:
            state.save(self.folder / UNDER_WAY)

    def _record(self, change: float) -> Round:
        accepted = self.requests.accepted
        diagnostics = {name: reply.diagnostics for name, reply in accepted.items()}
        objectives = [each["objective"] for each in diagnostics.values() if "objective" in each]
        return Round(
            phase=self.phase,
            participants=tuple(accepted),
            objective=float(np.mean(objectives)) if objectives else math.nan,
            subspace_change=change,
            bytes_up=sum(reply.size for reply in accepted.values()),
            bytes_down=self.requests.sent,
            seconds=time.monotonic() - self._opened,
            computing=max(each.get("seconds", 0.0) for each in diagnostics.values()),
            left_out=self.state.server.left_out,
            local_changes={name: each["change"] for name, each in diagnostics.items() if "change" in each},
        )

    def _wait_for(self, what: str | None) -> None:
        """Log once, and leave in the folder, what keeps the training from its next round; None if nothing does."""
        before, self.waits = self.waits, None if what is None else f"waits for {what}"
        if self.waits == before:
            return
        if self.waits is not None:
            logger.warning("The training %s.", self.waits)
        if self.folder is not None:
            write_waits(self.folder, self.waits)


def _named(names: Sequence[str]) -> str:
    """List some of the names, for a sentence."""
    more = ["…"] if len(names) > MOST_NAMED else []
    return ", ".join([*names[:MOST_NAMED], *more])


def check_matrix(matrix: Array, phase: Phase, terms: Terms) -> None:
    """Refuse a reply that no honest device can have sent."""
    if not np.isfinite(matrix).all():
        raise ProtocolError("It holds values that are not finite numbers.")
    norm, bound = float(np.linalg.norm(matrix)), longest_reply(phase, terms)
    if norm > bound:
        raise ProtocolError(f"Its norm, {norm:.3g}, exceeds the limit of {bound:.3g} for a valid reply.")


def longest_reply(phase: Phase, terms: Terms) -> float:
    """Compute the largest norm of a reply that is accepted."""
    bound = WARM_NORM if phase == "warm" else ADMM_NORM * math.sqrt(terms.consensus.rank)
    if terms.noise > 0.0:
        longest = 1.0 if phase == "warm" else terms.clip
        bound += longest * (1.0 + NOISE_NORM * terms.noise * math.sqrt(terms.dimension * terms.consensus.rank))
    return bound
