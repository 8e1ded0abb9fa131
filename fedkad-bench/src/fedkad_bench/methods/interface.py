"""What a method of the benchmark is: fitted on a federation's training data, it scores one client at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WINDOW = 20
"""Samples in a window, for every method that has one."""

VALIDATION = 0.15
"""Last share of every client's training data, kept from the models: it sets thresholds."""

Scale = Literal["device", "global"]
"""z-scores of each client alone, or one scaling for the federation."""

Covers = Literal["sample", "window"]
"""What a raw score judges: the newest sample, or the whole window that ends with it."""


@dataclass(frozen=True)
class Cost:
    """What training exchanged. Payload only; 4-byte numbers unless a method says otherwise.

    Attributes
    ----------
    numbers : int
        Numbers in one message of one client: the parameters of a network, or the entries of a subspace.
    rounds : int
        Exchanges with the server; 0 for methods that do not train together.
    bytes_up, bytes_down : int
        Over the whole training and all clients.
    bytes_delivered : int
        To bring the finished model to every client that does not hold it; not counted in the others.
    """

    numbers: int = 0
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_delivered: int = 0

    @property
    def bytes_a_round(self) -> float:
        """Both ways, in the mean over the rounds."""
        return (self.bytes_up + self.bytes_down) / self.rounds if self.rounds else 0.0


class Fitted(Protocol):
    """A trained federation."""

    @property
    def cost(self) -> Cost:
        """What training exchanged."""

    def validation(self, client: str) -> Array:
        """Raw scores of the client's held-out training rows, in order; no NaN."""

    def score(self, client: str, series: Array) -> Array:
        """Raw causal scores `(time,)` of a series `(time, channel)`, NaN until there is one; higher is more abnormal.

        Raw: nothing is averaged over time. The benchmark smooths all methods alike.
        """


class Method(Protocol):
    """A way to train detectors for a federation.

    `name` identifies it in files and on the command line, `title` in tables.
    """

    @property
    def name(self) -> str:
        """Identifies the method in files and on the command line."""

    @property
    def title(self) -> str:
        """Names the method in tables."""

    @property
    def covers(self) -> Covers:
        """What one of its scores judges."""

    def fit(self, fleet: Mapping[str, Array], *, seed: int, scaling: Scale = "device") -> Fitted:
        """Train on the training series of all clients. The last `VALIDATION` of each is held out.

        Of very short series, with fewer than a hundred scores to hold out, FedKAD holds out nothing and judges rows by
        models of the others, as it would in use.
        """
