"""The carrier in memory, and a training over it: what only one process can observe is in its records."""

from __future__ import annotations

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
from fedkad.federation.participant import Array, Participant, answer, final_subspace, settle
from fedkad.federation.protocol import Reply, Request, Terms
from fedkad.federation.server import Server
from fedkad.federation.settings import Encoding
from fedkad.koopman.stiefel import retract_polar

Report = Callable[[str, int, int], None]


class LocalTransport:
    """Participants in this process. A request is answered when its answer is collected; deliveries are reported."""

    def __init__(self, participants: Mapping[str, Participant], report: Report | None = None) -> None:
        self.participants, self._report = dict(participants), report
        self._requests: dict[str, Request] = {}

    def devices(self) -> Collection[str]:
        """All participants."""
        return list(self.participants)

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Take requests; there is no deadline here."""
        self._requests = dict(requests)

    def answers(self) -> Iterator[tuple[str, Reply]]:
        """The replies, in the order of the requests; an error of a participant is raised here."""
        requests, self._requests = self._requests, {}
        for done, (name, request) in enumerate(requests.items()):
            began = time.perf_counter()
            self.participants[name], reply = answer(self.participants[name], request)
            if request.kind == "deliver" and self._report is not None:
                self._report("detectors", done + 1, len(requests))
            yield name, reply.timed(time.perf_counter() - began)


class LocalTraining:
    """A training in this process with a fixed schedule, observed after each round.

    Parameters
    ----------
    clients : mapping
        By name, all with the same settings of the consensus.
    encoding : str
    schedule : sequence of sequences of str
        The participants of every round.
    memories : mapping, optional
        What the devices keep of their data, by name; without it nothing can be delivered.
    report : callable, optional
        Called with ("detectors", done, of) as the result is delivered.
    robust : bool
        Put replies together so that a minority of liars cannot drag the result away, as a fleet over a network does.
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
        # In one process nobody can disagree about the lifting, and the terms do not describe it.
        size, consensus = len(first.statistics.yy), first.consensus
        terms = Terms("in process", (), 0, 0, 0, 0, "", size, encoding, consensus, robust=robust)
        known = memories or {}
        self.carrier = LocalTransport(
            {name: Participant(name, known.get(name), client) for name, client in clients.items()}, report
        )
        plan = TrainingPlan(len(schedule), deadline=inf, poll=0.0, patience=0.0, schedule=schedule, local=True)
        self.coordinator = Coordinator(terms, plan)
        is_random = first.consensus.start == "random"
        self._begun = {name: client.begin(self.server.shared) for name, client in clients.items() if is_random}

    @property
    def server(self) -> Server:
        """The server, with the consensus Z."""
        return self.coordinator.server

    @property
    def states(self) -> dict[str, LocalState]:
        """The states of the clients that have one: with random starts all, otherwise those that took part."""
        known = {name: participant.progress for name, participant in self.carrier.participants.items()}
        return self._begun | {name: progress.state for name, progress in known.items() if progress.state is not None}

    def rounds(self) -> Iterator[Round]:
        """Hold the rounds of the schedule; each record has the diagnostics of the whole fleet."""
        for record in engine.run_rounds(self.coordinator, self.carrier):
            yield self._observed(record)

    def _observed(self, record: Round) -> Round:
        perturbation = 0.0
        if record.phase == "admm":
            perturbation = sum(self._perturbation(name) for name in record.participants)
            for name in record.participants:  # each learns at once that its round was accepted
                request, known = self.coordinator.request(name, "admm"), self.carrier.participants
                known[name] = settle(known[name], request)
        fleet = fleet_diagnostics(self.clients.values(), self.states, self.server.shared)
        return replace(record, **fleet._asdict(), refit_perturbation=perturbation)

    def _perturbation(self, name: str) -> float:
        """What refitting Q̂ did to the loss of a client in the round that it has just computed."""
        client, progress = self.clients[name], self.carrier.participants[name].progress
        before, after = progress.state, progress.computed
        assert before is not None
        assert after is not None
        refitted = client.objective(after.subspace, after.operator, reduced=after.reduced)
        return refitted - client.objective(after.subspace, before.operator, reduced=after.reduced)

    def deliver(self) -> dict[str, Model]:
        """Have every device adopt the final subspace; their models."""
        engine.deliver(self.coordinator, self.carrier)
        used = {name: participant.model for name, participant in self.carrier.participants.items()}
        return {name: model for name, model in used.items() if model is not None}

    def result(self) -> tuple[Array, int]:
        """The final subspace as every device receives it, and the bytes that this takes; nobody adopts it."""
        self.coordinator.deliveries(self.carrier.devices())
        return self.subspace, self.coordinator.sent

    @property
    def subspace(self) -> Array:
        """The orthonormal factor of Z as it goes down."""
        terms = self.coordinator.terms
        return final_subspace(self.coordinator.encoded, terms.shape, wire.downward(terms.encoding))


class FleetDiagnostics(NamedTuple):
    """The quantities of a round that need every client's state."""

    objective: float
    lagrangian: float
    consensus_residual: float


def fleet_diagnostics(clients: Iterable[Client], states: Mapping[str, LocalState], shared: Array) -> FleetDiagnostics:
    """Objective, augmented Lagrangian and consensus residual of a fleet at the consensus Z."""
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
