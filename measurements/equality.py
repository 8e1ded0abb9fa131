"""Whether this working tree computes what an earlier commit computed, to the bit.

    python -m measurements.equality [COMMIT]

Both trees run the same calculations in fresh processes on this machine, on one thread: detectors of every kind on
simulated pumps and on one server of SMD, alone, learning on, told what is normal, streamed with missing cells,
federated and admitted, with witnesses and with the paper's score. Every score, share, forecast, threshold, subspace,
operator, sentence and record of a round is compared. That a training over Flower equals the one in process to the bit
is what tests/fleet/test_engines.py shows.
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

BEFORE = "7a12727"
"""The last commit before the score of 0.1 left the product."""

SCORES: tuple[dict[str, Any], ...] = ({}, {"scoring": "paper"})
ALONE: tuple[dict[str, Any], ...] = (
    {},
    {"scoring": "paper"},
    {"horizon": 3},
    {"horizon": 3, "scoring": "paper"},
    {"private": 0, "inputs": (2,)},
    {"threshold": "quantile", "smoothing": 1},
    {"threshold": "1/week", "sample_period": 60.0},
)
TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    {"encoding": "int8", "participation": 0.5},
    {"encoding": "float64", "start": "common"},
    {"preset": "paper", "rounds": 6},
    {"start": "random", "sampling": "uniform", "rounds": 5},
    {"scaling": "global"},
    {"scoring": "paper"},
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
        detector = KoopmanDetector(**changes).fit(train)
        note(found, f"alone {changes}", detector, test)
        note(found, f"learned {changes}", detector.learn(test[:800], 0.9), test)
        if "paper" not in changes.values():
            note(found, f"confirmed {changes}", detector.learn(test[1500:1700], confirmed=True), test)
            note(found, f"learned after that {changes}", detector.learn(test[800:1400]), test)
    for changes in SCORES:
        few = KoopmanDetector(**changes).fit(train[:400])
        note(found, f"few rows {changes}", few, test)
        note(found, f"few rows, learned {changes}", few.learn(train[400:1200]), test)
    for changes in TOGETHER:
        federation = federate(fleet.train, **changes)
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
        for changes in SCORES:
            note(found, f"SMD machine-1-1 {changes}", KoopmanDetector(**changes).fit(server[0]), server[1])
    np.savez(path, allow_pickle=False, **found)


def note(found: Found, name: str, detector: Any, test: NDArray[np.float64]) -> None:
    """Everything that a detector says about a series, and about its beginning with holes in it."""
    holed = test[:600].copy()
    holed[100:103], holed[200:330, 0], holed[400, 1:], holed[450, 0] = np.nan, np.nan, np.nan, 1e3
    stream = detector.stream()
    readings = [stream.update(sample) for sample in holed]
    told = [f"{reading.kind}: {reading.sentence}" for reading in readings[::7]]
    events = detector.events(test)
    found |= {
        f"{name}: scores": detector.decision_function(test),
        f"{name}: scores with holes": detector.decision_function(holed),
        f"{name}: offline": detector.score_series(test),
        f"{name}: causes": detector.explain(test),
        f"{name}: forecast": detector.forecast(test),
        f"{name}: events": np.array(
            [f"{e.start} {e.end} {e.peak} {e.peak_score} {e.kind} {e.sentence}" for e in events]
        ),
        f"{name}: threshold": np.array([detector.threshold_]),
        f"{name}: expectation": np.array([detector.model_.expectation]),
        f"{name}: subspace": detector.subspace_,
        f"{name}: operator": detector.operator_,
        f"{name}: streamed": np.array([[r.score, r.threshold, r.outside, r.missing, r.is_anomaly] for r in readings]),
        f"{name}: expected": np.array([reading.expected for reading in readings]),
        f"{name}: shares": np.array([reading.shares for reading in readings[::7]]),
        f"{name}: outside": np.array([reading.outside_by_channel for reading in readings[::7]]),
        f"{name}: told": np.array(told),
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
