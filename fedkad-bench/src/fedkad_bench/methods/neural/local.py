"""Local training of many clients side by side: the plan of a round's batches, and the step that all models take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkad_bench.methods.neural.networks import Network

BATCH = 128
EPOCHS = 5
RATE = 1e-3
BETAS = (0.9, 0.999)
TINY = 1e-8


@dataclass(frozen=True)
class Plan:
    """The batches of one round for every model: `(step, model, …)`.

    A model with fewer batches than others rests at the end: its `active` is 0.

    Attributes
    ----------
    starts : first row of every window in the joined training rows; `share` is its weight in the batch's mean, 0 where
        the last batch of an epoch is not full.
    epoch : k, counted over all rounds from 1.
    """

    starts: NDArray[np.int64]
    share: NDArray[np.float32]
    epoch: NDArray[np.float32]
    active: NDArray[np.float32]


def plan_round(
    windows: Sequence[NDArray[np.int64]], generators: Sequence[np.random.Generator], number: int, epochs: int = EPOCHS
) -> Plan:
    """Shuffled batches of round `number` (from 0): `windows` are the first rows of each model's windows."""
    per_epoch = [-(-len(starts) // BATCH) for starts in windows]
    shape = (epochs * max(per_epoch), len(windows))
    plan = Plan(
        np.zeros((*shape, BATCH), dtype=np.int64),
        np.zeros((*shape, BATCH), dtype=np.float32),
        np.ones(shape, dtype=np.float32),
        np.zeros(shape, dtype=np.float32),
    )
    for model, (own, generator) in enumerate(zip(windows, generators, strict=True)):
        for epoch in range(epochs):
            steps = slice(epoch * per_epoch[model], (epoch + 1) * per_epoch[model])
            filled = np.zeros(per_epoch[model] * BATCH, dtype=np.int64)
            filled[: len(own)] = generator.permutation(own)
            plan.starts[steps, model] = filled.reshape(-1, BATCH)
            sizes = np.full(per_epoch[model], BATCH)
            sizes[-1] = len(own) - BATCH * (per_epoch[model] - 1)
            plan.share[steps, model] = (np.arange(BATCH) < sizes[:, None]) / sizes[:, None]
            plan.epoch[steps, model] = number * epochs + epoch + 1
            plan.active[steps, model] = 1.0
    return plan


def cut(rows: Tensor, starts: Tensor, window: int) -> Tensor:
    """Windows `(model, batch, w, n)` that begin at `starts`, `(model, batch)`."""
    return rows[starts[..., None] + torch.arange(window, device=rows.device)]


class Trainer:
    """Adam on all models at once, each a row of `(model, numbers)`, from a fresh state every round.

    `proximal` is μ of FedProx: μ/2·‖θ − θ_round start‖² is added to every loss; 0 is FedAvg.
    On a GPU one step is recorded and replayed: its hundreds of small kernels cost more to launch than to run.
    """

    def __init__(self, network: Network, rows: Tensor, window: int, decay: float, proximal: float = 0.0) -> None:
        self.network, self.rows, self.window, self.decay, self.proximal = network, rows, window, decay, proximal
        self.owned = [network.layout.mask(*objective.owns).to(rows.device) for objective in network.objectives]

    def train(self, begin: Tensor, fixed: dict[str, Tensor], plan: Plan) -> Tensor:
        """The models after one round of local training from `begin`."""
        self.begin, self.models, self.fixed = begin, begin.clone(), fixed
        self.moments = [(torch.zeros_like(begin), torch.zeros_like(begin)) for _ in self.owned]
        device = self.rows.device
        starts, share = torch.from_numpy(plan.starts).to(device), torch.from_numpy(plan.share).to(device)
        epoch, active = torch.from_numpy(plan.epoch).to(device), torch.from_numpy(plan.active).to(device)
        count = torch.arange(1, len(plan.starts) + 1, device=device, dtype=torch.float32)
        steps = list(zip(starts, share, epoch, active, count, strict=True))
        step = self._recorded(*steps[0]) if device.type == "cuda" else self._step
        for inputs in steps:
            step(*inputs)
        return self.models

    def _step(self, starts: Tensor, share: Tensor, epoch: Tensor, active: Tensor, count: Tensor) -> None:
        windows = cut(self.rows, starts, self.window)
        for objective, owned, moments in zip(self.network.objectives, self.owned, self.moments, strict=True):
            leaf = self.models.detach().requires_grad_()
            weights = {**self.network.layout.unpack(leaf), **self.fixed}
            loss = (objective.losses(weights, windows, epoch) * share).sum()
            (slope,) = torch.autograd.grad(loss, leaf)
            with torch.no_grad():
                if self.proximal:
                    slope = slope + self.proximal * (self.models - self.begin)
                self._descend(slope * owned, owned, moments, active[:, None], count)

    def _descend(
        self, slope: Tensor, owned: Tensor, moments: tuple[Tensor, Tensor], active: Tensor, count: Tensor
    ) -> None:
        """One step of Adam with decoupled decay, for the models that are not resting."""
        mean, square = moments
        mean.lerp_(slope, 1.0 - BETAS[0])
        square.lerp_(slope * slope, 1.0 - BETAS[1])
        mean_bias, square_bias = 1.0 - BETAS[0] ** count, 1.0 - BETAS[1] ** count
        move = (mean / mean_bias) / ((square / square_bias).sqrt() + TINY)
        if self.decay:
            move = move + self.decay * owned * self.models
        self.models -= RATE * active * move

    def _recorded(self, *inputs: Tensor) -> Callable[..., None]:
        """The step as a recorded graph that is replayed on new inputs; what the recording's warm-up did is undone."""
        kept = [self.models.clone(), *(m.clone() for pair in self.moments for m in pair)]
        places = [value.clone() for value in inputs]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step(*places)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(*places)
        for state, value in zip([self.models, *(m for pair in self.moments for m in pair)], kept, strict=True):
            state.copy_(value)

        def replay(*fresh: Tensor) -> None:
            for place, value in zip(places, fresh, strict=True):
                place.copy_(value)
            graph.replay()

        return replay
