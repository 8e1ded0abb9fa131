"""A training as the server sees it, whatever carries its messages: whom to ask, what to accept, when a round is over.

The engine that owns the network does three things in a loop: it asks `choose` whom to ask, sends each of them its
`request`, and hands every answer to `take`. `close` ends the round. Between two rounds all of a training is in one
file, so that a killed server goes on from the last closed round. What was accepted in an open round is forgotten with
it: no device has been told, and each drops what it holds as pending.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad.detect.modelfile import read_model, write_model
from fedkad.federation import wire
from fedkad.federation.protocol import Header, Kind, ProtocolError, Reply, Request, Terms, check_terms
from fedkad.federation.server import Sampler, Server
from fedkad.federation.settings import Sampling

Array = NDArray[np.float64]
CHECKPOINT = "training.safetensors"
STATUS = "status.json"
KIND = "fedkad-training"

WARM_NORM = 1.0 + 1e-2
"""A warm message is as long as the root of a share of energy, up to rounding."""

ADMM_NORM = 10.0
"""A reply P + Λ/ρ may be so many times as long as an orthonormal P, whose norm is √r."""

SHOWN = 200
"""Refusals that the status shows; all are counted."""


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
    median : bool
        Geometric median in place of the mean.
    least : int
        Devices that a round asks at least: a sum of two, or a median of two, is worth nothing.
    """

    rounds: int = 8
    participation: float = 0.25
    quorum: float = 1.0
    deadline: float = 120.0
    sampling: Sampling = "cover"
    median: bool = False
    least: int = 1


@dataclass
class Record:
    """What a closed round was."""

    phase: Literal["warm", "admm"]
    participants: list[str]
    objective: float
    subspace_change: float
    bytes_up: int
    bytes_down: int
    seconds: float
    computing: float  # the longest computation among the participants


@dataclass
class Ledger:
    """What the server remembers of the devices; small, and the only thing that grows with their number."""

    accepted: dict[str, int] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0


class Training:
    """The rounds of one training, resumable from its folder."""

    def __init__(self, folder: Path, terms: Terms, plan: Plan) -> None:
        self.folder, self.terms, self.plan = folder, terms, plan
        self.server = Server(terms.dimension, terms.consensus, median=plan.median)
        self.sampler = Sampler([], plan.participation, plan.sampling, terms.consensus.seed)
        self.shared = self.server.shared  # Z as the devices of the open round hold it
        self.records: list[Record] = []
        self.ledger = Ledger()
        self.done = False
        self._tried: set[str] = set()
        self._made: dict[int, bytes] = {}  # Z by the round that it was made of, as it goes down
        self._open: dict[str, Request] = {}
        self._replies: dict[str, Reply] = {}
        self._failed: set[str] = set()
        self._began = self._opened = time.monotonic()
        self._sent = 0
        self.phase: Literal["warm", "admm"] = "warm"
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

    def choose(self, there: Collection[str]) -> list[str]:
        """Whom to ask, of those who are there.

        As long as the start is warm, a round asks only devices that were not heard and not asked before or, once there
        are none, only devices that were heard: whoever of them answers, the kind of the round is the same, and a
        device that never answers does not hold up the others.
        """
        if not self.server.warm:
            return self.sampler.next(there, least=self.plan.least)
        fresh = [name for name in there if name not in self.server.heard and name not in self._tried]
        heard = [name for name in there if name in self.server.heard]
        chosen = self.sampler.next(fresh or heard or there, of=len(there), least=self.plan.least)
        self._tried.update(chosen)
        return chosen

    def open(self, names: Sequence[str]) -> dict[str, Request]:
        """Begin a round: the request for each device."""
        self.phase = "warm" if self.server.begin_round(names) else "admm"
        self._sent, self._opened = 0, time.monotonic()
        self.shared = wire.decode(self._encoded(), self.terms.shape, wire.downward(self.terms.encoding))
        return self.ask({name: self._request(name, self.phase) for name in names})

    def ask(self, requests: dict[str, Request]) -> dict[str, Request]:
        """Await the answers to these requests, and to no others, from now on."""
        self._sent += sum(len(request.shared) + len(request.accepted_shared) for request in requests.values())
        self._begin(requests)
        return requests

    def _begin(self, requests: dict[str, Request]) -> None:
        self._open, self._began = requests, time.monotonic()
        self._replies, self._failed = {}, set()

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
            accepted_shared=b"" if same else self._made[accepted],
        )

    def _encoded(self) -> bytes:
        """Z as it goes down."""
        return self._made.get(self.round - 1) or wire.encode(self.server.shared, wire.downward(self.terms.encoding))

    def take(self, name: str, answer: Header | str) -> bool:
        """One answer: accepted into the round, or refused and counted. A late one is refused too."""
        try:
            reply = self._read(name, answer)
            matrix = self._matrix(reply, self._open[name])
        except ValueError as error:
            self._refuse(name, answer, str(error))
            return False
        self.server.receive(name, matrix)
        self._replies[name] = Reply(name, b"", {**reply.diagnostics, "bytes": float(len(reply.payload))})
        return True

    def hear(self, name: str, answer: Header | str) -> Reply | None:
        """One answer of a step in which nothing is added up yet, checked and counted like any other."""
        try:
            self._replies[name] = reply = self._read(name, answer)
        except ValueError as error:
            self._refuse(name, answer, str(error))
            return None
        return reply

    def take_sum(self, replies: Mapping[str, Reply], total: Array) -> None:
        """The sum of what these devices said, of which nobody knows the terms."""
        self.server.receive_sum(list(replies), total)
        sizes = {name: {**reply.diagnostics, "bytes": float(len(reply.payload))} for name, reply in replies.items()}
        self._replies = {name: Reply(name, b"", told) for name, told in sizes.items()}

    def void(self, reason: str) -> None:
        """Give the open round up: what was answered in it counts for nothing."""
        self._refuse("", reason, reason)
        self._begin({})

    @property
    def replies(self) -> dict[str, Reply]:
        """The answers taken so far to what was asked last."""
        return dict(self._replies)

    def _read(self, name: str, answer: Header | str) -> Reply:
        """The reply in an answer; what stands in its place, from the network, is a reason why there is none."""
        if isinstance(answer, str):
            raise ProtocolError(answer)
        if name not in self._open or name in self._replies:
            raise ProtocolError(f"It is too late: no answer of it is awaited in round {self.round}.")
        return Reply.read(answer, self._open[name], name)

    def _matrix(self, reply: Reply, request: Request) -> Array:
        terms = self.terms
        matrix = wire.decode(reply.payload, terms.shape, terms.encoding)
        if request.kind == "admm":
            matrix = matrix + wire.reference(self.shared, terms.encoding)
        check_matrix(matrix, request.kind, terms)
        return matrix

    def _refuse(self, name: str, answer: Header | str, reason: str) -> None:
        """Count an answer that is not taken, with its reason; a late one leaves the question of today open."""
        if isinstance(answer, str) or answer.get("round") == self.round or "refusal" in answer:
            self._failed.add(name)
        self.ledger.refusals += 1
        self.ledger.refused.append({"device": name, "round": self.round, "reason": reason})
        del self.ledger.refused[:-SHOWN]

    def is_over(self) -> bool:
        """Whether the open round has all its answers, its quorum, or no time left."""
        asked, answered = len(self._open), len(self._replies)
        enough = answered >= math.ceil(self.plan.quorum * asked - 1e-9)
        outstanding = set(self._open).difference(self._replies, self._failed)
        return enough or not outstanding or time.monotonic() - self._began >= self.plan.deadline

    def close(self) -> bool:
        """End the round; False if nobody answered, and then nothing has happened."""
        if not self._replies:
            self._begin({})
            self._write_status()
            return False
        before = self.server.shared
        shared = self.server.close_round()
        replies = self._replies
        for name in replies if self.phase == "admm" else ():
            self.ledger.accepted[name] = self.round
        objectives = [reply.diagnostics["objective"] for reply in replies.values() if "objective" in reply.diagnostics]
        record = Record(
            phase=self.phase,
            participants=list(replies),
            objective=float(np.mean(objectives)) if objectives else math.nan,
            subspace_change=float(np.linalg.norm(shared - before)),
            bytes_up=int(sum(reply.diagnostics["bytes"] for reply in replies.values())),
            bytes_down=self._sent,
            seconds=time.monotonic() - self._opened,
            computing=max(reply.diagnostics.get("seconds", 0.0) for reply in replies.values()),
        )
        self._made[self.round] = wire.encode(shared, wire.downward(self.terms.encoding))
        self.records.append(record)
        self._begin({})
        self._forget_unneeded()
        self.save()
        return True

    def _forget_unneeded(self) -> None:
        """Keep Z only of rounds that some device still has to commit, and the newest."""
        needed = {*self.ledger.accepted.values(), self.round - 1}
        self._made = {made: payload for made, payload in self._made.items() if made in needed}

    # -- delivery -----------------------------------------------------------------------------------------------

    def deliveries(self, names: Collection[str]) -> dict[str, Request]:
        """What gives the final subspace to those who do not hold it yet."""
        shared, usual = self._encoded(), self._usual_threshold()
        missing = [name for name in names if name not in self.ledger.delivered]
        self._begin(
            {
                name: Request(
                    self.terms,
                    "deliver",
                    self.round,
                    secrets.token_hex(16),
                    shared=shared,
                    least_threshold=usual,
                )
                for name in missing
            }
        )
        return self._open

    def finish(self) -> None:
        """Say that the training is over; who was not there for the delivery gets it later."""
        self.done = True
        self._begin({})
        self.save()

    def confirm(self, name: str, answer: Header | str) -> bool:
        """A device says that it holds the final subspace."""
        reply = self.hear(name, answer)
        if reply is None:
            return False
        self.ledger.delivered = sorted({*self.ledger.delivered, name})
        threshold = reply.diagnostics.get("threshold", math.nan)
        if math.isfinite(threshold):
            self.ledger.thresholds[name] = threshold
        return True

    def _usual_threshold(self) -> float:
        known = list(self.ledger.thresholds.values())
        return float(np.median(known)) if known else 0.0

    @property
    def schedule(self) -> list[tuple[str, ...]]:
        """The participants of every closed round, to replay in process."""
        return [tuple(record.participants) for record in self.records]

    # -- the folder ---------------------------------------------------------------------------------------------

    def save(self) -> None:
        """All of the training between two rounds, and its status for people."""
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
        write_model(self.folder / CHECKPOINT, header, {**arrays, **made}, KIND)
        self._write_status()

    def _write_status(self) -> None:
        write_atomically(self.folder / STATUS, json.dumps(self.status(), indent=1).encode())

    def restore(self) -> bool:
        """Go on from the folder; False if it holds no training, or one of another run."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return False
        header, arrays = read_model(path, KIND)
        terms = Terms.read(header["terms"])
        if terms.run != self.terms.run:
            return False
        check_terms(self.terms, terms, "fleet.toml", "the training under way")
        made = {k: arrays.pop(f"made.{k}").tobytes() for k in header["made"]}
        self.server.restore(header["server"], arrays)
        self.sampler.restore(header["sampler"])
        self.records = [Record(**record) for record in header["records"]]
        self.ledger, self.done, self._made = Ledger(**header["ledger"]), header["done"], made
        return True

    def status(self) -> dict[str, Any]:
        """The training in a few words, for people and programs."""
        return {
            "run": self.terms.run,
            "state": "done" if self.done else "delivering" if self.finished else "training",
            "round": self.round,
            "rounds": self.plan.rounds,
            "phases": [record.phase for record in self.records],
            "participants": [record.participants for record in self.records],
            "objective": [finite(record.objective) for record in self.records],
            "subspace_change": [record.subspace_change for record in self.records],
            "bytes_up": sum(record.bytes_up for record in self.records),
            "bytes_down": sum(record.bytes_down for record in self.records),
            "seconds": sum(record.seconds for record in self.records),
            "round_seconds": [record.seconds for record in self.records],
            "round_computing": [record.computing for record in self.records],
            "refusals": self.ledger.refusals,
            "refused": self.ledger.refused,
            "delivered": self.ledger.delivered,
        }


def check_matrix(matrix: Array, kind: Kind, terms: Terms) -> None:
    """Refuse a reply that no honest device can have sent; noise has no bound, and then only numbers are asked for."""
    if not np.isfinite(matrix).all():
        raise ProtocolError("it holds values that are not finite numbers")
    if terms.noise > 0.0:
        return
    bound = WARM_NORM if kind == "warm" else ADMM_NORM * math.sqrt(terms.consensus.rank)
    norm = float(np.linalg.norm(matrix))
    if norm > bound:
        raise ProtocolError(f"its norm is {norm:.3g}, and that of no honest reply exceeds {bound:.3g}")


def finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def latest_terms(folder: Path) -> tuple[Terms | None, bool]:
    """The terms of the training that a server's folder holds, if any, and whether it is done."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None, False
    header, _ = read_model(path, KIND)
    return Terms.read(header["terms"]), bool(header["done"])
