"""What outlives the server's process of one training: Z, the rounds that were held, what is known of each device."""

import logging
import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedkad.atomicfile import set_aside
from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation import wire
from fedkad.federation.history import Ledger, Round
from fedkad.federation.model_archive import KEPT_BACK, KIND, UNREADABLE, archived_file
from fedkad.federation.protocol import Phase, ProtocolError, Request, Terms
from fedkad.federation.server import Sampler, Server, usual_shape, usual_threshold
from fedkad.federation.settings import Sampling
from fedkad.federation.training_files import RESULT, UNDER_WAY, TrainingPhase, known_status

logger = logging.getLogger(__name__)

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


class TrainingState:
    """One training between two rounds, in memory and as a file."""

    def __init__(self, terms: Terms, participation: float = 1.0, sampling: Sampling = "cover") -> None:
        self.terms = terms
        self.server = Server(terms.dimension, terms.consensus, robust=terms.robust)
        self.sampler = Sampler([], participation, sampling, terms.consensus.seed)
        self.records: list[Round] = []
        self.ledger = Ledger()
        self.done = False
        self.gate: dict[str, Any] = {}  # the verdict of the devices on the result
        self.encodings: dict[int, bytes] = {}  # Z by the round that it was made of, as it goes down

    @property
    def round(self) -> int:
        """The number of the round that is open, or next."""
        return len(self.records)

    @property
    def schedule(self) -> list[tuple[str, ...]]:
        """The participants of every closed round, to replay in process."""
        return [record.participants for record in self.records]

    @property
    def encoded(self) -> bytes:
        """Z as it goes down."""
        return self.encodings.get(self.round - 1) or wire.encode(self.server.shared, wire.downward(self.terms.encoding))

    def request(self, name: str, kind: Phase) -> Request:
        """Ask a device for the round that is open, and tell it which of its rounds was accepted last."""
        ticket = secrets.token_hex(16)
        if kind == "warm":
            return Request(self.terms, kind, self.round, ticket)
        accepted = self.ledger.accepted.get(name, -1)
        return Request(
            self.terms,
            kind,
            self.round,
            ticket,
            shared=self.encoded,
            accepted=accepted,
            accepted_ticket=self.ledger.tickets.get(name, ""),
            # The Z of the last round is `shared` itself.
            accepted_shared=b"" if accepted in (-1, self.round - 1) else self.encodings[accepted],
        )

    def delivery(self) -> Request:
        """Return the request that delivers the final subspace, with the threshold advice collected so far."""
        return Request(
            self.terms,
            "deliver",
            self.round,
            "",
            shared=self.encoded,
            least_threshold=usual_threshold(self.ledger.thresholds.values()),
            usual_shape=usual_shape(self.ledger.shapes.values()),
        )

    def append(self, record: Round, encoded: bytes) -> None:
        """Add a closed round with the Z made of it; each Z that no request needs any more is forgotten."""
        self.encodings[self.round] = encoded
        self.records.append(record)
        needed = {*self.ledger.accepted.values(), self.round - 1}  # to commit a round, or to begin one
        self.encodings = {number: payload for number, payload in self.encodings.items() if number in needed}

    def save(self, path: Path) -> None:
        """Write the state to a file."""
        facts, arrays = self.server.state()
        header = {
            "terms": self.terms.header(),
            "server": facts,
            "sampler": self.sampler.state(),
            "records": [{name: record[name] for name in STORED} for record in self.records],
            "ledger": asdict(self.ledger),
            "done": self.done,
            "gate": self.gate,
            "made": sorted(self.encodings),
        }
        encodings = {f"made.{k}": np.frombuffer(payload, dtype=np.uint8) for k, payload in self.encodings.items()}
        write_model(path, header, {**arrays, **encodings}, KIND)

    def restore(self, path: Path) -> None:
        """Continue from a file, which must be of these terms."""
        header, arrays = read_model(path, KIND)
        self.encodings = {k: arrays.pop(f"made.{k}").tobytes() for k in header["made"]}
        self.server.restore(header["server"], arrays)
        self.sampler.restore(header["sampler"])
        self.records = [Round.read(record) for record in header["records"]]
        self.ledger, self.done, self.gate = Ledger(**header["ledger"]), header["done"], header.get("gate", {})

    def status(self, planned: int) -> dict[str, Any]:
        """Describe the training in brief, for people and programs; `planned` is the number of its rounds."""
        records, done = self.records, self.done
        losses = [record.objective for record in records if not math.isnan(record.objective)]
        if done:
            state = KEPT_BACK if self.gate.get("worse") else TrainingPhase.DONE
        else:
            state = TrainingPhase.DELIVERING if self.round >= planned else TrainingPhase.TRAINING
        return {
            "run": self.terms.run,
            "state": state,
            "round": self.round,
            "rounds": self.round if done else planned,
            "robust": self.terms.robust,
            "loss": losses[-1] if losses else None,
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


def stored_terms(folder: Path, file: str) -> Terms | None:
    """Return the terms of the training in a file, or None; a file that cannot be read any more is set aside."""
    path = folder / file
    if not path.exists():
        return None
    try:
        return Terms.read(read_model(path, KIND)[0]["terms"])
    except (ModelFileError, ProtocolError) as error:
        aside, back = set_aside(path, UNREADABLE), "go back to an earlier model with `fedkad fleet rollback`, "
        remedy = f"{back if file == RESULT else ''}restore it from a backup, or train again"
        logger.warning("%s The file is now %s; %s.", error, aside.name, remedy)
        return None


def stored_training(folder: Path, file: str) -> TrainingState | None:
    """Return the training in a file; None if there is none that can be read."""
    terms = stored_terms(folder, file)
    if terms is None:
        return None
    state = TrainingState(terms)
    state.restore(folder / file)
    return state


def latest_training(folder: Path) -> dict[str, Any] | None:
    """Return the status with all rounds and devices of the latest training; None if there is no readable status.

    `participants` is the schedule that repeats the training in one process.
    """
    status = known_status(folder)
    if not status:
        return None
    run = str(status.get("run", ""))
    header = next((header for header in _headers(folder, run) if header["terms"]["run"] == run), None)
    return status if header is None else {**status, **_details(header, status.get("round"))}


def _headers(folder: Path, run: str) -> Iterator[dict[str, Any]]:
    """Read the files that may hold a training, in the order in which it moves through them, so as to miss none."""
    for file in (UNDER_WAY, RESULT, archived_file(run)):
        try:
            yield read_model(folder / file, KIND)[0]
        except ModelFileError:
            continue


def _details(header: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
    records = header["records"][:rounds]  # another may have been closed since the status was written
    return {
        "phases": [each["phase"] for each in records],
        "participants": [list(each["participants"]) for each in records],
        "objective": [None if math.isnan(each["objective"]) else each["objective"] for each in records],
        "subspace_change": [each["subspace_change"] for each in records],
        "round_bytes": [each["bytes_up"] + each["bytes_down"] for each in records],
        "round_seconds": [each["seconds"] for each in records],
        "round_computing": [each["computing"] for each in records],
        "delivered": sorted(header["ledger"]["delivered"]),
    }
