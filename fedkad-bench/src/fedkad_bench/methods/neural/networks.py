"""The four networks: their parameters, the losses they are trained by, and the scores they give.

All sizes are those that give the bytes which the paper reports. n is the number of channels, w the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import dropout, leaky_relu

from fedkad_bench.methods.interface import Covers
from fedkad_bench.methods.neural.stacked import (
    Layout,
    Shape,
    Weights,
    attention,
    attention_shapes,
    linear,
    linear_shapes,
    lstm,
    lstm_repeating,
    lstm_shapes,
)
from fedkad_bench.methods.preparation import Units


class Objective(NamedTuple):
    """One optimiser's task: losses `(model, batch)` of windows at epoch k `(model,)`, and the parameters it owns."""

    losses: Callable[[Weights, Tensor, Tensor], Tensor]
    owns: tuple[str, ...] = ("",)


class Network(Protocol):
    """A network over windows `(model, batch, w, n)`."""

    @property
    def layout(self) -> Layout:
        """Its parameters."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What is minimised in every step, in this order."""

    @property
    def restarts(self) -> bool:
        """Whether the epochs k are counted anew in every round, instead of over all of them."""

    def fixed(self, weights: Weights, windows: Tensor) -> dict[str, Tensor]:
        """What one client contributes to constants `(model, …)` that are averaged over clients and then kept."""

    def scores(self, weights: Weights, windows: Tensor) -> Tensor:
        """Scores `(model, batch)` of windows."""


@dataclass(frozen=True)
class DeepSvdd:
    """A one-class network: a bias-free map to 32 numbers that should stay near a centre (Ruff et al. 2018).

    The centre is the mean output of the untrained network over the clients of the first round, each of which sends the
    32 numbers of its own mean: no raw data are pooled. Entries nearer to 0 than 0.1 are moved there.
    Without pre-training, and with a weight decay of 1e-6.
    """

    window: int
    channels: int

    units: Units = "z-score"
    covers: Covers = "window"
    decay: float = 1e-6
    restarts: bool = False

    @property
    def layout(self) -> Layout:
        """w·n → 128 → 64 → 32."""
        sizes = (self.window * self.channels, 128, 64, 32)
        layers = [linear_shapes(f"layer{k}", sizes[k], sizes[k + 1], bias=False) for k in range(3)]
        return Layout(sum(layers, ()))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The squared distance from the centre."""
        return (Objective(lambda weights, windows, epoch: self.scores(weights, windows)),)

    def _output(self, weights: Weights, windows: Tensor) -> Tensor:
        x = windows.flatten(2)
        x = leaky_relu(linear(weights, "layer0", x))
        x = leaky_relu(linear(weights, "layer1", x))
        return linear(weights, "layer2", x)

    def fixed(self, weights: Weights, windows: Tensor) -> dict[str, Tensor]:
        """The mean output, as this client's part of the centre."""
        return {"centre": self._output(weights, windows).mean(dim=1)}

    def scores(self, weights: Weights, windows: Tensor) -> Tensor:
        """‖φ(x) − c‖²."""
        centre = weights["centre"]
        away = torch.where(centre >= 0.0, 0.1, -0.1)
        centre = torch.where(centre.abs() < 0.1, away, centre)
        return ((self._output(weights, windows) - centre[:, None, :]) ** 2).sum(dim=-1)


@dataclass(frozen=True)
class LstmAutoencoder:
    """LSTM(n→64), whose last state LSTM(64→64) and Linear(64→n) unfold into the window again (Malhotra et al. 2016)."""

    window: int
    channels: int

    units: Units = "z-score"
    covers: Covers = "sample"
    decay: float = 0.0
    restarts: bool = False
    hidden: int = 64

    @property
    def layout(self) -> Layout:
        """Two LSTM layers and an affine one."""
        return Layout(
            lstm_shapes("encoder", self.channels, self.hidden)
            + lstm_shapes("decoder", self.hidden, self.hidden)
            + linear_shapes("output", self.hidden, self.channels)
        )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The mean squared error over the window."""

        def losses(weights: Weights, windows: Tensor, epoch: Tensor) -> Tensor:
            return ((self._reconstructed(weights, windows) - windows) ** 2).mean(dim=(2, 3))

        return (Objective(losses),)

    def _reconstructed(self, weights: Weights, windows: Tensor) -> Tensor:
        state = lstm(weights, "encoder", windows)[-1]
        unfolded = torch.stack(lstm_repeating(weights, "decoder", state, self.window), dim=2)
        return linear(weights, "output", unfolded.flatten(1, 2)).view(windows.shape)

    def fixed(self, weights: Weights, windows: Tensor) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def scores(self, weights: Weights, windows: Tensor) -> Tensor:
        """The mean squared error of the newest sample."""
        return ((self._reconstructed(weights, windows)[:, :, -1] - windows[:, :, -1]) ** 2).mean(dim=-1)


@dataclass(frozen=True)
class Usad:
    """One encoder and two decoders against each other (Audibert et al. 2020).

    With x₁ = D₁(E x), x₂ = D₂(E x), x₃ = D₂(E x₁) and epoch k:
    L₁ = ‖x−x₁‖²/k + (1−1/k)‖x−x₃‖²,  L₂ = ‖x−x₂‖²/k − (1−1/k)‖x−x₃‖²; each optimiser owns the encoder and its decoder.
    The sigmoid of the decoders bounds the adversary, so it stays, and the input is min-max scaled instead.
    Counted over all rounds, k ends at 150, where next to nothing of L₁ is left but the adversary, which may have won by
    then; `restarts` counts 1 … 5 in every round.
    """

    window: int
    channels: int

    units: Units = "min-max"
    covers: Covers = "window"
    decay: float = 0.0
    restarts: bool = False
    code: int = 40

    @property
    def layout(self) -> Layout:
        """Sizes d → d/2 → d/4 → 40, and twice back, d = w·n."""
        size = self.window * self.channels
        down = (size, size // 2, size // 4, self.code)
        shapes: tuple[Shape, ...] = ()
        for name, sizes in (("encoder", down), ("first", down[::-1]), ("second", down[::-1])):
            for k in range(3):
                shapes += linear_shapes(f"{name}.layer{k}", sizes[k], sizes[k + 1])
        return Layout(shapes)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """L₁ for the encoder and the first decoder, L₂ for the encoder and the second."""

        def first(weights: Weights, windows: Tensor, epoch: Tensor) -> Tensor:
            x = windows.flatten(2)
            once = self._decode(weights, "first", self._encode(weights, x))
            again = self._decode(weights, "second", self._encode(weights, once))
            share = (1.0 / epoch)[:, None]
            return share * _mean_square(x - once) + (1.0 - share) * _mean_square(x - again)

        def second(weights: Weights, windows: Tensor, epoch: Tensor) -> Tensor:
            x = windows.flatten(2)
            code = self._encode(weights, x)
            other = self._decode(weights, "second", code)
            again = self._decode(weights, "second", self._encode(weights, self._decode(weights, "first", code)))
            share = (1.0 / epoch)[:, None]
            return share * _mean_square(x - other) - (1.0 - share) * _mean_square(x - again)

        return Objective(first, ("encoder", "first")), Objective(second, ("encoder", "second"))

    def _encode(self, weights: Weights, x: Tensor) -> Tensor:
        for k in range(3):
            x = torch.relu(linear(weights, f"encoder.layer{k}", x))
        return x

    def _decode(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        x = torch.relu(linear(weights, f"{name}.layer0", x))
        x = torch.relu(linear(weights, f"{name}.layer1", x))
        return torch.sigmoid(linear(weights, f"{name}.layer2", x))

    def fixed(self, weights: Weights, windows: Tensor) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def scores(self, weights: Weights, windows: Tensor) -> Tensor:
        """½‖x−x₁‖² + ½‖x−x₃‖², means over the window."""
        x = windows.flatten(2)
        once = self._decode(weights, "first", self._encode(weights, x))
        again = self._decode(weights, "second", self._encode(weights, once))
        return 0.5 * _mean_square(x - once) + 0.5 * _mean_square(x - again)


@dataclass(frozen=True)
class TranAd:
    """A transformer that predicts the newest sample twice, the second time knowing where it erred (Tuli et al. 2022).

    The input is [window ‖ focus]·√n plus positions; the focus is 0 first, then the squared error of the first answer.
    Loss (1/k)·MSE(x₁) + (1−1/k)·MSE(x₂), score (x₂ − x)². Width 2n, n heads, feed-forward 16, dropout 0.1, no
    normalisation of layers. The feed-forward block has no bend: the public code's `LeakyReLU(True)` is the identity.
    AdamW with a weight decay of 1e-5. Its schedule of the rate counts the epochs of an optimiser, which in FedAvg lives
    for one round of five: the rate stays at 1e-3.
    """

    window: int
    channels: int

    units: Units = "min-max"
    covers: Covers = "sample"
    decay: float = 1e-5
    restarts: bool = False
    dropout: float = 0.1

    @property
    def layout(self) -> Layout:
        """One encoder layer, two decoders of one layer, one shared output."""
        width = 2 * self.channels

        def feed_forward(name: str) -> tuple[Shape, ...]:
            return linear_shapes(f"{name}.widen", width, 16) + linear_shapes(f"{name}.narrow", 16, width)

        shapes = attention_shapes("encoder.self", width) + feed_forward("encoder")
        for name in ("first", "second"):
            shapes += attention_shapes(f"{name}.self", width) + attention_shapes(f"{name}.cross", width)
            shapes += feed_forward(name)
        return Layout(shapes + linear_shapes("output", width, self.channels))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Both answers, the second gaining weight with the epochs."""

        def losses(weights: Weights, windows: Tensor, epoch: Tensor) -> Tensor:
            target = windows[:, :, -1]
            one, two = self._answers(weights, windows, self.dropout)
            share = (1.0 / epoch)[:, None]
            return share * _mean_square(one - target) + (1.0 - share) * _mean_square(two - target)

        return (Objective(losses),)

    def _answers(self, weights: Weights, windows: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        target = windows[:, :, -1:].repeat(1, 1, 1, 2)
        one = self._decode(
            weights, "first", target, self._encode(weights, windows, torch.zeros_like(windows), rate), rate
        )
        focus = (one[:, :, None, :] - windows) ** 2
        two = self._decode(weights, "second", target, self._encode(weights, windows, focus, rate), rate)
        return one, two

    def _encode(self, weights: Weights, windows: Tensor, focus: Tensor, rate: float) -> Tensor:
        x = torch.cat([windows, focus], dim=-1) * sqrt(self.channels) + _positions(windows, 2 * self.channels)
        x = _drop(x, rate)
        x = x + _drop(attention(weights, "encoder.self", x, x, self.channels, rate), rate)
        return x + _drop(self._feed_forward(weights, "encoder", x, rate), rate)

    def _decode(self, weights: Weights, name: str, target: Tensor, memory: Tensor, rate: float) -> Tensor:
        x = target + _drop(attention(weights, f"{name}.self", target, target, self.channels, rate), rate)
        x = x + _drop(attention(weights, f"{name}.cross", x, memory, self.channels, rate), rate)
        x = x + _drop(self._feed_forward(weights, name, x, rate), rate)
        return torch.sigmoid(linear(weights, "output", x[:, :, 0]))

    def _feed_forward(self, weights: Weights, name: str, x: Tensor, rate: float) -> Tensor:
        rows = _drop(linear(weights, f"{name}.widen", x.flatten(1, 2)), rate)
        return linear(weights, f"{name}.narrow", rows).view(x.shape)

    def fixed(self, weights: Weights, windows: Tensor) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def scores(self, weights: Weights, windows: Tensor) -> Tensor:
        """The mean squared error of the second answer."""
        return _mean_square(self._answers(weights, windows, 0.0)[1] - windows[:, :, -1])


def _mean_square(difference: Tensor) -> Tensor:
    return (difference**2).mean(dim=-1)


def _drop(x: Tensor, rate: float) -> Tensor:
    return dropout(x, rate) if rate > 0.0 else x


def _positions(windows: Tensor, width: int) -> Tensor:
    """The sum sin + cos of every position at `width` frequencies, `(w, width)`."""
    place = torch.arange(windows.shape[2], device=windows.device, dtype=windows.dtype)[:, None]
    rate = torch.exp(torch.arange(width, device=windows.device, dtype=windows.dtype) * (-log(10000.0) / width))
    return torch.sin(place * rate) + torch.cos(place * rate)
