"""A training as the server sees it, whatever carries its messages: whom to ask, what to accept, when a round is over.

The engine that owns the network does three things in a loop: it asks `choose` whom to ask, sends each of them its
request, and hands every answer to `take`. `close` ends the round. Between two rounds all of a training is in one file,
so that a killed server goes on from the last closed round. What was accepted in an open round is forgotten with it: no
device has been told, and each drops what it holds as pending.

    training.safetensors   the training under way
    result.safetensors     the last one that was finished, for devices that come later
    status.json            what people and programs want to know of the last one
    result.json            the run that was finished last, and who holds its result
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation import wire
from fedkad.federation.ledger import Ledger, Record
from fedkad.federation.protocol import Header, Kind, ProtocolError, Reply, Request, Terms
from fedkad.federation.server import Sampler, Server
from fedkad.federation.settings import Sampling

Array = NDArray[np.float64]
UNDER_WAY, RESULT = "training.safetensors", "result.safetensors"
STATUS, HOLDERS = "status.json", "result.json"
KIND = "fedkad-training"

WARM_NORM = 1.0 + 1e-2
"""A warm message is as long as the root of a share of energy, up to rounding."""

ADMM_NORM = 10.0
"""A reply P + Λ/ρ may be so many times as long as an orthonormal P, whose norm is √r."""

NOISE_NORM = 1.5
"""Gaussian noise of deviation σ in D × r numbers may be so many times as long as σ √(D r), which it hardly exceeds."""


@dataclass(frozen=True)
class Plan:
    """How a training goes.

    Attributes
    ----------
    rounds : int
        Closed rounds, the warm ones counted.
    participation : float
        Share of the devices there that a round asks.
    quorum : float
        Share of those asked whose replies close a round at once.
    deadline : float
        Seconds after which a round is closed with what has come.
    sampling : {"cover", "uniform"}
    least : int
        Devices that a round asks, and accepts, at least: of two, a sum or a median is worth nothing.
    """

    rounds: int = 8
    participation: float = 0.25
    quorum: float = 1.0
    deadline: float = 120.0
    sampling: Sampling = "cover"
    least: int = 1


class Taken(NamedTuple):
    """What is kept of an answer until its round is closed."""

    size: int
    diagnostics: Mapping[str, float]


class Training:
    """The rounds of one training, resumable from its folder."""

    def __init__(self, folder: Path, terms: Terms, plan: Plan) -> None:
        self.folder, self.terms, self.plan = folder, terms, plan
        self.server = Server(terms.dimension, terms.consensus, median=terms.robust)
        self.sampler = Sampler([], plan.participation, plan.sampling, terms.consensus.seed)
        self.shared = self.server.shared  # Z as the devices of the open round hold it
        self.phase: Literal["warm", "admm"] = "warm"
        self.records: list[Record] = []
        self.ledger = Ledger()
        self.done = False
        self._tried: set[str] = set()
        self._made: dict[int, bytes] = {}  # Z by the round that it was made of, as it goes down
        self._opened, self._sent = time.monotonic(), 0
        self._await({}, 1.0)
        folder.mkdir(parents=True, exist_ok=True)

    # -- rounds -------------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is open, or next."""
        return len(self.records)

    @property
    def finished(self) -> bool:
        """Whether all rounds are closed."""
        return self.round >= self.plan.rounds

    @property
    def schedule(self) -> list[tuple[str, ...]]:
        """The participants of every closed round, to replay in process."""
        return [tuple(record.participants) for record in self.records]

    def choose(self, there: Collection[str]) -> list[str]:
        """Whom to ask, of those who are there; nobody while they are too few.

        As long as the start is warm, a round asks only devices that were not heard and not asked before or, once there
        are none, only devices that were heard: whoever of them answers, the kind of the round is the same, and a
        device that never answers does not hold up the others.
        """
        usable = [name for name in there if not self.ledger.is_out(name)]
        groups = [usable]
        if self.server.warm:
            fresh = [name for name in usable if name not in self.server.heard and name not in self._tried]
            groups = [fresh, [name for name in usable if name in self.server.heard], usable]
        group = next((group for group in groups if len(group) >= self.plan.least), None)
        if group is None:
            return []
        chosen = self.sampler.next(group, of=len(usable), least=self._fewest(group, len(usable)))
        self._tried.update(chosen if self.server.warm else ())
        return chosen

    def _fewest(self, group: Sequence[str], usable: int) -> int:
        """How many to ask at least: all, where those left over would be too few for a warm round of their own."""
        left = len(group) - max(self.plan.least, math.ceil(self.plan.participation * usable - 1e-9))
        is_fresh = self.server.warm and not self.server.heard.intersection(group)
        return len(group) if is_fresh and 0 < left < self.plan.least else self.plan.least

    def open(self, names: Sequence[str]) -> dict[str, Request]:
        """Begin a round: the request for each device."""
        self.phase = "warm" if self.server.begin_round(names) else "admm"
        self._opened, self._sent = time.monotonic(), 0
        self.shared = wire.decode(self._encoded(), self.terms.shape, wire.downward(self.terms.encoding))
        requests = {name: self._request(name, self.phase) for name in names}
        # With secure aggregation, each step towards a sum is asked by itself.
        return requests if self.terms.secure else self.ask(requests, self.plan.quorum)

    def ask(self, requests: dict[str, Request], quorum: float = 1.0) -> dict[str, Request]:
        """Await the answers to these requests, and to no others, from now on."""
        self._sent += sum(len(request.shared) + len(request.accepted_shared) for request in requests.values())
        self._await(requests, quorum)
        return requests

    def _await(self, requests: dict[str, Request], quorum: float) -> None:
        self._open, self._quorum, self._began = requests, quorum, time.monotonic()
        self._taken: dict[str, Taken] = {}
        self._failed: set[str] = set()

    def _request(self, name: str, kind: Kind) -> Request:
        ticket = secrets.token_hex(16)
        if kind == "warm":
            return Request(self.terms, kind, self.round, ticket)
        accepted = self.ledger.accepted.get(name, -1)
        same = accepted in (-1, self.round - 1)
        return Request(
            self.terms,
            kind,
            self.round,
            ticket,
            shared=self._encoded(),
            accepted=accepted,
            accepted_ticket=self.ledger.tickets.get(name, ""),
            accepted_shared=b"" if same else self._made[accepted],
        )

    def _encoded(self) -> bytes:
        """Z as it goes down."""
        return self._made.get(self.round - 1) or wire.encode(self.server.shared, wire.downward(self.terms.encoding))

    def take(self, name: str, answer: Header | str) -> bool:
        """One answer: accepted into the round, or refused and counted."""
        reply = self.hear(name, answer)
        if reply is None:
            return False
        try:
            matrix = self._matrix(reply)
        except ValueError as error:
            self.refuse(name, str(error))
            return False
        self.server.receive(name, matrix)
        return True

    def hear(self, name: str, answer: Header | str) -> Reply | None:
        """One answer, checked to be what was asked for; of its numbers nothing is added up yet.

        What stands in the place of a header, from the network, is the reason why none will come.
        """
        if isinstance(answer, str):
            self.refuse(name, answer, strike=False)
            return None
        if name not in self._open or name in self._taken:
            self.refuse_late(name)
            return None
        try:
            reply = Reply.read(answer, self._open[name], name)
        except ValueError as error:
            self.refuse(name, str(error))
            return None
        self._taken[name] = Taken(len(reply.payload), reply.diagnostics)
        return reply

    def take_sum(self, names: Collection[str], total: Array) -> None:
        """The sum of what these devices said in a step before, of which nobody knows the terms."""
        self.server.receive_sum(names, total)
        self._taken = {name: self._summed[name] for name in names}

    def keep_for_sum(self) -> None:
        """Remember what is known of the answers so far: the sum that they are part of comes in a later step."""
        self._summed = dict(self._taken)

    def void(self, reason: str) -> None:
        """Give the open round up: what was answered in it counts for nothing."""
        self.ledger.refuse("", self.round, reason, strike=False)
        self._await({}, 1.0)

    def _matrix(self, reply: Reply) -> Array:
        terms = self.terms
        matrix = wire.decode(reply.payload, terms.shape, terms.encoding)
        if self.phase == "admm":
            matrix = matrix + wire.reference(self.shared, terms.encoding)
        check_matrix(matrix, self.phase, terms)
        return matrix

    def refuse(self, name: str, reason: str, *, strike: bool = True) -> None:
        """Do not take an answer to what was asked last, and await none any more."""
        self._taken.pop(name, None)
        self._failed.add(name)
        self.ledger.refuse(name, self.round, reason, strike=strike)

    def refuse_late(self, name: str) -> None:
        """Count an answer to what is no longer asked; what is asked now stays open."""
        self.ledger.refuse(name, self.round, "The answer came too late; its round was closed.", strike=False)

    def is_over(self) -> bool:
        """Whether what was asked last has all its answers, its quorum, or no time left."""
        quorum = max(math.ceil(self._quorum * len(self._open) - 1e-9), self.plan.least)
        enough = len(self._taken) >= quorum
        outstanding = set(self._open).difference(self._taken, self._failed)
        return enough or not outstanding or time.monotonic() - self._began >= self.plan.deadline

    def close(self) -> bool:
        """End the round; False if too few answered, and then nothing has happened."""
        if len(self._taken) < max(self.plan.least, 1):
            self._await({}, 1.0)
            self._write_status()
            return False
        before, shared = self.server.shared, self.server.close_round()
        for name in self._taken if self.phase == "admm" else ():
            self.ledger.accepted[name] = self.round
            self.ledger.tickets[name] = self._open[name].ticket
        self._made[self.round] = wire.encode(shared, wire.downward(self.terms.encoding))
        self.records.append(self._record(float(np.linalg.norm(shared - before))))
        self._await({}, 1.0)
        self._forget_unneeded()
        self._save(UNDER_WAY)
        self._write_status()
        return True

    def _record(self, change: float) -> Record:
        told = [taken.diagnostics for taken in self._taken.values()]
        objectives = [diagnostics["objective"] for diagnostics in told if "objective" in diagnostics]
        return Record(
            phase=self.phase,
            participants=list(self._taken),
            objective=float(np.mean(objectives)) if objectives else math.nan,
            subspace_change=change,
            bytes_up=sum(taken.size for taken in self._taken.values()),
            bytes_down=self._sent,
            seconds=time.monotonic() - self._opened,
            computing=max(diagnostics.get("seconds", 0.0) for diagnostics in told),
        )

    def _forget_unneeded(self) -> None:
        """Keep Z only of rounds that some device still has to commit, and the newest."""
        needed = {*self.ledger.accepted.values(), self.round - 1}
        self._made = {made: payload for made, payload in self._made.items() if made in needed}

    # -- delivery -----------------------------------------------------------------------------------------------

    def deliveries(self, names: Collection[str]) -> dict[str, Request]:
        """What gives the final subspace to those who do not hold it yet."""
        shared, usual, holders = self._encoded(), self._usual_threshold(), set(self.ledger.delivered)
        return self.ask(
            {
                name: Request(
                    self.terms,
                    "deliver",
                    self.round,
                    secrets.token_hex(16),
                    shared=shared,
                    least_threshold=usual,
                )
                for name in names
                if name not in holders
            }
        )

    def confirm(self, name: str, answer: Header | str) -> bool:
        """A device says that it holds the final subspace."""
        reply = self.hear(name, answer)
        if reply is None:
            return False
        self.ledger.delivered.append(name)
        if "threshold" in reply.diagnostics:
            self.ledger.thresholds[name] = reply.diagnostics["threshold"]
        return True

    def _usual_threshold(self) -> float:
        known = list(self.ledger.thresholds.values())
        return float(np.median(known)) if known else 0.0

    def finish(self) -> None:
        """Say that the training is over; who was not there for the delivery gets it later."""
        self.done = True
        self._await({}, 1.0)
        self._save(RESULT)
        held = {"run": self.terms.run, "delivered": self.ledger.delivered}
        write_atomically(self.folder / HOLDERS, json.dumps(held).encode())
        if (under_way := stored_terms(self.folder, UNDER_WAY)) is not None and under_way.run == self.terms.run:
            (self.folder / UNDER_WAY).unlink()
        if self._is_the_last():
            self._write_status()

    def _is_the_last(self) -> bool:
        """Whether no other training has begun since: what is known of that one stays."""
        try:
            known = json.loads((self.folder / STATUS).read_text())
        except (FileNotFoundError, ValueError):
            return True
        return not isinstance(known, dict) or known.get("run") == self.terms.run

    # -- the folder ---------------------------------------------------------------------------------------------

    def _save(self, file: str) -> None:
        facts, arrays = self.server.state()
        header = {
            "terms": self.terms.header(),
            "server": facts,
            "sampler": self.sampler.state(),
            "records": [asdict(record) for record in self.records],
            "ledger": asdict(self.ledger),
            "done": self.done,
            "made": sorted(self._made),
        }
        made = {f"made.{k}": np.frombuffer(payload, dtype=np.uint8) for k, payload in self._made.items()}
        write_model(self.folder / file, header, {**arrays, **made}, KIND)

    def restore(self, file: str = UNDER_WAY) -> None:
        """Go on from what a file holds, which must be of these terms."""
        header, arrays = read_model(self.folder / file, KIND)
        made = {k: arrays.pop(f"made.{k}").tobytes() for k in header["made"]}
        self.server.restore(header["server"], arrays)
        self.sampler.restore(header["sampler"])
        self.records = [Record(**record) for record in header["records"]]
        self.ledger, self.done, self._made = Ledger(**header["ledger"]), header["done"], made

    def _write_status(self) -> None:
        write_atomically(self.folder / STATUS, json.dumps(self.status(), indent=1).encode())

    def status(self) -> dict[str, Any]:
        """The training in a few words, for people and programs."""
        return {
            "run": self.terms.run,
            "state": "done" if self.done else "delivering" if self.finished else "training",
            "round": self.round,
            "rounds": self.plan.rounds,
            "phases": [record.phase for record in self.records],
            "participants": [record.participants for record in self.records],
            "objective": [None if math.isnan(record.objective) else record.objective for record in self.records],
            "subspace_change": [record.subspace_change for record in self.records],
            "bytes_up": sum(record.bytes_up for record in self.records),
            "bytes_down": sum(record.bytes_down for record in self.records),
            "seconds": sum(record.seconds for record in self.records),
            "round_bytes": [record.bytes_up + record.bytes_down for record in self.records],
            "round_seconds": [record.seconds for record in self.records],
            "round_computing": [record.computing for record in self.records],
            "refusals": self.ledger.refusals,
            "refused": self.ledger.refused,
            "delivered": sorted(self.ledger.delivered),
        }


def check_matrix(matrix: Array, phase: str, terms: Terms) -> None:
    """Refuse a reply that no honest device can have sent."""
    if not np.isfinite(matrix).all():
        raise ProtocolError("It holds values that are not finite numbers.")
    bound = WARM_NORM if phase == "warm" else ADMM_NORM * math.sqrt(terms.consensus.rank)
    if terms.noise > 0.0:
        longest = 1.0 if phase == "warm" else terms.clip
        bound += longest * (1.0 + NOISE_NORM * terms.noise * math.sqrt(matrix.size))
    norm = float(np.linalg.norm(matrix))
    if norm > bound:
        raise ProtocolError(f"Its norm is {norm:.3g}, and that of no honest reply exceeds {bound:.3g}.")


def stored_terms(folder: Path, file: str) -> Terms | None:
    """The terms of the training that a file holds; one that cannot be read any more is set aside."""
    path = folder / file
    if not path.exists():
        return None
    try:
        return Terms.read(read_model(path, KIND)[0]["terms"])
    except (ModelFileError, ProtocolError):
        os.replace(path, path.with_suffix(".unreadable"))
        return None
