"""The server's steps: whom to ask, and the consensus of what they answer. It keeps nothing of any single client."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.settings import Consensus, Sampling
from fedkad.koopman.stiefel import random_point
from fedkad.koopman.subspace import leading_directions

Array = NDArray[np.float64]


class Server:
    """Holds the consensus Z and sums up replies as they arrive, so that its memory does not grow with the fleet.

    With a warm start, rounds are warm as long as they ask only clients that were not heard before: the replies are
    weighted directions, and Z the leading directions of all of them. The first round that asks somebody again
    begins the ADMM, and from then on Z is the mean of P + Λ/ρ over the participants of a round.
    """

    def __init__(self, dimension: int, consensus: Consensus) -> None:
        self.consensus = consensus
        self.shared = random_point(dimension, consensus.rank, np.random.default_rng(consensus.seed))
        self.heard: set[str] = set()
        self.warm = consensus.start == "warm"
        self._weighted = np.zeros((dimension, dimension)) if self.warm else None
        self._open()

    def _open(self) -> None:
        self._sum = np.zeros_like(self.shared)
        self._replies = 0

    def begin_round(self, participants: Sequence[str]) -> bool:
        """Open a round with these participants; True when it is a warm one."""
        self.warm = self.warm and self.heard.isdisjoint(participants)
        if not self.warm:
            self._weighted = None
        self._open()
        return self.warm

    def receive(self, name: str, reply: Array) -> None:
        """Add a reply to the round."""
        if self._weighted is not None:
            self._weighted += reply @ reply.T
        else:
            self._sum += reply
        self._replies += 1
        self.heard.add(name)

    def close_round(self) -> Array:
        """The new consensus Z."""
        if self._weighted is not None:
            self.shared = leading_directions(self._weighted, self.consensus.rank, tolerance=1e-9).vectors
        elif self._replies:
            self.shared = self._sum / self._replies
        return self.shared


class Sampler:
    """Who takes part in each round: uniformly at random, or so that everybody is asked before anybody twice.

    >>> sampler = Sampler(["a", "b", "c", "d", "e"], 0.4, "cover", seed=0)
    >>> sorted(sampler.next() + sampler.next() + sampler.next())  # a pass over the fleet ends with a smaller round
    ['a', 'b', 'c', 'd', 'e']
    """

    def __init__(self, names: Sequence[str], participation: float, sampling: Sampling, seed: int) -> None:
        self.names = list(names)
        self.size = math.ceil(participation * len(self.names) - 1e-9)
        self.sampling = sampling
        self._generator = np.random.default_rng([seed, 1])
        self._waiting: list[str] = []

    def next(self) -> list[str]:
        """The participants of the next round."""
        if self.sampling == "uniform" or not self._waiting:
            self._waiting = [self.names[k] for k in self._generator.permutation(len(self.names))]
        chosen, self._waiting = self._waiting[: self.size], self._waiting[self.size :]
        return chosen
