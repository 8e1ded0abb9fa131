"""What privacy costs: the objective with masks, with noise, and with both, against that of the plain run.

The measure is the fleet's mean relative loss at the orthonormal Z, over that after the plain run of the same rounds.
ε is that of one device's whole data at δ = 1e-5 over all it releases in a training: one warm message, and one reply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedkad import KoopmanDetector
from fedkad.federation import sketch
from fedkad.federation.client import Client, LocalState
from fedkad.federation.privacy import epsilon, release
from fedkad.federation.protocol import Phase, Request, Terms
from fedkad.federation.secure.arithmetic import quantise, restore
from fedkad.federation.secure.server import BOUND
from fedkad.federation.secure.session import default_threshold
from fedkad.federation.server import Sampler, Server
from fedkad.federation.settings import Consensus
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import relative_loss
from fedkad.simulate import simulate_fleet
from measurements.measure import Array, heading, load, one_blas_thread

ROUNDS, PARTICIPATION, LEVELS, DELTA = 8, 0.25, 2**20, 1e-5
PUMPS = 400
NOISES = (0.0, 0.01, 0.1, 1.0, 10.0)


def terms_of(detector: KoopmanDetector) -> Terms:
    """Terms of a fleet like that detector."""
    consensus = Consensus(rank=detector.rank)
    channels = tuple(map(str, range(detector.n_features_in_)))
    return Terms.of("benchmark", detector.lifting_, channels, horizon=1, encoding="float32", consensus=consensus)


def summed(messages: Sequence[Array]) -> Array:
    """The sum of what devices say as masks leave it: rounded to the grid, which is all that they change."""
    integers = sum(quantise(message, BOUND, LEVELS).integers.astype(np.int64) for message in messages)
    return restore(np.asarray(integers).astype(np.uint32), BOUND, LEVELS)


def train(detectors: Sequence[KoopmanDetector], noise: float, *, masked: bool) -> Array:
    """The subspace after a training with that noise."""
    terms = replace(terms_of(detectors[0]), noise=noise, secure=masked)
    clients = {str(k): Client(str(k), d.memory_.statistics, terms.consensus) for k, d in enumerate(detectors)}
    server = Server(terms.dimension, terms.consensus)
    sampler = Sampler(list(clients), PARTICIPATION, "cover", 0)
    probe = sketch.probe_matrix(*terms.shape, terms.consensus.seed)
    states: dict[str, LocalState] = {}
    for number in range(ROUNDS):
        names = sampler.next()
        phase: Phase = "warm" if server.begin_round(names) else "admm"
        shared, request = server.shared, Request(terms, phase, number, "")
        part = 1.0 / math.sqrt(default_threshold(len(names))) if masked else 1.0
        messages = []
        for name in names:
            client = clients[name]
            if phase == "warm":
                message = client.warm_message()
            else:
                states[name] = client.local_round(states.get(name) or client.begin(shared), shared)
                message = client.reply(states[name]) - shared
            if masked and phase == "warm":
                message = sketch.sketch(message, probe)
            messages.append(message if noise == 0.0 else release(message, request.bound, noise * part))
        if masked:
            total = summed(messages)
            server.receive_sum(names, total if phase == "warm" else total + len(names) * shared)
        else:
            for name, message in zip(names, messages, strict=True):
                server.receive(name, message if phase == "warm" else message + shared)
        server.close_round()
        for name in names if phase == "admm" else ():
            states[name] = clients[name].commit(states[name], server.shared)
    return retract_polar(server.shared)


def table(title: str, series: Sequence[Array]) -> None:
    """Print one fleet."""
    detectors = [KoopmanDetector().prepare(train_rows) for train_rows in series]
    devices = [detector.memory_.statistics for detector in detectors]
    plain = relative_loss(devices, train(detectors, 0.0, masked=False))
    print(
        f"  {title}: {len(detectors)} devices, D = {detectors[0].lifting_.dimension}, loss of the plain run {plain:.4f}"
    )
    print("    noise   epsilon   loss, noise on every reply   loss, masked with noise in the sum")
    for noise in NOISES:
        spent = epsilon(noise, 2, DELTA) if noise else math.inf
        losses = [relative_loss(devices, train(detectors, noise, masked=masked)) / plain for masked in (False, True)]
        print(f"    {noise:5g} {spent:9.3g} {losses[0]:28.4f} {losses[1]:36.4f}", flush=True)


def main() -> None:
    """Print servers and pumps, few and many."""
    one_blas_thread()
    heading(f"Privacy: {ROUNDS} rounds, {PARTICIPATION:.0%} a round (at least three devices with masks), warm start")
    servers = [machine.train for machine in load("SMD") if machine.name.startswith("machine-")]
    table("servers of SMD", servers)
    table("simulated pumps", list(simulate_fleet(PUMPS, train_rows=1500, test_rows=500).train.values()))


if __name__ == "__main__":
    main()
