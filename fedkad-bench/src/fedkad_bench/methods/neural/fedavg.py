"""FedAvg: rounds of local training from a shared model, and the average of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkad.federation.server import Sampler
from fedkad_bench.methods.interface import WINDOW
from fedkad_bench.methods.neural.local import EPOCHS, Trainer, cut, plan_round
from fedkad_bench.methods.neural.networks import Network

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Envelope:
    """What all federated methods of the paper share."""

    rounds: int = 30
    participation: float = 0.25
    epochs: int = EPOCHS
    proximal: float = 0.0


def average(models: Tensor, weights: Tensor) -> Tensor:
    """Means of `(federation, client, numbers)` over the clients, weighted by `(federation, client)`.

    >>> average(torch.tensor([[[1.0], [4.0]]]), torch.tensor([[2.0, 1.0]]))
    tensor([[2.]])
    """
    return (models * (weights / weights.sum(dim=1, keepdim=True))[..., None]).sum(dim=1)


@torch.no_grad()
def contribute(network: Network, begin: Tensor, rows: Tensor, windows: NDArray[np.int64]) -> dict[str, Tensor]:
    """What one client adds to the constants, from all of its windows and the untrained model `(numbers,)`."""
    weights = network.layout.unpack(begin[None])
    parts = [torch.from_numpy(part).to(rows.device)[None] for part in np.array_split(windows, -(-len(windows) // 4096))]
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, mean in network.fixed(weights, cut(rows, part, WINDOW)).items():
            sums[name] = sums.get(name, 0.0) + mean[0] * (part.shape[1] / len(windows))
    return sums


def train(
    network: Network,
    learning: Mapping[str, Array],
    seeds: Sequence[int],
    envelope: Envelope,
    *,
    decay: float = 0.0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Final models `(seed, numbers)` and constants `(seed, …)`; federations of different seeds train side by side.

    Everything random but dropout depends on the seed alone, not on the seeds that train beside it.
    """
    torch.manual_seed(seeds[0])  # dropout
    names = list(learning)
    rows = torch.from_numpy(np.concatenate(list(learning.values()))).to(device, torch.float32)
    windows = _windows(learning)
    samplers = [Sampler(names, envelope.participation, "uniform", seed) for seed in seeds]
    shared = torch.stack([network.layout.draw(seed) for seed in seeds]).to(device)
    trainer, fixed = Trainer(network, rows, WINDOW, decay, envelope.proximal), None
    for number in range(envelope.rounds):
        sampled = [sampler.next() for sampler in samplers]
        chosen = [windows[name] for clients in sampled for name in clients]
        sizes = torch.tensor([len(own) for own in chosen], dtype=torch.float32, device=device).view(len(seeds), -1)
        if fixed is None:
            fixed = _agree(network, shared, rows, chosen, sizes)
        generators = [
            np.random.default_rng([seed, number, names.index(name)])
            for seed, clients in zip(seeds, sampled, strict=True)
            for name in clients
        ]
        clients = sizes.shape[1]
        plan = plan_round(chosen, generators, 0 if network.restarts else number, envelope.epochs)
        spread = {name: value.repeat_interleave(clients, dim=0) for name, value in fixed.items()}
        models = trainer.train(shared.repeat_interleave(clients, dim=0), spread, plan)
        shared = average(models.view(len(seeds), clients, -1), sizes)
        if progress:
            progress(number + 1, envelope.rounds)
    return shared, fixed or {}


def _agree(
    network: Network, shared: Tensor, rows: Tensor, chosen: Sequence[NDArray[np.int64]], sizes: Tensor
) -> dict[str, Tensor]:
    """The constants of every federation: means over its first participants."""
    clients = sizes.shape[1]
    parts = [contribute(network, shared[k // clients], rows, own) for k, own in enumerate(chosen)]
    return {
        name: average(torch.stack([part[name] for part in parts]).view(*sizes.shape, -1), sizes) for name in parts[0]
    }


def _windows(learning: Mapping[str, Array]) -> dict[str, NDArray[np.int64]]:
    """First rows of every client's complete windows in the joined rows; none reaches over a gap or a border."""
    found, first = {}, 0
    for name, series in learning.items():
        broken = np.concatenate([[0], np.cumsum(np.isnan(series).any(axis=1))])
        whole = np.flatnonzero(broken[WINDOW:] == broken[: max(len(broken) - WINDOW, 0)])
        if not len(whole):
            raise ValueError(f"Client {name!r} has no {WINDOW} consecutive rows to learn from; leave it out.")
        found[name] = whole + first
        first += len(series)
    return found
