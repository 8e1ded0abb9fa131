"""A server and devices of different releases, as real processes: what they understand of each other, they do together.

The earlier release is the last commit before its trainings were recorded, taken from the history of this repository.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad import KoopmanDetector
from measurements.loopback import ENVIRONMENT, Loopback, wait
from tests.fixtures.attackers import fleets

fleets.require(nginx=True)

pytestmark = pytest.mark.slow

EARLIER, SOURCES = "e309284", ("src", "fedkad-bench/src")  # the benchmark adds commands to the command line
NAMES = ("pump-a", "pump-b", "pump-c")
PATIENCE = 600.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the earlier release runs."""
    done = subprocess.run(
        ["git", "archive", EARLIER, *SOURCES], cwd=Path(__file__).parent.parent, capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("the history of the repository is not here")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {"PYTHONPATH": os.pathsep.join(str(folder / source) for source in SOURCES)}


class MixedFleet(Loopback):
    """A fleet whose server's commands run in a release of their own."""

    def __init__(self, root: Path, data: dict[str, Path], release: dict[str, str], *options: str) -> None:
        self.release = release
        super().__init__(root, data, *options)

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedkad", *arguments],
            env={**os.environ, **ENVIRONMENT, **self.release},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


def train_together(fleet: MixedFleet, after: str = "") -> dict[str, Any]:
    """A training in which all take part, and whose result all hold, to the bit; its status."""
    fleet.wait_online(seconds=PATIENCE)
    fleet.train()
    status = fleet.wait_done(PATIENCE, after=after)
    assert set().union(*status["participants"]) == set(NAMES)
    wait(lambda: set(fleet.status()["delivered"]) == set(NAMES), PATIENCE, "delivered to all")
    models = [KoopmanDetector.load(fleet.device_folder(name) / "model.safetensors") for name in NAMES]
    first, *others = (model.subspace_[:, : model.rank] for model in models)
    for other in others:
        np.testing.assert_array_equal(first, other)
    return status


def test_a_server_trains_with_devices_of_the_release_before(tmp_path: Path, earlier: dict[str, str]) -> None:
    tables = fleets.write_tables(tmp_path / "tables", NAMES)
    options = fleets.options(rounds=4, participation=1.0)
    with MixedFleet(tmp_path, tables, {}, *options) as fleet:
        fleet.start_server()
        fleet.start("pump-a")
        fleet.start("pump-b", "pump-c", environment=earlier)
        first = train_together(fleet)
        again = train_together(fleet, after=first["run"])
        assert again["gate"]["judges"] == 1, "devices of the release before do not judge"


def test_devices_train_with_a_server_of_the_release_before(tmp_path: Path, earlier: dict[str, str]) -> None:
    tables = fleets.write_tables(tmp_path / "tables", NAMES)
    options = fleets.options(rounds=4, participation=1.0)
    with MixedFleet(tmp_path, tables, earlier, *options) as fleet:
        fleet.start_server(earlier)
        fleet.start("pump-a", "pump-b")
        fleet.start("pump-c", environment=earlier)
        train_together(fleet)
