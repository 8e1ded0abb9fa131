"""The server's steps: which clients to ask, and the consensus of their replies.

It keeps the names of those heard and, with `robust`, the replies of the open round and every warm reply until the ADMM
begins or the training ends.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.threshold import USUAL_SHAPE
from fedkad.federation import robust, sketch
from fedkad.federation.settings import Consensus, Sampling
from fedkad.koopman.stiefel import random_point
from fedkad.koopman.subspace import leading_directions

Array = NDArray[np.float64]

MOST_SHAPE = 0.5
"""The heaviest tail that a fleet may advise, and −½ the lightest: whatever a device says."""


WARM_REPLY = "warm_reply."
"""What the warm reply of a client is called in the state of a server, before the client's name."""


class Server:
    """Holds the consensus Z and adds up replies as they arrive, so that its memory does not grow with the fleet.

    With a warm start, rounds are warm as long as they ask only clients that were not heard before: the replies are
    weighted directions, and Z the leading directions of all of them. The first round that asks a client again
    begins the ADMM, and from then on Z is the mean of P + Λ/ρ over the participants of a round.

    With `robust` a minority of poisoned replies cannot drag Z away: it is the geometric median of P + Λ/ρ instead of
    the mean, and clients that pull alone are left out of the warm directions. That needs every reply of a round at
    once, and every warm one, so that with `robust` its memory does grow with the fleet.

    A round without any reply changes nothing.
    """

    def __init__(self, dimension: int, consensus: Consensus, *, robust: bool = False) -> None:
        self.consensus, self.robust = consensus, robust
        self.shared = random_point(dimension, consensus.rank, np.random.default_rng(consensus.seed))
        self.heard: set[str] = set()
        self.warm = consensus.start == "warm"
        self._warm_sum: Array | None = None  # of U Uᵀ, or of its sketch
        self._warm_replies: dict[str, Array] = {}
        self.left_out: tuple[str, ...] = ()
        self.begin_round(())

    def begin_round(self, participants: Iterable[str]) -> bool:
        """Open a round with these participants; True when it is a warm one."""
        self._round_is_warm = self.warm and self.heard.isdisjoint(participants)
        self._sum: Array | None = None
        self._replies: dict[str, Array] = {}
        self._names: list[str] = []
        return self._round_is_warm

    def receive(self, name: str, reply: Array) -> None:
        """Add a reply to the round."""
        self._names.append(name)
        if self.robust:
            self._replies[name] = reply
        if self._round_is_warm or not self.robust:
            self._add(reply @ reply.T if self._round_is_warm else reply)

    def receive_sum(self, names: Collection[str], total: Array) -> None:
        """Add the sum of several replies: of P + Λ/ρ or, in a warm round, of the sketches of U Uᵀ."""
        self._names.extend(names)
        self._add(total)

    def _add(self, term: Array) -> None:
        self._sum = term if self._sum is None else self._sum + term

    def close_round(self) -> Array:
        """Make the new consensus Z."""
        if not self._names:
            return self.shared
        self.heard.update(self._names)
        if self._round_is_warm:
            self.shared = self._leading()
            return self.shared
        self.warm, self.left_out = False, ()
        self.forget_warm_replies()
        if self.robust:
            self.shared = robust.combine_replies(list(self._replies.values()))
        else:
            assert self._sum is not None
            self.shared = self._sum / len(self._names)
        return self.shared

    def forget_warm_replies(self) -> None:
        """Drop what only a further warm round would need: the replies of single clients, and their sum."""
        self._warm_sum, self._warm_replies = None, {}

    def _leading(self) -> Array:
        rank = self.consensus.rank
        assert self._sum is not None
        self._warm_sum = self._sum if self._warm_sum is None else self._warm_sum + self._sum
        size = len(self._warm_sum)
        if self._warm_sum.shape == (size, size):
            return leading_directions(self._kept_energy(), rank, tolerance=1e-9).vectors
        return sketch.leading_from_sketch(self._warm_sum, sketch.probe_matrix(size, rank, self.consensus.seed), rank)

    def _kept_energy(self) -> Array:
        """Sum U Uᵀ of all warm replies or, with `robust`, of those that do not pull alone."""
        assert self._warm_sum is not None
        if not self.robust:
            return self._warm_sum
        self._warm_replies |= self._replies
        names = sorted(self._warm_replies)  # in the order of a server that was restarted
        alone = robust.pulling_alone([self._warm_replies[name] for name in names], self.consensus.rank)
        self.left_out = tuple(names[k] for k in alone)
        kept = self._warm_sum
        for name in self.left_out:
            kept = kept - self._warm_replies[name] @ self._warm_replies[name].T
        return kept

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return all that must outlive the process between two rounds: facts, and matrices by name."""
        arrays = {"shared": self.shared}
        if self._warm_sum is not None:
            arrays["warm_sum"] = self._warm_sum
        arrays |= {f"{WARM_REPLY}{name}": reply for name, reply in self._warm_replies.items()}
        return {"heard": sorted(self.heard), "warm": self.warm}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Continue from what `state` returned."""
        self.heard, self.warm, self.shared = set(facts["heard"]), facts["warm"], arrays["shared"]
        self._warm_sum = arrays.get("warm_sum")
        replies = {key: reply for key, reply in arrays.items() if key.startswith(WARM_REPLY)}
        self._warm_replies = {key.removeprefix(WARM_REPLY): reply for key, reply in replies.items()}
        if self._warm_sum is None and replies:  # earlier releases kept one or the other
            self._warm_sum = np.asarray(sum(reply @ reply.T for reply in replies.values()))
        self.begin_round(())


def usual_threshold(own: Iterable[float | None]) -> float:
    """Compute the fleet's advice: the median of the thresholds that may advise others, or 0, which advises nothing.

    Calibrated scores are alike on all devices, so a device with few rows of its own does well to use at least this.

    >>> usual_threshold([3.0, None, 5.0])
    4.0
    """
    thresholds = [threshold for threshold in own if threshold is not None]
    return float(np.median(thresholds)) if thresholds else 0.0


def usual_shape(own: Iterable[float | None]) -> float:
    """Compute the shape that the tail of a newcomer's scores is expected to have: the median of the fleet's.

    The shape by some fifty peaks of one device is worth as much as what is usual everywhere, which counts as one device
    more.

    >>> usual_shape([0.11, None, 0.02, 0.5]) == (3 * 0.11 + USUAL_SHAPE) / 4
    True
    """
    shapes = [shape for shape in own if shape is not None]
    if not shapes:
        return USUAL_SHAPE
    median = float(np.clip(np.median(shapes), -MOST_SHAPE, MOST_SHAPE))
    return (len(shapes) * median + USUAL_SHAPE) / (len(shapes) + 1)


class Sampler:
    """The participants of each round: uniformly at random, or so that all are asked before any is asked again.

    >>> sampler = Sampler(["a", "b", "c", "d", "e"], 0.4, "cover", seed=0)
    >>> sorted(sampler.next() + sampler.next() + sampler.next())  # a pass over the fleet ends with a smaller round
    ['a', 'b', 'c', 'd', 'e']

    Over a network only devices `among` those online can be asked. A device that is away keeps its turn, and one that
    joins late gets a turn in the current pass.

    >>> sampler = Sampler(["a", "b"], 1.0, "cover", seed=0)
    >>> sampler.next(among=["a"]), sampler.next(among=["a", "b", "c"]) in (["b", "c"], ["c", "b"])
    (['a'], True)
    """

    def __init__(self, names: Sequence[str], participation: float, sampling: Sampling, seed: int) -> None:
        self.names = list(names)
        self.participation, self.sampling = participation, sampling
        self._generator = np.random.default_rng([seed, 1])
        self._waiting: list[str] = []

    def next(self, among: Collection[str] | None = None, of: int | None = None, least: int = 1) -> list[str]:
        """Draw the participants of the next round: a share `of` a number of devices, by default of those online.

        At least `least` of them: if a pass ends with fewer, the next one begins in the same round.
        """
        online = set(self.names if among is None else among)
        joined = sorted(online.difference(self.names))
        if joined:
            self.names += joined
            self._waiting += self._shuffled(joined)
        if self.sampling == "uniform" or online.isdisjoint(self._waiting):
            self._waiting = self._shuffled(self.names)
        size = max(math.ceil(self.participation * (of or len(online)) - 1e-9), least)
        chosen = self._called(online, size)
        if len(chosen) < least:
            self._waiting = self._shuffled(self.names)
            chosen += self._called(online.difference(chosen), least - len(chosen))
        return chosen

    def _called(self, online: Collection[str], size: int) -> list[str]:
        """Take the first names that wait and are online off the list of those that wait."""
        called = [name for name in self._waiting if name in online][:size]
        gone = set(called)
        self._waiting = [name for name in self._waiting if name not in gone]
        return called

    def _shuffled(self, names: Sequence[str]) -> list[str]:
        return [names[k] for k in self._generator.permutation(len(names))]

    def state(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        return {"names": self.names, "waiting": self._waiting, "generator": self._generator.bit_generator.state}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.names, self._waiting = list(facts["names"]), list(facts["waiting"])
        self._generator.bit_generator.state = facts["generator"]
