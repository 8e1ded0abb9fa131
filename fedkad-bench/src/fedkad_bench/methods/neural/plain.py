"""The four networks once more, one model at a time and in PyTorch's own layers: for timing, and to check the others by.

The stacked form of `networks` is made to train dozens of models at once. For one model on one core PyTorch's layers are
up to half as fast again, so it is these that are timed beside FedKAD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch.optim import Adam, AdamW, Optimizer

from fedkad_bench.methods.neural.local import BATCH, RATE


class PlainDeepSvdd(nn.Module):
    """See `networks.DeepSvdd`."""

    centre: Tensor

    def __init__(self, window: int, channels: int) -> None:
        super().__init__()
        sizes = (window * channels, 128, 64, 32)
        self.layers = nn.ModuleList(nn.Linear(sizes[k], sizes[k + 1], bias=False) for k in range(3))
        self.register_buffer("centre", torch.full((32,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """32 numbers of every window."""
        x = leaky_relu(self.layers[0](x.flatten(1)))
        mapped: Tensor = self.layers[2](leaky_relu(self.layers[1](x)))
        return mapped

    def optimisers(self) -> list[Optimizer]:
        """One."""
        return [AdamW(self.parameters(), lr=RATE, weight_decay=1e-6)]

    def losses(self, x: Tensor, epoch: int) -> Iterator[Tensor]:
        """The mean score."""
        yield self.scores(x).mean()

    def scores(self, x: Tensor) -> Tensor:
        """Squared distance from the centre."""
        distances: Tensor = ((self(x) - self.centre) ** 2).sum(dim=1)
        return distances


class PlainLstmAutoencoder(nn.Module):
    """See `networks.LstmAutoencoder`."""

    def __init__(self, window: int, channels: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(channels, 64, batch_first=True)
        self.decoder = nn.LSTM(64, 64, batch_first=True)
        self.output = nn.Linear(64, channels)

    def forward(self, x: Tensor) -> Tensor:
        """The window again."""
        state = self.encoder(x)[0][:, -1:]
        unfolded: Tensor = self.output(self.decoder(state.expand(-1, x.shape[1], -1))[0])
        return unfolded

    def optimisers(self) -> list[Optimizer]:
        """One."""
        return [Adam(self.parameters(), lr=RATE)]

    def losses(self, x: Tensor, epoch: int) -> Iterator[Tensor]:
        """The mean squared error over the window."""
        yield ((self(x) - x) ** 2).mean()

    def scores(self, x: Tensor) -> Tensor:
        """The mean squared error of the newest sample."""
        error: Tensor = ((self(x)[:, -1] - x[:, -1]) ** 2).mean(dim=1)
        return error


class PlainUsad(nn.Module):
    """See `networks.Usad`."""

    def __init__(self, window: int, channels: int) -> None:
        super().__init__()
        size = window * channels
        down = (size, size // 2, size // 4, 40)
        self.encoder = _layers(down, nn.ReLU())
        self.first = _layers(down[::-1], nn.Sigmoid())
        self.second = _layers(down[::-1], nn.Sigmoid())

    def optimisers(self) -> list[Optimizer]:
        """One for the encoder with each decoder."""
        parts = [[*self.encoder.parameters(), *own.parameters()] for own in (self.first, self.second)]
        return [Adam(part, lr=RATE) for part in parts]

    def losses(self, x: Tensor, epoch: int) -> Iterator[Tensor]:
        """L₁ and, after its step, L₂."""
        x = x.flatten(1)
        for sign, own in ((1.0, self.first), (-1.0, self.second)):
            again = self.second(self.encoder(self.first(self.encoder(x))))
            reproduced = ((x - own(self.encoder(x))) ** 2).mean()
            yield reproduced / epoch + sign * (1.0 - 1.0 / epoch) * ((x - again) ** 2).mean()

    def scores(self, x: Tensor) -> Tensor:
        """½‖x−x₁‖² + ½‖x−x₃‖²."""
        x = x.flatten(1)
        once = self.first(self.encoder(x))
        again = self.second(self.encoder(once))
        error: Tensor = 0.5 * ((x - once) ** 2).mean(dim=1) + 0.5 * ((x - again) ** 2).mean(dim=1)
        return error


class PlainTranAd(nn.Module):
    """See `networks.TranAd`."""

    positions: Tensor

    def __init__(self, window: int, channels: int, rate: float = 0.1) -> None:
        super().__init__()
        self.channels, width = channels, 2 * channels
        place = torch.arange(float(window))[:, None]
        steps = torch.exp(torch.arange(float(width)) * (-log(10000.0) / width))
        self.register_buffer("positions", torch.sin(place * steps) + torch.cos(place * steps))
        self.drop = nn.Dropout(rate)
        self.encoder = _Block(width, channels, rate, cross=False)
        self.first = _Block(width, channels, rate, cross=True)
        self.second = _Block(width, channels, rate, cross=True)
        self.output = nn.Linear(width, channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both answers."""
        target = x[:, -1:].repeat(1, 1, 2)
        one = self._answer(self.first, x, torch.zeros_like(x), target)
        return one, self._answer(self.second, x, (one[:, None] - x) ** 2, target)

    def _answer(self, decoder: nn.Module, x: Tensor, focus: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.drop(torch.cat([x, focus], dim=2) * sqrt(self.channels) + self.positions))
        return torch.sigmoid(self.output(decoder(target, memory)[:, 0]))

    def optimisers(self) -> list[Optimizer]:
        """One."""
        return [AdamW(self.parameters(), lr=RATE, weight_decay=1e-5)]

    def losses(self, x: Tensor, epoch: int) -> Iterator[Tensor]:
        """Both errors, the second gaining weight with the epochs."""
        one, two = self(x)
        yield ((one - x[:, -1]) ** 2).mean() / epoch + (1.0 - 1.0 / epoch) * ((two - x[:, -1]) ** 2).mean()

    def scores(self, x: Tensor) -> Tensor:
        """The mean squared error of the second answer."""
        error: Tensor = ((self(x)[1] - x[:, -1]) ** 2).mean(dim=1)
        return error


class _Block(nn.Module):
    """Attention to itself, to a memory if it has one, and a feed-forward layer, each added to what came in."""

    def __init__(self, width: int, heads: int, rate: float, *, cross: bool) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(width, heads, dropout=rate, batch_first=True)
        self.cross = nn.MultiheadAttention(width, heads, dropout=rate, batch_first=True) if cross else None
        self.widen, self.narrow, self.drop = nn.Linear(width, 16), nn.Linear(16, width), nn.Dropout(rate)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """The block's output, of the shape of `x`."""
        x = x + self.drop(self.own(x, x, x, need_weights=False)[0])
        if self.cross is not None:
            x = x + self.drop(self.cross(x, memory, memory, need_weights=False)[0])
        answer: Tensor = x + self.drop(self.narrow(self.drop(self.widen(x))))
        return answer


def _layers(sizes: tuple[int, ...], last: nn.Module) -> nn.Sequential:
    parts: list[nn.Module] = []
    for k in range(3):
        parts += [nn.Linear(sizes[k], sizes[k + 1]), nn.ReLU() if k < 2 else last]
    return nn.Sequential(*parts)


PlainNetwork = PlainDeepSvdd | PlainLstmAutoencoder | PlainUsad | PlainTranAd

PLAIN: dict[str, Callable[[int, int], PlainNetwork]] = {
    "deepsvdd": PlainDeepSvdd,
    "lstm-ae": PlainLstmAutoencoder,
    "usad": PlainUsad,
    "tranad": PlainTranAd,
}


def train_epoch(network: PlainNetwork, optimisers: list[Optimizer], windows: Tensor, epoch: int) -> None:
    """One pass over windows `(count, w, n)`, which are in the order to be taken; k is `epoch`."""
    for batch in torch.split(windows, BATCH):
        for optimiser, loss in zip(optimisers, network.losses(batch, epoch), strict=True):
            network.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
