"""What the tests with real processes share: small tables, the results of a fleet, and the same in one process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import Federation, KoopmanDetector, federate
from fedkad.fleet import settings
from fedkad.fleet.flower import proxy
from fedkad.fleet.settings import FleetSettings
from tests.sabotage import sitecustomize as sabotage

Array = NDArray[np.float64]

CHANNELS = ("pressure", "flow", "current")
MODEL: dict[str, Any] = {"window": 8, "rank": 6, "observables": 32, "horizon": 1, "seed": 0}
ROWS = 1500
SABOTAGE = Path(sabotage.__file__).parent


def require(*, nginx: bool) -> None:
    """Skip if a fleet cannot run here."""
    pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")
    if nginx and shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{proxy.ELSEWHERE}") is None:
        pytest.skip("a server needs nginx", allow_module_level=True)


def series(k: int) -> Array:
    """The samples of one device."""
    t = np.arange(float(ROWS))[:, None]
    noise = np.random.default_rng(k).normal(size=(ROWS, len(CHANNELS)))
    found: Array = np.sin(t / np.array([[5.0 + k, 11.0, 17.0 + 2.0 * k]])) + 0.1 * noise
    return found


def write_tables(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """A table for each device."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.csv" for name in names}
    for k, path in enumerate(paths.values()):
        np.savetxt(path, series(k), delimiter=",", header=",".join(CHANNELS), comments="")
    return paths


def read_tables(paths: Mapping[str, Path]) -> dict[str, Array]:
    """The samples as they are in the tables."""
    return {name: np.loadtxt(path, delimiter=",", skiprows=1) for name, path in paths.items()}


def options(**training: Any) -> list[str]:
    """The options of `fedkad fleet init` for this model and these settings of the training."""
    given = {**MODEL, **training}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def change(folder: Path, **changes: Any) -> FleetSettings:
    """Change `[training]` and `[privacy]` of a server's folder."""
    known = settings.load(folder)
    privacy = {name: changes.pop(name) for name in ("secure_aggregation", "noise", "clip") if name in changes}
    known = replace(known, training=replace(known.training, **changes), privacy=replace(known.privacy, **privacy))
    settings.save(folder, known)
    return known


def replay(data: Mapping[str, Array], status: Mapping[str, Any], **how: Any) -> Federation:
    """Replay the accepted rounds of a training in this process."""
    return federate(data, schedule=status["participants"], **MODEL, **how)


def check_same(found: KoopmanDetector, expected: KoopmanDetector, tolerance: float = 1e-6) -> None:
    """Check that two detectors have the same subspace, operator and threshold."""
    np.testing.assert_allclose(found.subspace_, expected.subspace_, atol=tolerance, rtol=0.0)
    np.testing.assert_allclose(found.operator_, expected.operator_, atol=tolerance, rtol=0.0)
    np.testing.assert_allclose(found.threshold_, expected.threshold_, rtol=tolerance)


def hurried() -> dict[str, str]:
    """The environment in which Flower polls more often, and behaves as usual otherwise."""
    return {"PYTHONPATH": _first(SABOTAGE), sabotage.HURRY: "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}


def misbehaving(script: Path) -> dict[str, str]:
    """The environment of a device that does in each round what the script says, as JSON in a file."""
    return {**hurried(), "PYTHONPATH": _first(Path(__file__).parent), "FEDKAD_ATTACK": str(script)}


def _first(folder: Path) -> str:
    """The PYTHONPATH of this process with a folder in front."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def read_status(folder: Path) -> dict[str, Any]:
    """The status of the last training in a server's folder."""
    found: dict[str, Any] = json.loads((folder / "training" / "status.json").read_text())
    return found
