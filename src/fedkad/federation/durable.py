"""A participant that survives any kill: its knowledge is read from a folder before a request and written after it.

Everything new is on the disk before the reply leaves. Wherever the process dies, the folder holds a state from which
the next request continues as if the device had not taken part in the round that was lost.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import set_aside, write_atomically
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.inspection import nothing_to_teach
from fedkad.detect.model import Model
from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation.client import Client, LocalState
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.gate import FAR_WORSE, Judgement, held_out_losses, verdict_of
from fedkad.federation.participant import LEARNING, OwnTerms, Participant, Progress, answer
from fedkad.federation.protocol import ProtocolError, Reply, Request, Terms, UnsentError, check_terms, compare
from fedkad.koopman.lifting import Lifting

STATE = "fedkad-consensus"
STORED = ("subspace", "dual", "operator", "unsent")


class DurableParticipant:
    """One device in the trainings of its fleet.

    `source` returns, for the terms of a training, the detector that holds the device's statistics; `own_terms` is what
    the owner demands before a reply may leave the device.
    """

    def __init__(
        self,
        device: str,
        folder: DeviceState,
        source: Callable[[Terms], KoopmanDetector],
        own_terms: OwnTerms | None = None,
    ) -> None:
        self.device, self.folder, self._source, self._own_terms = device, folder, source, own_terms or OwnTerms()

    def answer(self, request: Request) -> Reply:
        """Answer a request, one at a time: a late one may still be in progress in another process."""
        if request.kind == "hello":
            return Reply(self.device)
        check_lifting(request.terms)
        # A delivery holds the model as well: the agent may have learned since the last round.
        model = self.folder.locked() if request.kind == "deliver" else nullcontext()
        with self.folder.locked("round"), model:
            began = time.perf_counter()
            before = self._load(request)
            try:
                after, reply = answer(before, request)
                self._keep_better(before, after, request.terms)
            except UnsentError:
                self.folder.write_releases(before.releases + 1)
                raise
            self._save(before, after, request.terms)
            return reply.timed(time.perf_counter() - began) if request.kind in LEARNING else reply

    def _load(self, request: Request) -> Participant:
        terms, participant = request.terms, Participant(self.device, own_terms=self._own_terms)
        if request.kind in LEARNING:
            source = self._source(terms)
            if request.kind in ("warm", "admm"):
                self._refuse_garbage(source.model_)
            client = Client(self.device, source.memory_.statistics, terms.consensus)
            progress = self._read_progress(terms)
            participant = replace(participant, memory=source.memory_, client=client, progress=progress)
        if request.kind == "deliver":
            used = self.folder.read_used() or source.model_
            taught = source.model_
            used = replace(used, learnt_through=taught.learnt_through, confirmation=taught.confirmation)
            return replace(participant, model=used)
        participant = replace(participant, releases=self.folder.read_releases())
        if terms.secure and request.kind != "advertise" and self.folder.masking.exists():
            from fedkad.federation.secure.device import DeviceSecrets

            participant = replace(participant, secrets=DeviceSecrets.from_bytes(self.folder.masking.read_bytes()))
        return participant

    def _refuse_garbage(self, model: Model) -> None:
        """Take no part with data of which the others would learn nothing; the device still gets the fleet's model."""
        if (why := nothing_to_teach(model)) is not None:
            raise ProtocolError(
                f"Device {self.device!r} takes no part: {why}; check its sensors and which table it was given."
            )

    def _keep_better(self, before: Participant, after: Participant, terms: Terms) -> None:
        """Refuse a delivery that is far worse than the last one on the device's own rows; the model in use stays.

        How much worse is a number of this device, and is not told where replies are masked or noisy.
        """
        if after.model is before.model or not self.folder.has_delivery or before.model is None or after.model is None:
            return
        assert before.memory is not None
        shared = before.memory.setup.settings.rank
        subspaces = [model.dynamics.subspace[:, :shared] for model in (after.model, before.model)]
        if subspaces[0].shape != subspaces[1].shape:
            return
        verdict = verdict_of([Judgement(*held_out_losses(before.memory, subspaces))])
        if verdict.ratio > FAR_WORSE:
            is_told = not (terms.private or self._own_terms.private)
            times = f"{verdict.ratio:.3g}" if is_told else f"more than {FAR_WORSE:g}"
            raise ProtocolError(
                f"Device {self.device!r} loses {times} times as much with the new model on its own rows, "
                "and keeps the one it has."
            )

    def _save(self, before: Participant, after: Participant, terms: Terms) -> None:
        if after.model is not None and after.model is not before.model:
            self.folder.deliver(KoopmanDetector.of(after.model, after.memory), terms.run)
            if before.progress.computed is not None:
                self.folder.consensus.unlink()
            self.folder.masking.unlink(missing_ok=True)
            return
        if after.releases > before.releases:
            self.folder.write_releases(after.releases)
        if after.secrets is not None and after.secrets is not before.secrets:
            write_atomically(self.folder.masking, after.secrets.to_bytes(), mode=0o600)
        if after.progress is not before.progress:
            self._write_progress(after.progress, terms)

    def _read_progress(self, terms: Terms) -> Progress:
        """Read what is kept of this training; nothing of another one, and nothing damaged, which is set aside."""
        path = self.folder.consensus
        if not path.exists():
            return Progress()
        try:
            header, arrays = read_model(path, STATE)
            theirs = Terms.read(header["terms"])
        except (ModelFileError, ProtocolError):
            set_aside(path)
            return Progress()
        if theirs.run != terms.run:
            return Progress()
        check_terms(theirs, terms, f"device {self.device!r} in this training", "the server")
        states = (_state(arrays, prefix) for prefix in ("state", "pending"))
        return Progress(header["committed"], header["pending"], header["ticket"], *states)

    def _write_progress(self, progress: Progress, terms: Terms) -> None:
        header = {
            "terms": terms.header(),
            "committed": progress.committed,
            "pending": progress.pending,
            "ticket": progress.ticket,
        }
        arrays = {**_arrays(progress.state, "state"), **_arrays(progress.computed, "pending")}
        write_model(self.folder.consensus, header, arrays, STATE)


def check_lifting(terms: Terms) -> None:
    """Refuse a lifting that its seed does not reproduce on this machine."""
    lifting = Lifting(len(terms.channels), terms.window, terms.observables, terms.seed)
    compare("lifted dimension", lifting.dimension, terms.dimension, "this device", "the server")
    compare("digest of the lifting", lifting.digest, terms.lifting, "this device", "the server")


def _arrays(state: LocalState | None, prefix: str) -> dict[str, NDArray[np.float64]]:
    return {f"{prefix}.{name}": np.asarray(getattr(state, name)) for name in STORED}


def _state(arrays: dict[str, NDArray[Any]], prefix: str) -> LocalState:
    subspace, dual, operator, unsent = (arrays[f"{prefix}.{name}"] for name in STORED)
    return LocalState(subspace, dual, operator, unsent)
