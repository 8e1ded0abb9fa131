"""A device's side of a training: from a request to a reply, over a folder that survives any kill.

Each request is answered in three steps. First what was pending is settled: if the request says that the round was
accepted, the dual moves on with the consensus of that round; otherwise what was pending is dropped. Then the reply is
computed. Then the new pending state is on the disk before the reply leaves. Wherever the process dies, the folder holds
a state from which the next request goes on as if the device had not taken part in the round that was lost.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation import privacy, wire
from fedkad.federation.client import Client, LocalState
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.protocol import ProtocolError, Reply, Request, Terms, check_terms, compare
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.stiefel import retract_polar

Array = NDArray[np.float64]
STATE = "fedkad-consensus"


class Participant:
    """One device in the trainings of its fleet.

    Parameters
    ----------
    device : str
    state : DeviceState
    source : callable
        Gives, for the terms of a training, the detector that holds the device's statistics.
    most_releases : int, optional
        How often something with noise may leave the device at all.
    """

    def __init__(
        self,
        device: str,
        state: DeviceState,
        source: Callable[[Terms], KoopmanDetector],
        most_releases: int | None = None,
    ) -> None:
        self.device, self.kept, self._source, self._most_releases = device, state, source, most_releases

    def answer(self, request: Request) -> Reply:
        """Do what the server asks; a `ProtocolError` says why that cannot be, any other `ValueError` is the device's.

        One request at a time: a late one may still be under way in another process when the next one comes.
        """
        if request.kind == "hello":
            return Reply(self.device)
        check_lifting(request.terms)
        with self.kept.locked("round"):
            return self._answer(request)

    def _answer(self, request: Request) -> Reply:
        if request.kind == "deliver":
            return self._take_over(request)
        began = time.perf_counter()
        client, committed = self._restore(request)
        message, reference, diagnostics = self._compute(client, request)
        payload = self._pack(client, message, reference, request)
        if request.kind == "admm":
            self._save(client, request, committed)
        told = {} if request.terms.private else diagnostics
        return Reply(self.device, payload, {"seconds": time.perf_counter() - began, **told})

    def _compute(self, client: Client, request: Request) -> tuple[Array, Array, dict[str, float]]:
        """What the device says, the matrix that it is said in relation to, and the diagnostics."""
        if request.kind == "warm":
            return client.warm_message(), np.zeros(request.terms.shape), {}
        shared = self._shared(request)
        before = client.begin(shared).subspace
        reply = client.local_round(shared)
        assert client.pending is not None
        moved = client.pending.subspace
        change = float(np.linalg.norm(moved - before))
        return reply, shared, {"objective": client.objective(moved), "change": change}

    def _pack(self, client: Client, message: Array, reference: Array, request: Request) -> bytes:
        """The message as it leaves: with noise, if the fleet asks for it, and encoded."""
        terms = request.terms
        if terms.noise > 0.0:
            message = reference + self._released(message - reference, request, terms.noise)
        return client.send(message, reference, terms.encoding)

    def _take_over(self, request: Request) -> Reply:
        """Adopt the final subspace and put the detector in use; a training that is over leaves nothing behind."""
        began = time.perf_counter()
        subspace = retract_polar(self._shared(request))
        with self.kept.locked():
            detector = self._source(request.terms)  # again, for the agent may have learnt since
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FewRowsWarning)
                detector.adopt(subspace, max(request.least_threshold, self._kept_advice()))
            self.kept.deliver(detector, request.terms.run)
        if self._read_state(request.terms)[0]:
            self.kept.consensus.unlink()
        seconds = time.perf_counter() - began
        told = {} if request.terms.private else self._told_threshold(detector)
        return Reply(self.device, diagnostics={"seconds": seconds, **told})

    def _kept_advice(self) -> float:
        """The threshold that the fleet advised before, while it is the one in use: a training has no newer advice."""
        try:
            model = KoopmanDetector.load(self.kept.model, statistics=False)
        except ModelFileError:
            return 0.0
        return model.least_threshold_ if model.threshold_ == model.least_threshold_ else 0.0

    @staticmethod
    def _told_threshold(detector: KoopmanDetector) -> dict[str, float]:
        """The threshold, if it may advise others: found by the device itself, on scores that are alike on all."""
        advised = detector.few_rows_ or detector.least_threshold_ > 0.0 or detector.by_hand_
        return {} if advised or detector.scoring != "calibrated" else {"threshold": detector.threshold_}

    def _released(self, message: Array, request: Request, noise: float) -> Array:
        self.kept.count_release(self._most_releases)
        return released(message, request, noise)

    # -- durable state ------------------------------------------------------------------------------------------

    def _restore(self, request: Request) -> tuple[Client, int]:
        """The client as of its last accepted round, and which that was."""
        client = Client(self.device, self._source(request.terms).kept()[0], request.terms.consensus)
        header, arrays = self._read_state(request.terms)
        committed, pending = header.get("committed", -1), header.get("pending", -1)
        if request.round < pending or request.round <= committed or request.accepted < committed:
            raise ProtocolError(
                f"The server asks for round {request.round}, having accepted round {request.accepted}, and device "
                f"{self.device!r} has computed round {pending} and committed round {committed} of this training."
            )
        if header and max(committed, request.accepted) >= 0:  # else it has not begun: its first reply did not count
            client.state = _state(arrays, "state")
        if request.accepted > committed:
            if (pending, header.get("ticket")) != (request.accepted, request.accepted_ticket):
                raise ProtocolError(
                    f"The server accepted round {request.accepted} of device {self.device!r}, whose folder does not "
                    "know of it; it was replaced or damaged, and the device takes part again in the next training."
                )
            client.pending = _state(arrays, "pending")
            client.commit(self._accepted(request))
            committed = request.accepted
        return client, committed

    def _read_state(self, terms: Terms) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What is kept of this training; nothing of another one, and nothing damaged, which is set aside."""
        path = self.kept.consensus
        if not path.exists():
            return {}, {}
        try:
            header, arrays = read_model(path, STATE)
            theirs = Terms.read(header["terms"])
        except (ModelFileError, ProtocolError):
            os.replace(path, path.with_suffix(".damaged"))
            return {}, {}
        if theirs.run != terms.run:
            return {}, {}
        check_terms(theirs, terms, f"device {self.device!r} in this training", "the server")
        return header, arrays

    def _save(self, client: Client, request: Request, committed: int) -> None:
        assert client.state is not None
        assert client.pending is not None
        header = {
            "terms": request.terms.header(),
            "committed": committed,
            "pending": request.round,
            "ticket": request.ticket,
        }
        arrays = {**_arrays(client.state, "state"), **_arrays(client.pending, "pending")}
        write_model(self.kept.consensus, header, arrays, STATE)

    @staticmethod
    def _shared(request: Request) -> Array:
        terms = request.terms
        return wire.decode(request.shared, terms.shape, wire.downward(terms.encoding))

    def _accepted(self, request: Request) -> Array:
        terms = request.terms
        payload = request.accepted_shared or request.shared
        return wire.decode(payload, terms.shape, wire.downward(terms.encoding))


def released(message: Array, request: Request, noise: float) -> Array:
    """A message clipped to a known norm, with Gaussian noise of so many times that norm.

    A warm message is never longer than 1, whatever the data; for the replies the fleet agrees on a bound.
    """
    bound = 1.0 if request.kind == "warm" else request.terms.clip
    return privacy.add_noise(privacy.clip(message, bound), noise * bound, np.random.default_rng())


def check_lifting(terms: Terms) -> None:
    """Refuse a lifting that does not come out of its seed on this machine."""
    lifting = Lifting(len(terms.channels), terms.window, terms.observables, terms.seed)
    compare("lifted dimension", lifting.dimension, terms.dimension, "this device", "the server")
    compare("digest of the lifting", lifting.digest, terms.lifting, "this device", "the server")


def _arrays(state: LocalState, prefix: str) -> dict[str, Array]:
    return {f"{prefix}.{name}": np.asarray(value) for name, value in state._asdict().items()}


def _state(arrays: dict[str, NDArray[Any]], prefix: str) -> LocalState:
    return LocalState(**{name: arrays[f"{prefix}.{name}"] for name in LocalState._fields})
