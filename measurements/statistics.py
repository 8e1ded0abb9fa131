"""Statistics of one server (38 channels): against forming the snapshot matrices and multiplying them."""

from __future__ import annotations

import tracemalloc

import numpy as np

from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import Statistics, collect
from fedkad_bench.data.datasets import read_smd
from measurements.measure import Array, alternate, heading, one_blas_thread, require_data


def from_snapshots(scaled: Array, lifting: Lifting) -> tuple[Array, Array]:
    """XXᵀ and YXᵀ the direct way, in the layout that numpy multiplies fastest."""
    states = lifting.transform(scaled)
    x, y = states[:-1], states[1:]
    return x.T @ x, y.T @ x


def peak_megabytes(scaled: Array, lifting: Lifting) -> float:
    """Most memory in use at once while collecting, the result included."""
    tracemalloc.start()
    collect(scaled, lifting)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def relative_difference(ours: Array, theirs: Array) -> float:
    """Largest difference over the largest entry."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def main() -> None:
    """Print the ratio, the agreement and the memory."""
    one_blas_thread()
    heading("Statistics of SMD machine-1-1, one BLAS thread")
    machine = next(read_smd(require_data() / "SMD", "machine-1-1"))
    train = machine.train[:23_700]
    lifting = Lifting(channels=train.shape[1], window=20, observables=128, seed=0)
    scaled = Scaling.fit(train).transform(train)
    direct, ours = alternate(5, lambda: from_snapshots(scaled, lifting), lambda: collect(scaled, lifting))
    gathered: Statistics = collect(scaled, lifting)
    xx, yx = from_snapshots(scaled, lifting)
    print(f"  {len(train)} rows x {train.shape[1]} channels, lifted to {lifting.dimension}")
    print(f"  snapshot matrices {direct:.3f} s, statistics {ours:.3f} s: {direct / ours:.1f} x faster")
    agreement = max(relative_difference(gathered.xx, xx), relative_difference(gathered.yx, yx))
    print(f"  largest relative difference {agreement:.1e}")
    snapshots = 2 * len(train) * lifting.dimension * 8 / 1e6
    print(f"  peak extra memory {peak_megabytes(scaled, lifting):.0f} MB; snapshot matrices hold {snapshots:.0f} MB")


if __name__ == "__main__":
    main()
