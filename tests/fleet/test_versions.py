"""A server and devices of different releases, as real processes: what they understand of each other, they do together.

Two earlier releases are taken from the history of this repository: one from before there were notices and a gate, the
last commit before its trainings were recorded, and one that has them.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad import __version__
from fedkad.detect.modelfile import read_model
from fedkad.federation.protocol import PROTOCOL, ProtocolError, check_protocol
from fedkad.fleet.server.settings import ServerFolder
from measurements.loopback import ENVIRONMENT, Loopback, wait
from tests.fixtures.attackers import fleets

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet.server.noticeboard import NoticeBoard

fleets.require(nginx=True)

pytestmark = pytest.mark.slow

EARLIER, WITH_NOTICES = "e309284", "2536f0a"
SOURCES = ("src", "fedkad-bench/src")  # the benchmark adds commands to the command line
NAMES, LATE = ("pump-a", "pump-b", "pump-c"), "pump-d"
PATIENCE = 600.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the release before notices."""
    return environment_of(EARLIER, tmp_path_factory.mktemp("earlier"))


@pytest.fixture(scope="module")
def with_notices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the release with notices, in a hurry."""
    return hurried(environment_of(WITH_NOTICES, tmp_path_factory.mktemp("notices")))


def environment_of(commit: str, folder: Path) -> dict[str, str]:
    """The environment in which an earlier release runs."""
    done = subprocess.run(
        ["git", "archive", commit, *SOURCES], cwd=Path(__file__).parents[2], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("the history of the repository is not here")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {"PYTHONPATH": os.pathsep.join(str(folder / source) for source in SOURCES)}


def hurried(release: Mapping[str, str]) -> dict[str, str]:
    """The environment of a release in which Flower's clocks are faster."""
    ours = fleets.hurried()
    path = [ours["PYTHONPATH"], *filter(None, [release.get("PYTHONPATH")])]
    return {**ours, "PYTHONPATH": os.pathsep.join(path)}


class MixedFleet(Loopback):
    """A fleet whose server's commands run in a release of their own."""

    def __init__(self, root: Path, data: dict[str, Path], release: Mapping[str, str], *options: str) -> None:
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
    check_equal(fleet, NAMES)
    return status


def check_equal(fleet: MixedFleet, names: Sequence[str]) -> None:
    """All have the same subspace, to the bit; the score of a model of 0.1 is one that this release does not have."""
    files = [read_model(fleet.device_folder(name) / "model.safetensors")[1] for name in names]
    first, *others = (arrays["subspace"][:, : fleets.MODEL["rank"]] for arrays in files)
    for other in others:
        np.testing.assert_array_equal(first, other)


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


@pytest.mark.parametrize("commit", [EARLIER, WITH_NOTICES])
def test_a_refusal_would_tell_the_two_sides_apart(commit: str, tmp_path: Path) -> None:
    path = environment_of(commit, tmp_path)["PYTHONPATH"].split(os.pathsep)[0]
    release = re.findall('__version__ = "(.*)"', (Path(path) / "fedkad" / "__init__.py").read_text())[0]
    with pytest.raises(ProtocolError, match=f"fedkad {__version__}.; upgrade the side that has fedkad {release}"):
        check_protocol({"protocol": PROTOCOL - 1, "version": release})
    assert release != __version__


def test_a_masked_fleet_that_is_called_outlives_the_upgrade_of_its_server(
    tmp_path: Path, with_notices: dict[str, str]
) -> None:
    """Each release reads the notices, models, masks and verdicts of the other one."""
    tables = fleets.write_tables(tmp_path / "tables", (*NAMES, LATE))
    late = {LATE: tables.pop(LATE)}
    options = [*fleets.options(rounds=1, participation=1.0, period="1s"), "--by-call", "--secure-aggregation"]
    with MixedFleet(tmp_path, tables, with_notices, *options) as fleet:
        start_called(fleet, with_notices)
        fleet.start("pump-a", environment=with_notices)
        fleet.start("pump-b", "pump-c", environment=hurried({}))
        first = train_called(fleet)
        server = fleet.running.pop("server")
        server.terminate()
        server.wait(PATIENCE)
        fleet.release = {}
        start_called(fleet, hurried({}))
        again = train_called(fleet, after=first["run"])
        assert again["gate"]["judges"] == len(NAMES), "their verdicts were masked, too"
        wait(lambda: calls_nobody(fleet), PATIENCE, "the call is over")
        fleet.data |= late
        fleet.add(LATE)
        fleet.start(LATE, environment=with_notices)
        wait(lambda: held(fleet, LATE) == again["run"], PATIENCE, "the latecomer has fetched the model")
        check_equal(fleet, (*NAMES, LATE))


def start_called(fleet: MixedFleet, release: Mapping[str, str]) -> None:
    """Start the server, and wait until devices reach it."""
    fleet.start_server(release)
    wait(lambda: is_listening(fleet.port), PATIENCE, "nginx listening")


def is_listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def calls_nobody(fleet: MixedFleet) -> bool:
    notice = NoticeBoard(ServerFolder(fleet.server_folder)).last()
    return notice is not None and notice.body.invitation is None


def train_called(fleet: MixedFleet, after: str = "") -> dict[str, Any]:
    """A training to which all are called, and whose result all hold; its status."""
    fleet.train()
    status = fleet.wait_done(PATIENCE, after=after)
    assert set().union(*status["participants"]) == set(NAMES)
    wait(lambda: all(held(fleet, name) == status["run"] for name in NAMES), PATIENCE, "all hold the result")
    check_equal(fleet, NAMES)
    return status


def held(fleet: MixedFleet, name: str) -> str:
    """The training whose result a device holds; empty if none."""
    path = fleet.device_folder(name) / "delivered.json"
    return str(json.loads(path.read_text())["run"]) if path.exists() else ""
