"""The method written down naively, from the paper and the docstrings: loops and snapshot matrices, no shortcuts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.lifting import Lifting

Array = NDArray[np.float64]


def lift(window: Array, lifting: Lifting) -> Array:
    """Φ of one window `(W, n)`: samples oldest first, then every observable on its own."""
    flat = [float(value) for sample in window for value in sample]
    observed = []
    for row, offset in zip(lifting.weights, lifting.bias, strict=True):
        observed.append(math.tanh(math.fsum(w * z for w, z in zip(row, flat, strict=True)) + offset))
    return np.array(flat + observed)


def lifted_states(scaled: Array, lifting: Lifting) -> dict[int, Array]:
    """Φ by the time of the window's newest sample, for every window without a NaN."""
    states = {}
    for t in range(lifting.window - 1, len(scaled)):
        window = scaled[t - lifting.window + 1 : t + 1]
        if not np.isnan(window).any():
            states[t] = lift(window, lifting)
    return states


def snapshots(scaled: Array, lifting: Lifting, ahead: int = 1) -> tuple[Array, Array]:
    """X and Y, `(D, pairs)`, of the states at t and t + ahead when all samples between them are there."""
    states = lifted_states(scaled, lifting)
    pairs = [
        (states[t], states[t + ahead])
        for t in states
        if t + ahead in states and not np.isnan(scaled[t : t + ahead + 1]).any()
    ]
    if not pairs:
        return np.zeros((lifting.dimension, 0)), np.zeros((lifting.dimension, 0))
    return np.array([a for a, _ in pairs]).T, np.array([b for _, b in pairs]).T


def loss(x: Array, y: Array, subspace: Array, operator: Array) -> float:
    """‖Y − P Q Pᵀ X‖²."""
    return float(np.linalg.norm(y - subspace @ operator @ subspace.T @ x) ** 2)


def best_operator(x: Array, y: Array, subspace: Array, ridge: float, *, always: bool = False) -> Array:
    """Q̂ = PᵀYXᵀP G⁻¹ with G = PᵀXXᵀP, and λI added to G where G has an eigenvalue below λ, or always."""
    seen, wanted = subspace.T @ x, subspace.T @ y
    gram = seen @ seen.T
    if always or min(np.linalg.eigvalsh(gram)) < ridge:
        gram = gram + ridge * np.eye(len(gram))
    return np.asarray(wanted @ seen.T @ np.linalg.inv(gram))


def loss_gradient(x: Array, y: Array, subspace: Array, operator: Array) -> Array:
    """The Euclidean gradient of `loss` in P at fixed Q, from the residual R = Y − P Q PᵀX."""
    residual = y - subspace @ operator @ subspace.T @ x
    return np.asarray(-2.0 * (residual @ x.T @ subspace @ operator.T + x @ residual.T @ subspace @ operator))


def runs(scaled: Array) -> list[range]:
    """Index ranges of consecutive rows without NaN."""
    found: list[range] = []
    begin: int | None = None
    for t in range(len(scaled) + 1):
        whole = t < len(scaled) and not np.isnan(scaled[t]).any()
        if whole and begin is None:
            begin = t
        if not whole and begin is not None:
            found.append(range(begin, t))
            begin = None
    return found


class Model(NamedTuple):
    """What a score depends on."""

    lifting: Lifting
    subspace: Array
    operator: Array
    horizon: int


def predictions(model: Model, scaled: Array) -> dict[int, list[tuple[Array, Array]]]:
    """By the time t of a score: (Φ(t−H+h), Z Q^h Zᵀ Φ(t−H)) for h = 1 … H."""
    states = lifted_states(scaled, model.lifting)
    found = {}
    for t in range(model.lifting.window + model.horizon - 1, len(scaled)):
        first = t - model.lifting.window - model.horizon + 1
        if np.isnan(scaled[first : t + 1]).any():
            continue
        made = t - model.horizon
        steps = []
        for h in range(1, model.horizon + 1):
            power = np.linalg.matrix_power(model.operator, h)
            steps.append((states[made + h], model.subspace @ power @ model.subspace.T @ states[made]))
        found[t] = steps
    return found


def paper_scores(model: Model, scaled: Array) -> Array:
    """(1/H) Σ_h ‖Φ(t−H+h) − Z Q^h ZᵀΦ(t−H)‖² at t."""
    scores = np.full(len(scaled), np.nan)
    for t, steps in predictions(model, scaled).items():
        scores[t] = sum(float(np.sum((seen - said) ** 2)) for seen, said in steps) / model.horizon
    return scores


def newest_residuals(model: Model, scaled: Array) -> dict[int, Array]:
    """x(t−H+h) minus its prediction, `(H, n)`, by the time t of the score."""
    newest = slice(model.lifting.state_size - model.lifting.channels, model.lifting.state_size)
    return {
        t: np.array([seen[newest] - said[newest] for seen, said in steps])
        for t, steps in predictions(model, scaled).items()
    }


def calibrated_scores(
    residuals: dict[int, Array], length: int, centre: Array, spread: Array, linear_beyond: float
) -> Array:
    """The mean over channels and steps of g((e − centre)/spread): squares that turn linear far out."""
    scores = np.full(length, np.nan)
    for t, steps in residuals.items():
        terms = []
        for step, middle, unit in zip(steps, centre, spread, strict=True):
            for e, c, s in zip(step, middle, unit, strict=True):
                size = abs(e - c) / s
                terms.append(size**2 if size <= linear_beyond else 2.0 * linear_beyond * size - linear_beyond**2)
        scores[t] = sum(terms) / len(terms)
    return scores


def smooth(scores: Array, back: int, forward: int = 0) -> Array:
    """The mean of the scores from `back` before to `forward` after, within a run of scores."""
    out = np.full(len(scores), np.nan)
    for run in runs(scores[:, None]):
        for t in run:
            near = [scores[s] for s in range(t - back, t + forward + 1) if s in run]
            out[t] = math.fsum(near) / len(near)
    return out


def normal_series(length: int, channels: int = 2, seed: int = 0, noise: float = 0.3) -> Array:
    """A noisy series of coupled sines, in units that differ from channel to channel."""
    generator = np.random.default_rng(seed)
    t = np.arange(float(length))[:, None]
    periods = 3.0 + 2.0 * np.arange(channels)
    values = np.sin(t / periods) + noise * generator.normal(size=(length, channels))
    return np.asarray(values * 10.0 ** np.arange(channels) + 5.0)
