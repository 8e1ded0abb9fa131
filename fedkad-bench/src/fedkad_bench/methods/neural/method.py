"""The neural baselines as methods of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkad.federation.server import Sampler
from fedkad_bench.methods.interface import WINDOW, Cost, Covers, Scale
from fedkad_bench.methods.neural.fedavg import Envelope, Progress, train
from fedkad_bench.methods.neural.local import cut
from fedkad_bench.methods.neural.networks import DeepSvdd, LstmAutoencoder, Network, TranAd, Usad
from fedkad_bench.methods.preparation import Prepared, prepare

Array = NDArray[np.float64]

SCORED_AT_ONCE = 4096


class Baseline(NamedTuple):
    """A row of the table: its title, and its network for windows of w samples and n channels."""

    title: str
    network: Callable[[int, int], DeepSvdd | LstmAutoencoder | Usad | TranAd]


NETWORKS: dict[str, Baseline] = {
    "deepsvdd": Baseline("DeepSVDD", DeepSvdd),
    "lstm-ae": Baseline("LSTM-AE", LstmAutoencoder),
    "usad": Baseline("USAD", Usad),
    "usad-restart": Baseline("USAD, k anew each round", partial(Usad, restarts=True)),
    "tranad": Baseline("TranAD", TranAd),
}


@dataclass(frozen=True)
class NeuralMethod:
    """A network under FedAvg (or FedProx, by its envelope)."""

    name: str
    envelope: Envelope = field(default_factory=Envelope)
    device: str = "cpu"

    @property
    def title(self) -> str:
        """Names the method in tables."""
        return NETWORKS[self.name].title

    @property
    def covers(self) -> Covers:
        """What one of its scores judges."""
        return NETWORKS[self.name].network(WINDOW, 1).covers

    def fit(self, fleet: Mapping[str, Array], *, seed: int, scaling: Scale = "device") -> FittedNetwork:
        """Train one federation."""
        return self.fit_seeds(fleet, seeds=[seed], scaling=scaling)[0]

    def fit_seeds(
        self, fleet: Mapping[str, Array], *, seeds: Sequence[int], scaling: Scale, progress: Progress | None = None
    ) -> list[FittedNetwork]:
        """Train a federation for every seed, side by side."""
        channels = next(iter(fleet.values())).shape[1]
        network = NETWORKS[self.name].network(WINDOW, channels)
        clients = prepare(fleet, scaling, network.units)
        learning = {name: client.learning for name, client in clients.items()}
        models, fixed = train(
            network, learning, seeds, self.envelope, decay=network.decay, device=self.device, progress=progress
        )
        cost = exchanged(network.layout.numbers, list(fleet), self.envelope)
        return [
            FittedNetwork(network, clients, models[k : k + 1], {name: v[k : k + 1] for name, v in fixed.items()}, cost)
            for k in range(len(seeds))
        ]


def exchanged(numbers: int, names: Sequence[str], envelope: Envelope) -> Cost:
    """The model down and up for every participant of every round, 4 bytes a number; in the end down to all."""
    clients = len(Sampler(names, envelope.participation, "uniform", 0).next())
    one_way = 4 * numbers * clients * envelope.rounds
    return Cost(numbers, envelope.rounds, one_way, one_way, 4 * numbers * len(names))


@dataclass(frozen=True)
class FittedNetwork:
    """One shared network, and how every client scales its data."""

    network: Network
    clients: Mapping[str, Prepared]
    model: Tensor
    fixed: Mapping[str, Tensor]
    cost: Cost

    def validation(self, client: str) -> Array:
        """Scores of the held-out rows."""
        scores = self._score(self.clients[client].held_out)
        known: Array = scores[~np.isnan(scores)]
        return known

    def score(self, client: str, series: Array) -> Array:
        """Scores of a series."""
        return self._score(self.clients[client].transform(series))

    @torch.no_grad()
    def _score(self, rows: Array) -> Array:
        known = torch.from_numpy(rows).to(self.model.device, torch.float32)
        weights = {**self.network.layout.unpack(self.model), **self.fixed}
        scores = np.full(len(rows), np.nan)
        for first in range(0, len(rows) - WINDOW + 1, SCORED_AT_ONCE):
            starts = torch.arange(first, min(first + SCORED_AT_ONCE, len(rows) - WINDOW + 1), device=known.device)
            values = self.network.scores(weights, cut(known, starts[None], WINDOW))[0]
            # A window with a gap in it has NaN for its score: the arithmetic says so by itself.
            scores[first + WINDOW - 1 : first + WINDOW - 1 + len(starts)] = values.cpu().numpy()
        return scores
