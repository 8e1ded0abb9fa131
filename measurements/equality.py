"""Whether this working tree computes what an earlier commit computed, to the bit.

    python -m measurements.equality [COMMIT]

Both trees run the same calculations in fresh processes on this machine, on one thread: detectors of every kind on
simulated pumps and on one server of SMD, alone, learning on, streamed, federated and admitted, with the paper's score
and with the one that was the default then, now called motion. Every score, share, forecast, subspace, operator and
record of a round is compared; thresholds are not, since they are about events now. That a training over Flower equals
the one in process to the bit is what tests/fleet/test_engines.py shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BEFORE = "f96038b"
"""The last commit before detectors became frozen values."""

ALONE: tuple[dict[str, Any], ...] = (
    {},
    {"scoring": "paper"},
    {"horizon": 3},
    {"threshold": "spot"},
    {"threshold": "1/week", "sample_period": 60.0},
)
TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    {"encoding": "int8", "participation": 0.5},
    {"encoding": "float64", "start": "common"},
    {"preset": "paper", "rounds": 6},
    {"start": "random", "sampling": "uniform", "rounds": 5},
    {"scaling": "global"},
)
RECORDED = ("objective", "lagrangian", "consensus_residual", "subspace_change", "refit_perturbation")
COUNTED = ("bytes_up", "bytes_down")

Found = dict[str, NDArray[Any]]


def main() -> None:
    """Run both trees and compare; exit status 1 if anything differs."""
    if sys.argv[1:2] == ["--record"]:
        record(Path(sys.argv[2]))
        return
    commit, here = (sys.argv[1:] or [BEFORE])[0], Path(__file__).resolve().parents[1]
    from measurements.measure import earlier_tree

    with tempfile.TemporaryDirectory() as folder, earlier_tree(commit) as tree:
        before, after = run(tree, Path(folder) / "before.npz"), run(here, Path(folder) / "after.npz")
    differing = [name for name in before if not same(before[name], after.get(name))]
    numbers = sum(array.size for array in before.values())
    print(f"{len(before)} arrays, {numbers} numbers, of {commit} and of this tree: {len(differing)} arrays differ.")
    for name in differing[:20]:
        print(f"  {name}")
    sys.exit(bool(differing))


def run(tree: Path, path: Path) -> Found:
    """What the code of a tree computes."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "--record", str(path)], env=environment, check=True)
    with np.load(path) as found:
        return dict(found)


def same(one: NDArray[Any], other: NDArray[Any] | None) -> bool:
    """Whether two arrays are equal to the bit; NaN equals NaN."""
    return other is not None and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def record(path: Path) -> None:
    """Compute everything with the package that is imported, by its public interface."""
    from fedkad import KoopmanDetector, federate
    from fedkad.simulate import simulate_fleet

    warnings.simplefilter("ignore")
    found: Found = {}
    fleet = simulate_fleet(4)
    train, test = fleet.train["pump-01"], fleet.test["pump-01"]
    for changes in ALONE:
        detector = KoopmanDetector(**of_then(changes)).fit(train)
        note(found, f"alone {changes}", detector, test)
        note(found, f"learned {changes}", detector.learn(test[:800], 0.9), test)
    few = KoopmanDetector(**of_then({})).fit(train[:400])
    note(found, "few rows", few, test)
    note(found, "few rows, learned", few.learn(train[400:1200]), test)
    for changes in TOGETHER:
        federation = federate(fleet.train, **of_then(changes))
        for name, detector in federation.detectors.items():
            note(found, f"federated {changes} {name}", detector, fleet.test[name])
        admitted = federation.admit("new", fleet.train["pump-03"][:500])
        note(found, f"admitted {changes}", admitted, fleet.test["pump-03"])
        for k, closed in enumerate(federation.history):
            values = [closed[name] for name in (*RECORDED, *COUNTED)]
            found[f"round {changes} {k}"] = np.array(values, dtype=np.float64)
            found[f"participants {changes} {k}"] = np.array(closed["participants"])
        found[f"delivery {changes}"] = np.array(federation.delivery_bytes)
    server = machine()
    if server is not None:
        note(found, "SMD machine-1-1", KoopmanDetector(**of_then({})).fit(server[0]), server[1])
    np.savez(path, allow_pickle=False, **found)


def of_then(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes, and the score that was the default then."""
    return changes if "preset" in changes else {"scoring": "calibrated", **changes}


def note(found: Found, name: str, detector: Any, test: NDArray[np.float64]) -> None:
    """Everything that a detector says about a series."""
    stream = detector.stream()
    readings = [stream.update(sample) for sample in test[:300]]
    found |= {
        f"{name}: scores": detector.decision_function(test),
        f"{name}: offline": detector.score_series(test),
        f"{name}: causes": detector.explain(test),
        f"{name}: subspace": detector.subspace_,
        f"{name}: operator": detector.operator_,
        f"{name}: streamed": np.array([reading.score for reading in readings]),
        f"{name}: expected": np.array([reading.expected for reading in readings]),
    }


def machine() -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Training rows and the first test rows of a server of SMD; None without the datasets."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDKAD_DATA", default)) / "SMD"
    files = [sorted((folder / part).glob("machine-1-1.*")) for part in ("train", "test")]
    if not all(files):
        print("SMD is missing: name the folder of the datasets in FEDKAD_DATA.", file=sys.stderr)
        return None
    train, test = (np.loadtxt(paths[0], delimiter=",") for paths in files)
    return train, test[:6000]


if __name__ == "__main__":
    main()
