"""Building blocks of networks that are evaluated many at a time: every tensor has the model as its first axis.

A round of FedAvg trains the sampled clients apart, and a study repeats that for several seeds. Each of those models is
far too small to keep a processor busy, so all of them are one program: weights are `(model, out, in)`, inputs
`(model, batch, …)`, and one batched product serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """A parameter tensor of one model, drawn from U(−bound, bound) at the start."""

    name: str
    size: tuple[int, ...]
    bound: float


@dataclass(frozen=True)
class Layout:
    """All parameters of one model as one row of numbers: what is averaged, and what travels."""

    shapes: tuple[Shape, ...]

    @property
    def numbers(self) -> int:
        """Parameters of one model."""
        return sum(prod(shape.size) for shape in self.shapes)

    def draw(self, seed: int) -> Tensor:
        """The starting parameters `(numbers,)`, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        parts = [(2.0 * torch.rand(prod(shape.size), generator=generator) - 1.0) * shape.bound for shape in self.shapes]
        return torch.cat(parts)

    def unpack(self, rows: Tensor) -> dict[str, Tensor]:
        """Views of the parameters `(model, …)` by name; one split, so that its gradient is one concatenation."""
        parts: tuple[Tensor, ...] = torch.split(rows, [prod(shape.size) for shape in self.shapes], dim=1)
        return {shape.name: part.view(-1, *shape.size) for shape, part in zip(self.shapes, parts, strict=True)}

    def mask(self, *prefixes: str) -> Tensor:
        """1 for the parameters whose name begins with one of `prefixes`, else 0: what one optimiser owns."""
        owned = [torch.full((prod(s.size),), float(s.name.startswith(prefixes))) for s in self.shapes]
        return torch.cat(owned)


def linear_shapes(name: str, inputs: int, outputs: int, *, bias: bool = True) -> tuple[Shape, ...]:
    """An affine layer with PyTorch's starting range, ±1/√inputs."""
    bound = 1.0 / sqrt(inputs)
    weight = Shape(f"{name}.weight", (outputs, inputs), bound)
    return (weight, Shape(f"{name}.bias", (outputs,), bound)) if bias else (weight,)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Affine map x Wᵀ + b for `x` of shape `(model, rows, inputs)`."""
    transposed = weights[f"{name}.weight"].transpose(1, 2)
    bias = weights.get(f"{name}.bias")
    return torch.bmm(x, transposed) if bias is None else torch.baddbmm(bias[:, None, :], x, transposed)


def lstm_shapes(name: str, inputs: int, hidden: int) -> tuple[Shape, ...]:
    """An LSTM layer with PyTorch's starting range, ±1/√hidden, and its two biases."""
    bound = 1.0 / sqrt(hidden)
    sizes = {
        "input": (4 * hidden, inputs),
        "hidden": (4 * hidden, hidden),
        "bias": (4 * hidden,),
        "bias2": (4 * hidden,),
    }
    return tuple(Shape(f"{name}.{part}", size, bound) for part, size in sizes.items())


def lstm(weights: Weights, name: str, x: Tensor) -> list[Tensor]:
    """Outputs h₁ … h_W of an LSTM over `x`, `(model, batch, time, inputs)`, or `(…, 1, inputs)` repeated by the caller.

    i, f, g, o = W x + U h + b;  c ← σ(f) c + σ(i) tanh(g);  h = σ(o) tanh(c)
    """
    models, batch, time, inputs = x.shape
    bias = (weights[f"{name}.bias"] + weights[f"{name}.bias2"])[:, None, :]
    driven = torch.baddbmm(bias, x.reshape(models, batch * time, inputs), weights[f"{name}.input"].transpose(1, 2))
    return _recur(driven.view(models, batch, time, -1).unbind(2), weights[f"{name}.hidden"].transpose(1, 2))


def lstm_repeating(weights: Weights, name: str, x: Tensor, times: int) -> list[Tensor]:
    """Outputs of an LSTM that gets the same input `x`, `(model, batch, inputs)`, at every one of `times` steps."""
    bias = (weights[f"{name}.bias"] + weights[f"{name}.bias2"])[:, None, :]
    driven = torch.baddbmm(bias, x, weights[f"{name}.input"].transpose(1, 2))
    return _recur([driven] * times, weights[f"{name}.hidden"].transpose(1, 2))


def _recur(driven: list[Tensor] | tuple[Tensor, ...], recurrent: Tensor) -> list[Tensor]:
    hidden = driven[0].new_zeros(*driven[0].shape[:2], recurrent.shape[1])
    cell, outputs = hidden, []
    for gates in driven:
        enter, forget, candidate, leave = torch.baddbmm(gates, hidden, recurrent).chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        outputs.append(hidden)
    return outputs


def attention_shapes(name: str, width: int) -> tuple[Shape, ...]:
    """Multi-head attention with PyTorch's start: Xavier for the three projections, biases at 0."""
    return (
        Shape(f"{name}.in.weight", (3 * width, width), sqrt(6.0 / (4 * width))),
        Shape(f"{name}.in.bias", (3 * width,), 0.0),
        Shape(f"{name}.out.weight", (width, width), 1.0 / sqrt(width)),
        Shape(f"{name}.out.bias", (width,), 0.0),
    )


def attention(weights: Weights, name: str, query: Tensor, memory: Tensor, heads: int, dropout: float) -> Tensor:
    """Softmax(q kᵀ/√d) v for every head, from `(model, batch, time, width)`; dropout acts on the softmax."""
    models, batch, targets, width = query.shape
    q_weight, k_weight, v_weight = weights[f"{name}.in.weight"].chunk(3, dim=1)
    q_bias, k_bias, v_bias = weights[f"{name}.in.bias"].chunk(3, dim=1)

    def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = torch.baddbmm(bias[:, None, :], x.reshape(models, -1, width), weight.transpose(1, 2))
        return rows.view(models * batch, -1, heads, width // heads).transpose(1, 2)

    mixed = torch.nn.functional.scaled_dot_product_attention(
        project(query, q_weight, q_bias),
        project(memory, k_weight, k_bias),
        project(memory, v_weight, v_bias),
        dropout_p=dropout,
    )
    joined = mixed.transpose(1, 2).reshape(models, batch * targets, width)
    return linear(weights, f"{name}.out", joined).view(models, batch, targets, width)
