"""Whether a budget of false alarms is kept: alarm events on normal data over those allowed, for many seeds.

A detector is fitted to normal rows with `threshold="1/week"` and judges the normal rows that follow them. Its alarms,
gathered into events, are all false; a budget is kept if their number is on average what was allowed, and never many
times as much:

- *AR(1)*: six channels, each a mix of six first-order processes that remember 0.9 of their last value; stationary, so
  that nothing but the threshold can be wrong;
- *pumps*: a simulated pump without faults, whose duty takes hours to repeat and whose surroundings follow the day.

Only the public interface is used, so that the same measurement runs on any version.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.simulate import simulate_fleet
from measurements.measure import Array, heading, one_blas_thread

SEEDS = 20
TRAINING = (10_000, 2_000)
PERIOD, WEEK = 60.0, 604_800.0

Recording = Callable[[int], tuple[Array, Array]]


def autoregressive(seed: int) -> tuple[Array, Array]:
    """Training and test rows of x = M s, where s(t) = 0.9 s(t−1) + noise in every component and M is drawn once."""
    rows, channels, memory = 80_000, 6, 0.9
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(channels, channels))
    states = generator.normal(size=(max(TRAINING) + rows, channels))
    states[0] /= np.sqrt(1.0 - memory**2)  # stationary from the first row on
    for t in range(1, len(states)):
        states[t] += memory * states[t - 1]
    values = states @ mixing.T
    return values[: max(TRAINING)], values[max(TRAINING) :]


def pump(seed: int) -> tuple[Array, Array]:
    """Training and test rows of one healthy pump."""
    fleet = simulate_fleet(1, train_rows=max(TRAINING), test_rows=40_000, faults_per_device=0, period=PERIOD, seed=seed)
    return fleet.train["pump-01"], fleet.test["pump-01"]


RECORDINGS: dict[str, Recording] = {"AR(1)": autoregressive, "pumps": pump}


def count_events(verdicts: NDArray[np.int64], apart: int) -> int:
    """Events in the verdicts 1, 0 and −1 for unscored: alarms at most `apart` rows apart, with no gap between them.

    >>> count_events(np.array([1, 0, 1, 0, 0, 0, 1, -1, 1]), apart=2)
    3
    """
    alarms = np.flatnonzero(verdicts == 1)
    gaps = np.cumsum(verdicts == -1)[alarms]
    return len(alarms) and 1 + int(((np.diff(alarms) > apart) | (np.diff(gaps) > 0)).sum())


def share_of_budget(train: Array, test: Array) -> float:
    """False alarm events in the test over those that one a week allows."""
    detector = KoopmanDetector(threshold="1/week", sample_period=PERIOD).fit(train)
    verdicts = detector.predict(test, unscored=-1)
    allowed = int((verdicts >= 0).sum()) * PERIOD / WEEK
    return count_events(verdicts, detector.window) / allowed


def interval_of_mean(values: Array) -> tuple[float, float]:
    """95 % interval of the mean, by resampling the seeds."""
    chosen = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def shares(recording: Recording, rows: int, seeds: int) -> Iterator[float]:
    """The share of each seed, trained on the last `rows` rows before the test."""
    for seed in range(seeds):
        train, test = recording(seed)
        yield share_of_budget(train[-rows:], test)


def main() -> None:
    """Print the share of every seed, their mean and its interval, and the largest; an argument reduces the seeds."""
    one_blas_thread()
    warnings.simplefilter("ignore")
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    heading(f"False alarm events over those allowed, one a week at {PERIOD:g} s, {seeds} seeds")
    show = partial(print, flush=True)
    for name, recording in RECORDINGS.items():
        for rows in sorted(TRAINING):
            show(f"  {name}, {rows:,} training rows\n    each   ", end="")
            found = []
            for share in shares(recording, rows, seeds):
                found.append(share)
                show(f" {share:.2f}", end="")
            low, high = interval_of_mean(np.array(found))
            show(f"\n    mean    {np.mean(found):.2f} ({low:.2f} to {high:.2f}), largest {max(found):.2f}")


if __name__ == "__main__":
    main()
