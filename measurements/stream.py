"""One streamed step of witnesses: against that of motion alone, and against one bare matrix-vector product."""

from __future__ import annotations

import time

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.scoring import CalibratedScoring
from measurements.cost import wandering
from measurements.measure import Array, heading, one_blas_thread


def step_by_step(motion: KoopmanDetector, witnesses: KoopmanDetector, samples: Array) -> Array:
    """Median seconds of a bare product and of both updates; they take turns, so that all meet the same caches."""
    streams, scoring = (motion.stream(), witnesses.stream()), motion.model_.scoring
    assert isinstance(scoring, CalibratedScoring)
    weights = scoring.forecast.weights
    window = motion.lifting_.windows(motion.scaling_.transform(samples))[0].copy()
    clock, seconds = time.perf_counter, np.empty((len(samples), 3))
    for k, sample in enumerate(samples):
        began = clock()
        weights.dot(window)
        marks = [clock()]
        for stream in streams:
            stream.update(sample)
            marks.append(clock())
        seconds[k] = np.diff([began, *marks])
    medians: Array = np.median(seconds[100:], axis=0)
    return medians


def main() -> None:
    """Print µs a step and the ratios for two sizes of device, on rows like those of training."""
    one_blas_thread()
    heading("One streamed step (window 20, rank 24, 8 private, 128 observables), float64, one BLAS thread")
    for channels in (25, 38):
        series = wandering(10_000, channels)
        motion, witnesses = (KoopmanDetector(scoring=scoring).fit(series) for scoring in ("motion", "witnesses"))
        product, alone, three = 1e6 * step_by_step(motion, witnesses, series)
        print(
            f"  {channels} channels: product of the weights of motion with a window {product:.1f} µs, update by motion "
            f"{alone:.1f} µs: {alone / product:.2f} x; by witnesses {three:.1f} µs: {three / alone:.2f} x motion"
        )


if __name__ == "__main__":
    main()
