"""The settings of a federation, and the paper's choice of them."""

from dataclasses import dataclass
from typing import Literal

Loss = Literal["energy", "entry", "pair", "sum"]
Start = Literal["warm", "common", "random"]
Sampling = Literal["cover", "uniform"]
Encoding = Literal["float64", "float32", "float16", "int8"]

LOSSES: tuple[Loss, ...] = ("energy", "entry", "pair", "sum")
STARTS: tuple[Start, ...] = ("warm", "common", "random")
SAMPLINGS: tuple[Sampling, ...] = ("cover", "uniform")
ENCODINGS: tuple[Encoding, ...] = ("float64", "float32", "float16", "int8")

FEWEST = 3
"""Devices that a masked sum or a median needs: of a sum of two, each knows the other's part."""

WITHSTANDS_TWO = 5
"""Devices of which two liars are a minority."""


@dataclass(frozen=True)
class Consensus:
    """How clients and server reach a common subspace."""

    rank: int = 24  # directions of the subspace, r
    penalty: float = 1.0  # ρ, the weight of the consensus against the local loss
    local_steps: int = 5  # gradient steps of a client in one round, C
    step_size: float | None = None  # η; by default 1 / (local curvature + ρ)
    # From the directions that the clients predict along, from one random subspace, or (the paper) from an independent
    # random subspace on every client.
    start: Start = "warm"
    # What f_i is divided by: ‖Y_i‖², so that every device counts alike; the entries of Y_i; its pairs; nothing.
    loss: Loss = "energy"
    ridge: float = 1e-10  # λ during training, in units of the mean eigenvalue of the Gram matrix
    ridge_is_absolute: bool = False  # or in those of the loss as it is scaled
    # Project gradients as the paper does, without rotations inside the subspace, and retract by QR; otherwise project
    # on the Stiefel manifold and retract by the polar factor.
    grassmann: bool = False
    seed: int = 0  # of random starts and of the sampling


@dataclass(frozen=True)
class Preset:
    """Settings of a whole run that go together."""

    rounds: int
    sampling: Sampling
    scoring: Literal["witnesses", "paper"]
    consensus: Consensus


PRESETS = {
    "default": Preset(8, "cover", "witnesses", Consensus()),
    # The paper states neither what f is divided by nor the unit of λ: of all combinations, this one comes nearest to
    # its convergence curves, as `python -m measurements.paper_curves` prints.
    "paper": Preset(30, "uniform", "paper", Consensus(step_size=0.05, start="random", ridge=1e-2, grassmann=True)),
}
