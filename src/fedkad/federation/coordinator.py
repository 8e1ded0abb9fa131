"""A training as the server sees it, whatever carries its messages: which devices to ask, what to accept, when to close.

The engine does three things in a loop: it has `choose` name the devices to ask, sends each of them its request, and
hands every answer to `take`. `close` ends the round. With a folder, all of a training is in one file between two
rounds, so that a killed server continues from the last closed round. What was accepted in an open round is forgotten
with it: no device has been told, and each drops what it holds as pending. `training_folder` names the files.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.modelfile import read_model, write_model
from fedkad.federation import model_archive, training_files, wire
from fedkad.federation.gate import JUDGES, Judgement, Verdict, verdict_of
from fedkad.federation.history import Ledger, Round
from fedkad.federation.model_archive import KIND
from fedkad.federation.protocol import Answer, Phase, ProtocolError, Reply, Request, Terms
from fedkad.federation.server import Sampler, Server, usual_shape, usual_threshold
from fedkad.federation.settings import Sampling
from fedkad.federation.training_files import RESULT, UNDER_WAY
from fedkad.federation.training_folder import (
    DELIVERING,
    DONE,
    TRAINING,
    stored_terms,
    write_status,
    write_waits,
)

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

STORED = (
    "phase",
    "participants",
    "objective",
    "subspace_change",
    "bytes_up",
    "bytes_down",
    "seconds",
    "computing",
    "left_out",
)
"""What a file keeps of the record of a round."""


@dataclass(frozen=True)
class TrainingPlan:
    """How a training proceeds.

    With `local`, the devices are in this process: their replies are taken unchecked, and Z returns to the participants
    of a round at once instead of with their next request.
    """

    rounds: int = 8  # closed ones, the warm ones counted
    participation: float = 0.25  # share of the reachable devices that a round asks
    quorum: float = 1.0  # share of those asked whose replies close a round at once
    deadline: float = 120.0  # seconds after which a round is closed with what has arrived
    poll: float = 0.5  # seconds between two looks for answers
    patience: float = 600.0  # seconds without a closed round after which a training gives up; it can be resumed
    sampling: Sampling = "cover"
    least: int = 1  # devices that a round asks and accepts at least: a sum or a median of two is worth nothing
    asked: int = 1  # devices that a round asks at least, if as many are there
    schedule: Sequence[Sequence[str]] = ()  # the participants of every round, if they are fixed beforehand
    local: bool = False


class Taken(NamedTuple):
    """What is kept of an answer until its round is closed."""

    size: int
    diagnostics: Mapping[str, float]


class Coordinator:
    """The rounds of one training; with a folder, resumable from there."""

    def __init__(self, terms: Terms, plan: TrainingPlan, folder: Path | None = None) -> None:
        self.terms, self.plan, self.folder = terms, plan, folder
        self.server = Server(terms.dimension, terms.consensus, robust=terms.robust)
        self.sampler = Sampler([], plan.participation, plan.sampling, terms.consensus.seed)
        self.shared = self.server.shared  # Z as the devices of the open round hold it
        self.phase: Phase = "warm"
        self.records: list[Round] = []
        self.ledger = Ledger()
        self.done = False
        self.gate: dict[str, Any] = {}  # what devices said of the result before its delivery
        self.waits: str | None = None  # what for, if rounds cannot be held
        self.sent = 0  # bytes down since the round, or the delivery, began
        self._holders: set[str] = set()  # devices that hold the newest Z already
        self._tried: set[str] = set()
        self._made: dict[int, bytes] = {}  # Z by the round that it was made of, as it goes down
        self._opened = time.monotonic()
        self._await({}, 1.0)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    # -- rounds -------------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is open, or next."""
        return len(self.records)

    @property
    def finished(self) -> bool:
        """Whether all rounds are closed; a training that is done has no others, whatever is planned now."""
        return self.done or self.round >= self.plan.rounds

    @property
    def schedule(self) -> list[tuple[str, ...]]:
        """The participants of every closed round, to replay in process."""
        return [record.participants for record in self.records]

    def choose(self, there: Collection[str]) -> list[str]:
        """The devices to ask, of those that are there; none while they are too few.

        During a warm start, a round asks only devices that were neither heard nor asked before or, once there are
        none, only devices that were heard: whichever of them answer, the kind of the round is the same, and a device
        that never answers does not hold up the others.
        """
        if self.plan.schedule:
            return list(self.plan.schedule[self.round])
        usable = [name for name in there if not self.ledger.is_out(name)]
        groups = [usable]
        if self.server.warm:
            fresh = [name for name in usable if name not in self.server.heard and name not in self._tried]
            groups = [fresh, [name for name in usable if name in self.server.heard], usable]
        group = next((group for group in groups if len(group) >= self.plan.least), None)
        if group is None:
            out = [name for name in there if name not in usable]
            why = f", and left out because their answers could not be used: {_named(out)}" if out else ""
            self._wait_for(f"devices; {len(there)} online, {self.plan.least} needed{why}")
            return []
        chosen = self.sampler.next(group, of=len(usable), least=self._fewest(group, len(usable)))
        self._tried.update(chosen if self.server.warm else ())
        return chosen

    def _fewest(self, group: Sequence[str], usable: int) -> int:
        """How many to ask at least: all, if those left over would be too few for their own warm round."""
        fewest = max(self.plan.least, min(self.plan.asked, len(group)))
        left = len(group) - max(fewest, math.ceil(self.plan.participation * usable - 1e-9))
        is_fresh = self.server.warm and not self.server.heard.intersection(group)
        return len(group) if is_fresh and 0 < left < self.plan.least else fewest

    def open(self, names: Sequence[str]) -> dict[str, Request]:
        """Begin a round: the request for each device."""
        self.phase = "warm" if self.server.begin_round(names) else "admm"
        self._opened, self.sent = time.monotonic(), 0
        self.shared = wire.decode(self.encoded, self.terms.shape, wire.downward(self.terms.encoding))
        requests = {name: self.request(name, self.phase) for name in names}
        # With secure aggregation, each step towards a sum is asked by itself.
        return requests if self.terms.secure else self.expect(requests, self.plan.quorum)

    def expect(self, requests: dict[str, Request], quorum: float = 1.0) -> dict[str, Request]:
        """Await the answers to these requests, and to no others, from now on."""
        for name, request in requests.items():
            self.sent += len(request.accepted_shared) + (0 if name in self._holders else len(request.shared))
        self._await(requests, quorum)
        return requests

    def _await(self, requests: dict[str, Request], quorum: float) -> None:
        self._open, self._quorum, self._began = requests, quorum, time.monotonic()
        self._taken: dict[str, Taken] = {}
        self._failed: set[str] = set()

    def request(self, name: str, kind: Phase) -> Request:
        """What asks a device for the round that is open, and tells it which of its rounds was accepted last."""
        ticket = secrets.token_hex(16)
        if kind == "warm":
            return Request(self.terms, kind, self.round, ticket)
        accepted = self.ledger.accepted.get(name, -1)
        is_known = self.plan.local or accepted in (-1, self.round - 1)
        return Request(
            self.terms,
            kind,
            self.round,
            ticket,
            shared=self.encoded,
            accepted=accepted,
            accepted_ticket=self.ledger.tickets.get(name, ""),
            accepted_shared=b"" if is_known else self._made[accepted],
        )

    @property
    def encoded(self) -> bytes:
        """Z as it goes down."""
        return self._made.get(self.round - 1) or wire.encode(self.server.shared, wire.downward(self.terms.encoding))

    def take(self, name: str, answer: Answer) -> bool:
        """One answer: accepted into the round, or refused and counted."""
        reply = self.hear(name, answer)
        if reply is None:
            return False
        terms = self.terms
        try:
            matrix = wire.decode(reply.payload, terms.shape, terms.encoding)
            if self.phase == "admm":
                matrix = matrix + wire.reference(self.shared, terms.encoding)
            if not self.plan.local:
                check_matrix(matrix, self.phase, terms)
        except ValueError as error:
            self.refuse(name, str(error))
            return False
        self.server.receive(name, matrix)
        return True

    def hear(self, name: str, answer: Answer) -> Reply | None:
        """One answer, checked to be what was asked for; none of its numbers is added up yet."""
        if isinstance(answer, str):
            self.refuse(name, answer, strike=False)
            return None
        if name not in self._open or name in self._taken:
            self.refuse_late(name)
            return None
        try:
            reply = answer if isinstance(answer, Reply) else Reply.read(answer, self._open[name], name)
        except ValueError as error:
            self.refuse(name, str(error), strike=self._open[name].kind != "judge")
            return None
        self._taken[name] = Taken(len(reply.payload), reply.diagnostics)
        return reply

    def take_sum(self, replies: Mapping[str, Reply], total: Array) -> None:
        """The sum of these replies, of which nobody knows the terms."""
        self.server.receive_sum(replies, total)
        self._taken = {name: Taken(len(reply.payload), reply.diagnostics) for name, reply in replies.items()}

    def void(self, reason: str) -> None:
        """Give the open round up: what was answered in it counts for nothing."""
        self.ledger.refuse("", self.round, reason, strike=False)
        self._await({}, 1.0)

    def refuse(self, name: str, reason: str, *, strike: bool = True) -> None:
        """Do not take an answer to the open request, and await none any more."""
        self._taken.pop(name, None)
        self._failed.add(name)
        self.ledger.refuse(name, self.round, reason, strike=strike)

    def refuse_late(self, name: str) -> None:
        """Count an answer to an earlier request; the open one stays open."""
        self.ledger.refuse(name, self.round, "The answer came too late; its round was closed.", strike=False)

    def is_over(self) -> bool:
        """Whether the open requests have all their answers, their quorum, or no time left."""
        quorum = max(math.ceil(self._quorum * len(self._open) - 1e-9), self.plan.least)
        enough = len(self._taken) >= quorum
        outstanding = set(self._open).difference(self._taken, self._failed)
        return enough or not outstanding or time.monotonic() - self._began >= self.plan.deadline

    def close(self) -> bool:
        """End the round; False if too few answered, and then nothing has happened."""
        if len(self._taken) < max(self.plan.least, 1):
            self._wait_for(self._lacking_answers())
            self._await({}, 1.0)
            self._write_status()
            return False
        before, shared = self.server.shared, self.server.close_round()
        made = wire.encode(shared, wire.downward(self.terms.encoding))
        for name in self._taken if self.phase == "admm" else ():
            self.ledger.accepted[name] = self.round
            self.ledger.tickets[name] = self._open[name].ticket
        self._holders = set(self._taken) if self.plan.local and self.phase == "admm" else set()
        self.sent += len(self._holders) * len(made)
        self._made[self.round] = made
        self.records.append(self._record(float(np.linalg.norm(shared - before))))
        self._await({}, 1.0)
        needed = {*self.ledger.accepted.values(), self.round - 1}  # to commit a round, or to begin one
        self._made = {made: payload for made, payload in self._made.items() if made in needed}
        self._save(UNDER_WAY)
        self._write_status()
        self._wait_for(None)
        return True

    def _lacking_answers(self) -> str:
        """What an attempt at a round lacked, and who did not answer; why is in the status."""
        silent = sorted(set(self._open).difference(self._taken))
        names = f", none from {_named(silent)}" if silent else ""
        return f"usable answers; {len(self._taken)} came, {self.plan.least} needed{names}"

    def _wait_for(self, what: str | None) -> None:
        """Say what keeps the training from its next round, once; None if nothing does any more."""
        before, self.waits = self.waits, None if what is None else f"waits for {what}"
        if self.waits == before:
            return
        if self.waits is not None:
            logger.warning("The training %s.", self.waits)
        if self.folder is not None:
            write_waits(self.folder, self.waits)

    def _record(self, change: float) -> Round:
        reported = {name: taken.diagnostics for name, taken in self._taken.items()}
        objectives = [diagnostics["objective"] for diagnostics in reported.values() if "objective" in diagnostics]
        return Round(
            phase=self.phase,
            participants=tuple(self._taken),
            objective=float(np.mean(objectives)) if objectives else math.nan,
            subspace_change=change,
            bytes_up=sum(taken.size for taken in self._taken.values()),
            bytes_down=self.sent,
            seconds=time.monotonic() - self._opened,
            computing=max(diagnostics.get("seconds", 0.0) for diagnostics in reported.values()),
            left_out=self.server.left_out,
            local_changes={name: said["change"] for name, said in reported.items() if "change" in said},
        )

    # -- the gate -----------------------------------------------------------------------------------------------

    def judges(self, names: Collection[str]) -> dict[str, Request]:
        """The requests to some devices to compare the result with the current model; none if that cannot be."""
        current = None if self.terms.noise > 0.0 or self.done else self._current()
        if current is None:
            return {}
        usable = [name for name in names if not self.ledger.is_out(name)]
        chosen = secrets.SystemRandom().sample(sorted(usable), min(JUDGES, len(usable)))
        common = Request(self.terms, "judge", self.round, "", shared=self.encoded, accepted_shared=current)
        requests = {name: replace(common, ticket=secrets.token_hex(16)) for name in chosen}
        return requests if self.terms.secure else self.expect(requests)

    def _current(self) -> bytes | None:
        """The current model as it would go down in this training; None if there is none that can be compared.

        If it was lost, the newest of those before it stands for it: many devices still hold one like it.
        """
        if self.folder is None:
            return None
        file, theirs = RESULT, stored_terms(self.folder, RESULT)
        if theirs is None and (kept := model_archive.earlier(self.folder)):
            file = model_archive.archived_file(kept[0])
            theirs = stored_terms(self.folder, file)
        if theirs is None or theirs.run == self.terms.run:
            return None
        if any(getattr(theirs, name) != getattr(self.terms, name) for name in ("channels", "lifting", "shape")):
            return None
        found = Coordinator(theirs, self.plan, self.folder)
        found.restore(file)
        return wire.encode(found.server.shared, wire.downward(self.terms.encoding))

    def verdict(self) -> Verdict:
        """What the judges said, each by itself."""
        said = (taken.diagnostics for taken in self._taken.values())
        return verdict_of([Judgement(each.get("loss", -1.0), each.get("current_loss", 0.0)) for each in said])

    def decide(self, verdict: Verdict) -> bool:
        """Whether the result may be delivered, by what the judges said."""
        self.gate = {"judges": verdict.judges, "ratio": verdict.ratio, "worse": verdict.is_worse}
        return not verdict.is_worse

    def keep_back(self) -> None:
        """End the training without a delivery; the result is archived, and the current model stays."""
        self.done = True
        self._await({}, 1.0)
        assert self.folder is not None
        self._save(UNDER_WAY)
        model_archive.archive(self.folder, self.folder / UNDER_WAY)
        (self.folder / UNDER_WAY).unlink()
        held = training_files.read_delivered(self.folder)
        model = str(held.get("model", held.get("run", "")))
        model_archive.write_delivered(self.folder, model, held.get("delivered", []), done=self.terms.run)
        self._write_status()

    # -- delivery -----------------------------------------------------------------------------------------------

    def deliveries(self, names: Collection[str]) -> dict[str, Request]:
        """The requests that give the final subspace to those devices that do not hold it yet."""
        self.sent, holders, common = 0, set(self.ledger.delivered), self.delivery()
        waiting = (name for name in names if name not in holders)
        return self.expect({name: replace(common, ticket=secrets.token_hex(16)) for name in waiting})

    def delivery(self) -> Request:
        """What gives the final subspace to any device, with the advice of those that hold it already."""
        return Request(
            self.terms,
            "deliver",
            self.round,
            "",
            shared=self.encoded,
            least_threshold=usual_threshold(self.ledger.thresholds.values()),
            usual_shape=usual_shape(self.ledger.shapes.values()),
        )

    def confirm(self, name: str, answer: Answer) -> bool:
        """Note that a device holds the final subspace."""
        reply = self.hear(name, answer)
        if reply is None:
            return False
        self.ledger.delivered.append(name)
        if "threshold" in reply.diagnostics:
            self.ledger.thresholds[name] = reply.diagnostics["threshold"]
        if "shape" in reply.diagnostics:
            self.ledger.shapes[name] = reply.diagnostics["shape"]
        return True

    def finish(self) -> None:
        """Declare the training over; devices that missed the delivery get it later."""
        self.done = True
        self._await({}, 1.0)
        if self.folder is None:
            return
        before = stored_terms(self.folder, RESULT)
        if before is not None and before.run != self.terms.run:
            model_archive.archive(self.folder, self.folder / RESULT)
        self._save(RESULT)
        is_known = training_files.read_delivered(self.folder).get("model") == self.terms.run
        done = None if is_known else self.terms.run
        model_archive.write_delivered(self.folder, self.terms.run, self.ledger.delivered, done=done)
        if (under_way := stored_terms(self.folder, UNDER_WAY)) is not None and under_way.run == self.terms.run:
            (self.folder / UNDER_WAY).unlink()
        latest = training_files.known_status(self.folder).get("run", self.terms.run)
        if latest == self.terms.run:  # another one may have begun since
            self._write_status()

    # -- the folder ---------------------------------------------------------------------------------------------

    def _save(self, file: str) -> None:
        if self.folder is None:
            return
        facts, arrays = self.server.state()
        header = {
            "terms": self.terms.header(),
            "server": facts,
            "sampler": self.sampler.state(),
            "records": [{name: record[name] for name in STORED} for record in self.records],
            "ledger": asdict(self.ledger),
            "done": self.done,
            "gate": self.gate,
            "made": sorted(self._made),
        }
        made = {f"made.{k}": np.frombuffer(payload, dtype=np.uint8) for k, payload in self._made.items()}
        write_model(self.folder / file, header, {**arrays, **made}, KIND)

    def restore(self, file: str = UNDER_WAY) -> None:
        """Continue from a file of the folder, which must be of these terms."""
        assert self.folder is not None
        header, arrays = read_model(self.folder / file, KIND)
        self._made = {k: arrays.pop(f"made.{k}").tobytes() for k in header["made"]}
        self.server.restore(header["server"], arrays)
        self.sampler.restore(header["sampler"])
        self.records = [Round.read(stored) for stored in header["records"]]
        self.ledger, self.done, self.gate = Ledger(**header["ledger"]), header["done"], header.get("gate", {})

    def _write_status(self) -> None:
        if self.folder is not None:
            write_status(self.folder, self.status())

    def status(self) -> dict[str, Any]:
        """The training in brief, for people and programs; `report.latest_training` adds its rounds and devices."""
        records = self.records
        known = [record.objective for record in records if not math.isnan(record.objective)]
        return {
            "run": self.terms.run,
            "state": self._state(),
            "round": self.round,
            "rounds": self.round if self.done else self.plan.rounds,
            "robust": self.terms.robust,
            "loss": known[-1] if known else None,
            "left_out": next((record.left_out for record in reversed(records) if record.phase == "warm"), ()),
            "took_part": len(records[-1].participants) if records else 0,
            "held_by": len(self.ledger.delivered),
            "bytes_up": sum(record.bytes_up for record in records),
            "bytes_down": sum(record.bytes_down for record in records),
            "seconds": sum(record.seconds for record in records),
            "refusals": self.ledger.refusals,
            "refused": self.ledger.refused,
            "gate": self.gate,
        }

    def _state(self) -> str:
        if self.done:
            return model_archive.KEPT_BACK if self.gate.get("worse") else DONE
        return DELIVERING if self.finished else TRAINING


def _named(names: Sequence[str]) -> str:
    """Some of the names, in a sentence."""
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
    """The largest norm of a reply that is accepted."""
    bound = WARM_NORM if phase == "warm" else ADMM_NORM * math.sqrt(terms.consensus.rank)
    if terms.noise > 0.0:
        longest = 1.0 if phase == "warm" else terms.clip
        bound += longest * (1.0 + NOISE_NORM * terms.noise * math.sqrt(terms.dimension * terms.consensus.rank))
    return bound


def current_delivery(folder: Path) -> Request | None:
    """What delivers the current model of a folder; None if there is none."""
    terms = stored_terms(folder, RESULT)
    if terms is None:
        return None
    coordinator = Coordinator(terms, TrainingPlan(), folder)
    coordinator.restore(RESULT)
    return coordinator.delivery()
