"""One streamed step: against one bare matrix-vector product of its weights."""

from __future__ import annotations

import time

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.scoring import CalibratedScoring
from measurements.measure import Array, heading, one_blas_thread
from measurements.scoring import wandering


def step_by_step(detector: KoopmanDetector, samples: Array) -> tuple[float, float]:
    """Median seconds of a bare product and of an update; they take turns, so that both meet the same caches."""
    stream, scoring = detector.stream(), detector.model_.scoring
    assert isinstance(scoring, CalibratedScoring)
    weights = scoring.forecast.weights
    window = detector.lifting_.windows(detector.scaling_.transform(samples))[0].copy()
    clock, seconds = time.perf_counter, np.empty((len(samples), 2))
    for k, sample in enumerate(samples):
        began = clock()
        weights.dot(window)
        between = clock()
        stream.update(sample)
        seconds[k] = between - began, clock() - between
    product, update = np.median(seconds[100:], axis=0)
    return float(product), float(update)


def main() -> None:
    """Print µs a step and the ratio for two sizes of device."""
    one_blas_thread()
    heading("One streamed step (window 20, rank 24, 128 observables), float64, one BLAS thread")
    for channels in (25, 38):
        series = wandering(25_000, channels)
        product, update = step_by_step(KoopmanDetector().fit(series[:5000]), series[5000:])
        print(
            f"  {channels} channels: product of its weights with a window {1e6 * product:.1f} µs, "
            f"update {1e6 * update:.1f} µs: {update / product:.2f} x"
        )


if __name__ == "__main__":
    main()
