"""What the replies of honest devices look like, what the median costs them, and what liars can do that is accepted.

Fleets of eight train as over a network: the engine, the checks of the server and its settings, in one process. First
the norms of all honest replies, by which the server's limits are chosen. Then the loss Σ f_i of the honest devices,
divided by that of the same devices after a training without liars and with the plain mean. Liars know the limits and
use them up; the worst order counts. Infinite is a training that gives up because too few replies can be accepted.
Last, the worst of these lies are told over the network, by `lyingfleet`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedkad import KoopmanDetector
from fedkad.federation import coordinator as limits
from fedkad.federation import engine, wire
from fedkad.federation.client import Client
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.memory import MemoryCarrier
from fedkad.federation.participant import Participant
from fedkad.federation.protocol import Reply, Request, Terms
from fedkad.federation.settings import FEWEST, WITHSTANDS_TWO, Consensus
from fedkad.koopman.stiefel import random_point, retract_polar
from fedkad.simulate import simulate_fleet
from fedkad_bench.data.datasets import data_folder, load
from measurements.lyingfleet import print_network
from measurements.measure import Array, heading, one_blas_thread

DEVICES, ROUNDS, SHARE = 8, 8, 0.25
SEEDS = (0, 1)
CONSENSUS = Consensus()
Clients = Mapping[str, Client]
Lie = Callable[[Array, Array, Request, np.random.Generator], Array]


def fleets() -> Iterator[tuple[str, Clients]]:
    """Simulated pumps and, where there is data, servers of SMD."""
    yield "pumps", _clients(simulate_fleet(DEVICES, train_rows=5000, test_rows=500).train)
    if data_folder() is not None:
        chosen = load("SMD", entities="machine-1-*").entities[:DEVICES]
        yield "SMD machine-1-*", _clients({entity.name: np.asarray(entity.train) for entity in chosen})


def _clients(fleet: Mapping[str, Array]) -> Clients:
    prepared = {name: KoopmanDetector(rank=CONSENSUS.rank).prepare(train).memory_ for name, train in fleet.items()}
    return {name: Client(name, memory.statistics, CONSENSUS) for name, memory in prepared.items()}


def scaled(matrix: Array, norm: float) -> Array:
    """The matrix with another norm."""
    return matrix * (norm / float(np.linalg.norm(matrix)))


def room(request: Request) -> float:
    """The largest norm that is accepted, less a little for rounding."""
    return 0.999 * limits.longest_reply("warm" if request.kind == "warm" else "admm", request.terms)


def another_subspace(honest: Array, shared: Array, request: Request, generator: np.random.Generator) -> Array:
    """A random subspace in every round, as long as is accepted."""
    return scaled(random_point(honest.shape[0], honest.shape[1], generator), room(request))


def same_subspace(honest: Array, shared: Array, request: Request, generator: np.random.Generator) -> Array:
    """The same random subspace from all liars in all rounds, as long as is accepted."""
    return another_subspace(honest, shared, request, np.random.default_rng(99))


def backwards(honest: Array, shared: Array, request: Request, generator: np.random.Generator) -> Array:
    """What cancels the consensus: Z with the other sign, as long as is accepted."""
    return honest if request.kind == "warm" else scaled(-shared, room(request))


def in_the_end(honest: Array, shared: Array, request: Request, generator: np.random.Generator) -> Array:
    """Honest until the last two rounds, where nothing makes up for a lie any more."""
    return honest if request.round < ROUNDS - 2 else same_subspace(honest, shared, request, generator)


def nearby(honest: Array, shared: Array, request: Request, generator: np.random.Generator) -> Array:
    """As far from Z as honest replies are, all of it in directions that nobody else has."""
    if request.kind == "warm":
        return same_subspace(honest, shared, request, generator)
    apart = float(np.linalg.norm(honest - shared))
    other = random_point(honest.shape[0], honest.shape[1], np.random.default_rng(99))
    return shared + scaled(other - shared @ (shared.T @ other), 1.5 * apart)


LIES: dict[str, Lie] = {
    "another subspace": another_subspace,
    "the same subspace": same_subspace,
    "backwards": backwards,
    "in the end": in_the_end,
    "nearby": nearby,
}


@dataclass
class Witnessed:
    """What the replies of honest devices looked like: norms over √r, and distances from Z over √r, by phase."""

    norms: dict[str, list[float]] = field(default_factory=lambda: {"warm": [], "admm": []})
    distances: list[float] = field(default_factory=list)


class LyingCarrier(MemoryCarrier):
    """Devices in this process of which some lie."""

    def __init__(self, clients: Clients, liars: Sequence[str], lie: Lie | None, seed: int) -> None:
        super().__init__({name: Participant(name, None, client) for name, client in clients.items()})
        self.liars, self.lie, self.generator = set(liars), lie, np.random.default_rng(seed)
        self.seen = Witnessed()

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Remember what was asked."""
        super().send(requests, deadline)
        self.asked = dict(requests)

    def answers(self) -> Iterator[tuple[str, Reply]]:
        """The replies, those of liars changed."""
        for name, reply in super().answers():
            request = self.asked[name]
            terms, matrix = request.terms, wire.decode(reply.payload, request.terms.shape, request.terms.encoding)
            shared = np.zeros(terms.shape)
            if request.kind == "admm":
                shared = wire.decode(request.shared, terms.shape, wire.downward(terms.encoding))
            if name in self.liars and self.lie is not None:
                lied = self.lie(matrix, shared, request, self.generator)
                yield name, replace(reply, payload=wire.encode(lied, terms.encoding))
                continue
            unit = 1.0 if request.kind == "warm" else float(np.sqrt(terms.consensus.rank))
            self.seen.norms[request.kind].append(float(np.linalg.norm(matrix)) / unit)
            if request.kind == "admm":
                self.seen.distances.append(float(np.linalg.norm(matrix - shared)) / unit)
            yield name, reply


def train(
    clients: Clients, *, robust: bool, liars: Sequence[str] = (), lie: Lie | None = None, seed: int = 0
) -> tuple[Array, Witnessed, int]:
    """The final subspace, what was seen of honest replies, and how many replies were refused."""
    first = next(iter(clients.values()))
    size, consensus = len(first.statistics.yy), replace(CONSENSUS, seed=seed)
    terms = Terms("liars", (), 0, 0, 0, 0, "", size, "float32", consensus, robust=robust)
    plan = TrainingPlan(ROUNDS, SHARE, poll=0.0, patience=10.0, least=FEWEST, asked=WITHSTANDS_TWO)
    coordinator, carrier = Coordinator(terms, plan), LyingCarrier(clients, liars, lie, seed)
    for _ in engine.run_rounds(coordinator, carrier):
        pass
    return retract_polar(coordinator.server.shared), carrier.seen, coordinator.ledger.refusals


def loss(clients: Clients, subspace: Array) -> float:
    """Σ f_i at Q̂_i."""
    return sum(client.objective(subspace) for client in clients.values())


def main() -> None:
    """Print all tables."""
    one_blas_thread()
    began = time.perf_counter()
    heading(f"Liars in a fleet of {DEVICES}: {ROUNDS} rounds, {WITHSTANDS_TWO} devices in each, orders {SEEDS}")
    for what, clients in fleets():
        _print_fleet(what, clients)
    print_network(DEVICES)
    print(f"  {time.perf_counter() - began:.0f} s in all")


def _print_fleet(what: str, clients: Clients) -> None:
    print(f"  {what}")
    plain = {seed: train(clients, robust=False, seed=seed) for seed in SEEDS}
    median = {seed: train(clients, robust=True, seed=seed) for seed in SEEDS}
    seen = [each[1] for each in (*plain.values(), *median.values())]
    warm, admm = (max(max(each.norms[phase]) for each in seen) for phase in ("warm", "admm"))
    far = max(max(each.distances) for each in seen)
    print(f"    honest replies: warm norm at most {warm:.3f}, norm at most {admm:.3f} √r, at most {far:.3f} √r from Z")
    losses = {seed: loss(clients, plain[seed][0]) for seed in SEEDS}
    ratios = [loss(clients, median[seed][0]) / losses[seed] for seed in SEEDS]
    spread = [losses[seed] / losses[SEEDS[0]] for seed in SEEDS]
    print(f"    no liar: median / mean {_listed(ratios)}; the mean in other orders {_listed(spread)}", flush=True)
    print("    lie                 liars       mean     median   refused")
    names = list(clients)
    for name, lie in LIES.items():
        for count in (1, 2):
            worst, refused = [0.0, 0.0], 0
            for seed in SEEDS:
                liars = [names[(seed + k) % len(names)] for k in range(count)]
                honest = {each: client for each, client in clients.items() if each not in liars}
                base = loss(honest, plain[seed][0])
                for k, robust in enumerate((False, True)):
                    try:
                        subspace, _, out = train(clients, robust=robust, liars=liars, lie=lie, seed=seed)
                    except RuntimeError:  # Z is so far away that honest replies are refused, and the training gives up
                        worst[k] = np.inf
                        continue
                    worst[k], refused = max(worst[k], loss(honest, subspace) / base), refused + out
            print(f"    {name:20}{count}/{DEVICES}{worst[0]:11.3f}{worst[1]:11.3f}{refused:10}", flush=True)


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.4f}" for number in numbers)


if __name__ == "__main__":
    main()
