"""The engine of rounds over the carriers that need no network: participants in memory, and participants in folders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.federation import engine
from fedkad.federation.client import Client
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.durable import DurableParticipant
from fedkad.federation.local import LocalTransport
from fedkad.federation.participant import Participant
from fedkad.federation.protocol import Header, Request, Terms
from fedkad.federation.settings import ENCODINGS, Consensus, Encoding
from fedkad.koopman.lifting import Lifting
from tests.checks.carriers import CHECKS, Trained

Array = NDArray[np.float64]

MODEL: dict[str, Any] = {"window": 4, "rank": 3, "observables": 6, "horizon": 1, "seed": 0}
NAMES = ("a", "b", "c", "d", "e")
ROUNDS, PARTICIPATION = 6, 0.4


def series(k: int) -> Array:
    t = np.arange(900.0)[:, None]
    noisy: Array = np.sin(t / np.array([[5.0 + k, 11.0]])) + 0.1 * np.random.default_rng(k).normal(size=(900, 2))
    return noisy


DATA = {name: series(k) for k, name in enumerate(NAMES)}


class FolderCarrier:
    """Devices that know nothing but their folders, and messages that travel as headers: all but a network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._answers = folder, dict[str, Header]()
        for name, data in DATA.items():
            KoopmanDetector(**MODEL).fit(data).save(folder / f"{name}.safetensors")

    def devices(self) -> Collection[str]:
        return NAMES

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        for name, asked in requests.items():
            request = Request.read(asked.header())
            self._answers[name] = self._device(name).answer(request).header(request)

    def _device(self, name: str) -> DurableParticipant:
        """A new process of a device: it knows nothing but its folder."""
        state, prepared = DeviceState(self.folder / name), self.folder / f"{name}.safetensors"
        return DurableParticipant(name, state, lambda terms: KoopmanDetector.load(prepared))

    def answers(self) -> Iterator[tuple[str, Header]]:
        answers, self._answers = self._answers, {}
        yield from answers.items()

    def detectors(self) -> dict[str, KoopmanDetector]:
        return {name: KoopmanDetector.load(DeviceState(self.folder / name).model) for name in NAMES}


def make_terms(encoding: Encoding, **changes: Any) -> Terms:
    consensus = Consensus(rank=MODEL["rank"], seed=MODEL["seed"])
    lifting = Lifting(2, MODEL["window"], MODEL["observables"], MODEL["seed"])
    return Terms.of("run", lifting, ("0", "1"), horizon=1, encoding=encoding, consensus=consensus, **changes)


def make_plan(**changes: Any) -> TrainingPlan:
    """A plan that waits for nobody."""
    plan = TrainingPlan(rounds=ROUNDS, participation=PARTICIPATION, poll=0.0, patience=0.0)
    return replace(plan, **changes)


def in_memory(terms: Terms) -> LocalTransport:
    memories = {name: KoopmanDetector(**MODEL).prepare(data).memory_ for name, data in DATA.items()}
    return LocalTransport(
        {name: Participant(name, m, Client(name, m.statistics, terms.consensus)) for name, m in memories.items()}
    )


def train_in_memory(folder: Path, encoding: Encoding) -> tuple[Coordinator, dict[str, KoopmanDetector]]:
    carrier = in_memory(terms := make_terms(encoding))
    coordinator = Coordinator(terms, make_plan())
    train(coordinator, carrier)
    models = {name: participant.model for name, participant in carrier.participants.items()}
    return coordinator, {name: KoopmanDetector.of(model) for name, model in models.items() if model is not None}


def train_in_folders(folder: Path, encoding: Encoding) -> tuple[Coordinator, dict[str, KoopmanDetector]]:
    """With a server that is killed after every round."""
    carrier, plan = FolderCarrier(folder), make_plan()
    coordinator = Coordinator(make_terms(encoding), plan, folder / "server")
    while not coordinator.finished:
        next(engine.run_rounds(coordinator, carrier))
        coordinator = Coordinator(make_terms(encoding), plan, folder / "server")
        coordinator.restore()
    engine.deliver(coordinator, carrier)
    return coordinator, carrier.detectors()


def train(coordinator: Coordinator, carrier: engine.RequestCarrier) -> None:
    for _ in engine.run_rounds(coordinator, carrier):
        pass
    engine.deliver(coordinator, carrier)


CARRIERS = {"memory": train_in_memory, "folders": train_in_folders}


@pytest.fixture(scope="module", params=[(how, encoding) for how in CARRIERS for encoding in ENCODINGS], ids=str)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    how, encoding = request.param
    coordinator, detectors = CARRIERS[how](tmp_path_factory.mktemp(how), encoding)
    return Trained(
        data=DATA,
        model=MODEL,
        participation=PARTICIPATION,
        encoding=encoding,
        participants=coordinator.state.schedule,
        phases=[record.phase for record in coordinator.state.records],
        bytes_up=sum(record.bytes_up for record in coordinator.state.records),
        detectors=detectors,
        delivered=coordinator.state.ledger.delivered,
        refusals=coordinator.state.ledger.refusals,
    )


@pytest.mark.parametrize("check", CHECKS)
def test_a_training_keeps_its_contract(trained: Trained, check: Callable[[Trained], None]) -> None:
    check(trained)


def test_masked_replies_are_carried_in_memory_too() -> None:
    pytest.importorskip("cryptography", reason="the extra 'fleet' is not installed")
    carrier = in_memory(terms := make_terms("float64", secure=True))
    coordinator = Coordinator(terms, make_plan(rounds=4, participation=1.0, least=3))
    train(coordinator, carrier)
    assert coordinator.state.ledger.refusals == 0
    assert all(set(names) == set(NAMES) for names in coordinator.state.schedule)
    plain = federate(DATA, schedule=coordinator.state.schedule, encoding="float64", **MODEL)
    found = carrier.participants["a"].model
    assert found is not None
    singular = np.linalg.svd(found.dynamics.subspace[:, : MODEL["rank"]].T @ plain.subspace, compute_uv=False)
    assert singular.min() > 0.99, "the sketched start leads to nearly the same subspace"


def test_an_error_of_a_participant_is_raised_where_it_runs() -> None:
    carrier = in_memory(terms := make_terms("float32"))
    carrier.send({"a": Request(terms, "admm", 3, "", b"short")}, 0.0)
    with pytest.raises(ValueError, match="5 bytes are not a matrix"):
        list(carrier.answers())


def test_a_training_that_nobody_answers_gives_up() -> None:
    coordinator = Coordinator(make_terms("float32"), make_plan(deadline=0.0, least=6))
    with pytest.raises(RuntimeError, match="the training waits for devices; 5 online, 6 needed; it can continue"):
        next(engine.run_rounds(coordinator, in_memory(coordinator.state.terms)))
