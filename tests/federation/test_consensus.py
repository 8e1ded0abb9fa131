"""The consensus against a naive implementation of the paper's Algorithm 1, with snapshot matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.federation import wire
from fedkad.federation.client import Client
from fedkad.federation.local import LocalTraining
from fedkad.federation.participant import Participant, answer
from fedkad.federation.protocol import ProtocolError, Request, Terms
from fedkad.federation.server import Sampler, Server
from fedkad.federation.settings import LOSSES, Consensus
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.snapshots import Statistics, collect
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import descend, leading_directions, predicted_directions, relative_loss
from tests.fixtures import naive

Array = NDArray[np.float64]
LIFTING = Lifting(channels=2, window=3, observables=4, seed=0)
RANK = 3
NAMES = ["a", "b", "c", "d"]
SCHEDULE = [["a", "c"], ["b"], ["a", "b", "d"], ["c", "a"], ["d", "b"]]


def device(k: int) -> Array:
    return (naive.normal_series(60 + 10 * k, seed=k) - 5.0) / [1.0, 10.0]


@dataclass
class NaiveClient:
    """One client of Algorithm 1, on X and Y."""

    x: Array
    y: Array
    consensus: Consensus
    subspace: Array
    dual: Array
    operator: Array | None = None

    @property
    def scale(self) -> float:
        divisors: dict[str, float] = {
            "sum": 1.0,
            "pair": self.x.shape[1],
            "entry": self.y.size,
            "energy": float(np.sum(self.y**2)),
        }
        return 1.0 / divisors[self.consensus.loss]

    def refit(self, subspace: Array) -> Array:
        seen = subspace.T @ self.x
        if self.consensus.ridge_is_absolute:
            # λ belongs to the loss as it is scaled: scale·G + λI.
            root = np.sqrt(self.scale)
            return naive.best_operator(root * self.x, root * self.y, subspace, self.consensus.ridge)
        ridge = self.consensus.ridge * float(np.sum(seen**2)) / len(seen)
        return naive.best_operator(self.x, self.y, subspace, ridge)

    def loss(self, subspace: Array, operator: Array) -> float:
        return self.scale * naive.loss(self.x, self.y, subspace, operator)

    def gradient(self, point: Array, operator: Array, shared: Array) -> Array:
        rho = self.consensus.penalty
        euclidean = self.scale * naive.loss_gradient(self.x, self.y, point, operator)
        euclidean = euclidean + rho * (point - shared + self.dual / rho)
        if self.consensus.grassmann:
            return np.asarray((np.eye(len(point)) - point @ point.T) @ euclidean)
        inner = point.T @ euclidean
        return np.asarray(euclidean - point @ (inner + inner.T) / 2.0)

    def retract(self, matrix: Array) -> Array:
        if self.consensus.grassmann:
            basis, upper = np.linalg.qr(matrix)
            return np.asarray(basis * np.sign(np.diagonal(upper)))
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        return np.asarray(left @ right)

    def primal(self, shared: Array) -> None:
        self.before, self.used_before = self.subspace, self.operator
        if self.used_before is None:
            self.used_before = self.refit(self.subspace)
        operator = self.refit(self.subspace)
        point = self.subspace
        assert self.consensus.step_size is not None
        for _ in range(self.consensus.local_steps):
            point = self.retract(point - self.consensus.step_size * self.gradient(point, operator, shared))
        self.subspace, self.operator = point, operator


def exchange_and_naive(
    consensus: Consensus, schedule: Sequence[Sequence[str]]
) -> tuple[LocalTraining, dict[str, NaiveClient]]:
    clients = {name: Client(name, collect(device(k), LIFTING), consensus) for k, name in enumerate(NAMES)}
    exchange = LocalTraining(clients, "float64", schedule)
    naive_clients = {}
    for k, name in enumerate(NAMES):
        x, y = naive.snapshots(device(k), LIFTING)
        state = exchange.states.get(name)
        begin = retract_polar(exchange.server.shared) if state is None else state.subspace
        naive_clients[name] = NaiveClient(x, y, consensus, begin, np.zeros_like(begin))
    return exchange, naive_clients


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("grassmann", [True, False])
@pytest.mark.parametrize("start", ["random", "common"])
@pytest.mark.parametrize("absolute", [True, False])
def test_rounds_are_those_of_algorithm_1(loss: Any, grassmann: bool, start: Any, absolute: bool) -> None:
    step = {"sum": 1e-4, "pair": 0.02, "entry": 0.05, "energy": 0.05}[loss]
    consensus = Consensus(
        rank=RANK,
        penalty=0.7,
        local_steps=2,
        step_size=step,
        start=start,
        loss=loss,
        ridge=0.5 if absolute else 1e-3,
        ridge_is_absolute=absolute,
        grassmann=grassmann,
        seed=3,
    )
    exchange, others = exchange_and_naive(consensus, SCHEDULE)
    shared = exchange.server.shared
    heard: set[str] = set()
    for participants, record in zip(SCHEDULE, exchange.rounds(), strict=True):
        for name in participants:
            if name not in heard and start == "common":  # who comes later starts at the consensus of that time
                left, _, right = np.linalg.svd(shared, full_matrices=False)
                others[name].subspace = left @ right
            heard.add(name)
            others[name].primal(shared)
        rho, before = consensus.penalty, shared
        shared = np.mean([others[n].subspace + others[n].dual / rho for n in participants], axis=0)
        for name in participants:
            others[name].dual = others[name].dual + rho * (others[name].subspace - shared)
        np.testing.assert_allclose(exchange.server.shared, shared, atol=1e-8)
        for name in heard:
            state = exchange.states[name]
            np.testing.assert_allclose(state.subspace, others[name].subspace, atol=1e-8)
            np.testing.assert_allclose(state.dual, others[name].dual, atol=1e-8)
        check_record(record, others, shared, before, participants, heard if start == "common" else set(NAMES))


def check_record(
    record: Any, others: dict[str, NaiveClient], shared: Array, before: Array, participants: list[str], begun: set[str]
) -> None:
    """Every diagnostic from its definition."""
    objective = lagrangian = residual = perturbation = 0.0
    left, _, right = np.linalg.svd(shared, full_matrices=False)
    for name, other in others.items():
        subspace = other.subspace if name in begun else left @ right
        f = other.loss(subspace, other.refit(subspace))
        objective += f
        lagrangian += f
        if name in begun:
            apart = other.subspace - shared
            lagrangian += float(np.sum(other.dual * apart) + other.consensus.penalty / 2.0 * np.sum(apart**2))
            residual += float(np.linalg.norm(apart))
        if name in participants:
            assert other.operator is not None
            assert other.used_before is not None
            perturbation += other.loss(subspace, other.operator) - other.loss(subspace, other.used_before)
    assert record["objective"] == record.objective == pytest.approx(objective, rel=1e-7)
    assert record["lagrangian"] == pytest.approx(lagrangian, rel=1e-7)
    assert record["consensus_residual"] == pytest.approx(residual / len(others), rel=1e-7)
    assert record["subspace_change"] == pytest.approx(float(np.linalg.norm(shared - before)), rel=1e-7)
    assert record["refit_perturbation"] == pytest.approx(perturbation, rel=1e-4, abs=1e-9)
    assert record["participants"] == tuple(participants)
    assert record["phase"] == "admm"
    changes = {name: float(np.linalg.norm(others[name].subspace - others[name].before)) for name in participants}
    assert record["local_changes"] == pytest.approx(changes, rel=1e-6)
    assert record.seconds >= 0.0
    with pytest.raises(KeyError, match="nonsense"):
        record["nonsense"]


@pytest.mark.parametrize("start", ["common", "random"])
@pytest.mark.parametrize("grassmann", [True, False])
def test_under_full_participation_the_duals_sum_to_zero(start: Any, grassmann: bool) -> None:
    consensus = Consensus(rank=RANK, start=start, local_steps=3, grassmann=grassmann, seed=1)
    exchange, _ = exchange_and_naive(consensus, [NAMES] * 5)
    for _ in exchange.rounds():
        states = list(exchange.states.values())
        duals = sum(state.dual for state in states)
        mean = sum(state.subspace for state in states) / len(NAMES)
        np.testing.assert_allclose(duals, 0.0, atol=1e-12)
        np.testing.assert_allclose(exchange.server.shared, mean, atol=1e-12)
        for state in states:
            np.testing.assert_allclose(state.subspace.T @ state.subspace, np.eye(RANK), atol=1e-12)


def test_rounds_lower_the_objective_and_the_residual() -> None:
    consensus = Consensus(rank=RANK, start="common", seed=1)
    exchange, _ = exchange_and_naive(consensus, [NAMES] * 40)
    history = list(exchange.rounds())
    assert history[-1].objective < 0.6 * history[0].objective
    assert history[-1].consensus_residual < history[1].consensus_residual


def test_the_step_size_follows_the_curvature() -> None:
    statistics = collect(device(0), LIFTING)
    client = Client("a", statistics, Consensus(rank=RANK, penalty=0.5))
    largest = float(np.linalg.eigvalsh(statistics.xx)[-1])
    assert client._step_size == pytest.approx(1.0 / (2.0 * largest / statistics.energy + 0.5), rel=1e-4)


def test_random_starts_are_independent_and_from_the_seed() -> None:
    def begun(seed: int) -> dict[str, Array]:
        exchange, _ = exchange_and_naive(Consensus(rank=RANK, start="random", seed=seed), [NAMES])
        return {name: state.subspace for name, state in exchange.states.items()}

    first, again, other = begun(0), begun(0), begun(1)
    assert set(first) == set(NAMES)
    for name in NAMES:
        assert np.array_equal(first[name], again[name])
        assert not np.allclose(first[name], other[name])
    # Residual of independent points: √(2 r) on average.
    assert np.linalg.norm(first["a"] - first["b"]) > 1.0


def test_a_reply_without_a_commit_leaves_no_trace() -> None:
    consensus = Consensus(rank=RANK, start="common")
    client = Client("a", collect(device(0), LIFTING), consensus)
    shared = Server(LIFTING.dimension, consensus).shared
    other = retract_polar(shared + 0.3)
    terms = Terms.of("run", LIFTING, ("0", "1"), horizon=1, encoding="float64", consensus=consensus)

    def ask(participant: Participant, number: int, shown: Array, accepted: int) -> tuple[Participant, bytes]:
        z, made = wire.encode(shown, "float64"), wire.encode(shared, "float64")
        asked = Request(terms, "admm", number, f"ticket {number}", z, accepted, f"ticket {accepted}", made)
        participant, reply = answer(participant, asked)
        return participant, reply.payload

    first, _ = ask(Participant("a", client=client), 0, shared, -1)
    lost, _ = ask(first, 1, other, 0)  # the server never took this one
    (once, said), (twice, again) = ask(first, 2, shared, 0), ask(lost, 2, shared, 0)
    assert said == again
    assert ask(once, 3, other, 2)[1] == ask(twice, 3, other, 2)[1]
    assert ask(first, 2, shared, 0)[1] == said, "a participant is a value: nothing has changed it"
    with pytest.raises(ProtocolError, match="has no record of that round"):
        ask(first, 2, shared, 1)


# -- the warm start -----------------------------------------------------------------------------------------------


def fleet_statistics() -> list[Statistics]:
    return [collect(device(k), LIFTING) for k in range(len(NAMES))]


def test_a_warm_message_is_the_covariance_of_the_predictions() -> None:
    x, y = naive.snapshots(device(1), LIFTING)
    statistics = collect(device(1), LIFTING)
    message = Client("b", statistics, Consensus(rank=RANK)).warm_message()
    assert message.shape == (LIFTING.dimension, RANK)
    basis, _ = np.linalg.qr(message)
    operator = np.linalg.lstsq((basis.T @ x).T, (basis.T @ y).T, rcond=None)[0].T
    predicted = basis @ operator @ basis.T @ x
    np.testing.assert_allclose(message @ message.T, predicted @ predicted.T / np.sum(y**2), atol=1e-8)
    # and its span is what the device would choose alone
    own = descend([statistics], leading_directions(statistics.xx, RANK).vectors, most=300).loss
    assert relative_loss([statistics], basis) < 1.02 * own
    np.testing.assert_allclose(np.sum(message**2), predicted_directions(statistics, basis).values.sum(), rtol=1e-6)


def test_the_server_takes_the_leading_directions_of_all_warm_messages() -> None:
    consensus = Consensus(rank=RANK)
    server = Server(LIFTING.dimension, consensus)
    messages = {n: Client(n, s, consensus).warm_message() for n, s in zip(NAMES, fleet_statistics(), strict=True)}
    total = np.zeros((LIFTING.dimension, LIFTING.dimension))
    for group in (["a", "b"], ["c"], ["d"]):
        assert server.begin_round(group) is True
        for name in group:
            server.receive(name, messages[name])
            total += messages[name] @ messages[name].T
        shared = server.close_round()
        exact = np.linalg.eigh(total)[1][:, ::-1][:, :RANK]
        np.testing.assert_allclose(shared @ shared.T, exact @ exact.T, atol=1e-6)
    assert server.begin_round(["a"]) is False  # somebody is asked again
    assert server.begin_round(["e"]) is True  # but did not answer: nothing has happened
    assert server.begin_round(["a"]) is False
    server.receive("a", messages["a"])
    server.close_round()
    assert server.begin_round(["e"]) is False  # the ADMM has begun, and stays


@pytest.mark.parametrize("size", [2, 4])
def test_a_warm_cover_comes_near_the_centralised_solution(size: int) -> None:
    consensus = Consensus(rank=RANK)
    statistics = fleet_statistics()
    clients = {n: Client(n, s, consensus) for n, s in zip(NAMES, statistics, strict=True)}
    exchange = LocalTraining(clients, "float32", [NAMES[first : first + size] for first in range(0, 4, size)])
    assert {record.phase for record in exchange.rounds()} == {"warm"}
    mean = np.sum([s.xx / s.energy for s in statistics], axis=0)
    best = descend(statistics, leading_directions(mean, RANK).vectors, most=1000, tolerance=1e-7)
    shared = exchange.subspace
    assert relative_loss(statistics, shared) <= 1.05 * best.loss


# -- sampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("participation", "size"), [(0.25, 3), (0.1, 1), (0.11, 2), (1.0, 10), (0.3, 3), (0.7, 7)])
def test_a_round_asks_the_ceiling_of_the_share(participation: float, size: int) -> None:
    sampler = Sampler([str(k) for k in range(10)], participation, "uniform", seed=0)
    rounds = [sampler.next() for _ in range(20)]
    assert all(len(set(chosen)) == len(chosen) == size for chosen in rounds)


def test_cover_asks_everybody_before_anybody_twice() -> None:
    names = [str(k) for k in range(10)]
    sampler = Sampler(names, 0.25, "cover", seed=1)
    passes = [[sampler.next() for _ in range(4)] for _ in range(5)]
    for one in passes:
        assert [len(chosen) for chosen in one] == [3, 3, 3, 1]
        assert sorted(name for chosen in one for name in chosen) == names
    assert len({str(one) for one in passes}) == 5  # every pass in another order


def test_uniform_sampling_is_uniform_and_from_the_seed() -> None:
    names = [str(k) for k in range(8)]
    one, two, other = (Sampler(names, 0.25, "uniform", seed=s) for s in (0, 0, 1))
    drawn = [one.next() for _ in range(2000)]
    assert drawn == [two.next() for _ in range(2000)]
    assert drawn != [other.next() for _ in range(2000)]
    counts = np.array([sum(name in chosen for chosen in drawn) for name in names])
    assert np.abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_federate_is_the_exchange_of_prepared_detectors() -> None:
    fleet = {name: naive.normal_series(320, seed=k) for k, name in enumerate(NAMES)}
    small: dict[str, Any] = {"window": 3, "rank": RANK, "observables": 4, "validation": 0.4}
    federation = federate(fleet, schedule=SCHEDULE, start="common", encoding="float64", step_size=0.3, **small)
    consensus = Consensus(rank=RANK, start="common", step_size=0.3)
    clients = {}
    for name, series in fleet.items():
        clients[name] = Client(name, KoopmanDetector(**small).fit(series).memory_.statistics, consensus)
    exchange = LocalTraining(clients, "float64", SCHEDULE)
    for again, record in zip(exchange.rounds(), federation.history, strict=True):
        assert again.objective == pytest.approx(record.objective, rel=1e-12)
    np.testing.assert_allclose(federation.subspace, retract_polar(exchange.server.shared), atol=1e-12)
