"""What robust aggregation saves when some clients are poisoned, and what it costs when none is.

Eight clients, everybody in every round, one warm round and seven of ADMM. The poisoned ones play by their attack from
the warm round on; their messages have the norm of an honest one or, where said, the largest that a careful server
would let pass. Printed is the objective Σ f_i of the honest clients at the orthonormal factor of the final Z, divided
by that of the same clients after a run of all eight without poison and with the plain mean: 1 is no harm. The column
"left out" is the plain mean of the honest clients alone, which no server can know how to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedkad import KoopmanDetector
from fedkad.federation.client import Client, LocalState
from fedkad.federation.robust import combine_replies, pulling_alone
from fedkad.federation.server import Server
from fedkad.federation.settings import Consensus
from fedkad.koopman.snapshots import Statistics
from fedkad.koopman.stiefel import random_point, retract_polar
from fedkad_bench.data.datasets import data_folder, load
from measurements.measure import Array, alternate, heading, one_blas_thread

CLIENTS = 8
ROUNDS = 8
SHARES = (1, 2, 3)
"""Poisoned clients; the first of the fleet."""
LARGEST_REPLY = 2.0
"""Norm of a reply that is let pass, in units of √r, the norm of an orthonormal P."""
CONSENSUS = Consensus()
Attack = Callable[[Array, Array, bool, np.random.Generator], Array]


@dataclass
class Device:
    """A client's statistics and its warm message, which is the same in every run."""

    name: str
    statistics: Statistics
    message: Array = field(repr=False)


def usual_norm(shape: tuple[int, ...], warm: bool) -> float:
    """Norm of an honest message: shares of ‖Y‖² add up to nearly 1, and r orthonormal columns to √r."""
    return 1.0 if warm else float(np.sqrt(shape[1]))


def another_subspace(shape: tuple[int, ...], warm: bool, generator: np.random.Generator) -> Array:
    """A random one, with the norm of an honest message."""
    other: Array = random_point(shape[0], shape[1], generator) * usual_norm(shape, warm) / np.sqrt(shape[1])
    return other


def random_subspace(honest: Array, shared: Array, warm: bool, generator: np.random.Generator) -> Array:
    """Another random subspace every round and from every client."""
    return another_subspace(honest.shape, warm, generator)


def sign_flip(honest: Array, shared: Array, warm: bool, generator: np.random.Generator) -> Array:
    """The honest reply with the other sign; in a warm round that says the same as the honest one."""
    return -honest


def big_noise(honest: Array, shared: Array, warm: bool, generator: np.random.Generator) -> Array:
    """Z with as much noise as the permitted norm has room for; in a warm round noise alone."""
    noise = generator.standard_normal(honest.shape)
    noise /= np.linalg.norm(noise)
    if warm:
        return noise
    room = (LARGEST_REPLY * usual_norm(honest.shape, warm)) ** 2 - float(np.linalg.norm(shared)) ** 2
    noisy: Array = shared + np.sqrt(max(room, 0.0)) * noise
    return noisy


def collusion(honest: Array, shared: Array, warm: bool, generator: np.random.Generator) -> Array:
    """The same other subspace from all poisoned clients in all rounds."""
    return another_subspace(honest.shape, warm, np.random.default_rng(99))


ATTACKS: dict[str, Attack] = {
    "random subspace": random_subspace,
    "sign flip": sign_flip,
    "big noise": big_noise,
    "collusion": collusion,
}


def devices() -> tuple[str, list[Device]]:
    """Eight servers of SMD or, where there is no data, simulated pumps; and what they are called."""
    if data_folder() is None:
        # Only here, because with the data nothing is simulated.
        from fedkad.simulate import simulate_fleet

        what, fleet = "simulated pumps", dict(simulate_fleet(CLIENTS, train_rows=5000, test_rows=500).train)
    else:
        chosen = load("SMD", entities="machine-1-*").entities[:CLIENTS]
        what, fleet = "SMD machine-1-*", {entity.name: np.asarray(entity.train) for entity in chosen}
    made = []
    for name, train in fleet.items():
        statistics = KoopmanDetector(rank=CONSENSUS.rank).prepare(train).memory_.statistics
        made.append(Device(name, statistics, Client(name, statistics, CONSENSUS).warm_message()))
    return what, made


def hold_round(server: Server, names: Sequence[str], replies: Sequence[Array]) -> Array:
    """One round of the server."""
    server.begin_round(names)
    for name, reply in zip(names, replies, strict=True):
        server.receive(name, reply)
    return server.close_round()


def run(fleet: Sequence[Device], robust: bool, attack: Attack | None = None, poisoned: int = 0) -> Array:
    """The orthonormal factor of the final Z; the first clients, `poisoned` of them, attack."""
    generator = np.random.default_rng(7)
    clients = [Client(device.name, device.statistics, CONSENSUS) for device in fleet]
    names = [client.name for client in clients]
    server = Server(len(fleet[0].message), CONSENSUS, robust=robust)
    shared = server.shared
    states: list[LocalState] = []
    for k in range(ROUNDS):
        replies = [device.message for device in fleet]
        if k:
            begun = states or [client.begin(shared) for client in clients]
            states = [client.local_round(state, shared) for client, state in zip(clients, begun, strict=True)]
            replies = [client.reply(state) for client, state in zip(clients, states, strict=True)]
        if attack is not None:
            replies[:poisoned] = [attack(reply, shared, k == 0, generator) for reply in replies[:poisoned]]
        shared = hold_round(server, names, replies)
        states = [client.commit(state, shared) for client, state in zip(clients, states, strict=False)]
    return retract_polar(shared)


def objective(fleet: Sequence[Device], subspace: Array) -> float:
    """Σ f_i at Q̂_i."""
    return sum(Client(device.name, device.statistics, CONSENSUS).objective(subspace) for device in fleet)


def print_costs(fleet: Sequence[Device]) -> None:
    """Seconds of one aggregation and bytes that the server holds for it."""
    generator = np.random.default_rng(1)
    messages = [device.message for device in fleet]
    dimension, rank = messages[0].shape
    common = random_point(dimension, rank, generator)
    replies = [common + 0.01 * generator.standard_normal(common.shape) for _ in fleet]
    seconds = alternate(
        9,
        lambda: sum(replies) / len(replies),
        lambda: combine_replies(replies),
        lambda: sum(message @ message.T for message in messages),
        lambda: pulling_alone(messages, rank),
    )
    print(f"  one aggregation of {len(fleet)} messages, D = {dimension}, r = {rank}")
    print(f"    ADMM  mean {seconds[0] * 1e3:7.2f} ms, geometric median {seconds[1] * 1e3:7.2f} ms")
    print(f"    warm  sum  {seconds[2] * 1e3:7.2f} ms, and who pulls alone {seconds[3] * 1e3:7.2f} ms")
    one, square = dimension * rank * 8 / 1e6, dimension * dimension * 8 / 1e6
    print(f"    held in an ADMM round: mean {one:.2f} MB (D r), geometric median {len(fleet) * one:.2f} MB (n D r)")
    both = len(fleet) * one + square
    print(f"    held in a warm round: sum {square:.2f} MB (D²), robust {both:.2f} MB (n D r and D²)")


def main() -> None:
    """Print one line an attack and share."""
    one_blas_thread()
    heading(f"Poisoned clients: {CLIENTS} clients, {ROUNDS} rounds, all of them in each, one BLAS thread")
    began = time.perf_counter()
    what, fleet = devices()
    clean = run(fleet, robust=False)
    alone = {poisoned: run(fleet[poisoned:], robust=False) for poisoned in SHARES}
    print(f"  {what}; objective relative to the plain mean without poison ({objective(fleet, clean):.4f})")
    print("  attack            poisoned     mean   robust   left out")
    robust = objective(fleet, run(fleet, robust=True)) / objective(fleet, clean)
    print(f"  {'none':18}{0:>4}/{CLIENTS}{1.0:11.3f}{robust:9.3f}{1.0:11.3f}", flush=True)
    for name, attack in ATTACKS.items():
        for poisoned in SHARES:
            honest = fleet[poisoned:]
            subspaces = [run(fleet, way, attack, poisoned) for way in (False, True)]
            ratios = [objective(honest, found) / objective(honest, clean) for found in [*subspaces, alone[poisoned]]]
            print(f"  {name:18}{poisoned:>4}/{CLIENTS}{ratios[0]:11.3f}{ratios[1]:9.3f}{ratios[2]:11.3f}", flush=True)
    print_costs(fleet)
    print(f"  {time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
