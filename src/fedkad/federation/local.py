"""A training in one process, and what only one process can observe of it."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from fedkad.detect.model import Memory, Model
from fedkad.federation import engine, wire
from fedkad.federation.client import Client, LocalState
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.history import Round
from fedkad.federation.participant import Array, Participant, answer, final_subspace
from fedkad.federation.protocol import Reply, Request, Terms
from fedkad.federation.server import Server
from fedkad.federation.settings import Encoding
from fedkad.koopman.stiefel import retract_polar

Report = Callable[[str, int, int], None]


class LocalTransport:
    """Participants in this process; a request is answered when its answer is collected; deliveries are reported."""

    def __init__(self, participants: Mapping[str, Participant], report: Report | None = None) -> None:
        self.participants, self._report = dict(participants), report
        self._requests: dict[str, Request] = {}

    def devices(self) -> Collection[str]:
        """Name all participants."""
        return list(self.participants)

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Take requests; there is no deadline here."""
        self._requests = dict(requests)

    def answers(self) -> Iterator[tuple[str, Reply]]:
        """Yield the replies, in the order of the requests; an error of a participant is raised here."""
        requests, self._requests = self._requests, {}
        for done, (name, request) in enumerate(requests.items()):
            began = time.perf_counter()
            self.participants[name], reply = answer(self.participants[name], request)
            if request.kind == "deliver" and self._report is not None:
                self._report("detectors", done + 1, len(requests))
            yield name, reply.timed(time.perf_counter() - began)


class LocalTraining:
    """A training in this process with a fixed schedule, observed after each round.

    All `clients` have the same settings of the consensus. Without `memories`, which devices keep of their data, nothing
    can be delivered; `report` is called with ("detectors", done, of) as that happens. With `robust`, replies are put
    together so that a minority of liars cannot drag the result away, as in a fleet over a network.

    `states` are those of the clients, with their last rounds committed: with random starts of all, otherwise of those
    that took part.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        encoding: Encoding,
        schedule: Sequence[Sequence[str]],
        memories: Mapping[str, Memory] | None = None,
        report: Report | None = None,
        *,
        robust: bool = False,
    ) -> None:
        self.clients = clients
        first = next(iter(clients.values()))
        # In one process there is one lifting, and the terms need not describe it.
        size, consensus = len(first.statistics.yy), first.consensus
        terms = Terms("in process", (), 0, 0, 0, 0, "", size, encoding, consensus, robust=robust)
        memories = memories or {}
        self.transport = LocalTransport(
            {name: Participant(name, memories.get(name), client) for name, client in clients.items()}, report
        )
        plan = TrainingPlan(len(schedule), deadline=inf, poll=0.0, patience=0.0, schedule=schedule)
        self.coordinator = Coordinator(terms, plan)
        is_random = consensus.start == "random"
        self.states = {name: client.begin(self.server.shared) for name, client in clients.items() if is_random}
        self._holders: set[str] = set()  # clients that hold the newest Z already

    @property
    def server(self) -> Server:
        """The server, with the consensus Z."""
        return self.coordinator.state.server

    def rounds(self) -> Iterator[Round]:
        """Hold the rounds of the schedule; each record has the diagnostics of the whole fleet."""
        for record in engine.run_rounds(self.coordinator, self.transport):
            yield self._observed(record)

    def _observed(self, record: Round) -> Round:
        """Complete the record of a round, after which every participant gets the new Z at once."""
        perturbation, bytes_down, participants = 0.0, 0, set[str]()
        if record.phase == "admm":
            participants, training = set(record.participants), self.coordinator.state
            bytes_down = (len(participants - self._holders) + len(participants)) * len(training.encoded)
            shared = wire.decode(training.encoded, training.terms.shape, wire.downward(training.terms.encoding))
            for name in record.participants:
                # The participants themselves commit the round with their next request, as over a network.
                client, progress = self.clients[name], self.transport.participants[name].progress
                assert progress.state is not None
                assert progress.computed is not None
                perturbation += refit_perturbation(client, progress.state, progress.computed)
                self.states[name] = client.commit(progress.computed, shared)
        self._holders = participants
        fleet = fleet_diagnostics(self.clients.values(), self.states, self.server.shared)
        return replace(record, **fleet._asdict(), refit_perturbation=perturbation, bytes_down=bytes_down)

    def deliver(self) -> dict[str, Model]:
        """Have every device adopt the final subspace; return their models."""
        engine.deliver(self.coordinator, self.transport)
        models = {name: participant.model for name, participant in self.transport.participants.items()}
        return {name: model for name, model in models.items() if model is not None}

    @property
    def subspace(self) -> Array:
        """The orthonormal factor of Z as it goes down: what every device adopts."""
        training = self.coordinator.state
        return final_subspace(training.encoded, training.terms.shape, wire.downward(training.terms.encoding))

    @property
    def delivery_bytes(self) -> int:
        """Bytes of the final Z for the devices that do not hold it yet."""
        return len(self.clients.keys() - self._holders) * len(self.coordinator.state.encoded)


def refit_perturbation(client: Client, before: LocalState, after: LocalState) -> float:
    """Measure what refitting Q̂ did to the loss of a client in a round."""
    refitted = client.objective(after.subspace, after.operator, reduced=after.reduced)
    return refitted - client.objective(after.subspace, before.operator, reduced=after.reduced)


class FleetDiagnostics(NamedTuple):
    """The quantities of a round that need every client's state."""

    objective: float
    lagrangian: float
    consensus_residual: float


def fleet_diagnostics(clients: Iterable[Client], states: Mapping[str, LocalState], shared: Array) -> FleetDiagnostics:
    """Compute objective, augmented Lagrangian and consensus residual of a fleet at the consensus Z."""
    objective = lagrangian = residual = 0.0
    count = 0
    untouched = retract_polar(shared)
    for client in clients:
        count += 1
        state = states.get(client.name)
        if state is None:
            local = client.objective(untouched)
        else:
            local = client.objective(state.subspace, reduced=state.reduced)
        objective += local
        lagrangian += local
        if state is not None:
            apart = state.subspace - shared
            distance = float(np.linalg.norm(apart))
            residual += distance
            lagrangian += float(np.vdot(state.dual, apart)) + client.consensus.penalty / 2.0 * distance**2
    return FleetDiagnostics(objective, lagrangian, residual / count)
