"""What the replies of honest devices look like, what robust aggregation costs them, and what liars can do.

Fleets of eight train as over a network: the engine, the checks of the server and its settings, in one process. First
the norms of all honest replies and how strongly honest devices pull, by which the server's limits are chosen. Then the
loss Σ f_i of the honest devices, divided by that of the same devices after a training without liars and with the plain
mean: with the mean, with the median of replies alone, and with the default, which also leaves out of the warm
directions who pulls alone. Liars know the limits and use them up; the worst order counts. Infinite is a training that
gives up because too few replies can be accepted. Last, the worst of these lies are told over the network, by
`lyingfleet`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal
from unittest.mock import patch

import numpy as np

from fedkad import KoopmanDetector
from fedkad.federation import coordinator as limits
from fedkad.federation import engine, robust, wire
from fedkad.federation.client import Client
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.local import LocalTransport
from fedkad.federation.participant import Participant
from fedkad.federation.protocol import Header, Request, Terms
from fedkad.federation.settings import FEWEST, WITHSTANDS_TWO, Consensus
from fedkad.koopman.stiefel import random_point, retract_polar
from fedkad.simulate import simulate_fleet
from fedkad_bench.data.datasets import data_folder, load
from measurements.lyingfleet import print_network
from measurements.measure import Array, heading, one_blas_thread

DEVICES, ROUNDS, SHARE = 8, 8, 0.25
SEEDS = (0, 1)
ORDERS = (0, 1, 2, 3)
"""Orders in which devices are asked: of trainings with liars, and of those without."""
CONSENSUS = Consensus()
Clients = Mapping[str, Client]
Lie = Callable[[Array, Array, Request, np.random.Generator], Array]
Way = Literal["mean", "median", "default"]
WAYS: tuple[Way, ...] = ("mean", "median", "default")
PUMPS = range(8)
"""Seeds of the fleets of pumps whose pulls are looked at."""
GROUPS = 14
"""Groups of one size, of each fleet, whose pulls are looked at."""
JUST_BELOW = "just below"
TAKEN = (4, 8, 16)
"""Directions of their own that those who stay just below the limit try to bring in."""


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


def just_below(messages: Mapping[str, Array], liars: Sequence[str], taken: int) -> Array:
    """A warm message for all liars with so many directions of nobody else, as strong as the server takes them in.

    Liars know what all others send and how the server decides: they try which strength is not left out. The rest of
    the message is the honest one of the first of them.
    """
    own = messages[liars[0]]
    others = random_point(len(own), taken, np.random.default_rng(99))
    weakest, strongest = -14.0, 0.0  # powers of two: the energy of each direction

    def message(power: float) -> Array:
        made = np.concatenate([own[:, : own.shape[1] - taken], 2.0 ** (power / 2.0) * others], axis=1)
        return scaled(made, min(float(np.linalg.norm(made)), 1.0))

    def is_taken(power: float) -> bool:
        fleet = {**messages, **dict.fromkeys(liars, message(power))}
        return not robust.pulling_alone(list(fleet.values()), own.shape[1])

    if is_taken(strongest):
        return message(strongest)
    for _ in range(10):
        middle = (weakest + strongest) / 2.0
        weakest, strongest = (middle, strongest) if is_taken(middle) else (weakest, middle)
    return message(weakest)


def beginning_with(message: Array) -> Lie:
    """That message in the warm round, and another subspace in all others."""

    def lie(honest: Array, shared: Array, request: Request, generator: np.random.Generator) -> Array:
        return message if request.kind == "warm" else same_subspace(honest, shared, request, generator)

    return lie


@dataclass
class Witnessed:
    """What the replies of honest devices looked like: norms over √r, and distances from Z over √r, by phase."""

    norms: dict[str, list[float]] = field(default_factory=lambda: {"warm": [], "admm": []})
    distances: list[float] = field(default_factory=list)


class LyingCarrier:
    """Devices in this process of which some lie; the server checks what they send as if it came over a network."""

    def __init__(self, clients: Clients, liars: Sequence[str], lie: Lie | None, seed: int) -> None:
        self.transport = LocalTransport({name: Participant(name, None, client) for name, client in clients.items()})
        self.liars, self.lie, self.generator = set(liars), lie, np.random.default_rng(seed)
        self.seen = Witnessed()

    def devices(self) -> Collection[str]:
        """All devices."""
        return self.transport.devices()

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Remember what was asked."""
        self.transport.send(requests, deadline)
        self.asked = dict(requests)

    def answers(self) -> Iterator[tuple[str, Header]]:
        """The replies, those of liars changed."""
        for name, reply in self.transport.answers():
            request = self.asked[name]
            terms, matrix = request.terms, wire.decode(reply.payload, request.terms.shape, request.terms.encoding)
            shared = np.zeros(terms.shape)
            if request.kind == "admm":
                shared = wire.decode(request.shared, terms.shape, wire.downward(terms.encoding))
            if name in self.liars and self.lie is not None:
                lied = self.lie(matrix, shared, request, self.generator)
                yield name, replace(reply, payload=wire.encode(lied, terms.encoding)).header(request)
                continue
            unit = 1.0 if request.kind == "warm" else float(np.sqrt(terms.consensus.rank))
            self.seen.norms[request.kind].append(float(np.linalg.norm(matrix)) / unit)
            if request.kind == "admm":
                self.seen.distances.append(float(np.linalg.norm(matrix - shared)) / unit)
            yield name, reply.header(request)


def train(
    clients: Clients, *, way: Way, liars: Sequence[str] = (), lie: Lie | None = None, seed: int = 0
) -> tuple[Array, Witnessed, int]:
    """The final subspace, what was seen of honest replies, and how many replies were refused."""
    first = next(iter(clients.values()))
    size, consensus = len(first.statistics.yy), replace(CONSENSUS, seed=seed)
    terms = Terms("liars", (), 0, 0, 0, 0, "", size, "float32", consensus, robust=way != "mean")
    plan = TrainingPlan(ROUNDS, SHARE, poll=0.0, patience=10.0, least=FEWEST, asked=WITHSTANDS_TWO)
    coordinator, carrier = Coordinator(terms, plan), LyingCarrier(clients, liars, lie, seed)
    with patch.object(robust, "MOST_PULL", math.inf) if way == "median" else nullcontext():
        for _ in engine.run_rounds(coordinator, carrier):
            pass
    return retract_polar(coordinator.state.server.shared), carrier.seen, coordinator.state.ledger.refusals


def loss(clients: Clients, subspace: Array) -> float:
    """Σ f_i at Q̂_i."""
    return sum(client.objective(subspace) for client in clients.values())


def main() -> None:
    """Print all tables."""
    one_blas_thread()
    began = time.perf_counter()
    heading(f"Liars in a fleet of {DEVICES}: {ROUNDS} rounds, {WITHSTANDS_TWO} devices in each, orders {SEEDS}")
    _print_pulls()
    for what, clients in fleets():
        _print_fleet(what, clients)
    print_network(DEVICES)
    print(f"  {time.perf_counter() - began:.0f} s in all")


def warm_messages(clients: Clients) -> dict[str, Array]:
    """What each device sends in its first round."""
    return {name: client.warm_message() for name, client in clients.items()}


def largest_pull(messages: Sequence[Array]) -> float:
    """The largest pull of one or two of these devices."""
    most = min(robust.ALONE, (len(messages) - 1) // 2)
    sets = itertools.chain(*(itertools.combinations(range(len(messages)), size) for size in range(1, most + 1)))
    turned = np.split(np.linalg.qr(np.concatenate(messages, axis=1), mode="r"), len(messages), axis=1)
    return max(robust.pull(turned, chosen, CONSENSUS.rank) for chosen in sets)


def _print_pulls() -> None:
    """How strongly honest devices pull, in groups of all sizes, and how many are above the limit."""
    print(f"  largest pull in groups of honest devices, the limit being {robust.MOST_PULL:g}")
    sizes = range(FEWEST, DEVICES + 1)
    print("    devices            " + "".join(f"{size:16}" for size in sizes))
    simulated = (_clients(simulate_fleet(DEVICES, train_rows=5000, test_rows=500, seed=k).train) for k in PUMPS)
    _print_pulls_of(f"pumps, {len(PUMPS)} fleets", simulated)
    for what, clients in itertools.islice(fleets(), 1, None):
        _print_pulls_of(what, [clients])


def _print_pulls_of(what: str, known: Iterable[Clients]) -> None:
    generator, pulls = np.random.default_rng(0), dict[int, list[float]]()
    for clients in known:
        messages = list(warm_messages(clients).values())
        for size in range(FEWEST, DEVICES + 1):
            groups = list(itertools.combinations(messages, size))
            drawn = generator.permutation(len(groups))[:GROUPS]
            pulls.setdefault(size, []).extend(largest_pull(groups[k]) for k in drawn)
    found = (f"{max(each):8.2f} {sum(p > robust.MOST_PULL for p in each):2}/{len(each):<4}" for each in pulls.values())
    print(f"    {what:19}" + "".join(found), flush=True)


def _print_fleet(what: str, clients: Clients) -> None:
    print(f"  {what}")
    trained = {way: {seed: train(clients, way=way, seed=seed) for seed in ORDERS} for way in WAYS}
    seen = [each[1] for way in trained.values() for each in way.values()]
    warm, admm = (max(max(each.norms[phase]) for each in seen) for phase in ("warm", "admm"))
    far = max(max(each.distances) for each in seen)
    print(f"    honest replies: warm norm at most {warm:.3f}, norm at most {admm:.3f} √r, at most {far:.3f} √r from Z")
    losses = {way: np.array([loss(clients, trained[way][seed][0]) for seed in ORDERS]) for way in WAYS}
    ratios, spread = losses["default"] / losses["mean"], losses["mean"] / losses["mean"].mean()
    print(
        f"    no liar: default / mean {_listed(ratios)}; the mean of orders {ORDERS} over their mean {_listed(spread)}"
    )
    print("    lie                 liars       mean     median    default   refused", flush=True)
    plain = {seed: trained["mean"][seed][0] for seed in SEEDS}
    for name, lie in LIES.items():
        for count in (1, 2):
            _print_lie(clients, plain, name, count, partial(_always, lie))
    messages = warm_messages(clients)
    for count in (1, 2):
        _print_lie(
            clients,
            plain,
            JUST_BELOW,
            count,
            lambda liars: [beginning_with(just_below(messages, liars, taken)) for taken in TAKEN],
        )


def _always(lie: Lie, liars: Sequence[str]) -> list[Lie]:
    """That lie, whoever tells it."""
    return [lie]


def _print_lie(
    clients: Clients, plain: Mapping[int, Array], name: str, count: int, lies: Callable[[Sequence[str]], Sequence[Lie]]
) -> None:
    """The worst order of the worst of some lies, by the way in which replies are put together."""
    names, worst, refused = list(clients), dict.fromkeys(WAYS, 0.0), 0
    for seed in SEEDS:
        liars = [names[(seed + k) % len(names)] for k in range(count)]
        honest = {each: client for each, client in clients.items() if each not in liars}
        base = loss(honest, plain[seed])
        for lie, way in itertools.product(lies(liars), WAYS):
            try:
                subspace, _, out = train(clients, way=way, liars=liars, lie=lie, seed=seed)
            except RuntimeError:  # Z is so far away that honest replies are refused, and the training gives up
                worst[way] = np.inf
                continue
            worst[way], refused = max(worst[way], loss(honest, subspace) / base), refused + out
    print(
        f"    {name:20}{count}/{DEVICES}" + "".join(f"{worst[way]:11.3f}" for way in WAYS) + f"{refused:10}", flush=True
    )


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.4f}" for number in numbers)


if __name__ == "__main__":
    main()
