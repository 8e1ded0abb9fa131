"""The neural baselines against PyTorch's own layers and optimisers, and against the paper's sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkad.federation.server import Sampler
from fedkad_bench.methods.interface import WINDOW
from fedkad_bench.methods.neural.fedavg import Envelope, train
from fedkad_bench.methods.neural.local import plan_round
from fedkad_bench.methods.neural.method import NETWORKS, NeuralMethod, exchanged
from fedkad_bench.methods.neural.networks import DeepSvdd, LstmAutoencoder, TranAd, Usad
from fedkad_bench.methods.neural.plain import PLAIN, train_epoch
from fedkad_bench.methods.neural.stacked import (
    WeightLayout,
    attention,
    attention_shapes,
    lstm,
    lstm_repeating,
    lstm_shapes,
)

CHANNELS = 3


def stacked(layout: WeightLayout, seeds: tuple[int, ...] = (0, 1)) -> tuple[Tensor, dict[str, Tensor]]:
    rows = torch.stack([layout.draw(seed) for seed in seeds])
    return rows, layout.unpack(rows)


def a_fleet(rows: int = 260) -> dict[str, np.ndarray]:
    t = np.arange(float(rows))[:, None]
    rng = np.random.default_rng(5)
    lengths = {"a": rows, "b": rows - 100, "c": rows - 30, "d": rows}
    return {
        name: (np.sin(t / (4.0 + k + np.arange(CHANNELS))) + 0.1 * rng.normal(size=(rows, CHANNELS)))[:length]
        for k, (name, length) in enumerate(lengths.items())
    }


def copy_lstm(weights: dict[str, Tensor], name: str, model: int) -> nn.LSTM:
    hidden, inputs = weights[f"{name}.input"].shape[1] // 4, weights[f"{name}.input"].shape[2]
    theirs = nn.LSTM(inputs, hidden, batch_first=True)
    parts = {"weight_ih_l0": "input", "weight_hh_l0": "hidden", "bias_ih_l0": "bias", "bias_hh_l0": "bias2"}
    theirs.load_state_dict({torch_name: weights[f"{name}.{part}"][model] for torch_name, part in parts.items()})
    return theirs


def test_lstm_is_pytorchs() -> None:
    _, weights = stacked(WeightLayout(lstm_shapes("l", 5, 7)))
    x = torch.randn(2, 4, 6, 5)
    ours = torch.stack(lstm(weights, "l", x), dim=2)
    repeated = torch.stack(lstm_repeating(weights, "l", x[:, :, 0], 6), dim=2)
    for model in range(2):
        theirs = copy_lstm(weights, "l", model)
        torch.testing.assert_close(ours[model], theirs(x[model])[0])
        torch.testing.assert_close(repeated[model], theirs(x[model, :, :1].expand(-1, 6, -1))[0])


def test_attention_is_pytorchs() -> None:
    _, weights = stacked(WeightLayout(attention_shapes("a", 6)))
    weights = {name: value + 0.1 * torch.randn_like(value) for name, value in weights.items()}
    query, memory = torch.randn(2, 4, 3, 6), torch.randn(2, 4, 5, 6)
    ours = attention(weights, "a", query, memory, heads=3, dropout=0.0)
    for model in range(2):
        theirs = nn.MultiheadAttention(6, 3, batch_first=True)
        names = {"in_proj_weight": "in.weight", "in_proj_bias": "in.bias"}
        names |= {"out_proj.weight": "out.weight", "out_proj.bias": "out.bias"}
        theirs.load_state_dict({torch_name: weights[f"a.{part}"][model] for torch_name, part in names.items()})
        expected = theirs(query[model], memory[model], memory[model])[0]
        torch.testing.assert_close(ours[model], expected)


def test_start_has_pytorchs_spread() -> None:
    """The starting numbers cover the ranges of `nn.Linear`, `nn.LSTM` and `nn.MultiheadAttention`."""
    weights = {name: value[0] for name, value in stacked(TranAd(WINDOW, 25).layout)[1].items()}
    theirs = nn.MultiheadAttention(50, 25)
    assert weights["encoder.self.in.weight"].abs().max() == pytest.approx(
        float(theirs.in_proj_weight.detach().abs().max()), rel=0.01
    )
    assert weights["encoder.self.in.bias"].abs().max() == 0.0
    weights = {name: value[0] for name, value in stacked(LstmAutoencoder(WINDOW, 25).layout)[1].items()}
    for name in ("encoder.input", "encoder.hidden", "decoder.hidden", "output.weight"):
        assert weights[name].abs().max() == pytest.approx(1 / 8, rel=0.01)


@pytest.mark.parametrize(
    ("channels", "name", "numbers"),
    [(25, "lstm-ae", 58_201), (25, "usad", 485_915), (25, "tranad", 57_273), (25, "deepsvdd", 74_240)],
)
def test_sizes_are_the_papers(channels: int, name: str, numbers: int) -> None:
    assert NETWORKS[name].network(WINDOW, channels).layout.numbers == numbers


def test_bytes_per_round_are_the_papers() -> None:
    """227 KiB of LSTM-AE and 1.85 MiB of USAD a message; USAD's 129 MB a round on MSL; TranAD's 2.75 MB on PSM."""
    clients = {"MSL": (27, 55), "PSM": (24, 25)}

    def megabytes(name: str, dataset: str) -> float:
        count, channels = clients[dataset]
        numbers = NETWORKS[name].network(WINDOW, channels).layout.numbers
        return exchanged(numbers, [str(k) for k in range(count)], Envelope()).bytes_per_round / 1e6

    assert round(LstmAutoencoder(WINDOW, 25).layout.numbers * 4 / 1024) == 227
    assert round(Usad(WINDOW, 25).layout.numbers * 4 / 1024**2, 2) == 1.85
    assert round(megabytes("usad", "MSL")) == 129
    assert round(megabytes("tranad", "PSM"), 2) == 2.75
    # "60-130 MB" of USAD's upload and "2.7-129 MB" over all: the leanest is on PSM, the heaviest on MSL.
    assert min(megabytes(name, "PSM") for name in NETWORKS) == pytest.approx(2.75, abs=0.01)
    assert max(megabytes(name, "MSL") for name in NETWORKS) == pytest.approx(129.2, abs=0.1)


def copy_into(network: Any, weights: dict[str, Tensor]) -> Any:
    """Give a plain network the parameters of model 0 of a stacked one; both list them in the same order."""
    names = [name for name in weights if name != "centre"]
    parameters = list(network.named_parameters())
    assert len(parameters) == len(names)
    with torch.no_grad():
        for (_, parameter), name in zip(parameters, names, strict=True):
            parameter.copy_(weights[name][0])
    return network


def plain_fedavg(
    learning: dict[str, np.ndarray], model: Any, rounds: int, local: Callable[[Any, Tensor, int], None]
) -> Any:
    """FedAvg one client after another, with the same participants and the same order of windows."""
    names, sampler = list(learning), Sampler(list(learning), 0.5, "uniform", 0)
    for number in range(rounds):
        states, sizes = [], []
        for name in sampler.next():
            rows = torch.from_numpy(learning[name]).float()
            generator = np.random.default_rng([0, number, names.index(name)])
            count = len(rows) - WINDOW + 1
            own = copy.deepcopy(model)
            for epoch in range(2):
                order = generator.permutation(np.arange(count))
                windows = torch.stack([rows[k : k + WINDOW] for k in order])
                local(own, windows, number * 2 + epoch + 1)
            states.append(own.state_dict())
            sizes.append(count)
        share = torch.tensor(sizes) / sum(sizes)
        model.load_state_dict({k: sum(s * state[k] for s, state in zip(share, states, strict=True)) for k in states[0]})
    return model


@pytest.mark.parametrize("name", ["deepsvdd", "lstm-ae", "usad", "tranad"])
def test_scores_and_losses_are_those_of_plain_layers(name: str) -> None:
    network = NETWORKS[name].network(WINDOW, CHANNELS)
    if isinstance(network, TranAd):
        network = replace(network, dropout=0.0)
    _, weights = stacked(network.layout, seeds=(3,))
    weights = {key: value + 0.05 * torch.randn_like(value) for key, value in weights.items()}
    plain = copy_into(PLAIN[name](WINDOW, CHANNELS), weights).eval()
    windows = torch.rand(1, 5, WINDOW, CHANNELS)
    weights["centre"] = torch.full((1, 32), 0.1)
    with torch.no_grad():
        torch.testing.assert_close(network.scores(weights, windows)[0], plain.scores(windows[0]))
        for objective, loss in zip(network.objectives, plain.losses(windows[0], 4), strict=True):
            torch.testing.assert_close(objective.losses(weights, windows, torch.tensor([4.0])).mean(), loss)


@pytest.mark.parametrize("name", ["lstm-ae", "usad", "deepsvdd"])
def test_fedavg_is_plain_fedavg(name: str) -> None:
    """Side by side is as one after another, with PyTorch's optimisers: also USAD's two in turn."""
    learning = {name: (series[:150] + 2.0) / 4.0 for name, series in a_fleet().items()}
    network = NETWORKS[name].network(WINDOW, CHANNELS)
    ours, fixed = train(network, learning, [0], Envelope(rounds=2, participation=0.5, epochs=2), decay=network.decay)
    begin = network.layout.unpack(network.layout.draw(0)[None])
    plain = copy_into(PLAIN[name](WINDOW, CHANNELS), begin)
    if name == "deepsvdd":
        centre = fixed["centre"][0]
        plain.centre.copy_(torch.where(centre.abs() < 0.1, torch.where(centre >= 0, 0.1, -0.1), centre))
    kept: list[tuple[Any, list[torch.optim.Optimizer]]] = []

    def local(model: Any, windows: Tensor, epoch: int) -> None:
        if not kept or kept[-1][0] is not model:
            kept.append((model, model.optimisers()))
        train_epoch(model, kept[-1][1], windows, epoch)

    theirs = plain_fedavg(learning, plain, 2, local)
    got = network.layout.unpack(ours)
    moved = max(float((got[key] - begin[key]).abs().max()) for key in got)
    assert moved > 1e-3
    expected = copy_into(PLAIN[name](WINDOW, CHANNELS), got)
    for (_, mine), (_, other) in zip(expected.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=0.03 * moved, rtol=1e-3)


def plain_tranad_answers(weights: dict[str, Tensor], window: Tensor) -> tuple[Tensor, Tensor]:
    """The published forward pass on one window `(w, n)`, with loops and PyTorch's attention function."""
    n, w = window.shape[1], len(window)
    place = torch.stack(
        [
            torch.sin(p * r) + torch.cos(p * r)
            for p in map(float, range(w))
            for r in [torch.exp(torch.arange(2 * n) * (-np.log(10000.0) / (2 * n)))]
        ]
    )

    def attend(name: str, q: Tensor, kv: Tensor) -> Tensor:
        layer = nn.MultiheadAttention(2 * n, n)
        layer.load_state_dict(
            {
                "in_proj_weight": weights[f"{name}.in.weight"][0],
                "in_proj_bias": weights[f"{name}.in.bias"][0],
                "out_proj.weight": weights[f"{name}.out.weight"][0],
                "out_proj.bias": weights[f"{name}.out.bias"][0],
            }
        )
        mixed: Tensor = layer(q, kv, kv)[0]
        return mixed

    def affine(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"][0].T + weights[f"{name}.bias"][0]

    def encode(focus: Tensor) -> Tensor:
        x: Tensor = torch.cat([window, focus], dim=1) * n**0.5 + place
        x = x + attend("encoder.self", x, x)
        return x + affine("encoder.narrow", affine("encoder.widen", x))

    def decode(name: str, memory: Tensor) -> Tensor:
        x = torch.cat([window[-1:], window[-1:]], dim=1)
        x = x + attend(f"{name}.self", x, x)
        x = x + attend(f"{name}.cross", x, memory)
        x = x + affine(f"{name}.narrow", affine(f"{name}.widen", x))
        return torch.sigmoid(affine("output", x))[0]

    one = decode("first", encode(torch.zeros_like(window)))
    return one, decode("second", encode((one - window) ** 2))


def test_tranad_score_and_loss_are_the_published_ones() -> None:
    network = TranAd(6, CHANNELS, dropout=0.0)
    _, weights = stacked(network.layout, seeds=(3,))
    windows = torch.rand(1, 5, 6, CHANNELS)
    ours = network.scores(weights, windows)[0]
    losses = network.objectives[0].losses(weights, windows, torch.tensor([4.0]))[0]
    for k in range(5):
        one, two = plain_tranad_answers(weights, windows[0, k])
        last = windows[0, k, -1]
        torch.testing.assert_close(ours[k], ((two - last) ** 2).mean())
        torch.testing.assert_close(losses[k], 0.25 * ((one - last) ** 2).mean() + 0.75 * ((two - last) ** 2).mean())


def test_deepsvdd_centre_is_the_mean_of_the_first_participants() -> None:
    learning = {name: series[:100] for name, series in a_fleet().items()}
    network = DeepSvdd(WINDOW, CHANNELS)
    _, fixed = train(network, learning, [0], Envelope(rounds=1, participation=0.5, epochs=1))
    weights = network.layout.unpack(network.layout.draw(0)[None])
    outputs = []
    for name in Sampler(list(learning), 0.5, "uniform", 0).next():
        rows = torch.from_numpy(learning[name]).float()
        for k in range(len(rows) - WINDOW + 1):
            x = rows[k : k + WINDOW].flatten()
            for layer in range(3):
                x = weights[f"layer{layer}.weight"][0] @ x
                x = nn.functional.leaky_relu(x) if layer < 2 else x
            outputs.append(x)
    torch.testing.assert_close(fixed["centre"][0], torch.stack(outputs).mean(dim=0), atol=1e-6, rtol=1e-4)


def test_centre_keeps_away_from_zero() -> None:
    network = DeepSvdd(WINDOW, CHANNELS)
    _, weights = stacked(network.layout, seeds=(0,))
    flat = {name: torch.zeros_like(value) for name, value in weights.items()}
    scores = network.scores({**flat, "centre": torch.zeros(1, 32)}, torch.randn(1, 2, WINDOW, CHANNELS))
    torch.testing.assert_close(scores, torch.full((1, 2), 32 * 0.01))


@pytest.mark.parametrize("name", ["deepsvdd", "lstm-ae", "usad"])
def test_a_seed_trains_alike_alone_and_beside_others(name: str) -> None:
    method, fleet = NeuralMethod(name, Envelope(rounds=2, epochs=1, participation=0.5)), a_fleet()
    together = method.fit_seeds(fleet, seeds=[0, 1], scaling="device")[1]
    alone = method.fit(fleet, seed=1)
    np.testing.assert_allclose(together.score("a", fleet["a"]), alone.score("a", fleet["a"]), rtol=1e-3)


def test_epochs_are_counted_over_all_rounds_or_anew() -> None:
    """With one epoch a round k stays 1, and the adversary never enters, if it is counted anew."""
    learning = {name: (series[:120] + 2.0) / 4.0 for name, series in a_fleet().items()}
    envelope = Envelope(rounds=2, epochs=1)
    over_all, anew = (train(Usad(WINDOW, CHANNELS, restarts=r), learning, [0], envelope)[0] for r in (False, True))
    assert not torch.equal(over_all, anew)
    once = [
        train(Usad(WINDOW, CHANNELS, restarts=r), learning, [0], Envelope(rounds=1, epochs=1))[0] for r in (False, True)
    ]
    torch.testing.assert_close(*once)


def test_a_resting_client_does_not_move() -> None:
    """A client with fewer windows takes fewer steps: the plan marks it, and its last model is what is averaged."""
    plan = plan_round([np.arange(300), np.arange(130)], [np.random.default_rng(k) for k in range(2)], 0, epochs=2)
    assert plan.active.sum(axis=0).tolist() == [6.0, 4.0]
    assert plan.epoch[:, 0].tolist() == [1, 1, 1, 2, 2, 2]
    np.testing.assert_allclose(plan.share.sum(axis=2), plan.active, rtol=1e-6)
    first = plan.starts[:3, 0][plan.share[:3, 0] > 0]
    assert sorted(first.tolist()) == list(range(300))


def test_fedprox_stays_nearer_to_the_start() -> None:
    learning = {name: series[:120] for name, series in a_fleet().items()}
    network = LstmAutoencoder(WINDOW, CHANNELS)
    begin = network.layout.draw(0)
    moved = [
        float((train(network, learning, [0], Envelope(rounds=1, epochs=5, proximal=mu))[0][0] - begin).norm())
        for mu in (0.0, 10.0)
    ]
    assert moved[1] < 0.8 * moved[0]


def test_scores_are_causal_and_mark_gaps() -> None:
    fleet = a_fleet()
    fitted = NeuralMethod("usad", Envelope(rounds=1, epochs=1)).fit(fleet, seed=0)
    series = fleet["a"].copy()
    whole = fitted.score("a", series)
    assert np.isnan(whole[: WINDOW - 1]).all()
    assert np.isfinite(whole[WINDOW - 1 :]).all()
    np.testing.assert_allclose(fitted.score("a", series[:100]), whole[:100], rtol=1e-4)
    series[50] = np.nan
    assert np.isnan(fitted.score("a", series)[50 : 50 + WINDOW]).all()
    assert len(fitted.validation("a")) == int(0.15 * len(fleet["a"]))


def test_too_short_a_client_is_named() -> None:
    with pytest.raises(ValueError, match="'b'"):
        NeuralMethod("usad").fit({"a": np.ones((90, 2)), "b": np.ones((12, 2))}, seed=0)
