"""One streamed step: against one bare matrix-vector product of its weights."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import alternate, heading, one_blas_thread
from benchmarks.scoring import wandering
from fedkad import KoopmanDetector

STEPS = 3000


def main() -> None:
    """Print µs a step and the ratio for two sizes of device."""
    one_blas_thread()
    heading("One streamed step (window 20, rank 24, 128 observables), float64, one BLAS thread")
    for channels in (25, 38):
        series = wandering(8000, channels)
        detector = KoopmanDetector().fit(series[:5000])
        stream, samples = detector.stream(), list(series[5000:])
        lifting = detector.lifting_
        weights = np.concatenate([lifting.weights, detector.subspace_[: lifting.state_size].T])
        window = lifting.windows(series)[0].copy()

        def product(weights: object = weights, window: object = window) -> None:
            for _ in range(STEPS):
                weights @ window  # type: ignore[operator]

        def update(stream: object = stream, samples: object = samples) -> None:
            for sample in samples:  # type: ignore[attr-defined]
                stream.update(sample)  # type: ignore[attr-defined]

        bare, ours = alternate(7, product, update)
        print(
            f"  {channels} channels: product {1e6 * bare / STEPS:.1f} µs, "
            f"update {1e6 * ours / len(samples):.1f} µs: {ours / bare * STEPS / len(samples):.2f} x"
        )


if __name__ == "__main__":
    main()
