"""The end of a training: devices judge its result, and get it unless it is worse than the model that they have."""

import secrets
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation import model_archive, wire
from fedkad.federation.gate import JUDGES, Judgement, Verdict, verdict_of
from fedkad.federation.open_requests import OpenRequests
from fedkad.federation.protocol import Answer, ProtocolError, Request
from fedkad.federation.training_files import (
    RESULT,
    UNDER_WAY,
    TrainingPhase,
    known_status,
    read_delivered,
    write_status,
)
from fedkad.federation.training_state import TrainingState, stored_terms, stored_training

KIND = "fedkad-delivery"


class ResultDelivery:
    """The requests after the last round, and where the result is kept; without a folder, nowhere."""

    def __init__(self, state: TrainingState, requests: OpenRequests, folder: Path | None) -> None:
        self.state, self.folder, self._open = state, folder, requests

    def judges(self, names: Collection[str]) -> dict[str, Request]:
        """Ask some devices to compare the result with the current model; none where it cannot be compared."""
        terms = self.state.terms
        # With noise, a loss would be a further release.
        current = None if terms.noise > 0.0 or self.state.done else self._current()
        if current is None:
            return {}
        usable = sorted(name for name in names if not self.state.ledger.is_out(name))
        common = Request(terms, "judge", self.state.round, "", shared=self.state.encoded, accepted_shared=current)
        judges = secrets.SystemRandom().sample(usable, min(JUDGES, len(usable)))
        return {name: replace(common, ticket=secrets.token_hex(16)) for name in judges}

    def _current(self) -> bytes | None:
        """Return the current model as it would go down in this training; None if none can be compared.

        If it was lost, the newest of those before it stands for it: many devices still hold one like it.
        """
        if self.folder is None:
            return None
        current, terms = stored_training(self.folder, RESULT), self.state.terms
        if current is None and (earlier := model_archive.earlier(self.folder)):
            current = stored_training(self.folder, model_archive.archived_file(earlier[0]))
        if current is None or current.terms.run == terms.run:
            return None
        if any(getattr(current.terms, name) != getattr(terms, name) for name in ("channels", "lifting", "shape")):
            return None
        return wire.encode(current.server.shared, wire.downward(terms.encoding))

    def verdict(self) -> Verdict:
        """Return what the judges say, each by itself."""
        losses = (reply.diagnostics for reply in self._open.accepted.values())
        return verdict_of([Judgement(each.get("loss", -1.0), each.get("current_loss", 0.0)) for each in losses])

    def decide(self, verdict: Verdict) -> bool:
        """Note the verdict; return whether the result may be delivered."""
        self.state.gate = {"judges": verdict.judges, "ratio": verdict.ratio, "worse": verdict.is_worse}
        return not verdict.is_worse

    def requests(self, names: Collection[str]) -> dict[str, Request]:
        """Give the final subspace to those devices that do not hold it yet."""
        self._open.sent, holders, common = 0, set(self.state.ledger.delivered), self.state.delivery()
        missing = [name for name in names if name not in holders]
        return self._open.expect({name: replace(common, ticket=secrets.token_hex(16)) for name in missing})

    def confirm(self, name: str, answer: Answer) -> bool:
        """Note that a device holds the final subspace, and its advice."""
        reply = self._open.hear(name, answer)
        if reply is None:
            return False
        ledger, advice = self.state.ledger, reply.diagnostics
        ledger.delivered.append(name)
        if "threshold" in advice:
            ledger.thresholds[name] = advice["threshold"]
        if "shape" in advice:
            ledger.shapes[name] = advice["shape"]
        return True

    def keep_back(self) -> None:
        """End the training without a delivery; the result is archived, and the current model stays."""
        self._end()
        assert self.folder is not None
        under_way = self.folder / UNDER_WAY
        self.state.save(under_way)
        model_archive.archive(self.folder, under_way)
        under_way.unlink()
        last = read_delivered(self.folder)
        model = str(last.get("model", last.get("run", "")))
        model_archive.write_delivered(self.folder, model, last.get("delivered", []), done=self.state.terms.run)
        write_status(self.folder, self.state.status(self.state.round))

    def finish(self) -> None:
        """Declare the training over; devices that missed the delivery get it later."""
        self._end()
        if self.folder is None:
            return
        run = self.state.terms.run
        before = stored_terms(self.folder, RESULT)
        if before is not None and before.run != run:
            model_archive.archive(self.folder, self.folder / RESULT)
        self.state.save(self.folder / RESULT)
        is_known = read_delivered(self.folder).get("model") == run
        done = None if is_known else run
        model_archive.write_delivered(self.folder, run, self.state.ledger.delivered, done=done)
        if (under_way := stored_terms(self.folder, UNDER_WAY)) is not None and under_way.run == run:
            (self.folder / UNDER_WAY).unlink()
        if known_status(self.folder).get("run", run) == run:  # another training may have begun since
            write_status(self.folder, self.state.status(self.state.round))

    def _end(self) -> None:
        self.state.done = True
        self.state.server.forget_warm_replies()  # else the files of a result would hold what single devices sent
        self._open.expect({})


def current_delivery(folder: Path) -> Request | None:
    """Return the request that delivers the current model of a folder; None if there is none."""
    current = stored_training(folder, RESULT)
    return None if current is None else current.delivery()


def abandon(folder: Path) -> None:
    """Give up the training in progress, whose app must have ended.

    Devices to which its result was going out get the current model again.
    """
    (folder / UNDER_WAY).unlink(missing_ok=True)
    status = known_status(folder)
    if status.get("state") == TrainingPhase.DELIVERING and stored_terms(folder, RESULT) is not None:
        model_archive.forget_delivered(folder, lambda name: True)
    if status.get("state") in (TrainingPhase.TRAINING, TrainingPhase.DELIVERING):
        write_status(folder, {**status, "state": TrainingPhase.CANCELLED})


def write_delivery(path: Path, request: Request) -> None:
    """Write the request that delivers a result, without the ticket of any one device."""
    words = {name: value for name, value in request.header().items() if not isinstance(value, bytes)}
    write_model(path, {**words, "ticket": ""}, {"shared": np.frombuffer(request.shared, dtype=np.uint8)}, KIND)


def read_delivery(path: Path) -> Request:
    """Read the request in a file; a `ProtocolError` names both releases if they do not understand each other."""
    try:
        header, arrays = read_model(path, KIND)
        shared = arrays["shared"].tobytes()
    except (ModelFileError, KeyError) as error:
        raise ProtocolError(f"The file is not a delivery ({error}).") from None
    request = Request.read({"accepted_shared": b"", **header, "shared": shared})
    if request.kind != "deliver":
        raise ProtocolError(f"The file holds a request of kind {request.kind!r} and is not a delivery.")
    return request
