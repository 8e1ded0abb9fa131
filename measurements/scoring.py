"""Batch scoring: against the bare matrix products that it needs."""

from __future__ import annotations

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.scoring import BLOCK
from measurements.measure import Array, alternate, heading, one_blas_thread

ROWS = 20_000


def wandering(rows: int, channels: int) -> Array:
    """A smooth coupled series; what it holds does not matter for the time it takes."""
    generator = np.random.default_rng(0)
    phases = np.arange(rows)[:, None] / generator.uniform(5.0, 50.0, channels)
    mixed: Array = np.sin(phases) @ generator.normal(size=(channels, channels)) / np.sqrt(channels)
    return mixed + 0.1 * generator.normal(size=(rows, channels))


def bare_products(detector: KoopmanDetector, rows: int) -> Array:
    """The products of scoring on blocks that are in place already: windows, observables, predictions."""
    lifting, rank = detector.lifting_, detector.rank
    windows = np.ones((BLOCK, lifting.state_size))
    encoder = np.ones((lifting.state_size, lifting.observables + rank))
    observed, observed_rows = np.ones((BLOCK, lifting.observables)), np.ones((lifting.observables, rank))
    coordinates, decoder = np.ones((BLOCK, rank)), np.ones((rank, lifting.channels))
    for _ in range(-(-rows // BLOCK)):
        encoded = windows @ encoder
        observed @ observed_rows
        coordinates @ decoder
    return encoded


def main() -> None:
    """Print µs a step and the ratio for two sizes of device."""
    one_blas_thread()
    heading(f"Batch scoring of {ROWS} rows (window 20, rank 24, 128 observables), one BLAS thread")
    for channels in (25, 38):
        series = wandering(ROWS, channels)
        detector = KoopmanDetector().fit(series[:5000])
        bare, ours = alternate(
            9,
            lambda detector=detector: bare_products(detector, ROWS),  # type: ignore[misc]
            lambda detector=detector, series=series: detector.decision_function(series),  # type: ignore[misc]
        )
        print(
            f"  {channels} channels: products {1e6 * bare / ROWS:.2f} µs a step, "
            f"decision_function {1e6 * ours / ROWS:.2f} µs a step: {ours / bare:.2f} x"
        )


if __name__ == "__main__":
    main()
