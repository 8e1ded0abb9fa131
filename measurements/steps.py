"""One streamed step of witnesses by the steps of a stream, against one by the scoring that recordings use.

This is what it would cost to have the formulas once: see docs/choices.md.
"""

from __future__ import annotations

import time

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.steps import PlainSteps
from measurements.cost import wandering
from measurements.measure import Array, heading, one_blas_thread

ROWS = 6000


def step_by_step(detector: KoopmanDetector, samples: Array) -> Array:
    """Median seconds of both updates; they take turns, so that both meet the same caches."""
    streams = detector.stream(), detector.stream()
    vars(streams[1])["_steps"] = PlainSteps(detector.model_.scoring)
    clock, seconds = time.perf_counter, np.empty((len(samples), 2))
    for k, sample in enumerate(samples):
        marks = [clock()]
        for stream in streams:
            stream.update(sample)
            marks.append(clock())
        seconds[k] = np.diff(marks)
    medians: Array = np.median(seconds[200:], axis=0)
    return medians


def main() -> None:
    """Print µs a step and the ratio for several sizes of device, on rows like those of training."""
    one_blas_thread()
    heading("One streamed step (window 20, rank 24, 8 private, 128 observables), float64, one BLAS thread")
    for channels in (3, 8, 25, 38):
        series = wandering(ROWS, channels)
        own, shared = 1e6 * step_by_step(KoopmanDetector().fit(series), series)
        print(f"  {channels} channels: {own:.1f} µs, by the scoring itself {shared:.1f} µs: {shared / own:.2f} x")


if __name__ == "__main__":
    main()
