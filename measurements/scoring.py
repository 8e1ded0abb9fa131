"""Batch scoring and training by witnesses: against motion alone, whose scoring stands against its bare products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.dynamics import LiftedProduct
from fedkad.detect.scoring import BLOCK
from fedkad.detect.witnesses import WitnessScoring
from fedkad_bench.methods.motion import MOTION
from measurements.cost import wandering
from measurements.measure import Array, alternate, heading, one_blas_thread

ROWS = 20_000


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


class SingleProduct:
    """The same product in single precision, for windows and results of double precision."""

    def __init__(self, double: LiftedProduct) -> None:
        self._single = double.single

    def __call__(self, windows: Array) -> list[Array]:
        """Windows are rounded, and results are numbers of double precision again."""
        return [found.astype(np.float64) for found in self._single(windows.astype(np.float32))]


def in_single_precision(detector: KoopmanDetector) -> KoopmanDetector:
    """A detector whose products are in single precision."""
    model = detector.model_
    assert isinstance(model.scoring, WitnessScoring)
    dynamics = replace(model.scoring.dynamics)
    vars(dynamics)["coordinates"] = SingleProduct(dynamics.coordinates)
    return KoopmanDetector.of(replace(model, scoring=replace(model.scoring, dynamics=dynamics)))


def main() -> None:
    """Print µs a step and the ratio for two sizes of device."""
    one_blas_thread()
    heading(f"Batch scoring of {ROWS} rows (window 20, rank 24, 128 observables), one BLAS thread")
    for channels in (25, 38):
        series = wandering(ROWS, channels)
        motion, witnesses = KoopmanDetector(scoring=MOTION), KoopmanDetector()
        fitted, fitted_all = alternate(3, lambda: motion.fit(series), lambda: witnesses.fit(series))  # noqa: B023
        bare, ours, three = alternate(
            9,
            lambda: bare_products(motion, ROWS),  # noqa: B023
            lambda: motion.decision_function(series),  # noqa: B023
            lambda: witnesses.decision_function(series),  # noqa: B023
        )
        print(
            f"  {channels} channels: products {1e6 * bare / ROWS:.2f} µs a step, motion {1e6 * ours / ROWS:.2f} µs: "
            f"{ours / bare:.2f} x; witnesses {1e6 * three / ROWS:.2f} µs: {three / ours:.2f} x motion; "
            f"fit {fitted:.2f} s and {fitted_all:.2f} s: {fitted_all / fitted:.2f} x"
        )
        single = in_single_precision(witnesses)
        slow, fast = alternate(9, *(lambda d=d: d.decision_function(series) for d in (witnesses, single)))  # noqa: B023
        double, rounded = (detector.decision_function(series) for detector in (witnesses, single))
        apart = np.nanmax(np.abs(rounded - double) / double)
        print(f"    products in single precision: {slow / fast:.2f} x faster, scores agree to {apart:.1e} relative")


if __name__ == "__main__":
    main()
