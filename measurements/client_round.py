"""One client-round (five local steps) on one server: against the same steps on snapshot matrices."""

from __future__ import annotations

import numpy as np

from fedkad.federation.client import Client
from fedkad.federation.settings import Consensus
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import collect
from fedkad.koopman.stiefel import project_stiefel, random_point, retract_polar
from fedkad_bench.data.datasets import read_smd
from measurements.measure import Array, alternate, heading, one_blas_thread, require_data

STEPS = 5
STEP_SIZE = 0.05


def round_on_snapshots(x: Array, y: Array, shared: Array) -> Array:
    """The same local round with X and Y at hand: every product runs over all pairs."""
    point, scale = shared, 1.0 / float(np.vdot(y, y))
    reduced = point.T @ x
    operator = np.linalg.solve(reduced @ reduced.T, reduced @ (point.T @ y).T).T
    for _ in range(STEPS):
        reduced = point.T @ x
        predicted = operator @ reduced
        error = y - point @ predicted
        gradient = -2.0 * scale * (error @ predicted.T + x @ (error.T @ (point @ operator)))
        point = retract_polar(point - STEP_SIZE * project_stiefel(point, gradient + point - shared))
    return point


def main() -> None:
    """Print the ratio and the agreement of the two."""
    one_blas_thread()
    heading("One client-round on SMD machine-1-1 (5 local steps), one BLAS thread")
    train = next(read_smd(require_data() / "SMD", "machine-1-1")).train[:23_700]
    lifting = Lifting(channels=train.shape[1], window=20, observables=128, seed=0)
    scaled = Scaling.fit(train).transform(train)
    states = np.ascontiguousarray(lifting.transform(scaled).T)
    x, y = np.ascontiguousarray(states[:, :-1]), np.ascontiguousarray(states[:, 1:])
    statistics = collect(scaled, lifting)
    shared = random_point(lifting.dimension, 24, np.random.default_rng(0))
    consensus = Consensus(rank=24, local_steps=STEPS, step_size=STEP_SIZE)

    def ours() -> Array:
        client = Client("machine-1-1", statistics, consensus)
        return client.reply(client.local_round(client.begin(shared), shared))

    direct, ours_seconds = alternate(5, lambda: round_on_snapshots(x, y, shared), ours)
    difference = float(np.abs(ours() - round_on_snapshots(x, y, shared)).max())
    print(f"  on snapshots {direct:.3f} s, on statistics {ours_seconds:.4f} s: {direct / ours_seconds:.0f} x faster")
    print(f"  largest difference of the two results {difference:.1e}")


if __name__ == "__main__":
    main()
