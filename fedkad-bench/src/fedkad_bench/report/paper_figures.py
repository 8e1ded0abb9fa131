"""The paper's own numbers, to be printed beside ours: all of them here, none anywhere else in this package.

F1 in points (hundredths), from its text and its tables; its figures are not in the source, so that what stands in none
of the sentences is not known. Its ranges of skew and its measurements on a Raspberry Pi come with the studies that
answer them.
"""

from __future__ import annotations

from typing import NamedTuple

DATASETS = ("SMD", "PSM", "SMAP", "MSL")


class Figure(NamedTuple):
    """A number of the paper with its standard deviation over seeds, None where it gives none."""

    value: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.std is None else f"{self.value:.2f} ± {self.std:.2f}"


class Comparison(NamedTuple):
    """FedKAD against the best baseline of one dataset under one protocol, with the margin as printed."""

    ours: Figure
    baseline: str
    theirs: Figure
    margin: float


class Test(NamedTuple):
    """The paired t-test of the main table."""

    p_value: float
    effect_size: float
    verdict: str


PROTOCOLS: dict[str, dict[str, Comparison]] = {
    "pa1": {
        "SMD": Comparison(Figure(72.20, 1.28), "LSTM-AE", Figure(64.51), 7.69),
        "PSM": Comparison(Figure(69.87, 0.21), "LSTM-AE", Figure(68.57), 1.29),
        "SMAP": Comparison(Figure(53.32, 0.50), "LSTM-AE", Figure(51.56), 1.76),
        "MSL": Comparison(Figure(39.55, 0.02), "LSTM-AE", Figure(40.50, 4.63), -0.95),
    },
    "pot_any": {
        "SMD": Comparison(Figure(89.19, 0.78), "LSTM-AE", Figure(83.94, 0.67), 5.25),
        "PSM": Comparison(Figure(98.88, 0.19), "LSTM-AE", Figure(98.37, 0.15), 0.51),
        "SMAP": Comparison(Figure(94.76, 0.02), "USAD", Figure(96.17, 0.96), -1.41),
        "MSL": Comparison(Figure(83.59, 0.08), "LSTM-AE", Figure(83.58, 0.15), 0.02),
    },
    "pot_pa10": {
        "SMD": Comparison(Figure(55.30, 2.39), "LSTM-AE", Figure(44.68, 0.59), 10.62),
        "PSM": Comparison(Figure(60.58, 0.42), "LSTM-AE", Figure(67.15, 0.11), -6.57),
        "SMAP": Comparison(Figure(37.28, 1.33), "TranAD", Figure(44.78, 0.18), -7.50),
        "MSL": Comparison(Figure(41.76, 0.01), "LSTM-AE", Figure(42.94, 1.54), -1.17),
    },
    "pot_point": {
        "SMD": Comparison(Figure(14.61, 0.87), "USAD", Figure(17.30, 0.64), -2.69),
        "PSM": Comparison(Figure(24.57, 0.06), "DeepSVDD", Figure(28.65, 8.68), -4.08),
        "SMAP": Comparison(Figure(3.87, 0.01), "DeepSVDD", Figure(15.60, 2.36), -11.73),
        "MSL": Comparison(Figure(7.50, 0.02), "DeepSVDD", Figure(6.91, 0.72), 0.60),
    },
}
"""By protocol and dataset; margins as printed, which are not always the differences of the rounded numbers."""

TESTS: dict[str, Test] = {
    "SMD": Test(0.0384, 2.86, "WIN"),
    "PSM": Test(0.0092, 5.97, "WIN"),
    "SMAP": Test(0.25, 0.93, "WIN"),
    "MSL": Test(0.80, -0.17, "loss"),
}


class Claim(NamedTuple):
    """What the paper claims about one cost: in the abstract, in the text, and the text's numbers behind it."""

    what: str
    abstract: str
    text: str
    numbers: str


CLAIMS: dict[str, Claim] = {
    "training_ratio": Claim(
        "training time", "up to 2,100×", "200×–2,000×", "1.7–4.8 s against 75–4,020 s of the networks"
    ),
    "bytes_ratio": Claim("communication", "80×", "3×–40×", "1.0–1.7 MB a round against 2.7–129 MB"),
    "step_ratio": Claim("inference", "79×", "comparable or below", "1.9–5.8 µs a step"),
}
"""By the column of the efficiency study that answers it."""


class EndPoints(NamedTuple):
    """Where a curve of the convergence figure begins and where it ends after 30 rounds, at ρ = 1 on 28 machines."""

    first: float
    last: tuple[float, float]


CONVERGENCE: dict[str, EndPoints] = {
    "residual": EndPoints(6.5, (2.1, 2.1)),
    "lagrangian": EndPoints(670.0, (90.0, 160.0)),
    "objective": EndPoints(15.7, (6.2, 6.2)),
}
CONVERGENCE_CLIENTS = 28
CONVERGENCE_ROUNDS = 30
