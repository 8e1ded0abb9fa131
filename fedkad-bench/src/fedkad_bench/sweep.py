"""Choose settings without labels: which candidate predicts held-out normal data best and is not too large.

The error of a client is that of the newest sample, predicted one step ahead on the rows that its model never saw,
squared, in standard deviations of each channel, averaged over channels and rows. A candidate has the mean over clients.
Among those not clearly worse than the best, the one with the smallest message is chosen; not clearly worse: the
mean of the differences to the best, client by client, is at most one standard error of that mean.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.federation.inprocess import federate
from fedkad.koopman.snapshots import stretches
from fedkad_bench.methods.interface import VALIDATION

Array = NDArray[np.float64]

CRITERION = (
    "mean over clients of the squared one-step error of the newest sample on held-out training rows, in scaled units; "
    "the smallest message within one standard error of the best"
)


@dataclass(frozen=True, order=True)
class Candidate:
    """Settings of the detector to try."""

    window: int = 20
    rank: int = 24
    observables: int = 128

    def numbers(self, channels: int) -> int:
        """Numbers in a message: D × r."""
        return (channels * self.window + self.observables) * self.rank


@dataclass(frozen=True)
class Trial:
    """A candidate, its error by client and in the mean, and its mean difference to the best with its standard error."""

    candidate: Candidate
    numbers: int
    errors: Mapping[str, float]
    mean: float
    behind: float
    standard_error: float


@dataclass(frozen=True)
class Sweep:
    """All trials, the one of least error, the one chosen, and the clients that had too few rows to judge."""

    trials: tuple[Trial, ...]
    best: Candidate
    chosen: Candidate
    left_out: tuple[str, ...]


def candidates(windows: Iterable[int], ranks: Iterable[int], observables: Iterable[int]) -> list[Candidate]:
    """All combinations.

    >>> len(candidates([20], [8, 16], [0, 128]))
    4
    """
    return [Candidate(*values) for values in product(windows, ranks, observables)]


def sweep(
    fleet: Mapping[str, Array],
    tried: Sequence[Candidate],
    *,
    seed: int = 0,
    scaling: Literal["device", "global"] = "device",
    progress: Callable[[str, int, int], None] | None = None,
) -> Sweep:
    """Train a federation with every candidate and judge it on the held-out rows of its clients.

    Examples
    --------
    >>> t = np.arange(1500.0)[:, None]
    >>> fleet = {f"pump-{k}": np.sin(t / [[7 + k, 11.0]]) for k in range(4)}
    >>> found = sweep(fleet, candidates([10], [2, 6], [16]))
    >>> found.best.rank, found.chosen.rank, found.left_out
    (6, 6, ())
    """
    errors: dict[Candidate, dict[str, float]] = {}
    left_out: tuple[str, ...] = ()
    for done, candidate in enumerate(tried):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewRowsWarning)
            federation = federate(
                fleet, seed=seed, scaling=scaling, validation=VALIDATION, threshold="quantile", **vars(candidate)
            )
        judged = {name: d for name, d in federation.detectors.items() if not d.model_.few_rows}
        left_out = tuple(name for name in fleet if name not in judged)
        errors[candidate] = {name: held_out_error(detector) for name, detector in judged.items()}
        if progress is not None:
            progress("candidates", done + 1, len(tried))
    channels = next(iter(fleet.values())).shape[1]
    return _choose(errors, channels, left_out)


def held_out_error(detector: KoopmanDetector) -> float:
    """Mean squared error of the newest sample, predicted one step ahead, over held-out rows and channels."""
    rows, lifting, dynamics = detector.memory_.held_out.rows, detector.lifting_, detector.model_.dynamics
    decoder = dynamics.newest_decoders[0]
    total, count = 0.0, 0
    for run in stretches(rows, shortest=lifting.window + 1):
        states = lifting.transform(rows[run])[:-1]
        apart = rows[run][lifting.window :] - states @ dynamics.subspace @ decoder
        total, count = total + float(np.vdot(apart, apart)), count + apart.size
    return total / count


def _choose(errors: Mapping[Candidate, Mapping[str, float]], channels: int, left_out: tuple[str, ...]) -> Sweep:
    common = set.intersection(*(set(of) for of in errors.values()))
    if not common:
        raise ValueError("every client has too few rows to hold some out; nothing can be chosen by them.")
    table = {candidate: np.array([of[name] for name in sorted(common)]) for candidate, of in errors.items()}
    best = min(table, key=lambda candidate: float(table[candidate].mean()))
    trials = [_trial(candidate, errors[candidate], table, best, channels) for candidate in table]
    near = [trial for trial in trials if trial.behind <= trial.standard_error]
    chosen = min(near, key=lambda trial: (trial.numbers, trial.mean))
    return Sweep(tuple(trials), best, chosen.candidate, left_out)


def _trial(
    candidate: Candidate,
    errors: Mapping[str, float],
    table: Mapping[Candidate, Array],
    best: Candidate,
    channels: int,
) -> Trial:
    behind = table[candidate] - table[best]
    spread = float(behind.std(ddof=1)) if len(behind) > 1 else 0.0
    return Trial(
        candidate,
        candidate.numbers(channels),
        errors,
        float(table[candidate].mean()),
        float(behind.mean()),
        spread / math.sqrt(len(behind)),
    )
