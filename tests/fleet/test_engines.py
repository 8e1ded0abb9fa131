"""One app, three engines: in one process, simulated by Flower, and as a fleet of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkad import KoopmanDetector
from fedkad.fleet.server import settings
from measurements.loopback import ENVIRONMENT, Loopback, command_line, free_port
from tests.checks.carriers import CHECKS, Trained
from tests.fixtures.attackers import fleets

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

APP = Path(settings.__file__).parents[1] / "app"
NAMES = ("pump-a", "pump-b", "pump-c")
ROUNDS, PARTICIPATION = 5, 0.5


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return fleets.write_tables(tmp_path_factory.mktemp("tables"), NAMES)


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[Path]:
    """A home of Flower; the SuperLink that `flwr run` starts there outlives it, and is ended."""
    home = tmp_path / "flower"
    yield home
    for process in _mentioning(str(home)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _mentioning(text: str) -> list[int]:
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [number for number in numbers if text in command_line(number) and number != os.getpid()]


def simulate(home: Path, server: Path, data: Path, devices: int) -> None:
    """Run the app with Flower's own simulation."""
    from fedkad.fleet import flower

    port, other = free_port(), free_port()
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port), "FLWR_LOCAL_CONTROL_API_PORT": str(other)}
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "flwr"), "run", str(APP), "local", "--stream"),
            *("--run-config", f'folder="{server}" data="{data}"'),
            *("--federation-config", f"num-supernodes={devices}"),
        ],
        env={**flower.environment(home), **ENVIRONMENT, **ports},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_flowers_simulation_gives_the_numbers_of_one_process(
    tmp_path: Path, flower_home: Path, tables: dict[str, Path]
) -> None:
    pytest.importorskip("ray", reason="Flower simulates with ray")
    server = tmp_path / "server"
    server.mkdir()
    model = settings.ModelSettings(fleets.CHANNELS, **{k: v for k, v in fleets.MODEL.items() if k != "channels"})
    training = settings.TrainingSettings(rounds=ROUNDS, participation=PARTICIPATION, min_devices=1)
    settings.save(server, settings.FleetSettings(model=model, training=training))
    simulate(flower_home, server, tables["pump-a"].parent, len(NAMES))
    status = fleets.read_status(server)
    assert status["state"] == "done"
    check_contract(tables, status, {name: server / "simulated" / name for name in NAMES}, PARTICIPATION)


def test_a_deployed_fleet_gives_the_numbers_of_one_process(tmp_path: Path, tables: dict[str, Path]) -> None:
    fleets.require(nginx=True)
    given = fleets.options(rounds=ROUNDS, participation=1.0)
    with Loopback(tmp_path, tables, *given) as fleet:
        fleet.start_server()
        fleet.start("pump-a", "pump-b")
        once = start_once(fleet, "pump-c", tables["pump-c"])
        try:
            fleet.wait_online("pump-a", "pump-b", "pump-c")
            fleet.train()
            status = fleet.wait_done()
            assert once.wait(300) == 0, "a client with --once must leave with 0 after the delivery"
        finally:
            fleet.running["pump-c"] = once
        assert status["robust"], "the default of a fleet over a network"
        check_contract(tables, status, {name: fleet.device_folder(name) for name in NAMES}, 1.0)
        assert "a new model was delivered" in (fleet.root / "once.log").read_text()


def start_once(fleet: Loopback, name: str, table: Path) -> subprocess.Popen[bytes]:
    """Start a client that leaves after a delivery."""
    with (fleet.root / "once.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fedkad", "client", str(fleet.device_folder(name)), "--data", str(table), "--once"],
            stdout=log,
            stderr=log,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )


def check_contract(
    tables: dict[str, Path], status: dict[str, Any], folders: dict[str, Path], participation: float
) -> None:
    """What holds of a training over any carrier: among others, to the bit the numbers of the same rounds in process."""
    trained = Trained(
        data=fleets.read_tables(tables),
        model=fleets.MODEL,
        participation=participation,
        encoding="float32",
        participants=status["participants"],
        phases=status["phases"],
        bytes_up=status["bytes_up"],
        detectors={name: KoopmanDetector.load(folder / "model.safetensors") for name, folder in folders.items()},
        delivered=status["delivered"],
        refusals=status["refusals"],
        robust=status["robust"],
    )
    for check in CHECKS:
        check(trained)
